// Inputs, truth and oracle of hc_post: see kit_hc.h.
#include "templates/kit.h"
#include "templates/kit_bf16.h"
#include "templates/kit_hc.h"

namespace kiln::templates {

extern const Op hc_post;
extern const Kit hc_post_kit;

namespace {

std::optional<double> expected(const Case& c, const Arg& arg, std::span<const int64_t> index) {
  if (arg.name == "sqrsum") return hc_sqrsum(c, index[0], index[1]);
  return bf16_double(hc_mixed_bits(c, index[0], index[1], index[2]));
}

Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  return hc_case("measured", fixed_sizes, bucket["T"], HcValues::activations);
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases = hc_cases(fixed_sizes, bucket);
  Case padded = hc_case("padded strides", fixed_sizes, 7, HcValues::activations, 2);
  padded.strides = hc_padded_strides(hc_post, fixed_sizes, 24);
  cases.push_back(padded);
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
  return {{{"K", 4096}, {"sqrsum", 1}},  {{"K", 7168}, {"sqrsum", 0}},
          {{"K", 8}, {"sqrsum", 1}},     {{"K", 384}, {"sqrsum", 1}},
          {{"K", 16384}, {"sqrsum", 1}}, {{"K", 1272}, {"sqrsum", 0}}};
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "hc_post_oracle"};
  launch.constants = {constant("columns", s["K"]), constant("with_sqrsum", s["sqrsum"])};
  launch.grid_x = {.terms = {{"T"}}};
  launch.threads = s["K"] <= 512 ? 32 : 128;
  return launch;
}

}  // namespace

const Kit hc_post_kit{
    .op = &hc_post,
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
