// Inputs, truth and oracle of rope.
// Truth is the rotation of ops.md B5 in fp32, operation by operation, as its roundings are part of
// the op. Tables are those of the model: both sets of frequencies.
//
// Knobs of a case:
//   yarn            frequencies of the layers with YaRN instead of base 10000
//   step            row p of the table has the angles of position p * step
//   bad_positions   of this many rows one has a position below, one a position above the table
//   any_bits        infinities and NaN are among the elements
//   cancelling      one of two terms is nearly the other, so that their rounding decides
//   layout          head_dim of the tensor that x is a part of
#include <algorithm>
#include <cstring>
#include <vector>

#include "templates/kit.h"
#include "templates/kit_bf16.h"
#include "templates/kit_rope.h"

namespace kiln::templates {

extern const Op rope;
extern const Kit rope_kit;

namespace {

enum Stream : uint64_t { kElement, kPosition };

constexpr int64_t kPairs = 32;

// --- inputs

// Columns of a row of the table: 32 cosines, then 32 sines, of the fp32 product.
float table_entry(const Case& c, int64_t row, int64_t column) {
  return rope_angle(c.knobs.get("yarn", 0) != 0, row * c.knobs.get("step", 1), column);
}

int64_t position_of(const Case& c, int64_t row) {
  const int64_t positions = c.sizes["P"], every = c.knobs.get("bad_positions", 0);
  if (every != 0 && row % every == 0) return row / every % 2 == 0 ? -1 : positions;
  if (positions == 0) return 0;
  return counter_range(c.seed, kPosition, static_cast<uint64_t>(row), 0, positions - 1);
}

// Nearly (sin, cos) or (cos, -sin) for a rotation forward: one of the sums is a few bits.
uint16_t cancelling_bits(const Case& c, int64_t row, int64_t head, int64_t element) {
  const int64_t position = position_of(c, row), pair = element / 2;
  const float cosine = table_entry(c, position, pair);
  const float turn = c.sizes["direction"] == 0 ? 1 : -1;
  const float sine = turn * table_entry(c, position, kPairs + pair);
  const bool is_first = head % 2 == 0;
  const float value = element % 2 == 0 ? (is_first ? sine : cosine) : (is_first ? cosine : -sine);
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}

uint16_t x_bits(const Case& c, int64_t row, int64_t head, int64_t element) {
  if (c.knobs.get("cancelling", 0) != 0) return cancelling_bits(c, row, head, element);
  const auto number = static_cast<uint64_t>((row * c.sizes["H"] + head) * 64 + element);
  const uint64_t draw = counter_bits(c.seed, kElement, number);
  if (c.knobs.get("any_bits", 0) != 0 && (draw >> 40) % 4 == 0) return static_cast<uint16_t>(draw);
  const auto sign = static_cast<uint16_t>(draw & 0x8000);
  if ((draw >> 16) % 16 == 0) return sign;
  const auto exponent = static_cast<int64_t>(120 + (draw >> 32) % 10);
  return static_cast<uint16_t>(sign | exponent << 7 | (draw & 0x7f));
}

// --- truth

std::optional<double> expected(const Case& c, const Arg&, std::span<const int64_t> index) {
  const int64_t row = index[0], head = index[1], element = index[2];
  const int64_t position = position_of(c, row);
  const RowBits x = [&](int64_t e) { return x_bits(c, row, head, e); };
  // As it was. Not "unwritten": the bits are known.
  if (position < 0 || position >= c.sizes["P"]) return bf16_double(x(element));
  const float turn = c.sizes["direction"] == 0 ? 1 : -1;
  return rotated_value(x, 64, element, [&](int64_t i) {
    return (i < kPairs ? 1 : turn) * table_entry(c, position, i);
  });
}

// --- cases

Case make_case(std::string name, const Sizes& fixed_sizes, int64_t rows, NamedInts knobs,
               uint64_t seed = 1) {
  constexpr int64_t kPositions = 150;
  Case c{.name = std::move(name),
         .sizes = fixed_sizes.merged({{"T", rows}, {"P", kPositions}}),
         .knobs = std::move(knobs),
         .seed = seed};
  const int64_t head_dim = c.knobs.get("layout", 64);
  c.strides = {{"x_stride0", fixed_sizes["H"] * head_dim}, {"x_stride1", head_dim}};
  return c;
}

Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  Case c = make_case("measured", fixed_sizes, bucket["T"], {{"layout", 512}, {"yarn", 1}});
  c.sizes.set("P", 8192);
  return c;
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases;
  cases.push_back(make_case("base 10000", fixed_sizes, 5, {{"layout", 512}}));
  cases.push_back(make_case("YaRN", fixed_sizes, 5, {{"layout", 128}, {"yarn", 1}}));
  cases.push_back(make_case("positions to 2^20", fixed_sizes, 7, {{"step", 7037}}, 2));
  cases.push_back(make_case("YaRN to 2^20", fixed_sizes, 7, {{"step", 7037}, {"yarn", 1}}, 3));
  cases.push_back(
      make_case("pairs that cancel", fixed_sizes, 48 / fixed_sizes["H"] + 4, {{"cancelling", 1}}));
  cases.push_back(make_case("no row", fixed_sizes, 0, {}));
  for (const int64_t rows : {1, 2, 17}) {
    cases.push_back(make_case(fmt::format("{} rows", rows), fixed_sizes, rows, {},
                              static_cast<uint64_t>(rows)));
  }
  cases.push_back(make_case("positions outside", fixed_sizes, 9, {{"bad_positions", 2}}, 4));
  cases.push_back(make_case("no row has a position", fixed_sizes, 3, {{"bad_positions", 1}}, 5));
  Case empty_table = make_case("empty table", fixed_sizes, 3, {}, 6);
  empty_table.sizes.set("P", 0);
  cases.push_back(empty_table);
  cases.push_back(make_case("any bits", fixed_sizes, 11, {{"any_bits", 1}}, 7));
  Case padded = make_case("padded strides", fixed_sizes, 6, {}, 8);
  padded.strides = {
      {"x_stride0", fixed_sizes["H"] * 72 + 40}, {"x_stride1", 72}, {"rope_table_stride", 68}};
  cases.push_back(padded);
  Case heads_first = make_case("heads before rows", fixed_sizes, 6, {}, 9);
  heads_first.strides = {{"x_stride0", 64}, {"x_stride1", 6 * 64}};
  cases.push_back(heads_first);
  constexpr int64_t kMostElements = int64_t{1} << 22;
  cases.push_back(make_case("near the measured size", fixed_sizes,
                            std::min(bucket["T"], kMostElements / fixed_sizes["H"] / 64 + 1), {},
                            10));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  constexpr int64_t kRows = 13;
  return {
      make_case("all rows", fixed_sizes, kRows, {}, 1),
      make_case("padded rows, other positions", fixed_sizes, kRows, {{"bad_positions", 3}}, 2),
      make_case("all rows are padding", fixed_sizes, kRows, {{"bad_positions", 1}}, 3),
      make_case("the other table", fixed_sizes, kRows, {{"yarn", 1}}, 4),
  };
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  if (fixed_sizes["direction"] == 0) {
    for (const int64_t rows : {65535, 65537})
      cases.push_back(make_case(fmt::format("{} rows", rows), fixed_sizes, rows, {}));
  }
  Case far = make_case("rows beyond 2^31 elements", fixed_sizes, 4, {});
  far.strides.set("x_stride0", (int64_t{1} << 30) + 8);
  cases.push_back(far);
  return cases;
}

std::vector<Sizes> further_shapes() {
  std::vector<Sizes> shapes;
  for (const int64_t direction : {0, 1}) {
    for (const int64_t heads : {1, 3, 64})
      shapes.push_back({{"H", heads}, {"direction", direction}});
  }
  return shapes;
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  const auto put = [&](int64_t i, auto value) {
    std::memcpy(row.data() + static_cast<size_t>(i) * sizeof(value), &value, sizeof(value));
  };
  const auto count = static_cast<int64_t>(row.size()) / dtype_bytes(arg.dtype);
  for (int64_t i = 0; i < count; ++i) {
    if (arg.name == "x") put(i, x_bits(c, outer[0], outer[1], i));
    if (arg.name == "positions") put(i, static_cast<int32_t>(position_of(c, i)));
    if (arg.name == "rope_table") put(i, table_entry(c, outer[0], i));
  }
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "rope_oracle"};
  launch.constants = {constant("heads", s["H"]),
                      {"inverse", "bool", s["direction"] != 0 ? "true" : "false"}};
  launch.grid_x = {.terms = {{"T"}}};
  launch.threads = 128;
  return launch;
}

}  // namespace

const Kit rope_kit{
    .op = &rope,
    .measured_case = measured_case,
    .verify_cases = verify_cases,
    .replay_cases = replay_cases,
    .large_cases = large_cases,
    .further_shapes = further_shapes,
    .fill = fill,
    .expected = expected,
    .oracle = oracle,
};

}  // namespace kiln::templates
