// The latent vector of every group of tokens that a step completes, and the ring of rows that later
// steps complete groups with (ops.md B9).
//   ratio 2: pooled = softmax over the two scores of a channel, applied to its two values
//   latent = RMSNorm(bf16(pooled))
#include <algorithm>

#include "templates/op.h"

namespace kiln::templates {

extern const Op compressor_update;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kChannels = 512;

// Stored in problems as names; the numbers are constants of the kernel.
enum Rounding : int64_t { kBf16 = 0, kNone = 1 };

int64_t row_floats(const Sizes& s) { return s["ratio"] * kChannels; }

Cost cost(const Sizes& s) {
  const double rows = static_cast<double>(s["T"]);
  const double latents = rows / static_cast<double>(s["ratio"]);
  return Cost{.warm_read_bytes = rows * (4 * static_cast<double>(row_floats(s)) + 8),
              .write_bytes = latents * 2 * kChannels,
              .integer_operations = latents * kChannels * 16};
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {
      {"threads_per_row", {32, 64}, "threads that share a row; whole warps"},
      {"rows_per_cta", {1, 2, 4, 8}, "rows that one CTA serves"},
      {"early_rows", {0, 1}, "1: a row is read before it is known whether it is needed"},
      {"takes_two_rows",
       {0, 1},
       "1: the threads of a row take two, each of which is then read once"},
  };
  space.rules = {
      {"rows that are groups by themselves have no second",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return c["takes_two_rows"] == 0 || s["ratio"] == 2;
       }},
  };
  return space;
}

Config default_config(const Sizes&) {
  return {{"threads_per_row", 64}, {"rows_per_cta", 2}, {"early_rows", 0}, {"takes_two_rows", 0}};
}

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "compressor_update"};
  kernel.constants = {constant("ratio", s["ratio"]),
                      {"rounds_pooled", "bool", s["rounding"] == kBf16 ? "true" : "false"},
                      constant("threads_per_row", c["threads_per_row"]),
                      constant("rows_per_cta", c["rows_per_cta"]),
                      {"early_rows", "bool", c["early_rows"] != 0 ? "true" : "false"},
                      {"takes_two_rows", "bool", c["takes_two_rows"] != 0 ? "true" : "false"}};
  kernel.grid_x = {
      .terms = {{.symbol = "T", .divisor = c["rows_per_cta"] * (1 + c["takes_two_rows"])}}};
  kernel.threads = static_cast<int>(c["threads_per_row"] * c["rows_per_cta"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = "pieces of 8, then halves"};
}

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  const double pieces = 64 / static_cast<double>(c["threads_per_row"]);
  const double ratio = static_cast<double>(s["ratio"]);
  const bool takes_two = c["takes_two_rows"] != 0;
  // Of one row in two where each is taken by itself.
  const double latent = 60 + pieces * (ratio == 2 ? 200 : 60);
  const double share = ratio == 2 && !takes_two ? 0.5 : 1.0;
  return ModelHints{
      .bytes_in_flight_per_thread = pieces * 32 * ratio * (takes_two ? 2 : 1),
      .instructions_per_thread = 120 + share * latent,
      .dependent_loads = (takes_two ? 1.0 : 2.0) + (c["early_rows"] != 0 ? 0.0 : 1.0)};
}

const ShapeCondition pairs{.symbol = "ratio", .values = {2}};

}  // namespace

const Op compressor_update{
    .name = "compressor_update",
    .version = 1,
    .summary =
        "Pools the tokens of each group that a step completes to one normalised latent vector and "
        "keeps what later steps need in a ring.",
    .doc =
        "projections holds, for each token, 512 values and with ratio 2 also 512 scores behind "
        "them: row_floats is 512 * ratio. Row t of request b = requests[t], at p = positions[t], "
        "completes a group when (p + 1) is a multiple of ratio; with ratio 2 the group is p - 1 "
        "and p:\n"
        "  m = max(score[p - 1], score[p]);  e[i] = exp(score[i] - m)       each channel by "
        "itself\n"
        "  pooled = (value[p - 1] * e[p - 1] + value[p] * e[p]) / (e[p - 1] + e[p])\n"
        "  latent[t] = RMSNorm(bf16(pooled)) = bf16((x * r) * norm_weight), x = bf16(pooled),\n"
        "              r = 1 / sqrt(sum(x^2) / 512 + 1e-20)\n"
        "With ratio 1 pooled is the value itself. With rounding \"none\" x = pooled. From x on "
        "every operation is that of rms_norm: the same bits, in the same order.\n"
        "Rows of latent whose token completes no group are left as they are. A row whose request "
        "is outside 0 .. num_requests - 1 or whose position is below 0 is padding and does "
        "nothing; it stands behind the rows of the last request, as query_start_loc spans tokens "
        "only (with ratio 2 padding among them would take the place of tokens in the ring).\n"
        "Ratio 2 only: token p - 1 is row t - 1, or, for the first row of a request, row (p - 1) % "
        "block_rows of the request's block of the ring. The last min(query_len, block_rows) tokens "
        "of each request are stored there in turn, behind all reads of the call: token p as row p "
        "% block_rows, values then scores. block_rows is at least the number of tokens that may be "
        "taken back plus 2; any number is legal. A request has no block when ring_blocks[b] is "
        "below 1 (block 0 is never used) or not below num_blocks, or when block_rows is 0: then "
        "nothing is stored, and a group whose first token would stand in the ring is not "
        "completed: its row of latent is left as it is, too. The caller gives such a row, which is "
        "the first of its request at an odd position, the slot -1 in compressed_kv_insert and "
        "index_key_insert, like the rows that complete no group: its entry is not emitted.\n"
        "Rows of a request are neighbours, in the order of their positions. No two requests share "
        "a block.",
    .source = "ops.md B9, B8, B3, (f)6, (f)12",
    .sizes =
        {
            fixed("ratio", "ratio", "tokens of a group", 1, 2),
            fixed("rounding", "rounding", "of pooled values before they are normalised",
                  {{"bf16", kBf16}, {"none", kNone}}),
            stepped(dynamic("T", "num_rows", "rows, padding included", 0, kMaxInt32), "row"),
            dynamic("R", "num_requests", "requests", 0, kMaxInt32 - 1),
            stepped(dynamic("num_blocks", "num_blocks", "blocks of the ring", 0, kMaxInt32),
                    "block"),
            stepped(dynamic("block_rows", "block_rows", "rows of a block", 0, 65536), "row"),
            derived("row_floats", "element", row_floats),
            derived("1024", "element", [](const Sizes&) { return 2 * kChannels; }),
            derived("512", "element", [](const Sizes&) { return kChannels; }),
            derived("boundaries", "boundary of requests",
                    [](const Sizes& s) { return s["R"] + 1; }),
        },
    .args =
        {
            vectors(in("projections", DType::f32, "T row_floats",
                       "of each token 512 values, then with ratio 2 512 scores"),
                    4),
            in("positions", DType::i32, "T", "position of each row"),
            in("requests", DType::i32, "T", "request of each row"),
            only_in(pairs, in("query_start_loc", DType::i32, "boundaries",
                              "first row of each request and, last, their end; may be a slice: the "
                              "first value is subtracted")),
            only_in(pairs, in("ring_blocks", DType::i32, "R", "block of each request")),
            vectors(in("norm_weight", DType::bf16, "512", "a factor for each channel"), 1),
            only_in(pairs, Arg{.name = "ring",
                               .dtype = DType::f32,
                               .kind = ArgKind::inout,
                               .dims = {"num_blocks", "block_rows", "1024"},
                               .doc = "rows that later steps complete groups with",
                               .align_bytes = 16,
                               .stride_multiple = 4}),
            to_within(vectors(out("latent", DType::bf16, "T 512",
                                  "latent vector of each row that completes a group"),
                              8),
                      1.0 / 1024),
        },
    .buckets = {{"T", {1, 4, 16, 64, 256, 1024, 4096}}},
    .invariance = Op::Invariance::always,
    .model_shapes =
        [](int) {
          return std::vector<Sizes>{{{"ratio", 2}, {"rounding", kBf16}},
                                    {{"ratio", 1}, {"rounding", kBf16}}};
        },
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
