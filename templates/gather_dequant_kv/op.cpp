// Copies the last entries of each request from its paged KV cache into a dense bf16 workspace
// (ops.md B15.1, bit-exact).
//   out[b, offset + i, 0..511] = dequantised entry lens[b] - g + i of request b,   i < g =
//   gather_lens ? gather_lens[b] : lens[b]
#include <algorithm>

#include "templates/op.h"

namespace kiln::templates {

extern const Op gather_dequant_kv;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// Stored in problems as names; the numbers are constants of the kernel (layout.cuh).
enum Format : int64_t { kF1 = 1, kF2 = 2, kF3 = 3, kF4 = 4 };

int64_t entry_bytes(int64_t format) {
  switch (format) {
    case kF1:
      return 512 + 16;
    case kF2:
      return 256 + 32;
    case kF3:
      return 576 + 8;
    case kF4:
      return 1024;
  }
  fail(Status::internal, "gather_dequant_kv: unknown format {}", format);
}

Cost cost(const Sizes& s) {
  const double rows = static_cast<double>(s["R"]) * static_cast<double>(s["M"]);
  return Cost{.cold_read_bytes = rows * static_cast<double>(entry_bytes(s["format"])),
              .warm_read_bytes =
                  4.0 * rows / static_cast<double>(std::max<int64_t>(s.get("page_size", 64), 1)),
              .write_bytes = rows * 1024,
              .integer_operations = rows * 512 * 6};
}

constexpr int64_t kNoCap = int64_t{1} << 24;

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {
      {"threads", {128, 256, 512}, "threads of a CTA"},
      {"rows_per_warp",
       {1, 2, 4, 8},
       "neighbouring rows that a warp loads before it stores the first"},
      {"max_ctas_per_request",
       {1024, kNoCap},
       "beyond it a CTA takes several tiles of its request"},
  };
  space.rules = {
      {"more than 32 rows per CTA leave short requests on few SMs",
       [](const Sizes&, const Config& c, const Gpu&) {
         return c["threads"] / 32 * c["rows_per_warp"] <= 32;
       }},
  };
  return space;
}

// One row per warp where a row takes the most loads (F3), else two: enough bytes in flight without
// leaving SMs idle at small sizes.
Config default_config(const Sizes& s) {
  return {{"threads", 128},
          {"rows_per_warp", s["format"] == kF3 ? 1 : 2},
          {"max_ctas_per_request", kNoCap}};
}

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "gather_dequant_kv"};
  kernel.constants = {
      {"format", "int", std::to_string(s["format"])},
      {"threads", "int", std::to_string(c["threads"])},
      {"rows_per_warp", "int", std::to_string(c["rows_per_warp"])},
  };
  const int64_t rows_per_cta = c["threads"] / 32 * c["rows_per_warp"];
  kernel.grid_x = {
      .terms = {{.symbol = "M", .divisor = rows_per_cta, .cap = c["max_ctas_per_request"]},
                {.symbol = "R"}}};
  kernel.threads = static_cast<int>(c["threads"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = ""};
}

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  const double rows_per_warp = static_cast<double>(c["rows_per_warp"]);
  const double tiles = std::max(
      1.0, static_cast<double>(s["M"]) / (static_cast<double>(c["threads"]) / 32 * rows_per_warp *
                                          static_cast<double>(c["max_ctas_per_request"])));
  return ModelHints{
      .bytes_in_flight_per_thread =
          rows_per_warp * static_cast<double>(entry_bytes(s["format"])) / 32,
      .instructions_per_thread = tiles * (60 + rows_per_warp * (s["format"] == kF4 ? 30 : 90)),
      .dependent_loads = 3,
  };
}

}  // namespace

const Op gather_dequant_kv{
    .name = "gather_dequant_kv",
    .version = 1,
    .summary =
        "Copies the last entries of each request from its paged KV cache into a dense bf16 "
        "workspace.",
    .doc =
        "For request b:\n"
        "  g = gather_lens ? gather_lens[b] : lens[b];  s = lens[b] - g\n"
        "  for i < min(g, max_rows):  x = s + i\n"
        "  out[b, offset + i, 0..511] = entry x % page_size of page block_table[b, x / page_size]\n"
        "The entry is dequantised: every element is the exact product of code and scale, rounded "
        "once to bf16 (nearest even, subnormals kept, overflow to infinity); NaN codes and NaN "
        "scales give NaN. Other elements of out are left as they are. A row whose entry does not "
        "exist (x < 0, a column beyond the table, a page outside the cache) becomes zeros; nothing "
        "outside the cache is read.\n"
        "Pages hold first the codes of all entries, then their scales (ops.md B8):\n"
        "  f1: 512 E4M3 codes, 16 UE8M0 scales (one per 32 elements)             528 bytes an "
        "entry\n"
        "  f2: 512 E2M1 codes (even element in bits 0..3), 32 E4M3 scales (one per 16)   288 "
        "bytes\n"
        "  f3: 448 E4M3 codes then 64 bf16, 8 UE8M0 scales (one per 64, the last unused) 584 "
        "bytes\n"
        "  f4: 512 bf16                                                         1024 bytes",
    .source = "ops.md B15.1, B8, (f)3",
    .sizes =
        {
            fixed("format", "format", "layout of the cache",
                  {{"f1", kF1}, {"f2", kF2}, {"f3", kF3}, {"f4", kF4}}),
            stepped(dynamic("R", "num_requests", "requests", 0, kMaxInt32), "request"),
            dynamic("M", "max_rows", "capacity in rows: no request gathers more", 0, kMaxInt32),
            dynamic("offset", "offset", "first row of out that is written", 0, kMaxInt32),
            dynamic("page_size", "page_size", "entries of a page", 1, 65536),
            stepped(dynamic("num_pages", "num_pages", "pages of the cache", 0, kMaxInt32),
                    "page of the cache"),
            dynamic("table_width", "table_width", "columns of block_table", 0, kMaxInt32),
            derived("page_bytes", "byte of a page",
                    [](const Sizes& s) { return s["page_size"] * entry_bytes(s["format"]); }),
            derived("out_rows", "row", [](const Sizes& s) { return s["offset"] + s["M"]; }),
            derived("512", "element", [](const Sizes&) { return int64_t{512}; }),
        },
    .args =
        {
            Arg{.name = "cache",
                .dtype = DType::u8,
                .kind = ArgKind::input,
                .dims = {"num_pages", "page_bytes"},
                .doc = "pages of entries",
                .memory = Memory::cold,
                .align_bytes = 8,
                .stride_multiple = 8},
            in("lens", DType::i32, "R", "entries of each request"),
            Arg{.name = "gather_lens",
                .dtype = DType::i32,
                .kind = ArgKind::input,
                .dims = {"R"},
                .doc =
                    "entries of each request that are wanted, counted from its end; NULL means all",
                .presence = Presence::optional},
            in("block_table", DType::i32, "R table_width",
               "page of the cache for each page of a request; only entries in use are read"),
            Arg{.name = "out",
                .dtype = DType::bf16,
                .kind = ArgKind::output,
                .dims = {"R", "out_rows", "512"},
                .doc = "workspace",
                .align_bytes = 16,
                .stride_multiple = 8},
        },
    .buckets = {{"R", {1, 4}}, {"M", {256, 2048, 16384, 131072}}},
    .model_shapes =
        [](int) {
          return std::vector<Sizes>{
              {{"format", kF1}}, {{"format", kF2}}, {{"format", kF3}}, {{"format", kF4}}};
        },
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
