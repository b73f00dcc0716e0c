// Rows of the Engram table, decoded or as they are (ops.md B19.3).
//   x[t, h] = table[rows[t, h] - first_row] * 2^(its scales - 127)
#include <limits>

#include "templates/op.h"

namespace kiln::templates {

extern const Op engram_fetch;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kGroup = 32;  // elements of a scale
constexpr int64_t kMostColumns = 1024;
constexpr int64_t kMostHeads = 192;
constexpr int64_t kMostRows = int64_t{1} << 23;  // pairs of rows and heads fit 31 bits, twice 32
constexpr int64_t kWarp = 32;

enum XFormat : int64_t { kBf16 = 0, kCodesQ8a = 1 };
enum Source : int64_t { kDevice = 0, kHost = 1 };

int64_t groups(const Sizes& s) { return s["K"] / kGroup; }
int64_t x_columns(const Sizes& s) { return s["H"] * s["K"]; }
int64_t x_groups(const Sizes& s) { return s["H"] * groups(s); }

void check_fixed(const Sizes& s) {
  if (s["K"] % kGroup != 0) {
    fail(Status::invalid_argument, "engram_fetch: \"columns\" must be a multiple of {}, but is {}",
         kGroup, s["K"]);
  }
}

std::vector<Sizes> model_shapes(int tensor_parallel) {
  const int64_t heads = 24 / tensor_parallel;
  std::vector<Sizes> shapes;
  for (const int64_t source : {kDevice, kHost}) {
    for (const int64_t format : {kBf16, kCodesQ8a})
      shapes.push_back({{"H", heads}, {"K", 256}, {"source", source}, {"x_format", format}});
  }
  return shapes;
}

// Of a call that names each row of a table in device memory once; of one on the host every fourth
// token repeats the rows of another.
Cost cost(const Sizes& s) {
  const double pairs = static_cast<double>(s["T"]) * static_cast<double>(s["H"]);
  const int64_t distinct_tokens = s["source"] == kHost ? s["T"] - s["T"] / 4 : s["T"];
  const double distinct = static_cast<double>(distinct_tokens) * static_cast<double>(s["H"]);
  const double row = static_cast<double>(s["K"] + groups(s));
  const double x_row = s["x_format"] == kBf16 ? 2 * static_cast<double>(s["K"]) : row;
  return Cost{.cold_read_bytes = s["source"] == kDevice ? distinct * row : 0,
              .bus_read_bytes = s["source"] == kHost ? distinct * row : 0,
              .warm_read_bytes = pairs * 4,
              .write_bytes = pairs * x_row,
              .integer_operations = pairs * row * 2};
}

// --- plans

int64_t piece(const Sizes& s) { return s["x_format"] == kBf16 ? 8 : 16; }  // codes of a load

int64_t steps(const Sizes& s, const Config& c) {
  return (c["pairs_per_warp"] * s["K"] / piece(s) + kWarp - 1) / kWarp;
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {
      {"threads", {32, 64, 128, 256, 512}, "threads of a CTA"},
      {"pairs_per_warp", {1, 2, 4, 8, 16, 32}, "neighbouring pairs of rows and heads of a warp"},
      {"loads", {1, 2, 4, 8, 16}, "pieces of the table that a thread loads at once"},
      {"scan", {0, 1}, "1: every warp looks through all pairs for those that name its row"},
  };
  space.rules = {
      {"nothing is gained by scanning for rows of device memory",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return c["scan"] == 0 || s["source"] == kHost;
       }},
      {"a warp that scans has one pair",
       [](const Sizes&, const Config& c, const Gpu&) {
         return c["scan"] == 0 || (c["pairs_per_warp"] == 1 && c["loads"] == 1);
       }},
      {"a thread has fewer pieces than it would load at once",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return c["loads"] == 1 || c["loads"] <= steps(s, c);
       }},
  };
  return space;
}

Config default_config(const Sizes& s) {
  Config config{{"threads", 128}, {"pairs_per_warp", 4}, {"scan", 0}};
  const int64_t all = steps(s, config);
  config.set("loads", all >= 4 ? 4 : all >= 2 ? 2 : 1);
  return config;
}

KernelLaunch kernel(const std::string& file, const std::string& entry, const Sizes& s,
                    const Config& c) {
  KernelLaunch kernel{.file = file, .entry = entry};
  kernel.constants = {
      constant("num_heads", s["H"]),       constant("columns", s["K"]),
      constant("x_format", s["x_format"]), constant("reads_once", s["source"] == kHost ? 1 : 0),
      constant("threads", c["threads"]),   constant("pairs_per_warp", c["pairs_per_warp"]),
      constant("loads", c["loads"])};
  kernel.grid_x = grid_over_rows("T", s["H"], c["threads"] / kWarp * c["pairs_per_warp"]);
  kernel.threads = static_cast<int>(c["threads"]);
  return kernel;
}

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  LaunchPlan plan{.kernels = {}, .reduction_signature = ""};
  if (s["source"] == kDevice) {
    plan.kernels.push_back(kernel("kernel.cu", "engram_fetch", s, c));
    return plan;
  }
  if (c["scan"] != 0) {
    plan.kernels.push_back(kernel("scan.cu", "engram_fetch_scan", s, c));
    return plan;
  }
  constexpr int64_t kClearThreads = 256;
  KernelLaunch clear{.file = "clear.cu", .entry = "engram_fetch_clear"};
  clear.constants = {constant("num_heads", s["H"]), constant("threads", kClearThreads)};
  clear.grid_x = grid_over_rows("T", s["H"], kClearThreads);
  clear.threads = kClearThreads;
  clear.instructions_per_thread = 20;
  plan.kernels.push_back(std::move(clear));
  plan.kernels.push_back(kernel("kernel.cu", "engram_fetch", s, c));
  plan.kernels.push_back(kernel("copy.cu", "engram_fetch_copy", s, c));
  constexpr int64_t kSlotBytes = 8, kSlots = 2, kOwnerBytes = 4;  // of a pair
  plan.workspace_bytes = {.scale = s["H"] * (kSlots * kSlotBytes + kOwnerBytes), .terms = {{"T"}}};
  return plan;
}

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  const double all = static_cast<double>(steps(s, c)), at_once = static_cast<double>(c["loads"]);
  const double of_step = s["x_format"] == kBf16 ? 60 : 30;
  const double looks =
      c["scan"] != 0 ? static_cast<double>(s["T"] * s["H"]) / static_cast<double>(kWarp) : 0;
  return ModelHints{.bytes_in_flight_per_thread = static_cast<double>(piece(s)) * at_once,
                    .instructions_per_thread = 60 + all * of_step + looks * 12,
                    .dependent_loads = 1 + all / at_once + looks / 8};
}

Arg bytes(Arg arg) {  // read or written one at a time
  arg.align_bytes = 1;
  return arg;
}

constexpr int64_t kVector = 16;  // codes
const ShapeCondition on_host{.symbol = "source", .values = {kHost}};

}  // namespace

const Op engram_fetch{
    .name = "engram_fetch",
    .version = 1,
    .summary = "Rows of the Engram table that the hashes name, decoded or as they are.",
    .doc =
        "For row t, head h and r = rows[t, h] - first_row:\n"
        "  x[t, h * columns + d] = bf16(table[r, d] * 2^(table_scales[r, d / 32] - 127))\n"
        "where 0 <= r < num_table_rows, else 0: padding (-1 of engram_hash) and rows of other "
        "ranks. A rank has some of the heads, whole, or the rows first_row .. first_row + "
        "num_table_rows - 1 of all; then the sum of x over the ranks has the values of the row, "
        "as all but one are 0 (-0 may become 0). Elements are rounded once (nearest even, "
        "subnormals kept, overflow to infinity); NaN "
        "codes and scales of 255 give NaN. \"codes_q8a\" writes the table's bytes instead, for "
        "linear_fp8 with that x_format; elsewhere codes and scales are 0, so that the sum of the "
        "bytes is the row.\n"
        "source says where table and table_scales lie. \"device\": a kernel reads each row as "
        "often as it is named. \"host\": pinned host memory, mapped into the device's addresses "
        "(cudaHostAlloc, cudaHostRegister); the pointers are those of the device "
        "(cudaHostGetDevicePointer); a row that several rows "
        "and heads name crosses the bus once and is copied on the device. The result is the same "
        "to the bit.",
    .source = "ops.md B19.3, (f)3",
    .sizes =
        {
            stepped(fixed("H", "num_heads",
                          "columns of rows that are fetched here: all 3 * num_heads of "
                          "engram_hash, or a rank's",
                          1, kMostHeads),
                    "head"),
            stepped(fixed("K", "columns", "elements of a row of the table; a multiple of 32",
                          kGroup, kMostColumns),
                    "element"),
            fixed("source", "source", "memory of the table",
                  {{"device", kDevice}, {"host", kHost}}),
            fixed("x_format", "x_format", "what is written",
                  {{"bf16", kBf16}, {"codes_q8a", kCodesQ8a}}),
            stepped(dynamic("T", "num_rows", "rows (tokens), padding included", 0, kMostRows),
                    "row"),
            stepped(dynamic("R", "num_table_rows", "rows of table", 0, kMaxInt32), "row of table"),
            dynamic("first_row", "first_row", "number of the first row of table", 0, kMaxInt32),
            derived("groups", "group of 32", groups),
            derived("x_columns", "element", x_columns),
            derived("x_groups", "group of 32", x_groups),
        },
    .args =
        {
            in("rows", DType::i32, "T H", "row for each head, as engram_hash gives them"),
            pinned_in(on_host, cold(vectors(in("table", DType::u8, "R K", "E4M3 codes"), kVector))),
            pinned_in(on_host, cold(bytes(in("table_scales", DType::u8, "R groups",
                                             "their UE8M0 scales, one for 32 columns")))),
            only_in({.symbol = "x_format", .values = {kBf16}},
                    vectors(out("x", DType::bf16, "T x_columns",
                                "rows of the table, side by side: num_heads * columns"),
                            8)),
            only_in({.symbol = "x_format", .values = {kCodesQ8a}},
                    vectors(out("x_codes", DType::u8, "T x_columns", "their codes"), kVector)),
            only_in({.symbol = "x_format", .values = {kCodesQ8a}},
                    bytes(out("x_scales", DType::u8, "T x_groups",
                              "their scales, one for 32 columns"))),
        },
    .buckets = {{"T", {1, 16, 256, 4096}}},
    .has_workspace = true,
    .model_shapes = model_shapes,
    .check_fixed = check_fixed,
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
