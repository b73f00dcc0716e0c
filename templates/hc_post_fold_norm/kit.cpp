// Inputs, truth and oracle of hc_post_fold_norm: see kit_hc.h.
#include "templates/kit.h"
#include "templates/kit_bf16.h"
#include "templates/kit_hc.h"

namespace kiln::templates {

extern const Op hc_post_fold_norm;
extern const Kit hc_post_fold_norm_kit;

namespace {

std::optional<double> expected(const Case& c, const Arg& arg, std::span<const int64_t> index) {
  if (arg.name == "h") return bf16_double(hc_mixed_bits(c, index[0], index[1], index[2]));
  if (arg.name == "sqrsum") return hc_sqrsum(c, index[0], index[1]);
  if (arg.name == "mean") return bf16_double(hc_mean_bits(c, index[0], index[1]));
  return hc_normed(c, HcStreamsOf::mixed, arg, index);
}

Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  return hc_case("measured", fixed_sizes, bucket["T"], HcValues::activations);
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases = hc_cases(fixed_sizes, bucket);
  Case padded = hc_case("padded strides", fixed_sizes, 7, HcValues::activations, 2);
  padded.strides = hc_padded_strides(hc_post_fold_norm, fixed_sizes, 24);
  cases.push_back(padded);
  Case without = hc_case("no mean", fixed_sizes, 5, HcValues::activations, 4);
  without.absent = {"mean"};
  cases.push_back(without);
  return cases;
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
  return {{{"K", 4096}, {"x_format", 2}, {"sqrsum", 1}},
          {{"K", 7168}, {"x_format", 1}, {"sqrsum", 0}},
          {{"K", 8}, {"x_format", 0}, {"sqrsum", 1}},
          {{"K", 384}, {"x_format", 2}, {"sqrsum", 1}},
          {{"K", 16384}, {"x_format", 2}, {"sqrsum", 1}},
          {{"K", 1272}, {"x_format", 0}, {"sqrsum", 0}}};
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "hc_post_fold_norm_oracle"};
  launch.constants = {constant("columns", s["K"]), constant("x_format", s["x_format"]),
                      constant("with_sqrsum", s["sqrsum"])};
  launch.grid_x = {.terms = {{"T"}}};
  launch.threads = s["K"] <= 512 ? 32 : 128;
  return launch;
}

}  // namespace

const Kit hc_post_fold_norm_kit{
    .op = &hc_post_fold_norm,
    .measured_case = measured_case,
    .verify_cases = verify_cases,
    .replay_cases = hc_replay_cases,
    .large_cases = large_cases,
    .further_shapes = further_shapes,
    .fill = hc_fill,
    .expected = expected,
    .oracle = oracle,
};

}  // namespace kiln::templates
