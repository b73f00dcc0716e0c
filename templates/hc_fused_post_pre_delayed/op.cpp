// From the output of a sub-layer to the input and the gates of the next one (ops.md B1.5).
//   hc_post_fold_norm, then hc_stats of the new streams
#include "templates/op_hc.h"

namespace kiln::templates {

extern const Op hc_fused_post_pre_delayed;

namespace {

void check_fixed(const Sizes& s) {
  check_hc_columns(s, "hc_fused_post_pre_delayed", kHcBlockColumns);
}

std::vector<Sizes> model_shapes(int) {
  std::vector<Sizes> shapes;
  for (const int64_t format : {kHcBf16, kHcCodes, kHcBoth})
    shapes.push_back({{"K", 5120}, {"x_format", format}});
  return shapes;
}

Cost cost(const Sizes& s) {
  const double rows = static_cast<double>(s["T"]), columns = static_cast<double>(s["K"]);
  const double streams = static_cast<double>(kHcStreams), gates = static_cast<double>(kHcGates);
  return Cost{.cold_read_bytes = 4 * streams * columns * gates,
              .warm_read_bytes = rows * (2 * columns + 4 * (gates + streams)) + 2 * columns,
              .in_place_read_bytes = rows * 2 * streams * columns,
              .write_bytes = rows * (2 * streams * columns + hc_x_bytes(s) + 4 * gates),
              .integer_operations = rows * columns * 30,
              .mma_fma = 3 * rows * streams * columns * gates};
}

constexpr int64_t kMostParts = 512;

// Parts of the columns, of which a CTA has one.
int64_t parts_in_one_pass(const Sizes& s, const Config& c) {
  const int64_t columns = c["warps"] / kHcStreams * kHcBlockColumns;
  return (s["K"] + columns - 1) / columns;
}

Space space(const Sizes&, const Gpu&) {
  Space space{.axes = hc_row_axes(), .rules = hc_row_rules()};
  space.axes.push_back({"one_pass",
                        {0, 1},
                        "1: a kernel mixes, folds and adds the statistics, the next makes norm and "
                        "gates; 0: hc_post_fold_norm's kernel, then those of hc_stats"});
  space.rules.push_back(
      {"one pass has four warps for 32 columns", [](const Sizes& s, const Config& c, const Gpu&) {
         return c["one_pass"] == 0 ||
                (c["warps"] % kHcStreams == 0 && parts_in_one_pass(s, c) <= kMostParts);
       }});
  space.rules.push_back(
      {"one pass has no such choice", [](const Sizes& s, const Config& c, const Gpu&) {
         return c["one_pass"] == 0 ||
                (c["m_tiles"] == 1 && c["splits"] == hc_stats_default(s)["splits"] &&
                 c["rows_per_cta"] == 1 && c["rows_per_gate_cta"] == 1);
       }});
  for (Axis& axis : hc_stats_axes()) space.axes.push_back(std::move(axis));
  for (const Rule& rule : hc_stats_rules()) {
    space.rules.push_back(
        {rule.why, [keeps = rule.keeps](const Sizes& sizes, const Config& c, const Gpu& gpu) {
           return c["one_pass"] == 1 || keeps(sizes, c, gpu);
         }});
  }
  return space;
}

// In one pass: decoding is what calls it, untuned too.
Config default_config(const Sizes& s) {
  const int64_t warps = s["K"] > kHcBlockColumns ? 2 * kHcStreams : kHcStreams;
  return hc_row_default(s)
      .merged(hc_stats_default(s))
      .merged({{"one_pass", 1}, {"warps", warps}, {"rows_per_gate_cta", 1}});
}

LaunchPlan plan_of_one_pass(const Sizes& s, const Config& c) {
  constexpr int64_t kTileRows = 16;
  const int64_t parts = parts_in_one_pass(s, c);
  LaunchPlan plan;
  KernelLaunch streams{.file = "streams_and_partials.cu", .entry = "hc_fused_streams_and_partials"};
  streams.constants = {constant("columns", s["K"]), constant("warps", c["warps"])};
  streams.grid_x = {.terms = {{.symbol = "T", .divisor = kTileRows}}};
  streams.grid_y = {.offset = parts, .scale = 0};
  streams.threads = static_cast<int>(kHcWarp * c["warps"]);
  streams.instructions_per_thread = 600;
  plan.kernels.push_back(std::move(streams));
  KernelLaunch gates{.file = "norm_and_gates.cu", .entry = "hc_fused_norm_and_gates"};
  gates.constants = {constant("columns", s["K"]),
                     constant("x_format", s["x_format"]),
                     constant("threads_per_row", c["threads_per_row"]),
                     constant("splits", parts),
                     constant("groups", std::min(kHcGateWarps, parts)),
                     constant("gate_warps", kHcGateWarps)};
  gates.grid_x = {.terms = {{"T"}}};
  gates.threads = static_cast<int>(c["threads_per_row"] + kHcWarp * kHcGateWarps);
  gates.instructions_per_thread = 2000;
  plan.kernels.push_back(std::move(gates));
  plan.workspace_bytes = {.scale = parts * kHcSlotBytes + 2 * s["K"], .terms = {{"T"}}};
  plan.reduction_signature = fmt::format("parts of {} warps in one pass", c["warps"]);
  return plan;
}

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  if (c["one_pass"] == 1) return plan_of_one_pass(s, c);
  LaunchPlan plan;
  KernelLaunch streams{.file = "kernel.cu", .entry = "hc_fused_streams"};
  streams.constants = {constant("columns", s["K"]), constant("x_format", s["x_format"]),
                       constant("threads_per_row", c["threads_per_row"]),
                       constant("rows_per_cta", c["rows_per_cta"])};
  streams.grid_x = {.terms = {{.symbol = "T", .divisor = c["rows_per_cta"]}}};
  streams.threads = static_cast<int>(c["threads_per_row"] * c["rows_per_cta"]);
  const double pieces = static_cast<double>(norm_pieces_per_thread(s["K"], c["threads_per_row"]));
  streams.instructions_per_thread = 150 + pieces * (s["x_format"] == kHcBf16 ? 390 : 475);
  plan.kernels.push_back(std::move(streams));
  add_hc_stats(plan, "hc_fused", s, c);
  return plan;
}

ModelHints model(const Sizes&, const Config&, const Gpu&) {
  return ModelHints{.bytes_in_flight_per_thread = 160, .dependent_loads = 5};
}

Arg gates_in(std::string name, std::string_view dims, std::string doc) {
  return vectors(in(std::move(name), DType::f32, dims, std::move(doc)), 4);
}
Arg gates_out(std::string name, std::string_view dims, std::string doc) {
  return to_within(vectors(out(std::move(name), DType::f32, dims, std::move(doc)), 4), 1e-6);
}

}  // namespace

const Op hc_fused_post_pre_delayed{
    .name = "hc_fused_post_pre_delayed",
    .version = 1,
    .summary =
        "From the output of a sub-layer to the input and the gates of the next one: "
        "hc_post_fold_norm and hc_stats.",
    .doc =
        "With these ops as they define themselves; h, x and mean to the bit, the gates within the "
        "bound of hc_stats in fp32:\n"
        "  h, x, x_codes, x_scales, mean = hc_post_fold_norm(y, h, post, comb, pre, weight)\n"
        "  next_pre, next_post, next_comb = hc_stats(h, fn, scale, base)\n"
        "post and comb are those of the sub-layer that gave y. pre came with them, from the "
        "statistics before: the fold does not wait for the new ones. next_pre is what this op "
        "takes as pre at the next sub-layer's end. fn, scale and base are those of the next "
        "sub-layer. None of the outputs may be one of the inputs, but for h.\n"
        "Not legal where the streams change in between, as across an Engram.",
    .source = "ops.md B1.5, B1.1 to B1.4, B20.1",
    .sizes =
        {
            hc_columns(kHcColumns32, kHcBlockColumns),
            hc_format(),
            hc_rows(),
            hc_four(),
            hc_groups(),
            derived("24", "gate", [](const Sizes&) { return kHcGates; }),
            derived("3", "kind of gate", [](const Sizes&) { return int64_t{3}; }),
            derived("width", "column", [](const Sizes& s) { return kHcStreams * s["K"]; }),
        },
    .args =
        {
            vectors(in("y", DType::bf16, "T K", "output of the sub-layer"), 8),
            inout(vectors(in("h", DType::bf16, "T 4 K", "the residual streams"), 8)),
            gates_in("post", "T 4", "how much of y each stream takes"),
            gates_in("comb", "T 4 4", "how much of stream i stream j takes"),
            gates_in("pre", "T 4", "weight of each stream in this fold"),
            vectors(in("weight", DType::bf16, "K", "a factor for each column of the norm"), 1),
            cold(vectors(in("fn", DType::f32, "24 width",
                            "what each gate sees of the streams; width is 4 * columns"),
                         4)),
            in("scale", DType::f32, "3", "of the logits of pre, of post and of comb"),
            in("base", DType::f32, "24", "added to the logits"),
            hc_x(),
            hc_x_codes(),
            hc_x_scales(),
            optional(vectors(out("mean", DType::bf16, "T K", "mean of the streams"), 8)),
            gates_out("next_pre", "T 4", "weight of each stream in the next fold"),
            gates_out("next_post", "T 4", "how much of the next output each stream takes"),
            gates_out("next_comb", "T 4 4", "how much of stream i stream j takes next"),
        },
    .buckets = {{"T", {1, 16, 64, 256, 1024, 4096}}},
    .has_workspace = true,
    .model_shapes = model_shapes,
    .check_fixed = check_fixed,
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
