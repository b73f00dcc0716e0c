// Inputs, truth and oracle of hc_fused_post_pre_delayed: see kit_hc.h.
#include "templates/kit.h"
#include "templates/kit_bf16.h"
#include "templates/kit_hc.h"
#include "templates/kit_hc_stats.h"

namespace kiln::templates {

extern const Op hc_fused_post_pre_delayed;
extern const Kit hc_fused_post_pre_delayed_kit;

namespace {

// Elements come row by row, so the last row is kept.
const HcGates& next_gates(const Case& c, int64_t t) {
  struct Kept {
    Case of;
    int64_t row = -1;
    HcGates gates;
  };
  thread_local Kept kept;
  if (kept.row != t || kept.of.seed != c.seed || kept.of.knobs != c.knobs ||
      kept.of.sizes != c.sizes) {
    const int64_t columns = c.sizes["K"];
    kept = {c, t, hc_gates_of(c, [&](int64_t column) {
              return bf16_double(hc_mixed_bits(c, t, column / columns, column % columns));
            })};
  }
  return kept.gates;
}

std::optional<double> expected(const Case& c, const Arg& arg, std::span<const int64_t> index) {
  if (arg.name == "h") return bf16_double(hc_mixed_bits(c, index[0], index[1], index[2]));
  if (arg.name.starts_with("next_")) {
    const HcGates& gates = next_gates(c, index[0]);
    const auto second = static_cast<size_t>(index[1]);
    if (arg.name == "next_pre") return gates.pre[second];
    if (arg.name == "next_post") return gates.post[second];
    return gates.comb[second][static_cast<size_t>(index[2])];
  }
  if (arg.name == "mean") return bf16_double(hc_mean_bits(c, index[0], index[1]));
  return hc_normed(c, HcStreamsOf::mixed, arg, index);
}

Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  return hc_case("measured", fixed_sizes, bucket["T"], HcValues::activations);
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases = hc_cases(fixed_sizes, bucket);
  Case padded = hc_case("padded strides", fixed_sizes, 7, HcValues::activations, 2);
  padded.strides = hc_padded_strides(hc_fused_post_pre_delayed, fixed_sizes, 24);
  cases.push_back(padded);
  Case without = hc_case("no mean", fixed_sizes, 5, HcValues::activations, 4);
  without.absent = {"mean"};
  cases.push_back(without);
  return cases;
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  const bool is_of_stats = arg.name == "fn" || arg.name == "scale" || arg.name == "base";
  (is_of_stats ? hc_stats_fill : hc_fill)(c, arg, outer, row);
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  constexpr int64_t kNarrow = 512;  // wide rows take the host long to fill
  if (fixed_sizes["K"] <= kNarrow)
    cases.push_back(hc_case("65537 rows", fixed_sizes, 65537, HcValues::activations));
  Case far = hc_case("rows beyond 2^31 elements", fixed_sizes, 3, HcValues::activations);
  constexpr int64_t kFar = (int64_t{1} << 30) + 8;
  far.strides = {{"h_stride0", kFar}};
  cases.push_back(far);
  return cases;
}

// Other hidden sizes, and the narrowest, odd and widest rows (ops.md (e), B1.5).
std::vector<Sizes> further_shapes() {
  return {{{"K", 4096}, {"x_format", 2}}, {{"K", 7168}, {"x_format", 1}},
          {{"K", 32}, {"x_format", 0}},   {{"K", 384}, {"x_format", 2}},
          {{"K", 8192}, {"x_format", 2}}, {{"K", 1376}, {"x_format", 0}}};
}

KernelLaunch oracle(const Sizes& s) {
  constexpr int kThreads = 64;
  KernelLaunch launch{.file = "oracle.cu", .entry = "hc_fused_post_pre_delayed_oracle"};
  launch.constants = {constant("columns", s["K"]), constant("x_format", s["x_format"]),
                      constant("threads", kThreads)};
  launch.grid_x = {.terms = {{"T"}}};
  launch.threads = kThreads;
  return launch;
}

}  // namespace

const Kit hc_fused_post_pre_delayed_kit{
    .op = &hc_fused_post_pre_delayed,
    .measured_case = measured_case,
    .verify_cases = verify_cases,
    .replay_cases = hc_replay_cases,
    .large_cases = large_cases,
    .further_shapes = further_shapes,
    .fill = fill,
    .expected = expected,
    .oracle = oracle,
};

}  // namespace kiln::templates
