// Chooses the experts of each row from the router's logits and weighs them (ops.md B17).
//   s[t, e]   = sqrt(softplus(logits[t, e]))          key = s + bias
//   experts[t] = the top_k experts by key             weights = s / (their sum + 1e-20) * 1.5
#include <algorithm>

#include "templates/op.h"

namespace kiln::templates {

extern const Op moe_route;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kWarp = 32;

int64_t vectors(const Sizes& s) { return (s["E"] + 3) / 4; }

Cost cost(const Sizes& s) {
  const double rows = static_cast<double>(s["T"]);
  const double experts = static_cast<double>(s["E"]);
  return Cost{.warm_read_bytes = (rows + 1) * 4 * experts,
              .write_bytes = rows * 8 * static_cast<double>(s["K"]),
              .integer_operations = rows * experts * 10};
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {
      {"threads_per_row", {32, 64, 96, 128}, "threads that share a row; whole warps"},
      {"rows_per_cta", {1, 2, 4, 8}, "rows of one CTA"},
  };
  space.rules = {
      {"a CTA would have more than 512 threads",
       [](const Sizes&, const Config& c, const Gpu&) {
         return c["threads_per_row"] * c["rows_per_cta"] <= 512;
       }},
      {"warps of a row would have no expert",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return c["threads_per_row"] - kWarp < vectors(s);
       }},
      {"a warp could not hold what the warps of a row have chosen",
       [](const Sizes& s, const Config& c, const Gpu&) {
         return c["threads_per_row"] == kWarp || c["threads_per_row"] / kWarp * s["K"] <= kWarp;
       }},
  };
  return space;
}

Config default_config(const Sizes&) { return {{"threads_per_row", kWarp}, {"rows_per_cta", 4}}; }

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "moe_route"};
  kernel.constants = {constant("experts", s["E"]), constant("top_k", s["K"]),
                      constant("threads_per_row", c["threads_per_row"]),
                      constant("rows_per_cta", c["rows_per_cta"])};
  kernel.grid_x = {.terms = {{.symbol = "T", .divisor = c["rows_per_cta"]}}};
  kernel.threads = static_cast<int>(c["threads_per_row"] * c["rows_per_cta"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = ""};
}

ModelHints model(const Sizes& s, const Config& c, const Gpu&) {
  const double elements =
      4 * static_cast<double>((vectors(s) + c["threads_per_row"] - 1) / c["threads_per_row"]);
  const double merge = c["threads_per_row"] > kWarp ? 20 : 0;
  return ModelHints{
      .bytes_in_flight_per_thread = 8 * elements,
      .instructions_per_thread =
          100 + elements * 50 + static_cast<double>(s["K"]) * (30 + elements / 4 + merge),
      .dependent_loads = 2};
}

void check_fixed(const Sizes& s) {
  if (s["K"] <= s["E"]) return;
  fail(Status::invalid_argument, "moe_route: top_k is {}, but there are {} experts", s["K"],
       s["E"]);
}

}  // namespace

const Op moe_route{
    .name = "moe_route",
    .version = 1,
    .summary = "Chooses the top-k experts of each row from the router's logits, and their weights.",
    .doc =
        "For row t, where is_valid[t] is not 0 (NULL: everywhere):\n"
        "  s[e]          = sqrt(ln(1 + exp(logits[t, e])))\n"
        "  key[e]        = s[e] + (is_image[t] != 0 ? bias_image[e] : bias[e])\n"
        "  experts[t]    = the top_k experts of the largest keys, the largest first\n"
        "  weights[t, i] = s[experts[t, i]] / (sum + 1e-20) * 1.5\n"
        "where sum adds the s of the chosen experts, the first one first, and 1.5 is the model's "
        "routed scaling factor. Of equal keys the lower expert goes first. An expert whose key is "
        "NaN or -infinity is never chosen: one with a "
        "logit of NaN, one that a bias of -infinity shuts out. Where fewer than top_k are left, "
        "the remaining experts are -1 with weight 0.\n"
        "Other rows are padding: experts all -1, weights all 0, whatever their logits hold.\n"
        "s is within 3e-7 of the formula (relative), also where exp(logit) is far below the "
        "least number of fp32, down to logits of -174, below which s is subnormal; no step depends "
        "on the GPU or on the other rows, so that all ranks and all batches choose the same "
        "experts from the same logits. A chosen logit of +infinity has a weight of NaN, those "
        "beside it 0, as the formula says.\n"
        "Biases enter the choice, never the weights; a model without has zeros. Experts are not "
        "grouped. logits are to be added in fp32 from products of bf16.",
    .source = "ops.md B17, (f)10",
    .sizes =
        {
            fixed("E", "num_experts", "experts of all ranks", 1, 1024),
            fixed("K", "top_k", "experts of a row, at most num_experts", 1, 32),
            stepped(dynamic("T", "num_rows", "rows, padding included", 0, kMaxInt32), "row"),
        },
    .args =
        {
            in("logits", DType::f32, "T E", "router logits"),
            in("bias", DType::f32, "E", "what a key adds to the score"),
            optional(in("bias_image", DType::f32, "E",
                        "the same for the rows of images; NULL: bias is for all rows")),
            Arg{.name = "is_image",
                .dtype = DType::u8,
                .kind = ArgKind::input,
                .dims = {"T"},
                .doc = "not 0 for a row whose token stands for a part of an image; NULL: no row is",
                .presence = Presence::optional,
                .align_bytes = 1},
            Arg{.name = "is_valid",
                .dtype = DType::u8,
                .kind = ArgKind::input,
                .dims = {"T"},
                .doc = "0 for a row of padding; NULL: no row is",
                .presence = Presence::optional,
                .align_bytes = 1},
            out("experts", DType::i32, "T K", "chosen experts by descending key; -1: none"),
            out("weights", DType::f32, "T K", "their weights; 0 where there is none"),
        },
    .buckets = {{"T", {1, 4, 16, 64, 256, 1024, 4096}}},
    .invariance = Op::Invariance::always,
    // The model's layers; those that draft.
    .model_shapes =
        [](int) {
          return std::vector<Sizes>{{{"E", 384}, {"K", 6}}, {{"E", 128}, {"K", 3}}};
        },
    .check_fixed = check_fixed,
    .cost = cost,
    .space = space,
    .default_config = default_config,
    .plan = plan,
    .model = model,
};

}  // namespace kiln::templates
