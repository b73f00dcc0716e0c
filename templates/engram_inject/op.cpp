// Adds the gated value of the Engram to the residual streams, in place (ops.md B19.5).
//   h[t, c] += sigmoid(signed root of how alike h[t, c] and its key are) * value[t]
#include <algorithm>

#include "templates/op_hc.h"
#include "templates/op_norm.h"

namespace kiln::templates {

extern const Op engram_inject;

namespace {

constexpr int64_t kMostStreams = 8;

void check_fixed(const Sizes& s) {
  if (s["K"] % kNormPiece != 0) {
    fail(Status::invalid_argument, "engram_inject: \"columns\" must be a multiple of {}, but is {}",
         kNormPiece, s["K"]);
  }
}

std::vector<Sizes> model_shapes(int) { return {{{"K", 5120}, {"C", 4}}}; }

Cost cost(const Sizes& s) {
  const double rows = static_cast<double>(s["T"]), streams = static_cast<double>(s["C"]);
  const double row = 2 * static_cast<double>(s["K"]);
  return Cost{.warm_read_bytes = rows * (row * (streams + 1) + 4) + 2 * streams * row,
              .in_place_read_bytes = rows * row * streams,
              .write_bytes = rows * row * streams,
              .integer_operations = rows * row * streams * 6};
}

Space space(const Sizes&, const Gpu&) {
  Space space{.axes = hc_row_axes(), .rules = hc_row_rules()};
  space.axes.push_back({"early_value", {0, 1}, "1: the value is asked for with the keys"});
  return space;
}

Config default_config(const Sizes& s) { return hc_row_default(s).merged({{"early_value", 1}}); }

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "engram_inject"};
  kernel.constants = {constant("columns", s["K"]),
                      constant("num_streams", s["C"]),
                      constant("threads_per_row", c["threads_per_row"]),
                      constant("rows_per_cta", c["rows_per_cta"]),
                      {"early_value", "bool", c["early_value"] != 0 ? "true" : "false"}};
  kernel.grid_x = grid_over_rows("T", s["C"], c["rows_per_cta"]);
  kernel.threads = static_cast<int>(c["threads_per_row"] * c["rows_per_cta"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = "pieces of 8, then halves"};
}

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  const double pieces = static_cast<double>(norm_pieces_per_thread(s["K"], c["threads_per_row"]));
  return ModelHints{.bytes_in_flight_per_thread = 64 * std::min(pieces, 2.0),
                    .instructions_per_thread = 180 + pieces * 190,
                    .dependent_loads = c["early_value"] != 0 ? 1.0 : 2.0};
}

}  // namespace

const Op engram_inject{
    .name = "engram_inject",
    .version = 1,
    .summary = "Adds the gated value of the Engram to the residual streams, in place.",
    .doc =
        "keys_and_value[t] holds a key for each stream, stream c at column c * columns, and behind "
        "them one value. For row t and stream c, in fp32, with k that key:\n"
        "  dot = (sum over d of (h[t, c, d] * (q_weight[c, d] * k_weight[c, d])) * k[d])\n"
        "        * rsqrt(mean(h[t, c]^2) + 1e-20) * rsqrt(mean(k^2) + 1e-20) * columns^-0.5\n"
        "  g = sigmoid(copysign(sqrt(max(|dot|, 1e-6)), dot))\n"
        "  h[t, c, d] = bf16(h[t, c, d] + g * value[d])\n"
        "with one fused multiply-add and one rounding to bf16 in the last line. The sums are added "
        "in the order of rms_norm, so that a row's bits do not depend on the kernel or on other "
        "rows. A row whose id is negative is dead or masked: its streams are left as they are, to "
        "the bit, whatever its keys and value hold. ids may be NULL: no row is.",
    .source = "ops.md B19.5, (f)13",
    .sizes =
        {
            stepped(fixed("K", "columns", "columns of a stream; a multiple of 8", kNormPiece,
                          kHcMostColumns),
                    "column"),
            stepped(fixed("C", "num_streams", "residual streams", 1, kMostStreams), "stream"),
            stepped(dynamic("T", "num_rows", "rows (tokens), padding included", 0, kHcMostRows),
                    "row"),
            derived("kv_columns", "column", [](const Sizes& s) { return (s["C"] + 1) * s["K"]; }),
        },
    .args =
        {
            inout(vectors(in("h", DType::bf16, "T C K", "the residual streams"), kNormPiece)),
            vectors(in("keys_and_value", DType::bf16, "T kv_columns",
                       "a key for each stream, then the value: (num_streams + 1) * columns"),
                    kNormPiece),
            vectors(in("q_weight", DType::bf16, "C K", "weights of h"), kNormPiece),
            vectors(in("k_weight", DType::bf16, "C K", "weights of the keys"), kNormPiece),
            optional(in("ids", DType::i32, "T", "compressed id of each row; negative: dead")),
        },
    .buckets = {{"T", {1, 16, 256, 4096}}},
    .invariance = Op::Invariance::always,
    .tolerance = {Tolerance::Kind::relative_rms, 2e-4},
    .model_shapes = model_shapes,
    .check_fixed = check_fixed,
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
