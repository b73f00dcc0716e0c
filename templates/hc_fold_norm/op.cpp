// Folds the four residual streams into one row and normalises it (ops.md B1.3, B3).
//   x = rms_norm(bf16(((pre[0] * h0 + pre[1] * h1) + pre[2] * h2) + pre[3] * h3), weight)
#include <algorithm>

#include "templates/op_hc.h"
#include "templates/op_norm.h"

namespace kiln::templates {

extern const Op hc_fold_norm;

namespace {

void check_fixed(const Sizes& s) {
  check_hc_columns(s, "hc_fold_norm", s["x_format"] == kHcBf16 ? kNormPiece : kHcGroup);
}

std::vector<Sizes> model_shapes(int) {
  std::vector<Sizes> shapes;
  for (const int64_t format : {kHcBf16, kHcCodes, kHcBoth})
    shapes.push_back({{"K", 5120}, {"x_format", format}});
  return shapes;
}

Cost cost(const Sizes& s) {
  const double rows = static_cast<double>(s["T"]), columns = static_cast<double>(s["K"]);
  const double streams = static_cast<double>(kHcStreams);
  return Cost{.warm_read_bytes = rows * streams * (2 * columns + 4) + 2 * columns,
              .write_bytes = rows * hc_x_bytes(s),
              .integer_operations = rows * columns * 8};
}

Space space(const Sizes&, const Gpu&) {
  Space space{.axes = hc_row_axes(), .rules = hc_row_rules()};
  space.axes.push_back({"early_weights", {0, 1}, "1: the weight is asked for with the streams"});
  return space;
}

Config default_config(const Sizes& s) { return hc_row_default(s).merged({{"early_weights", 1}}); }

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "hc_fold_norm"};
  kernel.constants = {constant("columns", s["K"]),
                      constant("x_format", s["x_format"]),
                      constant("threads_per_row", c["threads_per_row"]),
                      constant("rows_per_cta", c["rows_per_cta"]),
                      {"early_weights", "bool", c["early_weights"] != 0 ? "true" : "false"}};
  kernel.grid_x = {.terms = {{.symbol = "T", .divisor = c["rows_per_cta"]}}};
  kernel.threads = static_cast<int>(c["threads_per_row"] * c["rows_per_cta"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = "pieces of 8, then halves"};
}

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  const double pieces = static_cast<double>(norm_pieces_per_thread(s["K"], c["threads_per_row"]));
  const double of_format = s["x_format"] == kHcBf16 ? 0 : 85;
  return ModelHints{.bytes_in_flight_per_thread = 64 * std::min(pieces, 2.0),
                    .instructions_per_thread = 90 + pieces * (170 + of_format),
                    .dependent_loads = c["early_weights"] != 0 ? 1.0 : 2.0};
}

}  // namespace

const Op hc_fold_norm{
    .name = "hc_fold_norm",
    .version = 1,
    .summary = "Folds the four residual streams into one row and normalises it.",
    .doc =
        "For each row t and column d, in fp32 and every operation rounded:\n"
        "  folded[t, d] = bf16(((pre[t, 0] * h[t, 0, d] + pre[t, 1] * h[t, 1, d])\n"
        "                 + pre[t, 2] * h[t, 2, d]) + pre[t, 3] * h[t, 3, d])\n"
        "  x = rms_norm(folded, weight), as that op defines it\n"
        "  x_codes, x_scales = act_quant(x), format q8a\n"
        "x_format says what of x is written: \"codes_q8a\" is what linears with x_format "
        "\"codes_q8a\" take. folded is written where it is not NULL: the last fold of a forward "
        "hands it to the draft, and with 1/4 as every pre it is the mean of the streams.\n"
        "Where the four streams are equal, before the first layer, folded is one of them: "
        "rms_norm is that form.",
    .source = "ops.md B1.3, B2, B3, B20.1",
    .sizes =
        {
            hc_columns(kHcColumnsOfCodes, kNormPiece),
            hc_format(),
            hc_rows(),
            hc_four(),
            hc_groups(),
        },
    .args =
        {
            vectors(in("h", DType::bf16, "T 4 K", "the residual streams"), 8),
            vectors(in("pre", DType::f32, "T 4", "weight of each stream"), 4),
            vectors(in("weight", DType::bf16, "K", "a factor for each column of the norm"), 1),
            hc_x(),
            hc_x_codes(),
            hc_x_scales(),
            optional(vectors(out("folded", DType::bf16, "T K", "the row before its norm"), 8)),
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
