// Inputs, truth and oracle of act_quant.
// Truth follows ops.md B4 by definition: the codes of a format are a table of magnitudes, the
// nearest is looked for in float64, where every quotient that decides is exact or far from a tie.
//
// Knob of a case: values (see Values).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "templates/kit.h"

namespace kiln::templates {

extern const Op act_quant;
extern const Kit act_quant_kit;

namespace {

enum Stream : uint64_t { kGroup, kElement, kPlace };
enum Format : int64_t { kQ8a = 0, kQ8c = 1, kQ8d = 2, kQ4m = 3, kQ4n = 4 };
enum Output : int64_t { kCodes = 0, kBf16 = 1 };

enum class Values : int64_t {
  activations = 0,  // finite, magnitudes of a group within 2^14, some groups all zeros
  any_bits = 1,     // infinities and NaN included
  alone = 2,        // group u: the magnitude with the bits u % 32768, of either sign, among zeros
  ties = 3,         // between neighbouring codes and one bf16 step beside, under every scale
  vectors = 4,      // ops.md (e) and the edges of scales
};

bool is_e4m3(int64_t format) { return format == kQ8a || format == kQ8c || format == kQ8d; }

int64_t group_of(int64_t format) { return format == kQ8d ? 64 : format == kQ4n ? 16 : 32; }

double bf16_double(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// Of a number that a bf16 holds.
uint16_t bf16_bits(double value) {
  const float narrow = static_cast<float>(value);
  uint32_t bits = 0;
  std::memcpy(&bits, &narrow, sizeof(bits));
  if (static_cast<double>(narrow) != value || (bits & 0xffff) != 0)
    fail(Status::internal, "act_quant: {} is no bf16 number", value);
  return static_cast<uint16_t>(bits >> 16);
}

// --- the codes

std::vector<double> e4m3_magnitudes() {
  std::vector<double> magnitudes;
  for (int code = 0; code < 127; ++code) {
    const int exponent = code >> 3, mantissa = code & 7;
    magnitudes.push_back(exponent == 0 ? std::ldexp(mantissa, -9)
                                       : std::ldexp(8 + mantissa, exponent - 10));
  }
  return magnitudes;
}

const std::vector<double>& e4m3() {
  static const std::vector<double> magnitudes = e4m3_magnitudes();
  return magnitudes;
}

const std::vector<double>& e2m1() {
  static const std::vector<double> magnitudes{0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return magnitudes;
}

const std::vector<double>& magnitudes_of(int64_t format) {
  return is_e4m3(format) ? e4m3() : e2m1();
}

// Position of the nearest one, the last for all beyond; ties to the even position.
int nearest(const std::vector<double>& magnitudes, double value) {
  const auto above = std::upper_bound(magnitudes.begin(), magnitudes.end(), value);
  const int low = static_cast<int>(above - magnitudes.begin()) - 1;
  if (above == magnitudes.end()) return low;
  const double to_low = value - magnitudes[static_cast<size_t>(low)], to_high = *above - value;
  const bool is_low = to_low < to_high || (to_low == to_high && low % 2 == 0);
  return is_low ? low : low + 1;
}

// --- inputs

// Edges and vectors, each at the front of a group; the rest of the group is zero.
const std::vector<std::vector<uint16_t>>& vectors() {
  const auto numbers = [](const std::vector<double>& values) {
    std::vector<uint16_t> bits;
    for (const double value : values) bits.push_back(bf16_bits(value));
    return bits;
  };
  static const std::vector<std::vector<uint16_t>> list{
      numbers({0.75, -0.6484375, -0.55078125, 0.44921875, -0.349609375, -0.25, 0.150390625,
               -0.050048828125, 0.050048828125, -0.150390625, 0.25, 0.349609375, -0.44921875,
               0.55078125, 0.6484375, -0.75}),
      numbers({0.71875, -0.146484375}),
      numbers({6.375, 1.0625}),
      numbers({99840}),  // 1e5 in bf16
      // Scales of Q8a; the neighbours of 448 stand for 447 and 449, which bf16 does not have.
      numbers({448}),
      numbers({450}),
      numbers({446}),
      numbers({224}),
      numbers({3.5}),
      numbers({1}),
      numbers({0.050048828125}),
      {},
      // Scales of Q4m.
      numbers({6}),
      numbers({6.5}),
      numbers({5.90625}),
      numbers({3}),
      numbers({1.5}),
      numbers({0.75}),
      // Around the floors: 1e-4 and 448 * 2^-22; 6 * 2^-126; 6 * 2^-9 and the tie at 9 * 2^-9.
      {0x38d1},
      {0x38d2},
      {0x38e0},
      {0x38e1},
      {0x01bf},
      {0x01c0},
      {0x01c1},
      {0x3c3f},
      {0x3c40},
      {0x3c41},
      {0x3c8f},
      {0x3c90},
      {0x3c91},
      // The ends of bf16.
      {0x0001, 0x8001},
      {0x0080, 0x8001},
      {0x7f7f, 0xff7f, 0x0001},
      // Zeros of both signs, alone and beside a number.
      {0x8000},
      {0x8000, 0x3f80, 0x0000, 0x8000},
      // What is no number.
      {0x3f80, 0x7f80},
      {0xff80},
      {0x7fc0, 0x4000},
      {0x3f80, 0xffff},
      {0x7f81, 0xff80, 0x7f80},
      // Overflow of the E4M3 scale of Q4n, and the last that does not.
      numbers({2688}),
      numbers({2704, 448}),
  };
  return list;
}

// Exponents whose scale keeps the ties of a group within bf16: 2^low to 2^high.
struct Exponents {
  int low, high;
};
Exponents tie_exponents(int64_t format) {
  switch (format) {
    case kQ8a:
    case kQ8d:
      return {-22, 119};
    case kQ8c:
      return {-110, 119};
    default:
      return {-110, 125};
  }
}

int64_t tie_scales(int64_t format) {
  if (format == kQ4n) return 126;
  const Exponents exponents = tie_exponents(format);
  return exponents.high - exponents.low + 1;
}

// Element i of group u: first the number that gives the group its scale, then the halves between
// neighbouring codes and the bf16 numbers beside them, of both signs.
uint16_t tie_bits(int64_t format, int64_t group, int64_t i) {
  const std::vector<double>& magnitudes = magnitudes_of(format);
  const double scale = format == kQ4n
                           ? e4m3()[static_cast<size_t>(1 + group % tie_scales(format))]
                           : std::ldexp(1.0, static_cast<int>(tie_exponents(format).low +
                                                              group % tie_scales(format)));
  if (i == 0) return bf16_bits((group % 2 == 0 ? 1 : -1) * magnitudes.back() * scale);
  const int64_t ties = static_cast<int64_t>(magnitudes.size()) - 1;
  const int64_t number = (group * (group_of(format) - 1) + i - 1) % (6 * ties);
  const size_t low = static_cast<size_t>(number / 6);
  const uint16_t tie = bf16_bits((magnitudes[low] + magnitudes[low + 1]) / 2 * scale);
  const int step = static_cast<int>(number % 6 / 2) - 1;
  return static_cast<uint16_t>((tie + step) | (number % 2 == 0 ? 0 : 0x8000));
}

uint16_t activation_bits(uint64_t seed, uint64_t group, uint64_t element) {
  const uint64_t of_group = counter_bits(seed, kGroup, group);
  const uint64_t draw = counter_bits(seed, kElement, element);
  const auto sign = static_cast<uint16_t>(draw & 0x8000);
  const bool all_zeros = of_group % 16 == 0;
  if (all_zeros || (draw >> 16) % 16 == 0) return sign;
  // Half of the groups where activations lie, with the floors of the scales; half anywhere.
  const auto top = static_cast<int64_t>((of_group >> 8) % 2 == 0 ? 100 + (of_group >> 16) % 40
                                                                 : (of_group >> 16) % 255);
  const int64_t exponent = std::max<int64_t>(top - static_cast<int64_t>((draw >> 32) % 15), 0);
  return static_cast<uint16_t>(sign | exponent << 7 | (draw & 0x7f));
}

uint16_t x_bits(const Case& c, int64_t row, int64_t column) {
  const int64_t format = c.sizes["format"], columns = c.sizes["K"];
  const int64_t size = group_of(format);
  const int64_t group = row * (columns / size) + column / size;
  const int64_t i = column % size;
  const auto element = static_cast<uint64_t>(row * columns + column);
  switch (static_cast<Values>(c.knobs.get("values", 0))) {
    case Values::activations:
      return activation_bits(c.seed, static_cast<uint64_t>(group), element);
    case Values::any_bits:
      return static_cast<uint16_t>(counter_bits(c.seed, kElement, element));
    case Values::alone: {
      const int64_t place =
          counter_range(c.seed, kPlace, static_cast<uint64_t>(group), 0, size - 1);
      const int64_t sign = (group + group / 2) % 2;
      if (i == place) return static_cast<uint16_t>(group % 32768 | sign << 15);
      return static_cast<uint16_t>((group + i) % 2 == 0 ? 0 : 0x8000);
    }
    case Values::ties:
      return tie_bits(format, group, i);
    case Values::vectors: {
      const auto& list = vectors();
      const auto& front = list[static_cast<size_t>(group) % list.size()];
      return i < static_cast<int64_t>(front.size()) ? front[static_cast<size_t>(i)] : 0;
    }
  }
  fail(Status::internal, "act_quant: unknown values {}", c.knobs.get("values", 0));
}

// --- truth

struct Scale {
  int byte = 0;
  double value = 0;  // NaN: the group is not finite
};

// B4's pow2ceil, whose result is at least 2^-126.
Scale power_of_two_above(double value) {
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);
  if (fraction == 0.5) --exponent;
  exponent = std::max(exponent, -126);
  return {exponent + 127, std::ldexp(1.0, exponent)};
}

Scale scale_of(int64_t format, double largest) {
  constexpr float kFloor = 1e-4f, kOneIn448 = 1.0f / 448, kOneIn6 = 1.0f / 6;
  const auto times = [](double a, float b) {  // rounded to fp32, as B4 writes it
    return static_cast<double>(static_cast<float>(a) * b);
  };
  switch (format) {
    case kQ8a:
      return power_of_two_above(times(std::max<double>(largest, kFloor), kOneIn448));
    case kQ8c:
      if (largest == 0) return {0, std::ldexp(1.0, -127)};
      return power_of_two_above(times(largest, kOneIn448));
    case kQ8d:
      return power_of_two_above(std::max<double>(largest, kFloor) / 448);
    case kQ4m:
      return power_of_two_above(times(std::max(largest, 6 * std::ldexp(1.0, -126)), kOneIn6));
    case kQ4n: {
      const int byte = nearest(e4m3(), std::max(largest, 6 * std::ldexp(1.0, -9)) / 6);
      return {byte, e4m3()[static_cast<size_t>(byte)]};
    }
  }
  fail(Status::internal, "act_quant: unknown format {}", format);
}

// One rounding to bf16, nearest even: 8 significant bits, subnormal step 2^-133.
double round_to_bf16(double value) {
  if (value == 0) return value;
  const double step = std::ldexp(1.0, std::max(std::ilogb(value), -126) - 7);
  return std::copysign(std::nearbyint(value / step) * step, value);
}

struct Group {
  Scale scale;
  double largest = 0;
};

Group group_at(const Case& c, int64_t row, int64_t index) {
  const int64_t format = c.sizes["format"];
  const int64_t size = group_of(format);
  double largest = 0;
  for (int64_t column = index * size; column < (index + 1) * size; ++column) {
    const double magnitude = std::fabs(bf16_double(x_bits(c, row, column)));
    if (!std::isfinite(magnitude))
      return {.scale = {format == kQ4n ? 0x7f : 255, std::nan("")}, .largest = magnitude};
    largest = std::max(largest, magnitude);
  }
  return {.scale = scale_of(format, largest), .largest = largest};
}

struct Element {
  int code = 0;
  double value = 0;  // what code and scale stand for
};

Element element_at(const Case& c, int64_t row, int64_t column) {
  const int64_t format = c.sizes["format"];
  const Group group = group_at(c, row, column / group_of(format));
  if (std::isnan(group.scale.value)) return {is_e4m3(format) ? 0x7f : 0, std::nan("")};
  if (format == kQ8c && group.largest == 0) return {0, 0.0};
  const double x = bf16_double(x_bits(c, row, column));
  const std::vector<double>& magnitudes = magnitudes_of(format);
  const int code = nearest(magnitudes, std::fabs(x) / group.scale.value);
  const double value = round_to_bf16(magnitudes[static_cast<size_t>(code)] * group.scale.value);
  if (!std::signbit(x)) return {code, value};
  return {code | (is_e4m3(format) ? 0x80 : 8), -value};
}

std::optional<double> expected(const Case& c, const Arg& arg, std::span<const int64_t> index) {
  const int64_t row = index[0];
  if (arg.name == "scales") return group_at(c, row, index[1]).scale.byte;
  if (arg.name == "y") return element_at(c, row, index[1]).value;
  if (is_e4m3(c.sizes["format"])) return element_at(c, row, index[1]).code;
  return element_at(c, row, 2 * index[1]).code | element_at(c, row, 2 * index[1] + 1).code << 4;
}

// --- cases

Case make_case(std::string name, const Sizes& fixed_sizes, int64_t rows, Values values,
               uint64_t seed = 1) {
  return Case{.name = std::move(name),
              .sizes = fixed_sizes.merged({{"T", rows}}),
              .knobs = {{"values", static_cast<int64_t>(values)}},
              .seed = seed};
}

// Rows that hold so many groups.
int64_t rows_of(const Sizes& fixed_sizes, int64_t groups) {
  const int64_t of_row = fixed_sizes["K"] / group_of(fixed_sizes["format"]);
  return (groups + of_row - 1) / of_row;
}

Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  return make_case("measured", fixed_sizes, bucket["T"], Values::activations);
}

Sizes padded_strides(const Sizes& fixed_sizes) {
  const Sizes all = with_derived(act_quant, fixed_sizes);
  Sizes strides{{"x_stride", all["K"] + 24}};
  if (all["output"] == kBf16) return strides.merged({{"y_stride", all["K"] + 40}});
  return strides.merged({{"codes_stride", (all["code_bytes"] + 7) / 8 * 8 + 16},
                         {"scales_stride", all["groups"] + 5}});
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  const int64_t format = fixed_sizes["format"], columns = fixed_sizes["K"];
  std::vector<Case> cases;
  cases.push_back(make_case("vectors and edges", fixed_sizes,
                            rows_of(fixed_sizes, static_cast<int64_t>(vectors().size())),
                            Values::vectors));
  cases.push_back(make_case("ties under every scale", fixed_sizes,
                            rows_of(fixed_sizes, tie_scales(format)), Values::ties));
  // Every magnitude decides about its group. The arithmetic depends neither on the width nor, but
  // for the last product, on the output: it is done once a format, where a row is one group.
  if (columns == group_of(format) && fixed_sizes["output"] == kCodes)
    cases.push_back(make_case("every magnitude alone", fixed_sizes, 32768, Values::alone));
  cases.push_back(make_case("no row", fixed_sizes, 0, Values::activations));
  for (const int64_t rows : {1, 2, 5}) {
    cases.push_back(make_case(fmt::format("{} rows", rows), fixed_sizes, rows, Values::activations,
                              static_cast<uint64_t>(rows)));
  }
  cases.push_back(make_case("any bits", fixed_sizes, rows_of(fixed_sizes, 600), Values::any_bits));
  Case padded = make_case("padded strides", fixed_sizes, 7, Values::any_bits, 2);
  padded.strides = padded_strides(fixed_sizes);
  cases.push_back(padded);
  constexpr int64_t kMostElements = int64_t{1} << 22;
  cases.push_back(make_case("near the measured size", fixed_sizes,
                            std::min(bucket["T"], kMostElements / columns + 1), Values::activations,
                            3));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  constexpr int64_t kRows = 37;
  return {
      make_case("activations", fixed_sizes, kRows, Values::activations, 1),
      make_case("other activations", fixed_sizes, kRows, Values::activations, 2),
      make_case("any bits", fixed_sizes, kRows, Values::any_bits, 3),
      make_case("ties", fixed_sizes, kRows, Values::ties, 4),
      make_case("vectors", fixed_sizes, kRows, Values::vectors, 5),
  };
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  // Wide rows have as many CTAs at fewer rows, and take the host long to fill.
  constexpr int64_t kNarrow = 512;
  if (fixed_sizes["K"] <= kNarrow) {
    for (const int64_t rows : {65535, 65536, 65537})
      cases.push_back(
          make_case(fmt::format("{} rows", rows), fixed_sizes, rows, Values::activations));
  }
  Case far = make_case("rows beyond 2^31 elements", fixed_sizes, 4, Values::any_bits);
  constexpr int64_t kFar = (int64_t{1} << 30) + 8;
  far.strides = {{"x_stride", kFar}};
  if (fixed_sizes["output"] == kBf16) {
    far.strides.set("y_stride", kFar);
  } else {
    far.strides.set("codes_stride", kFar);
    far.strides.set("scales_stride", kFar + 3);
  }
  cases.push_back(far);
  return cases;
}

// Rows of one group for every format, and widths beside powers of two.
std::vector<Sizes> further_shapes() {
  std::vector<Sizes> shapes;
  for (const int64_t output : {kCodes, kBf16}) {
    for (const int64_t format : {kQ8a, kQ8c, kQ8d, kQ4m, kQ4n})
      shapes.push_back({{"format", format}, {"K", group_of(format)}, {"output", output}});
  }
  shapes.push_back({{"format", kQ8c}, {"K", 5120}, {"output", kCodes}});
  shapes.push_back({{"format", kQ8a}, {"K", 288}, {"output", kCodes}});  // 2304 / 8
  shapes.push_back({{"format", kQ4m}, {"K", 96}, {"output", kCodes}});
  shapes.push_back({{"format", kQ4n}, {"K", 48}, {"output", kCodes}});
  return shapes;
}

void fill(const Case& c, const Arg&, std::span<const int64_t> outer, std::span<std::byte> row) {
  auto* values = reinterpret_cast<uint16_t*>(row.data());
  const int64_t count = static_cast<int64_t>(row.size() / sizeof(uint16_t));
  for (int64_t column = 0; column < count; ++column) values[column] = x_bits(c, outer[0], column);
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "act_quant_oracle"};
  launch.constants = {constant("format", s["format"]), constant("output", s["output"]),
                      constant("columns", s["K"])};
  launch.grid_x = {.terms = {{"T"}}};
  launch.threads = s["K"] / group_of(s["format"]) <= 32 ? 32 : 128;
  return launch;
}

}  // namespace

const Kit act_quant_kit{
    .op = &act_quant,
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
