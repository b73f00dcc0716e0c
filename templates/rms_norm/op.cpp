// Divides rows of bf16 by their root mean square and multiplies them by a weight (ops.md B3).
//   y = bf16((x * 1 / sqrt(mean(x^2) + 1e-20)) * weight)
#include <algorithm>

#include "templates/op.h"
#include "templates/op_norm.h"

namespace kiln::templates {

extern const Op rms_norm;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMostColumns = 16384;
constexpr int64_t kMostPieces = 8;
constexpr int64_t kWarp = 32;
constexpr int64_t kBarriers = 16;  // of a CTA

void check_fixed(const Sizes& s) {
  if (s["K"] % kNormPiece != 0) {
    fail(Status::invalid_argument, "rms_norm: \"columns\" must be a multiple of {}, but is {}",
         kNormPiece, s["K"]);
  }
}

// The hidden state, q_lora_rank, the head (kv and the compressor) and the indexer's key.
std::vector<Sizes> model_shapes(int) {
  return {{{"K", 5120}}, {{"K", 1280}}, {{"K", 512}}, {{"K", 128}}};
}

Cost cost(const Sizes& s) {
  const double bytes = 2.0 * static_cast<double>(s["T"]) * static_cast<double>(s["K"]);
  return Cost{.warm_read_bytes = bytes + 2.0 * static_cast<double>(s["K"]),
              .write_bytes = bytes,
              .integer_operations = 3 * bytes};
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {
      {"threads_per_row", {4, 8, 16, 32, 64, 128, 256, 512}, "threads that share a row"},
      {"rows_per_cta", {1, 2, 4, 8, 16, 32}, "rows that one CTA takes"},
      {"rows_in_turn", {1, 2, 4}, "rows that a thread takes one after another"},
      {"early_weights",
       {0, 1},
       "1: read the weights together with the row; 0: each piece before its product"},
  };
  space.rules = {
      {"a CTA would have more than 512 threads",
       [](const Sizes&, const Config& c, const Gpu&) {
         return c["threads_per_row"] * c["rows_per_cta"] <= 512;
       }},
      {"a CTA would have less than a warp",
       [](const Sizes&, const Config& c, const Gpu&) {
         return c["threads_per_row"] * c["rows_per_cta"] >= kWarp;
       }},
      {"a thread would hold more than 8 pieces of a row",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return norm_pieces_per_thread(s["K"], c["threads_per_row"]) <= kMostPieces;
       }},
      {"half of the threads of a row would have nothing",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return c["threads_per_row"] <=
                std::max<int64_t>(4, power_of_two_above(s["K"] / kNormPiece));
       }},
      {"rows of several warps would be more than the 16 barriers of a CTA",
       [](const Sizes&, const Config& c, const Gpu&) {
         return c["threads_per_row"] <= kWarp || c["rows_per_cta"] <= kBarriers;
       }},
  };
  return space;
}

// Five pieces a thread at the widths of the model, and CTAs of 128 threads.
Config default_config(const Sizes& s) {
  constexpr int64_t kPieces = 5, kThreads = 128;
  int64_t threads = 4;
  while (norm_pieces_per_thread(s["K"], threads) > kPieces) threads *= 2;
  return {{"threads_per_row", threads},
          {"rows_per_cta", std::clamp<int64_t>(kThreads / threads, 1, 32)},
          {"rows_in_turn", 1},
          {"early_weights", 1}};
}

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "rms_norm"};
  kernel.constants = {constant("columns", s["K"]),
                      constant("threads_per_row", c["threads_per_row"]),
                      constant("rows_per_cta", c["rows_per_cta"]),
                      constant("rows_in_turn", c["rows_in_turn"]),
                      {"early_weights", "bool", c["early_weights"] != 0 ? "true" : "false"}};
  kernel.grid_x = {.terms = {{.symbol = "T", .divisor = c["rows_per_cta"] * c["rows_in_turn"]}}};
  kernel.threads = static_cast<int>(c["threads_per_row"] * c["rows_per_cta"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = "pieces of 8, then halves"};
}

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  const double pieces = static_cast<double>(norm_pieces_per_thread(s["K"], c["threads_per_row"]));
  const double rows = static_cast<double>(c["rows_in_turn"]);
  return ModelHints{.bytes_in_flight_per_thread = 16 * pieces * std::min(rows, 2.0),
                    .instructions_per_thread = rows * (70 + pieces * 49),
                    .dependent_loads = c["early_weights"] != 0 ? 1.0 : 2.0};
}

}  // namespace

const Op rms_norm{
    .name = "rms_norm",
    .version = 1,
    .summary = "Divides rows of bf16 by their root mean square and multiplies them by a weight.",
    .doc =
        "For each row, in fp32 and every operation rounded once:\n"
        "  r = 1 / sqrt(sum(x^2) * (1 / columns) + 1e-20)\n"
        "  y = bf16((x * r) * weight)\n"
        "The order of the sum is fixed, so that the bits of a row depend neither on the other rows "
        "nor on their number nor on the kernel: the squares of elements 8j .. 8j + 7 are added as "
        "two chains of fused multiply-adds, of the even and of the odd ones, and these to s[j]; "
        "then s[j] += s[j + h] for h = the largest power of two below columns / 8, down to 1. The "
        "product with 1 / columns, which is rounded to fp32, and the sum with 1e-20 are one fused "
        "multiply-add.\n"
        "A row of zeros gives zeros. Where the sum leaves fp32, r is 0.",
    .source = "ops.md B3",
    .sizes =
        {
            stepped(fixed("K", "columns", "elements of a row; a multiple of 8", 8, kMostColumns),
                    "column"),
            stepped(dynamic("T", "num_rows", "rows", 0, kMaxInt32), "row"),
        },
    .args =
        {
            vectors(in("x", DType::bf16, "T K", "what is normalised"), 8),
            vectors(in("weight", DType::bf16, "K", "a factor for each column"), 1),
            vectors(out("y", DType::bf16, "T K", "the normalised rows"), 8),
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
