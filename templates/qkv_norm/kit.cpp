// Inputs, truth and oracle of qkv_norm.
// Truth follows the docs of rms_norm and act_quant: fp32 operation by operation, as the order of
// the sum is part of the op, then Q8a by definition.
//
// Knob of a case: values (see Values).
#include <vector>

#include "templates/kit.h"
#include "templates/kit_norm.h"
#include "templates/kit_quantise.h"

namespace kiln::templates {

extern const Op qkv_norm;
extern const Kit qkv_norm_kit;

namespace {

enum Stream : uint64_t { kRow, kElement, kWeight };
enum QrFormat : int64_t { kBf16 = 0, kCodes = 1, kBoth = 2 };

enum class Values : int64_t {
  activations = 0,  // rows of any magnitude, some of zeros, some near the 1e-20 of the formula
  any_bits = 1,     // infinities and NaN included
  equal = 2,        // elements of one magnitude: what is quantised are the weights, ties among them
};

struct Part {
  bool is_kv = false;
  int64_t begin = 0, columns = 0;
};
Part part_of(const Case& c, bool is_kv) {
  return is_kv ? Part{true, c.sizes["Q"], c.sizes["V"]} : Part{false, 0, c.sizes["Q"]};
}

// --- inputs

uint16_t x_bits(const Case& c, int64_t row, int64_t column) {
  const auto values = static_cast<Values>(c.knobs.get("values", 0));
  const bool is_kv = column >= c.sizes["Q"];
  const int64_t width = c.sizes["Q"] + c.sizes["V"];
  const uint64_t of_row =
      counter_bits(c.seed, kRow, static_cast<uint64_t>(2 * row + (is_kv ? 1 : 0)));
  const uint64_t draw = counter_bits(c.seed, kElement, static_cast<uint64_t>(row * width + column));
  const auto sign = static_cast<uint16_t>(draw & 0x8000);
  if (values == Values::equal) return static_cast<uint16_t>(sign | (0x3f80 + of_row % 4 * 0x80));
  if (values == Values::any_bits && (draw >> 32) % static_cast<uint64_t>(width) < 4)
    return static_cast<uint16_t>(draw);
  const bool all_zeros = of_row % 8 == 0;
  if (all_zeros || (draw >> 16) % 16 == 0) return sign;
  constexpr int64_t kTops[] = {130, 124, 126, 128, 94, 93, 40, 200};
  const int64_t exponent = kTops[of_row / 8 % 8] - static_cast<int64_t>((draw >> 32) % 10);
  return static_cast<uint16_t>(sign | exponent << 7 | (draw & 0x7f));
}

uint16_t weight_bits(const Case& c, const Part& part, int64_t column) {
  const uint64_t draw = counter_bits(c.seed, kWeight, static_cast<uint64_t>(part.begin + column));
  if (static_cast<Values>(c.knobs.get("values", 0)) == Values::any_bits && draw % 64 == 0)
    return static_cast<uint16_t>(draw >> 16);
  const auto exponent = static_cast<int64_t>(118 + (draw >> 32) % 12);
  return static_cast<uint16_t>((draw & 0x8000) | exponent << 7 | (draw & 0x7f));
}

// --- truth

// Elements come row by row, so the last factor of each part is kept.
float kept_factor(const Case& c, const Part& part, int64_t row) {
  struct Kept {
    Case of;
    int64_t row = -1;
    float factor = 0;
  };
  thread_local Kept kept[2];
  Kept& last = kept[part.is_kv ? 1 : 0];
  const bool is_same = last.row == row && last.of.seed == c.seed && last.of.knobs == c.knobs &&
                       last.of.sizes == c.sizes;
  if (!is_same) {
    const auto source = [&](int64_t column) { return x_bits(c, row, part.begin + column); };
    last = {c, row, norm_factor(source, part.columns)};
  }
  return last.factor;
}

uint16_t normed_bits(const Case& c, const Part& part, int64_t row, int64_t column) {
  return normalised_bits(x_bits(c, row, part.begin + column), kept_factor(c, part, row),
                         weight_bits(c, part, column));
}

std::optional<double> expected(const Case& c, const Arg& arg, std::span<const int64_t> index) {
  const Part part = part_of(c, arg.name == "kv");
  if (arg.name == "kv" || arg.name == "qr")
    return bf16_double(normed_bits(c, part, index[0], index[1]));
  const int64_t size = group_of(Quantiser::q8a);
  const int64_t first = arg.name == "qr_scales" ? index[1] * size : index[1] / size * size;
  std::vector<uint16_t> group;
  for (int64_t i = 0; i < size; ++i) group.push_back(normed_bits(c, part, index[0], first + i));
  const GroupScale scale = group_scale(Quantiser::q8a, group);
  if (arg.name == "qr_scales") return scale.byte;
  return quantised_element(Quantiser::q8a, scale, group[static_cast<size_t>(index[1] - first)])
      .code;
}

// --- cases

Case make_case(std::string name, const Sizes& fixed_sizes, int64_t rows, Values values,
               uint64_t seed = 1) {
  return Case{.name = std::move(name),
              .sizes = fixed_sizes.merged({{"T", rows}}),
              .strides = {},
              .knobs = {{"values", static_cast<int64_t>(values)}},
              .absent = {},
              .seed = seed};
}

Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  return make_case("measured", fixed_sizes, bucket["T"], Values::activations);
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  const int64_t q = fixed_sizes["Q"], kv = fixed_sizes["V"];
  std::vector<Case> cases;
  cases.push_back(make_case("equal magnitudes", fixed_sizes, 9, Values::equal));
  for (const int64_t rows : {1, 2, 5, 33}) {
    cases.push_back(make_case(fmt::format("{} rows", rows), fixed_sizes, rows, Values::activations,
                              static_cast<uint64_t>(rows)));
  }
  cases.push_back(make_case("no row", fixed_sizes, 0, Values::activations));
  cases.push_back(make_case("any bits", fixed_sizes, 13, Values::any_bits));
  Case padded = make_case("padded strides", fixed_sizes, 7, Values::activations, 2);
  padded.strides = {{"qkv_stride", q + kv + 24}, {"kv_stride", kv + 8}};
  if (fixed_sizes["qr_format"] != kCodes) padded.strides.set("qr_stride", q + 40);
  if (fixed_sizes["qr_format"] != kBf16) {
    padded.strides.set("qr_codes_stride", q + 8);
    padded.strides.set("qr_scales_stride", q / 32 + 3);
  }
  cases.push_back(padded);
  constexpr int64_t kMostElements = int64_t{1} << 22;
  cases.push_back(make_case("near the measured size", fixed_sizes,
                            std::min(bucket["T"], kMostElements / (q + kv) + 1),
                            Values::activations, 3));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  constexpr int64_t kRows = 21;
  return {
      make_case("activations", fixed_sizes, kRows, Values::activations, 1),
      make_case("other activations", fixed_sizes, kRows, Values::activations, 2),
      make_case("any bits", fixed_sizes, kRows, Values::any_bits, 3),
      make_case("equal magnitudes", fixed_sizes, kRows, Values::equal, 4),
  };
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  if (fixed_sizes["qr_format"] == kCodes)  // once: the host fills it slowly
    cases.push_back(make_case("65537 rows", fixed_sizes, 65537, Values::activations));
  Case far = make_case("rows beyond 2^31 elements", fixed_sizes, 4, Values::activations);
  constexpr int64_t kFar = (int64_t{1} << 30) + 8;
  far.strides = {{"qkv_stride", kFar}, {"kv_stride", kFar}};
  if (fixed_sizes["qr_format"] != kCodes) far.strides.set("qr_stride", kFar);
  if (fixed_sizes["qr_format"] != kBf16) {
    far.strides.set("qr_codes_stride", kFar);
    far.strides.set("qr_scales_stride", kFar + 3);
  }
  cases.push_back(far);
  return cases;
}

// Narrow, odd and wide parts.
std::vector<Sizes> further_shapes() {
  return {{{"Q", 32}, {"V", 8}, {"qr_format", kBoth}},
          {{"Q", 1056}, {"V", 136}, {"qr_format", kCodes}},
          {{"Q", 8192}, {"V", 4096}, {"qr_format", kBoth}}};
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  auto* values = reinterpret_cast<uint16_t*>(row.data());
  const auto count = static_cast<int64_t>(row.size() / sizeof(uint16_t));
  const Part part = part_of(c, arg.name == "kv_weight");
  for (int64_t column = 0; column < count; ++column)
    values[column] = arg.name == "qkv" ? x_bits(c, outer[0], column) : weight_bits(c, part, column);
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "qkv_norm_oracle"};
  launch.constants = {constant("q_columns", s["Q"]), constant("kv_columns", s["V"]),
                      constant("qr_format", s["qr_format"])};
  launch.grid_x = {.terms = {{"T"}}};
  launch.threads = 64;
  return launch;
}

}  // namespace

const Kit qkv_norm_kit{
    .op = &qkv_norm,
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
