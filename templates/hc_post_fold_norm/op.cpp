// hc_post and the hc_fold_norm behind it in one pass over the streams (ops.md B1.3 to B1.5).
//   h[j] = post[j] * y + sum over i of comb[i][j] * h[i];   x = rms_norm(fold(h, pre), weight)
#include <algorithm>

#include "templates/op_hc.h"
#include "templates/op_norm.h"

namespace kiln::templates {

extern const Op hc_post_fold_norm;

namespace {

enum Sqrsum : int64_t { kNone = 0, kStored = 1 };

void check_fixed(const Sizes& s) {
  check_hc_columns(s, "hc_post_fold_norm", s["x_format"] == kHcBf16 ? kNormPiece : kHcGroup);
}

std::vector<Sizes> model_shapes(int) {
  std::vector<Sizes> shapes;
  for (const int64_t format : {kHcBf16, kHcCodes, kHcBoth}) {
    for (const int64_t sqrsum : {kNone, kStored})
      shapes.push_back({{"K", 5120}, {"x_format", format}, {"sqrsum", sqrsum}});
  }
  return shapes;
}

Cost cost(const Sizes& s) {
  const double rows = static_cast<double>(s["T"]), columns = static_cast<double>(s["K"]);
  const double streams = static_cast<double>(kHcStreams);
  return Cost{
      .warm_read_bytes = rows * (2 * columns + 4 * (2 * streams + streams * streams)) + 2 * columns,
      .in_place_read_bytes = rows * 2 * streams * columns,
      .write_bytes =
          rows * (2 * streams * columns + hc_x_bytes(s) + (s["sqrsum"] == kStored ? 4 : 0)),
      .integer_operations = rows * columns * 20};
}

Space space(const Sizes&, const Gpu&) { return {.axes = hc_row_axes(), .rules = hc_row_rules()}; }

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "hc_post_fold_norm"};
  kernel.constants = {constant("columns", s["K"]),
                      constant("x_format", s["x_format"]),
                      {"with_sqrsum", "bool", s["sqrsum"] == kStored ? "true" : "false"},
                      constant("threads_per_row", c["threads_per_row"]),
                      constant("rows_per_cta", c["rows_per_cta"])};
  kernel.grid_x = {.terms = {{.symbol = "T", .divisor = c["rows_per_cta"]}}};
  kernel.threads = static_cast<int>(c["threads_per_row"] * c["rows_per_cta"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = "pieces of 8, then halves"};
}

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  const double pieces = static_cast<double>(norm_pieces_per_thread(s["K"], c["threads_per_row"]));
  const double of_format = s["x_format"] == kHcBf16 ? 0 : 85;
  return ModelHints{.bytes_in_flight_per_thread = 80 * std::min(pieces, 2.0),
                    .instructions_per_thread = 150 + pieces * (390 + of_format),
                    .dependent_loads = 2};
}

}  // namespace

const Op hc_post_fold_norm{
    .name = "hc_post_fold_norm",
    .version = 1,
    .summary =
        "Mixes the output of a sub-layer into the four residual streams, in place, folds them into "
        "one row and normalises it: hc_post and hc_fold_norm in one pass.",
    .doc =
        "For each row, with hc_post and hc_fold_norm as these ops define them, to the bit:\n"
        "  h, sqrsum = hc_post(y, h, post, comb)\n"
        "  x, x_codes, x_scales = hc_fold_norm(h, pre, weight)\n"
        "  mean[t] = bf16((h[t, 0] + h[t, 1] + h[t, 2] + h[t, 3]) / 4), where it is not NULL\n"
        "pre are the weights that the statistics before gave for this sub-layer, so that nothing "
        "here waits for the statistics of the new streams; sqrsum is a part of those. mean is what "
        "the draft captures: the fold with 1/4 for each stream.",
    .source = "ops.md B1.3 to B1.5, B20.1",
    .sizes =
        {
            hc_columns(),
            hc_format(),
            fixed("sqrsum", "sqrsum", "whether the sum of squares is written",
                  {{"none", kNone}, {"stored", kStored}}),
            hc_rows(),
            hc_four(),
            hc_groups(),
        },
    .args =
        {
            vectors(in("y", DType::bf16, "T K", "output of the sub-layer"), 8),
            inout(vectors(in("h", DType::bf16, "T 4 K", "the residual streams"), 8)),
            vectors(in("post", DType::f32, "T 4", "how much of y each stream takes"), 4),
            vectors(in("comb", DType::f32, "T 4 4", "how much of stream i stream j takes"), 4),
            vectors(in("pre", DType::f32, "T 4", "weight of each stream"), 4),
            vectors(in("weight", DType::bf16, "K", "a factor for each column of the norm"), 1),
            hc_x(),
            hc_x_codes(),
            hc_x_scales(),
            optional(vectors(out("mean", DType::bf16, "T K", "mean of the streams"), 8)),
            only_in({.symbol = "sqrsum", .values = {kStored}},
                    out("sqrsum", DType::f32, "T", "sum of squares of the four streams")),
        },
    .buckets = {{"T", {1, 16, 256, 4096}}},
    .invariance = Op::Invariance::always,
    .model_shapes = model_shapes,
    .check_fixed = check_fixed,
    .cost = cost,
    .space = space,
    .default_config = hc_row_default,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
