// Chooses the experts of each token from the router's logits (ops.md B17).
//   score = sqrt(softplus(logit));   the top_k of score + bias;   weights = scores / their sum
//   * 1.5
#include <limits>

#include "templates/op.h"

namespace kiln::templates {

extern const Op moe_route;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMostExperts = 1024;
constexpr int64_t kMostTopK = 32;
constexpr int64_t kWarp = 32;

void check_fixed(const Sizes& s) {
  if (s["top_k"] > s["E"]) {
    fail(Status::invalid_argument,
         "moe_route: \"top_k\" must be at most num_experts, which is {}, but is {}", s["E"],
         s["top_k"]);
  }
}

// The target and the draft.
std::vector<Sizes> model_shapes(int) {
  return {{{"E", 384}, {"top_k", 6}}, {{"E", 128}, {"top_k", 3}}};
}

Cost cost(const Sizes& s) {
  const double rows = static_cast<double>(s["T"]), experts = static_cast<double>(s["E"]);
  const double top_k = static_cast<double>(s["top_k"]);
  return Cost{.warm_read_bytes = rows * 4 * experts + 4 * experts,
              .write_bytes = rows * 8 * top_k,
              .integer_operations = rows * experts * (20 + 4 * top_k)};
}

Space space(const Sizes&, const Gpu&) {
  Space space;
  space.axes = {{"rows_per_cta", {1, 2, 4, 8}, "tokens of a CTA, one a warp"}};
  return space;
}

Config default_config(const Sizes&) { return {{"rows_per_cta", 4}}; }

LaunchPlan plan(const Sizes& s, const Config& c, const Gpu&) {
  KernelLaunch kernel{.file = "kernel.cu", .entry = "moe_route"};
  kernel.constants = {constant("num_experts", s["E"]), constant("top_k", s["top_k"]),
                      constant("rows_per_cta", c["rows_per_cta"])};
  kernel.grid_x = {.terms = {{.symbol = "T", .divisor = c["rows_per_cta"]}}};
  kernel.threads = static_cast<int>(kWarp * c["rows_per_cta"]);
  return LaunchPlan{.kernels = {kernel}, .reduction_signature = "by descending key"};
}

ModelHints model(const Sizes& s, const Config&, const Gpu&) {
  const double experts = static_cast<double>((s["E"] + kWarp - 1) / kWarp);
  return ModelHints{
      .bytes_in_flight_per_thread = 8 * experts,
      .instructions_per_thread = 80 + experts * (60 + 4 * static_cast<double>(s["top_k"])),
      .dependent_loads = 1};
}

Arg flags(std::string name, std::string doc) {
  Arg arg = optional(in(std::move(name), DType::u8, "T", std::move(doc)));
  arg.align_bytes = 1;
  return arg;
}

}  // namespace

const Op moe_route{
    .name = "moe_route",
    .version = 1,
    .summary = "Chooses the experts of each token from the router's logits, and their weights.",
    .doc =
        "For row t and expert e, in fp32:\n"
        "  s[e] = sqrt(softplus(logits[t, e])), softplus(x) = x where x > 20, else log(1 + "
        "exp(x))\n"
        "  key[e] = s[e] + (is_image[t] ? image_bias[e] : bias[e])\n"
        "  ids[t] = the top_k experts of the largest keys, descending; equal keys by ascending "
        "expert\n"
        "  weights[t, i] = s[ids[t, i]] / (sum over i of s[ids[t, i]] + 1e-20) * 1.5\n"
        "A logit that is NaN has score 0 and is never chosen, nor is a key of minus infinity or "
        "NaN. Where fewer than top_k are left, the other ids are -1 with weight 0, as are all of a "
        "row where is_valid[t] is 0: they are padding and no expert's. is_image, image_bias and "
        "is_valid may be NULL: no image, the same bias, all valid.\n"
        "The same logits give the same ids and weights on every rank and in every batch.",
    .source = "ops.md B17, (f)10",
    .sizes =
        {
            stepped(fixed("E", "num_experts", "experts", 1, kMostExperts), "expert"),
            stepped(fixed("top_k", "top_k", "experts of a token", 1, kMostTopK), "choice"),
            stepped(dynamic("T", "num_rows", "rows (tokens), padding included", 0, kMaxInt32),
                    "row"),
        },
    .args =
        {
            in("logits", DType::f32, "T E", "of the router, accumulated in fp32"),
            in("bias", DType::f32, "E", "added to scores for the choice alone"),
            optional(in("image_bias", DType::f32, "E", "bias of rows that are images; NULL: bias")),
            flags("is_image", "not 0: the row is an image position; NULL: none is"),
            flags("is_valid", "0: the row is padding; NULL: none is"),
            out("ids", DType::i32, "T top_k", "chosen experts, -1 where there is none"),
            to_within(out("weights", DType::f32, "T top_k", "their weights"), 1e-6),
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
