// What all layers of one ratio need to know of a chunk and of its compressed keys (ops.md B13,
// B13.3 2, bit-exact): lengths, packed bounds, the slot of each packed key, and of each row its
// request, position and visible keys.
#include <algorithm>

#include "templates/op.h"

namespace kiln::templates {

extern const Op ragged_keys;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
// Of one request: half a million keys at a time, or more. A max_keys that is far too large then
// costs idle CTAs, but no call.
constexpr int64_t kMostCtas = 2048;

Cost cost(const Sizes& s) {
  const double requests = static_cast<double>(s["R"]);
  const double keys = requests * static_cast<double>(s["M"]);
  const double rows = static_cast<double>(s.get("T", 0));
  return Cost{.warm_read_bytes = requests * 8 + keys * 4 / 64,
              .write_bytes = requests * 12 + keys * 4 + rows * 16,
              .integer_operations = keys * 6 + rows * 6};
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {
      {"threads", {128, 256, 512}, "threads of a CTA"},
      {"keys_per_thread", {2, 4, 8, 16}, "keys whose pages a thread loads at once"},
  };
  return space;
}

Config default_config(const Sizes&) { return {{"threads", 256}, {"keys_per_thread", 4}}; }

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "ragged_keys"};
  kernel.constants = {constant("ratio", s["ratio"]), constant("threads", c["threads"]),
                      constant("keys_per_thread", c["keys_per_thread"])};
  // One more than the requests need, for the rows of padding and the last boundary.
  kernel.grid_x = {
      .offset = 1,
      .terms = {{.symbol = "M", .divisor = c["threads"] * c["keys_per_thread"], .cap = kMostCtas},
                {.symbol = "R"}}};
  kernel.threads = static_cast<int>(c["threads"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = ""};
}

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  const double keys = static_cast<double>(c["keys_per_thread"]);
  const double rows = static_cast<double>(s.get("T", 0)) / static_cast<double>(s["R"] + 1) /
                      static_cast<double>(c["threads"]);
  return ModelHints{.bytes_in_flight_per_thread = 4 * keys,
                    .instructions_per_thread = 120 + 14 * keys + 20 * rows,
                    .dependent_loads = 2};
}

}  // namespace

const Op ragged_keys{
    .name = "ragged_keys",
    .version = 1,
    .summary =
        "Writes what all layers of one ratio need to know of a chunk: lengths, bounds and slots of "
        "its packed keys, and of each row its request, position and visible keys.",
    .doc =
        "Of request b, query_len = query_start_loc[b + 1] - query_start_loc[b], prefix_len = "
        "seq_lens[b] - query_len:\n"
        "  lens[b]        = seq_lens[b] / ratio, at least 0\n"
        "  gather_lens[b] = query_len + min(prefix_len, 127), at least 0\n"
        "  indptr[b]      = min(lens[0] + .. + lens[b - 1], capacity)   for b = 0 .. num_requests\n"
        "  indices[indptr[b] + j] = block_table[b, j / page_size] * page_size + j % page_size,\n"
        "                   for j < lens[b], as far as capacity reaches\n"
        "Of row t of request b:\n"
        "  requests[t]  = b\n"
        "  positions[t] = prefix_len + (t - first row of b)\n"
        "  key_begin[t] = indptr[b]\n"
        "  key_end[t]   = min(lens[0] + .. + lens[b - 1] + max(positions[t] + 1, 0) / ratio,\n"
        "                     capacity)\n"
        "Rows past the last request are padding: requests and positions -1, key_begin and key_end "
        "0. A column beyond block_table and a page outside 0 .. num_pages - 1 give the slot -1. "
        "The rest of indices is left as it is.\n"
        "All of it depends on lengths, table and ratio alone: one call serves all layers that "
        "share a table and a ratio, until the next chunk. lens and gather_lens are those of "
        "gather_dequant_kv and combine_topk_swa, requests and positions those of the ops that "
        "take rows. max_keys sets how many CTAs share a request; longer requests are right too.",
    .source = "ops.md B13, B13.0, B13.3 2, B15, (f)8",
    .sizes =
        {
            fixed("ratio", "ratio", "tokens per compressed entry of the layers", 1, 128),
            dynamic("T", "num_rows", "rows of the chunk, padding included", 0, kMaxInt32),
            stepped(dynamic("R", "num_requests", "requests of the chunk", 0, kMaxInt32 - 1),
                    "request"),
            dynamic("M", "max_keys", "keys of the longest request", 1, kMaxInt32),
            dynamic("N", "capacity", "keys that indices has room for", 0, kMaxInt32),
            dynamic("table_width", "table_width", "columns of block_table", 0, kMaxInt32),
            dynamic("page_size", "page_size", "entries of a page", 1, 65536),
            dynamic("num_pages", "num_pages", "pages of the cache", 0, kMaxInt32),
            derived("boundaries", "boundary of requests",
                    [](const Sizes& s) { return s["R"] + 1; }),
        },
    .args =
        {
            in("query_start_loc", DType::i32, "boundaries",
               "first row of each request and, last, their end; may be a slice: the first value is "
               "subtracted"),
            in("seq_lens", DType::i32, "R", "tokens of each request after this step"),
            in("block_table", DType::i32, "R table_width",
               "page of the cache for each page of a request; only entries in use are read"),
            out("lens", DType::i32, "R", "compressed entries of each request"),
            out("gather_lens", DType::i32, "R", "window rows that each request can see"),
            out("indptr", DType::i32, "boundaries",
                "first key of each request in indices and, last, the end of all"),
            optional(out("indices", DType::i32, "N", "slots of all keys, packed; NULL: none")),
            out("requests", DType::i32, "T", "request of each row; -1: padding"),
            out("positions", DType::i32, "T", "position of each row; -1: padding"),
            out("key_begin", DType::i32, "T", "first packed key that a row sees"),
            out("key_end", DType::i32, "T", "end of the packed keys that a row sees"),
        },
    .requirements =
        {
            {.small = {.terms = {{"num_pages"}, {"page_size"}}},
             .big = {.offset = kMaxInt32, .scale = 0},
             .sentence = "num_pages * page_size is at most 2147483647, so that a slot fits an "
                         "int32"},
        },
    .buckets = {{"R", {1, 4, 64}}, {"M", {256, 4096, 65536}}},
    .model_shapes =
        [](int) {
          return std::vector<Sizes>{{{"ratio", 2}}, {{"ratio", 1}}};
        },
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
