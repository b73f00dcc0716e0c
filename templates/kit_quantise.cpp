#include "templates/kit_quantise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "templates/kit.h"

namespace kiln::templates {

bool is_e4m3(Quantiser quantiser) {
  return quantiser != Quantiser::q4m && quantiser != Quantiser::q4n;
}

int64_t group_of(Quantiser quantiser) {
  switch (quantiser) {
    case Quantiser::q8k:
      return 128;
    case Quantiser::q8d:
      return 64;
    case Quantiser::q4n:
      return 16;
    default:
      return 32;
  }
}

namespace {

enum Stream : uint64_t { kGroup, kElement, kPlace };

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

const std::vector<double>& magnitudes_of(Quantiser quantiser) {
  return is_e4m3(quantiser) ? e4m3() : e2m1();
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
Exponents tie_exponents(Quantiser quantiser) {
  switch (quantiser) {
    case Quantiser::q8a:
    case Quantiser::q8d:
    case Quantiser::q8k:
      return {-22, 119};
    case Quantiser::q8c:
      return {-110, 119};
    default:
      return {-110, 125};
  }
}

int64_t tie_scales(Quantiser quantiser) {
  if (quantiser == Quantiser::q4n) return 126;
  const Exponents exponents = tie_exponents(quantiser);
  return exponents.high - exponents.low + 1;
}

// Element i of group u: first the number that gives the group its scale, then the halves between
// neighbouring codes and the bf16 numbers beside them, of both signs.
uint16_t tie_bits(Quantiser quantiser, int64_t group, int64_t i) {
  const std::vector<double>& magnitudes = magnitudes_of(quantiser);
  const double scale = quantiser == Quantiser::q4n
                           ? e4m3()[static_cast<size_t>(1 + group % tie_scales(quantiser))]
                           : std::ldexp(1.0, static_cast<int>(tie_exponents(quantiser).low +
                                                              group % tie_scales(quantiser)));
  if (i == 0) return bf16_bits((group % 2 == 0 ? 1 : -1) * magnitudes.back() * scale);
  const int64_t ties = static_cast<int64_t>(magnitudes.size()) - 1;
  const int64_t number = (group * (group_of(quantiser) - 1) + i - 1) % (6 * ties);
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

}  // namespace

int64_t groups_of_ties(Quantiser quantiser) { return tie_scales(quantiser); }
int64_t groups_of_vectors() { return static_cast<int64_t>(vectors().size()); }

int64_t InputRows::rows_of(int64_t groups) const {
  const int64_t of_row = columns / group_of(quantiser);
  return (groups + of_row - 1) / of_row;
}

uint16_t InputRows::bits(int64_t row, int64_t column) const {
  const int64_t size = group_of(quantiser);
  const int64_t group = row * (columns / size) + column / size;
  const int64_t i = column % size;
  const auto element = static_cast<uint64_t>(row * columns + column);
  switch (input) {
    case QuantiserInput::activations:
      return activation_bits(seed, static_cast<uint64_t>(group), element);
    case QuantiserInput::any_bits:
      return static_cast<uint16_t>(counter_bits(seed, kElement, element));
    case QuantiserInput::alone: {
      const int64_t place = counter_range(seed, kPlace, static_cast<uint64_t>(group), 0, size - 1);
      const int64_t sign = (group + group / 2) % 2;
      if (i == place) return static_cast<uint16_t>(group % 32768 | sign << 15);
      return static_cast<uint16_t>((group + i) % 2 == 0 ? 0 : 0x8000);
    }
    case QuantiserInput::ties:
      return tie_bits(quantiser, group, i);
    case QuantiserInput::vectors: {
      const auto& list = vectors();
      const auto& front = list[static_cast<size_t>(group) % list.size()];
      return i < static_cast<int64_t>(front.size()) ? front[static_cast<size_t>(i)] : 0;
    }
  }
  fail(Status::internal, "unknown input {}", static_cast<int64_t>(input));
}

// --- truth

namespace {

// B4's pow2ceil, whose result is at least 2^-126.
GroupScale power_of_two_above(double value) {
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);
  if (fraction == 0.5) --exponent;
  exponent = std::max(exponent, -126);
  return {.byte = exponent + 127, .value = std::ldexp(1.0, exponent)};
}

GroupScale scale_of(Quantiser quantiser, double largest) {
  constexpr float kFloor = 1e-4f, kOneIn448 = 1.0f / 448, kOneIn6 = 1.0f / 6;
  const auto times = [](double a, float b) {  // rounded to fp32, as B4 writes it
    return static_cast<double>(static_cast<float>(a) * b);
  };
  switch (quantiser) {
    case Quantiser::q8a:
      return power_of_two_above(times(std::max<double>(largest, kFloor), kOneIn448));
    case Quantiser::q8c:
      if (largest == 0) return {.byte = 0, .value = std::ldexp(1.0, -127), .is_zero = true};
      return power_of_two_above(times(largest, kOneIn448));
    case Quantiser::q8d:
    case Quantiser::q8k:
      return power_of_two_above(std::max<double>(largest, kFloor) / 448);
    case Quantiser::q4m:
      return power_of_two_above(times(std::max(largest, 6 * std::ldexp(1.0, -126)), kOneIn6));
    case Quantiser::q4n: {
      const int byte = nearest(e4m3(), std::max(largest, 6 * std::ldexp(1.0, -9)) / 6);
      return {.byte = byte, .value = e4m3()[static_cast<size_t>(byte)]};
    }
  }
  fail(Status::internal, "unknown quantiser {}", static_cast<int64_t>(quantiser));
}

}  // namespace

GroupScale group_scale(Quantiser quantiser, std::span<const uint16_t> group) {
  double largest = 0;
  for (const uint16_t bits : group) {
    const double magnitude = std::fabs(bf16_double(bits));
    if (!std::isfinite(magnitude))
      return {.byte = quantiser == Quantiser::q4n ? 0x7f : 255, .value = std::nan("")};
    largest = std::max(largest, magnitude);
  }
  return scale_of(quantiser, largest);
}

QuantisedElement quantised_element(Quantiser quantiser, const GroupScale& scale, uint16_t bits) {
  if (std::isnan(scale.value)) return {is_e4m3(quantiser) ? 0x7f : 0, std::nan("")};
  if (scale.is_zero) return {0, 0.0};
  const double x = bf16_double(bits);
  const std::vector<double>& magnitudes = magnitudes_of(quantiser);
  const int code = nearest(magnitudes, std::fabs(x) / scale.value);
  const double value = round_to_bf16(magnitudes[static_cast<size_t>(code)] * scale.value);
  if (!std::signbit(x)) return {code, value};
  return {code | (is_e4m3(quantiser) ? 0x80 : 8), -value};
}

}  // namespace kiln::templates
