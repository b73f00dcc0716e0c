// Quantises rows of bf16 by groups to codes and scales, or to the bf16 numbers that these stand for
// (ops.md B4, bit-exact).
//   scale = rounded(largest magnitude of the group / largest code)
//   code  = nearest(x / scale),  ties to the even code
#include <algorithm>
#include <limits>

#include "templates/op.h"

namespace kiln::templates {

extern const Op act_quant;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// Stored in problems as names; the numbers are constants of the kernel.
enum Format : int64_t { kQ8a = 0, kQ8c = 1, kQ8d = 2, kQ4m = 3, kQ4n = 4 };
enum Output : int64_t { kCodes = 0, kBf16 = 1 };

struct FormatRow {
  Format format;
  const char* name;
  int64_t group;      // elements that share a scale
  int64_t code_bits;  // of one element
};
constexpr FormatRow kFormats[] = {
    {kQ8a, "q8a", 32, 8}, {kQ8c, "q8c", 32, 8}, {kQ8d, "q8d", 64, 8},
    {kQ4m, "q4m", 32, 4}, {kQ4n, "q4n", 16, 4},
};

const FormatRow& format_row(const Sizes& s) {
  const int64_t format = s["format"];
  const auto row = std::find_if(std::begin(kFormats), std::end(kFormats),
                                [&](const FormatRow& each) { return each.format == format; });
  if (row == std::end(kFormats)) fail(Status::internal, "act_quant: unknown format {}", format);
  return *row;
}

int64_t code_bytes(const Sizes& s) { return s["K"] * format_row(s).code_bits / 8; }
int64_t groups(const Sizes& s) { return s["K"] / format_row(s).group; }

void check_fixed(const Sizes& s) {
  const FormatRow& row = format_row(s);
  if (s["K"] % row.group != 0) {
    fail(Status::invalid_argument,
         "act_quant: \"columns\" must be a multiple of {}, the group of {}, but is {}", row.group,
         row.name, s["K"]);
  }
}

// What the layers of the model quantise. K-sharded inputs (of wo_b and of the experts' w2) are
// narrower on each rank.
std::vector<Sizes> model_shapes(int tensor_parallel) {
  std::vector<Sizes> shapes;
  for (const int64_t columns :
       {5120, 1280, 8192 / tensor_parallel, 2304 / tensor_parallel, 6144, 15360})
    shapes.push_back({{"format", kQ8a}, {"K", columns}, {"output", kCodes}});
  // Caches and index: stored as codes, or as bf16 where a stack keeps bf16 pages.
  for (const Output output : {kCodes, kBf16}) {
    shapes.push_back({{"format", kQ8d}, {"K", 448}, {"output", output}});  // V4-style window
    shapes.push_back({{"format", kQ4m}, {"K", 128}, {"output", output}});  // index q and k
    shapes.push_back({{"format", kQ4n}, {"K", 512}, {"output", output}});  // compressed kv
  }
  shapes.push_back({{"format", kQ8a}, {"K", 512}, {"output", kBf16}});   // window kv
  shapes.push_back({{"format", kQ8a}, {"K", 5120}, {"output", kBf16}});  // x of a bf16 linear
  return shapes;
}

Cost cost(const Sizes& s) {
  const double rows = static_cast<double>(s["T"]);
  const double columns = static_cast<double>(s["K"]);
  const double written =
      s["output"] == kCodes ? static_cast<double>(code_bytes(s) + groups(s)) : 2 * columns;
  return Cost{.warm_read_bytes = rows * columns * 2,
              .write_bytes = rows * written,
              .integer_operations = rows * columns * 3};
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {
      {"threads", {64, 128, 256, 512}, "threads of a CTA"},
      {"pieces", {1, 2, 4}, "times 8 elements that a thread loads before it works on the first"},
  };
  space.rules = {
      {"a CTA of more than 8192 elements leaves SMs idle at a few rows",
       [](const Sizes&, const Config& c, const Gpu&) {
         return 8 * c["threads"] * c["pieces"] <= 8192;
       }},
  };
  return space;
}

Config default_config(const Sizes&) { return {{"threads", 128}, {"pieces", 2}}; }

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "act_quant"};
  kernel.constants = {constant("columns", s["K"]), constant("format", s["format"]),
                      constant("output", s["output"]), constant("threads", c["threads"]),
                      constant("pieces", c["pieces"])};
  kernel.grid_x = grid_over_rows("T", s["K"] / 8, c["threads"] * c["pieces"]);
  kernel.threads = static_cast<int>(c["threads"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = ""};
}

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  const double pieces = static_cast<double>(c["pieces"]);
  const double of_piece = s["format"] == kQ4n ? 400 : 125;
  return ModelHints{.bytes_in_flight_per_thread = 16 * pieces,
                    .instructions_per_thread = 40 + pieces * of_piece,
                    .dependent_loads = 1};
}

std::vector<SizeName> format_names() {
  std::vector<SizeName> names;
  for (const FormatRow& row : kFormats) names.push_back({row.name, row.format});
  return names;
}

Arg only_with(Output output, Arg arg, int64_t align_bytes, int64_t stride_multiple) {
  arg = only_in({.symbol = "output", .values = {output}}, std::move(arg));
  arg.align_bytes = align_bytes;
  arg.stride_multiple = stride_multiple;
  return arg;
}

}  // namespace

const Op act_quant{
    .name = "act_quant",
    .version = 1,
    .summary =
        "Quantises rows of bf16 by groups to FP8 or FP4 codes and scales, or to the bf16 numbers "
        "that these stand for.",
    .doc =
        "For each group of neighbouring columns, m its largest magnitude:\n"
        "  q8a: 32 columns  s = power of two at or above max(m, 1e-4) / 448       E4M3, UE8M0\n"
        "  q8c: 32 columns  s = power of two at or above m / 448, at least 2^-126 E4M3, UE8M0\n"
        "  q8d: 64 columns  as q8a                                                E4M3, UE8M0\n"
        "  q4m: 32 columns  s = power of two at or above max(m, 6 * 2^-126) / 6   E2M1, UE8M0\n"
        "  q4n: 16 columns  s = E4M3 nearest to max(m, 6 * 2^-9) / 6, at most 448 E2M1, E4M3\n"
        "  code = nearest to clamp(x / s), ties to the even code\n"
        "  y    = code * s, rounded once to bf16 (nearest even, subnormals kept)\n"
        "The largest code is 448 (E4M3) or 6 (E2M1); x / s is an exact IEEE quotient. A byte of "
        "E2M1 codes holds the even column in bits 0..3. The sign of a zero is kept, but a group of "
        "zeros becomes scale byte 0 and codes 0 in q8c (y +0).\n"
        "A group that holds a NaN or an infinity: scale byte 255 (UE8M0) or 0x7f (E4M3), E4M3 "
        "codes 0x7f, E2M1 codes 0, y NaN.\n"
        "code_bytes is columns (E4M3) or columns / 2 (E2M1); groups is columns / the group, of "
        "which columns is a multiple. Each group stands for itself: neither the other rows nor "
        "their number change a bit of it.",
    .source = "ops.md B4, (e), (f)3, (f)4",
    .sizes =
        {
            fixed("format", "format", "of codes and scales", format_names()),
            stepped(fixed("K", "columns", "elements of a row; a multiple of the group", 16,
                          int64_t{1} << 20),
                    "column"),
            fixed("output", "output", "what is written", {{"codes", kCodes}, {"bf16", kBf16}}),
            stepped(dynamic("T", "num_rows", "rows", 0, kMaxInt32), "row"),
            derived("code_bytes", "byte of codes", code_bytes),
            derived("groups", "group", groups),
        },
    .args =
        {
            vectors(in("x", DType::bf16, "T K", "what is quantised"), 8),
            only_with(kCodes,
                      out("codes", DType::u8, "T code_bytes",
                          "E4M3, one to a byte, or E2M1, two to a byte"),
                      8, 8),
            only_with(kCodes, out("scales", DType::u8, "T groups", "UE8M0 or E4M3"), 1, 1),
            only_with(kBf16, out("y", DType::bf16, "T K", "what the codes and scales stand for"),
                      16, 8),
        },
    .buckets = {{"T", {1, 16, 256, 4096}}},
    .model_shapes = model_shapes,
    .check_fixed = check_fixed,
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
