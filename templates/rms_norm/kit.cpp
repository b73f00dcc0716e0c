// Inputs, truth and oracle of rms_norm.
// Truth follows the op's doc in fp32, operation by operation, because its order of the sum is part
// of the op; that this is the formula of ops.md B3 within one bf16 step is a test of its own.
//
// Knob of a case: values (see Values).
#include <vector>

#include "templates/kit.h"
#include "templates/kit_bf16.h"
#include "templates/kit_norm.h"

namespace kiln::templates {

extern const Op rms_norm;
extern const Kit rms_norm_kit;

namespace {

enum Stream : uint64_t { kRow, kElement, kWeight };

enum class Values : int64_t {
  activations = 0,  // rows of any magnitude, some of zeros, some near the 1e-20 of the formula
  any_bits = 1,     // infinities and NaN included
  vectors = 2,      // by hand: see vector_bits
};

uint16_t activation_bits(const Case& c, int64_t row, int64_t column) {
  const uint64_t of_row = counter_bits(c.seed, kRow, static_cast<uint64_t>(row));
  const uint64_t draw =
      counter_bits(c.seed, kElement, static_cast<uint64_t>(row * c.sizes["K"] + column));
  const auto sign = static_cast<uint16_t>(draw & 0x8000);
  const bool all_zeros = of_row % 8 == 0;
  if (all_zeros || (draw >> 16) % 16 == 0) return sign;
  // Half of the rows about 1; else about 1e-10, where 1e-20 counts, or far off: squares that
  // underflow, squares that overflow.
  constexpr int64_t kTops[] = {130, 124, 126, 128, 94, 93, 40, 200};
  const int64_t top = kTops[of_row / 8 % 8];
  const int64_t exponent = top - static_cast<int64_t>((draw >> 32) % 10);
  return static_cast<uint16_t>(sign | exponent << 7 | (draw & 0x7f));
}

// Rows of one number at one column, zeros elsewhere; rows of equal numbers of both signs.
uint16_t vector_bits(const Case& c, int64_t row, int64_t column) {
  constexpr uint16_t kNumbers[] = {0x3f80, 0xc000, 0x3dcc, 0x0001, 0x2f80, 0x7f7f, 0x8000, 0x5f00};
  const uint16_t number = kNumbers[row % 8];
  if (row / 8 % 2 == 0) return column == row * 37 % c.sizes["K"] ? number : 0;
  return static_cast<uint16_t>(number ^ (column % 2 == 0 ? 0x8000 : 0));
}

uint16_t x_bits(const Case& c, int64_t row, int64_t column) {
  switch (static_cast<Values>(c.knobs.get("values", 0))) {
    case Values::activations:
      return activation_bits(c, row, column);
    case Values::any_bits: {
      // A row of a thousand random patterns would hardly ever be finite.
      const uint64_t draw =
          counter_bits(c.seed, kElement, static_cast<uint64_t>(row * c.sizes["K"] + column));
      const bool is_any = (draw >> 32) % static_cast<uint64_t>(c.sizes["K"]) < 4;
      return is_any ? static_cast<uint16_t>(draw) : activation_bits(c, row, column);
    }
    case Values::vectors:
      return vector_bits(c, row, column);
  }
  fail(Status::internal, "rms_norm: unknown values {}", c.knobs.get("values", 0));
}

uint16_t weight_bits(const Case& c, int64_t column) {
  const uint64_t draw = counter_bits(c.seed, kWeight, static_cast<uint64_t>(column));
  if (static_cast<Values>(c.knobs.get("values", 0)) == Values::any_bits && draw % 64 == 0)
    return static_cast<uint16_t>(draw >> 16);
  const auto exponent = static_cast<int64_t>(122 + (draw >> 32) % 8);
  return static_cast<uint16_t>((draw & 0x8000) | exponent << 7 | (draw & 0x7f));
}

// --- truth

// Elements come row by row, so the last factor is kept.
float kept_factor(const Case& c, int64_t row) {
  struct Kept {
    Case of;
    int64_t row = -1;
    float factor = 0;
  };
  thread_local Kept kept;
  const bool is_same = kept.row == row && kept.of.seed == c.seed && kept.of.knobs == c.knobs &&
                       kept.of.sizes == c.sizes;
  if (!is_same) {
    const auto source = [&](int64_t column) { return x_bits(c, row, column); };
    kept = {c, row, norm_factor(source, c.sizes["K"])};
  }
  return kept.factor;
}

std::optional<double> expected(const Case& c, const Arg&, std::span<const int64_t> index) {
  const uint16_t x = x_bits(c, index[0], index[1]);
  return bf16_double(normalised_bits(x, kept_factor(c, index[0]), weight_bits(c, index[1])));
}

// --- cases

Case make_case(std::string name, const Sizes& fixed_sizes, int64_t rows, Values values,
               uint64_t seed = 1) {
  return Case{.name = std::move(name),
              .sizes = fixed_sizes.merged({{"T", rows}}),
              .knobs = {{"values", static_cast<int64_t>(values)}},
              .seed = seed};
}

Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  return make_case("measured", fixed_sizes, bucket["T"], Values::activations);
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases;
  cases.push_back(make_case("vectors", fixed_sizes, 16, Values::vectors));
  for (const int64_t rows : {1, 2, 5, 33}) {
    cases.push_back(make_case(fmt::format("{} rows", rows), fixed_sizes, rows, Values::activations,
                              static_cast<uint64_t>(rows)));
  }
  cases.push_back(make_case("no row", fixed_sizes, 0, Values::activations));
  cases.push_back(make_case("any bits", fixed_sizes, 13, Values::any_bits));
  Case padded = make_case("padded strides", fixed_sizes, 7, Values::activations, 2);
  padded.strides = {{"x_stride", fixed_sizes["K"] + 24}, {"y_stride", fixed_sizes["K"] + 40}};
  cases.push_back(padded);
  constexpr int64_t kMostElements = int64_t{1} << 22;
  cases.push_back(make_case("near the measured size", fixed_sizes,
                            std::min(bucket["T"], kMostElements / fixed_sizes["K"] + 1),
                            Values::activations, 3));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  constexpr int64_t kRows = 21;
  return {
      make_case("activations", fixed_sizes, kRows, Values::activations, 1),
      make_case("other activations", fixed_sizes, kRows, Values::activations, 2),
      make_case("any bits", fixed_sizes, kRows, Values::any_bits, 3),
      make_case("vectors", fixed_sizes, kRows, Values::vectors, 4),
  };
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  constexpr int64_t kNarrow = 512;  // wide rows take the host long to fill
  if (fixed_sizes["K"] <= kNarrow) {
    for (const int64_t rows : {65535, 65536, 65537}) {
      cases.push_back(
          make_case(fmt::format("{} rows", rows), fixed_sizes, rows, Values::activations));
    }
  }
  Case far = make_case("rows beyond 2^31 elements", fixed_sizes, 4, Values::activations);
  constexpr int64_t kFar = (int64_t{1} << 30) + 8;
  far.strides = {{"x_stride", kFar}, {"y_stride", kFar}};
  cases.push_back(far);
  return cases;
}

// Other hidden sizes, and the narrowest, odd and widest rows.
std::vector<Sizes> further_shapes() {
  return {{{"K", 4096}}, {{"K", 7168}}, {{"K", 8}}, {{"K", 24}}, {{"K", 1272}}, {{"K", 16384}}};
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  auto* values = reinterpret_cast<uint16_t*>(row.data());
  const auto count = static_cast<int64_t>(row.size() / sizeof(uint16_t));
  for (int64_t column = 0; column < count; ++column)
    values[column] = arg.name == "x" ? x_bits(c, outer[0], column) : weight_bits(c, column);
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "rms_norm_oracle"};
  launch.constants = {constant("columns", s["K"])};
  launch.grid_x = {.terms = {{"T"}}};
  launch.threads = s["K"] <= 512 ? 32 : 128;
  return launch;
}

}  // namespace

const Kit rms_norm_kit{
    .op = &rms_norm,
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
