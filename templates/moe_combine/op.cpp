// Adds the outputs of a token's experts and of the shared one (ops.md B18.3).
//   y[t] = bf16((sum over i, by ascending expert, of pairs[t, i]) + shared[t])
#include <algorithm>
#include <limits>

#include "templates/op.h"

namespace kiln::templates {

extern const Op moe_combine;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kPiece = 8;  // elements of one load
constexpr int64_t kMostColumns = 16384;
constexpr int64_t kMostTopK = 32;

void check_fixed(const Sizes& s) {
  if (s["K"] % kPiece != 0) {
    fail(Status::invalid_argument, "moe_combine: \"columns\" must be a multiple of {}, but is {}",
         kPiece, s["K"]);
  }
}

// The target's 384 experts, of which 6 count, and the draft's 128, of which 3 count.
std::vector<Sizes> model_shapes(int) {
  return {{{"K", 5120}, {"top_k", 6}}, {{"K", 5120}, {"top_k", 3}}};
}

Cost cost(const Sizes& s) {
  const double rows = static_cast<double>(s["T"]), bytes = 2 * static_cast<double>(s["K"]);
  const double top_k = static_cast<double>(s["top_k"]);
  return Cost{.warm_read_bytes = rows * (bytes * (top_k + 1) + 4 * top_k),
              .write_bytes = rows * bytes,
              .integer_operations = rows * bytes * (top_k + 2)};
}

int64_t row_parts(const Sizes& s, const Config& c) {
  const int64_t part = c["threads"] * c["pieces_per_thread"];
  return (s["K"] / kPiece + part - 1) / part;
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {
      {"threads", {32, 64, 128, 256, 512}, "threads of a CTA, which has a row or a part of one"},
      {"pieces_per_thread", {1, 2, 3, 5}, "pieces of 8 columns that a thread adds at once"},
  };
  space.rules = {
      {"the last piece of every thread would lie beyond the row",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return c["pieces_per_thread"] == 1 ||
                c["threads"] * (c["pieces_per_thread"] - 1) < s["K"] / kPiece;
       }},
  };
  return space;
}

Config default_config(const Sizes&) { return {{"threads", 128}, {"pieces_per_thread", 1}}; }

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "moe_combine"};
  kernel.constants = {constant("columns", s["K"]), constant("top_k", s["top_k"]),
                      constant("threads", c["threads"]),
                      constant("pieces_per_thread", c["pieces_per_thread"])};
  kernel.grid_x = grid_over_rows("T", row_parts(s, c), 1);
  kernel.threads = static_cast<int>(c["threads"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = "by ascending expert"};
}

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  const double pieces = static_cast<double>(c["pieces_per_thread"]);
  const double top_k = static_cast<double>(s["top_k"]);
  return ModelHints{.bytes_in_flight_per_thread = 32 * pieces,
                    .instructions_per_thread = 60 + 10 * top_k + pieces * 20 * (top_k + 2),
                    .dependent_loads = 3};
}

}  // namespace

const Op moe_combine{
    .name = "moe_combine",
    .version = 1,
    .summary = "Adds the outputs of a token's experts and of the shared one in a fixed order.",
    .doc =
        "For row t and column d, in fp32 from 0 on, every sum rounded:\n"
        "  the pairs[t, i, d] of which ids[t, i] >= 0, by ascending ids[t, i], of equal ids by "
        "ascending i\n"
        "  then shared[t, d], where shared is not NULL\n"
        "  y[t, d] = bf16 of the sum\n"
        "A negative id contributes nothing, whatever its row of pairs holds. Routing weights are "
        "in "
        "the pairs already. The order does not depend on where the router put an expert, nor on "
        "the "
        "kernel. With experts split over ranks the ids of other ranks are -1, and shared is added "
        "by one of them.",
    .source = "ops.md B18.3, (f)11",
    .sizes =
        {
            stepped(
                fixed("K", "columns", "columns of a row; a multiple of 8", kPiece, kMostColumns),
                "column"),
            stepped(fixed("top_k", "top_k", "experts of a token", 1, kMostTopK), "pair"),
            stepped(dynamic("T", "num_rows", "rows (tokens), padding included", 0, kMaxInt32),
                    "row"),
        },
    .args =
        {
            vectors(in("pairs", DType::bf16, "T top_k K", "output of each token's experts"),
                    kPiece),
            in("ids", DType::i32, "T top_k", "expert of each pair; negative: none"),
            optional(
                vectors(in("shared", DType::bf16, "T K", "output of the shared expert"), kPiece)),
            vectors(out("y", DType::bf16, "T K", "the sums"), kPiece),
        },
    .buckets = {{"T", {1, 16, 256, 4096}}},
    .invariance = Op::Invariance::always,
    .model_shapes = model_shapes,
    .check_fixed = check_fixed,
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
