// Writes, for each query, one row of workspace indices: its top-k entries, then its window (ops.md
// B15.2, bit-exact).
//   idx[t, 0, lc)        workspace rows of t's top-k entries
//   idx[t, lc, lc + lw)  workspace rows of t's window
//   idx[t, lc + lw, W)   -1
#include <algorithm>

#include "templates/op.h"

namespace kiln::templates {

extern const Op combine_topk_swa;

namespace {

constexpr int64_t kWindow = 128;
constexpr int64_t kMaxIndex = std::numeric_limits<int32_t>::max();

Cost cost(const Sizes& s) {
  const double row_reads = 4.0 * static_cast<double>(s["K"]);
  const double row_writes = 4.0 * static_cast<double>(s["W"]) + 4.0;
  const double tokens = static_cast<double>(s["T"]);
  return Cost{.warm_read_bytes = tokens * row_reads,
              .write_bytes = tokens * row_writes,
              .integer_operations = tokens * static_cast<double>(s["W"]) * 6};
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {
      {"threads_per_row", {32, 64, 128}, "threads that share a row; whole warps"},
      {"rows_per_cta", {1, 2, 4, 8}, "rows that one CTA writes"},
      {"prefetch_topk", {0, 1}, "read the top-k row before its length is known"},
  };
  space.rules = {
      {"a CTA would have more than 512 threads",
       [](const Sizes&, const Config& c, const Gpu&) {
         return c["threads_per_row"] * c["rows_per_cta"] <= 512;
       }},
      {"there is no top-k row to prefetch",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return c["prefetch_topk"] == 0 || s["K"] >= 4;
       }},
      {"a thread would hold more than 8 vectors of the top-k row",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return c["prefetch_topk"] == 0 || s["K"] <= 8 * 4 * c["threads_per_row"];
       }},
  };
  return space;
}

Config default_config(const Sizes& s) {
  const bool prefetch = s["K"] >= 4 && s["K"] <= 8 * 4 * 32;
  return {{"threads_per_row", 32}, {"rows_per_cta", 4}, {"prefetch_topk", prefetch ? 1 : 0}};
}

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "combine_topk_swa"};
  kernel.constants = {constant("ratio", s["ratio"]),
                      constant("top_k", s["K"]),
                      constant("threads_per_row", c["threads_per_row"]),
                      constant("rows_per_cta", c["rows_per_cta"]),
                      {"prefetch_topk", "bool", c["prefetch_topk"] != 0 ? "true" : "false"}};
  kernel.grid_x = {.terms = {{.symbol = "T", .divisor = c["rows_per_cta"]}}};
  kernel.threads = static_cast<int>(c["threads_per_row"] * c["rows_per_cta"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = ""};
}

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  const double vectors =
      static_cast<double>(s["K"]) / 4 / static_cast<double>(c["threads_per_row"]);
  const double out_vectors =
      static_cast<double>(s["W"]) / 4 / static_cast<double>(c["threads_per_row"]);
  const bool prefetch = c["prefetch_topk"] != 0;
  return ModelHints{.bytes_in_flight_per_thread = prefetch ? 16 * std::max(vectors, 1.0) : 16,
                    .instructions_per_thread = 80 + out_vectors * 30,
                    .dependent_loads = prefetch ? 2.0 : 3.0};
}

}  // namespace

const Op combine_topk_swa{
    .name = "combine_topk_swa",
    .version = 1,
    .summary =
        "Writes, for each query of a prefill chunk, one row of workspace indices: its top-k "
        "entries, then its window.",
    .doc =
        "For token t of request b (rows past the last request are padding: idx all -1, len 0):\n"
        "  p  = seq_lens[b] - query_len[b] + (t - first row of b)   position of the token\n"
        "  g0 = seq_lens[b] - gather_lens[b]                        first gathered window "
        "position\n"
        "  lc = ratio == 0 ? 0 : min((p + 1) / ratio, top_k)\n"
        "  ws = max(p - 127, 0, g0);  lw = p - ws + 1\n"
        "  idx[t, c]           = b * rows_per_request + topk[t, c]   for c < lc when\n"
        "                        0 <= topk[t, c] < compressed_rows, else -1\n"
        "  idx[t, lc + i]      = b * rows_per_request + compressed_rows + (ws - g0) + i   for i < "
        "lw\n"
        "  idx[t, c >= lc+lw]  = -1\n"
        "  len[t] = lc + lw\n"
        "lc and lw are never below 0, whatever the lengths hold. An invalid top-k value keeps its "
        "column and counts in len.",
    .source = "ops.md B15.2",
    .sizes =
        {
            fixed("ratio", "ratio",
                  "tokens per compressed entry of the layer; 0: the layer has no compressed list",
                  0, 128),
            fixed("K", "top_k", "entries of a top-k row", 0, 8192),
            stepped(dynamic("T", "num_tokens", "rows of the chunk, padding included", 0, kMaxIndex),
                    "row of the chunk"),
            dynamic("R", "num_requests", "requests of the chunk", 0, kMaxIndex - 1),
            dynamic("W", "idx_width", "columns of idx that are written", 0, kMaxIndex),
            dynamic("M", "rows_per_request", "workspace rows of one request", 0, kMaxIndex),
            dynamic("N", "compressed_rows", "workspace rows of one request before its window part",
                    0, kMaxIndex),
            derived("boundaries", "boundary of requests",
                    [](const Sizes& s) { return s["R"] + 1; }),
        },
    .args =
        {
            in("topk", DType::i32, "T K",
               "compressed entries of each row, request-local, the valid ones first"),
            in("query_start_loc", DType::i32, "boundaries",
               "first row of each request and, last, their end; may be a slice: the first value is "
               "subtracted"),
            in("seq_lens", DType::i32, "R", "tokens of each request after this step"),
            in("gather_lens", DType::i32, "R", "window rows of each request in the workspace"),
            out("idx", DType::i32, "T W", "workspace rows"),
            out("len", DType::i32, "T", "columns of idx that count"),
        },
    .requirements =
        {
            {.small = {.offset = kWindow, .terms = {{"K"}}},
             .big = {.terms = {{"W"}}},
             .sentence = "idx_width is at least top_k + 128"},
            {.small = {.terms = {{"R"}, {"M"}}},
             .big = {.offset = kMaxIndex, .scale = 0},
             .sentence = "num_requests * rows_per_request is at most 2147483647, so that a "
                         "workspace row fits an int32"},
            {.small = {.terms = {{"N"}}},
             .big = {.terms = {{"M"}}},
             .sentence = "compressed_rows is at most rows_per_request"},
        },
    .buckets = {{"T", {1, 4, 16, 64, 256, 1024, 4096}}},
    .model_shapes =
        [](int) {
          return std::vector<Sizes>{
              {{"ratio", 0}, {"K", 0}}, {{"ratio", 1}, {"K", 512}}, {{"ratio", 2}, {"K", 512}}};
        },
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
