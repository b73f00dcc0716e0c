// hc_post and the hc_fold_norm behind it in one pass over the streams (ops.md B1.3 to B1.5).
//   h[j] = post[j] * y + sum over i of comb[i][j] * h[i];   x = rms_norm(fold(h, pre), weight)
#include <algorithm>

#include "templates/op_hc.h"
#include "templates/op_norm.h"

namespace kiln::templates {

extern const Op hc_post_fold_norm;

namespace {

void check_fixed(const Sizes& s) {
  check_hc_columns(s, "hc_post_fold_norm", s["x_format"] == kHcBf16 ? kNormPiece : kHcGroup);
}

std::vector<Sizes> model_shapes(int) {
  std::vector<Sizes> shapes;
  for (const int64_t format : {kHcBf16, kHcCodes, kHcBoth}) {
    for (const int64_t sqrsum : {kHcNoSqrsum, kHcSqrsum})
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
      .write_bytes = rows * (2 * streams * columns + hc_x_bytes(s) + hc_sqrsum_bytes(s)),
      .integer_operations = rows * columns * 20};
}

Space space(const Sizes&, const Gpu&) {
  Space space{.axes = hc_row_axes(), .rules = hc_row_rules()};
  space.axes.push_back({"kernels",
                        {1, 2},
                        "1: a CTA has whole rows; 2: CTAs share the columns of a row, then a "
                        "kernel normalises"});
  return space;
}

double pieces_of_thread(const Sizes& s, const Config& c) {
  return static_cast<double>(norm_pieces_per_thread(s["K"], c["threads_per_row"]));
}

double instructions_of_format(const Sizes& s) { return s["x_format"] == kHcBf16 ? 0 : 85; }

void add_two_kernels(LaunchPlan& plan, const Sizes& s, const Config& c,
                     const jit::Constant& with_sqrsum, KernelLaunch norm) {
  constexpr int64_t kPartThreads = 128;
  const int64_t parts = (s["K"] / kNormPiece + kPartThreads - 1) / kPartThreads;
  KernelLaunch streams{.file = "streams.cu", .entry = "hc_post_fold"};
  streams.constants = {constant("columns", s["K"]), with_sqrsum,
                       constant("part_threads", kPartThreads)};
  streams.grid_x = grid_over_rows("T", parts, 1);
  streams.threads = static_cast<int>(kPartThreads);
  streams.instructions_per_thread = 450;
  plan.kernels.push_back(std::move(streams));
  norm.file = "norm.cu";
  norm.entry = "hc_post_fold_norm_of_folded";
  norm.instructions_per_thread = 80 + pieces_of_thread(s, c) * (60 + instructions_of_format(s));
  plan.kernels.push_back(std::move(norm));
  plan.workspace_bytes = {.scale = 2 * s["K"], .terms = {{"T"}}};
}

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  const jit::Constant with_sqrsum = hc_with_sqrsum(s);
  KernelLaunch rows{.file = "kernel.cu", .entry = "hc_post_fold_norm"};
  rows.constants = {constant("columns", s["K"]), constant("x_format", s["x_format"]),
                    constant("threads_per_row", c["threads_per_row"]),
                    constant("rows_per_cta", c["rows_per_cta"])};
  rows.grid_x = {.terms = {{.symbol = "T", .divisor = c["rows_per_cta"]}}};
  rows.threads = static_cast<int>(c["threads_per_row"] * c["rows_per_cta"]);
  LaunchPlan plan{.kernels = {},
                  .reduction_signature = "pieces of 8, then halves, of 256 columns in sqrsum"};
  if (c["kernels"] == 2) {
    add_two_kernels(plan, s, c, with_sqrsum, std::move(rows));
  } else {
    rows.constants.push_back(with_sqrsum);
    plan.kernels.push_back(std::move(rows));
  }
  return plan;
}

Config default_config(const Sizes& s) { return hc_row_default(s).merged({{"kernels", 1}}); }

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  const double pieces = pieces_of_thread(s, c);
  return ModelHints{.bytes_in_flight_per_thread = 80 * std::min(pieces, 2.0),
                    .instructions_per_thread = 150 + pieces * (390 + instructions_of_format(s)),
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
            hc_columns(kHcColumnsOfCodes, kNormPiece),
            hc_format(),
            hc_sqrsum_size(),
            hc_rows(),
            hc_four(),
            hc_sqrsum_parts(),
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
            hc_sqrsum(),
        },
    .buckets = {{"T", {1, 16, 256, 4096}}},
    .has_workspace = true,
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
