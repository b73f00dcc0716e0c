// From the top-k entries of each row, which count from the start of the row's request, to slots of
// the compressed cache (ops.md B13.1, bit-exact).
//   slots[t, i] = block_table[b, topk[t, i] / page_size] * page_size + topk[t, i] % page_size
//   lens[t]     = number of i with topk[t, i] >= 0
#include <algorithm>

#include "templates/op.h"

namespace kiln::templates {

extern const Op topk_to_slots;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

Cost cost(const Sizes& s) {
  const double rows = static_cast<double>(s["T"]);
  const double columns = static_cast<double>(s["K"]);
  return Cost{.warm_read_bytes = rows * (4 * columns + 5),
              .write_bytes = rows * (4 * columns + 4),
              .integer_operations = rows * columns * 8};
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {
      {"threads_per_row", {32, 64, 128, 256}, "threads that share a row; whole warps"},
      {"rows_per_cta", {1, 2, 4, 8}, "rows that one CTA writes"},
      {"batch", {1, 2, 4}, "times 4 columns that a thread loads before it looks up the first"},
  };
  space.rules = {
      {"a CTA would have more than 512 threads",
       [](const Sizes&, const Config& c, const Gpu&) {
         return c["threads_per_row"] * c["rows_per_cta"] <= 512;
       }},
      {"threads of a row would have no column",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return c["threads_per_row"] == 32 || 4 * c["threads_per_row"] <= s["K"];
       }},
      {"a batch would be longer than a row",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return c["batch"] == 1 || 4 * c["threads_per_row"] * c["batch"] <= s["K"];
       }},
  };
  return space;
}

Config default_config(const Sizes& s) {
  const int64_t batch = s["K"] >= 512 ? 4 : s["K"] >= 256 ? 2 : 1;
  return {{"threads_per_row", 32}, {"rows_per_cta", 4}, {"batch", batch}};
}

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "topk_to_slots"};
  kernel.constants = {constant("top_k", s["K"]), constant("threads_per_row", c["threads_per_row"]),
                      constant("rows_per_cta", c["rows_per_cta"]), constant("batch", c["batch"])};
  kernel.grid_x = {.terms = {{.symbol = "T", .divisor = c["rows_per_cta"]}}};
  kernel.threads = static_cast<int>(c["threads_per_row"] * c["rows_per_cta"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = ""};
}

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  const double vectors =
      static_cast<double>(s["K"]) / 4 / static_cast<double>(c["threads_per_row"]);
  return ModelHints{
      .bytes_in_flight_per_thread = 16 * static_cast<double>(c["batch"]),
      .instructions_per_thread = 60 + vectors * 50,
      .dependent_loads = 2 * std::max(1.0, vectors / static_cast<double>(c["batch"]))};
}

}  // namespace

const Op topk_to_slots{
    .name = "topk_to_slots",
    .version = 1,
    .summary =
        "Turns the top-k entries of each row, which count from the start of the row's request, "
        "into slots of the compressed cache.",
    .doc =
        "For row t of request b = requests[t], where is_valid[t] is not 0 (NULL: everywhere):\n"
        "  v           = topk[t, i]\n"
        "  slots[t, i] = v < 0 ? -1 : block_table[b, v / page_size] * page_size + v % page_size\n"
        "  lens[t]     = number of i with topk[t, i] >= 0\n"
        "Other rows are padding: slots all -1, lens 0, and nothing is read through their request "
        "and their entries.\n"
        "Columns keep their place. A request outside 0 .. num_requests - 1, an entry beyond the "
        "table and a page outside 0 .. num_pages - 1 give -1; the column still counts in lens. "
        "The entries of top-k ops stand first, so lens is the length of their prefix.\n"
        "One call serves all layers that use the same top-k entries: slots and lens are the "
        "caller's memory, and sparse_mla_decode reads them as compressed_slots and "
        "compressed_lens.",
    .source = "ops.md B13.1, (f)8",
    .sizes =
        {
            fixed("K", "top_k", "entries of a top-k row", 1, 8192),
            stepped(dynamic("T", "num_rows", "rows, padding included", 0, kMaxInt32), "row"),
            stepped(dynamic("R", "num_requests", "requests", 0, kMaxInt32), "request"),
            dynamic("table_width", "table_width", "columns of block_table", 0, kMaxInt32),
            dynamic("page_size", "page_size", "entries of a page", 1, 65536),
            dynamic("num_pages", "num_pages", "pages of the cache", 0, kMaxInt32),
        },
    .args =
        {
            in("topk", DType::i32, "T K",
               "compressed entries of each row, request-local; negative: none"),
            in("requests", DType::i32, "T", "request of each row"),
            Arg{.name = "is_valid",
                .dtype = DType::u8,
                .kind = ArgKind::input,
                .dims = {"T"},
                .doc = "0 for a row of padding; NULL: no row is",
                .presence = Presence::optional,
                .align_bytes = 1},
            in("block_table", DType::i32, "R table_width",
               "page of the cache for each page of a request; only entries in use are read"),
            out("slots", DType::i32, "T K", "slots of the cache; -1: none"),
            out("lens", DType::i32, "T", "columns of slots that count"),
        },
    .requirements =
        {
            {.small = {.terms = {{"num_pages"}, {"page_size"}}},
             .big = {.offset = kMaxInt32, .scale = 0},
             .sentence = "num_pages * page_size is at most 2147483647, so that a slot fits an "
                         "int32"},
        },
    .buckets = {{"T", {1, 4, 16, 64, 256, 1024, 4096}}},
    .model_shapes =
        [](int) {
          return std::vector<Sizes>{{{"K", 512}}};
        },
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
