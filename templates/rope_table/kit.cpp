// Truth and oracle of rope_table, which has no input.
#include <algorithm>

#include "templates/kit.h"
#include "templates/kit_rope.h"

namespace kiln::templates {

extern const Op rope_table;
extern const Kit rope_table_kit;

namespace {

std::optional<double> expected(const Case& c, const Arg&, std::span<const int64_t> index) {
  return rope_angle(c.sizes["frequencies"] != 0, c.sizes["first_position"] + index[0], index[1]);
}

Case make_case(std::string name, const Sizes& fixed_sizes, int64_t positions, int64_t first) {
  return Case{.name = std::move(name),
              .sizes = fixed_sizes.merged({{"P", positions}, {"first_position", first}}),
              .strides = {},
              .knobs = {}};
}

Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  return make_case("measured", fixed_sizes, bucket["P"], 0);
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  constexpr int64_t kMost = 4096;
  std::vector<Case> cases{
      make_case("from the start", fixed_sizes, std::min(bucket["P"], kMost), 0),
      make_case("one position", fixed_sizes, 1, 127),
      make_case("no position", fixed_sizes, 0, 5),
      make_case("the last positions of the model", fixed_sizes, 37, (1 << 20) - 37),
      make_case("the last positions of fp32", fixed_sizes, 17, (1 << 24) - 17),
      make_case("padded rows", fixed_sizes, 9, 65536),
  };
  cases.back().strides = {{"rope_table_stride", 67}};
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  return {make_case("sixty positions", fixed_sizes, 60, 1000)};
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases{make_case("all positions of the model", fixed_sizes, 1 << 20, 0),
                          make_case("rows beyond 2^31 elements", fixed_sizes, 4, 70000)};
  cases.back().strides = {{"rope_table_stride", (int64_t{1} << 30) + 1}};
  return cases;
}

void fill(const Case&, const Arg& arg, std::span<const int64_t>, std::span<std::byte>) {
  fail(Status::internal, "rope_table: {} is no input", arg.name);
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "rope_table_oracle"};
  launch.constants = {{"yarn", "bool", s["frequencies"] != 0 ? "true" : "false"}};
  launch.grid_x = {.terms = {{"P"}}};
  launch.threads = 64;
  return launch;
}

}  // namespace

const Kit rope_table_kit{
    .op = &rope_table,
    .measured_case = measured_case,
    .verify_cases = verify_cases,
    .replay_cases = replay_cases,
    .large_cases = large_cases,
    .further_shapes = nullptr,
    .fill = fill,
    .expected = expected,
    .oracle = oracle,
};

}  // namespace kiln::templates
