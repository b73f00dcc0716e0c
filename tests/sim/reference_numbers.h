// Rounding by search, in quadruple precision: slow and simple, and with no code of the simulator.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace kiln::runtime::sim {

using Quad = __float128;
__extension__ using QuadBits = unsigned __int128;

inline bool is_negative(Quad x) { return std::bit_cast<QuadBits>(x) >> 127 != 0; }
inline Quad size_of(Quad x) { return is_negative(x) ? -x : x; }
inline bool is_infinite(Quad x) { return size_of(x) == Quad{HUGE_VAL}; }
// a + b for a sum that is finite and not zero: if it is not exact, the neighbour that has an odd
// last bit, which is no value of a smaller format and no tie between two of them.
inline Quad odd_sum(Quad a, Quad b) {
  const Quad sum = a + b;
  const Quad part = sum - a;
  const Quad lost = (a - (sum - part)) + (b - part);
  const QuadBits bits = std::bit_cast<QuadBits>(sum);
  if (lost == 0 || bits % 2 != 0) return sum;
  return std::bit_cast<Quad>((lost > 0) != is_negative(sum) ? bits + 1 : bits - 1);
}

inline float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

inline float float_above(float x) { return std::nextafter(x, HUGE_VALF); }
inline float float_below(float x) { return std::nextafter(x, -HUGE_VALF); }

// A number rounded to nearest even (0), to zero (1), down (2) or up (3).
template <class Float>
Float rounded_number(Quad exact, int mode) {
  const auto nearest = static_cast<Float>(exact);
  if (mode == 0 || Quad{nearest} == exact) return nearest;
  const bool down = mode == 2 || (mode == 1 && exact > 0);
  Float result = nearest;
  if (down && Quad{result} > exact) result = std::nextafter(result, Float(-HUGE_VAL));
  if (!down && Quad{result} < exact) result = std::nextafter(result, Float(HUGE_VAL));
  // A result of zero has the sign of what was rounded.
  return result == 0 ? std::copysign(result, exact < 0 ? Float{-1} : Float{1}) : result;
}
// The same as the bits of an f32, which has one NaN.
inline uint32_t rounded_float(Quad exact, int mode) {
  return exact != exact ? 0x7fffffff : bits_of(rounded_number<float>(exact, mode));
}

// An exact zero is negative when rounding down.
inline uint32_t rounded_quad_sum(Quad a, Quad b, int mode) {
  const Quad sum = a + b;
  if (sum == 0 && a != 0) return mode == 2 ? 0x80000000u : 0u;
  if (sum == 0) {
    const bool left = is_negative(a);
    const bool right = is_negative(b);
    return (left && right) || (left != right && mode == 2) ? 0x80000000u : 0u;
  }
  if (sum != sum || is_infinite(sum)) return rounded_float(sum, mode);
  return rounded_float(odd_sum(a, b), mode);
}
inline uint32_t rounded_sum(float a, float b, int mode) {
  return rounded_quad_sum(Quad{a}, Quad{b}, mode);
}
inline uint32_t rounded_fma(float a, float b, float c, int mode) {
  return rounded_quad_sum(Quad{a} * Quad{b}, Quad{c}, mode);
}
inline uint32_t rounded_root(float a, int mode) {
  if (a == 0 || !(a > 0) || std::isinf(a)) return a < 0 || std::isnan(a) ? 0x7fffffff : bits_of(a);
  float below = std::sqrt(a);
  while (Quad{below} * below > a) below = float_below(below);
  while (Quad{float_above(below)} * float_above(below) <= a) below = float_above(below);
  if (Quad{below} * below == a) return bits_of(below);
  const Quad middle = (Quad{below} + Quad{float_above(below)}) / 2;
  const bool up = mode == 3 || (mode == 0 && middle * middle < a);
  return bits_of(up ? float_above(below) : below);
}

// A format of 16 bits, as the list of its finite values.
class SmallFormat {
 public:
  explicit SmallFormat(int exponent_bits)
      : fraction_bits_(15 - exponent_bits),
        infinity_(((1U << exponent_bits) - 1) << fraction_bits_) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    for (uint32_t bits = 0; bits <= infinity_; ++bits) {
      const auto exponent = static_cast<int>(bits >> fraction_bits_);
      const uint32_t fraction = bits & ((1U << fraction_bits_) - 1);
      const uint32_t significand = exponent == 0 ? fraction : fraction | 1U << fraction_bits_;
      values_.push_back(Quad(significand) *
                        Quad{std::ldexp(1.0, std::max(exponent, 1) - bias - fraction_bits_)});
    }
  }

  Quad value(uint32_t bits) const {
    const uint32_t magnitude = bits & 0x7fff;
    Quad result = magnitude > infinity_    ? Quad{std::nan("")}
                  : magnitude == infinity_ ? Quad{HUGE_VAL}
                                           : values_[magnitude];
    return (bits & 0x8000) != 0 ? -result : result;
  }

  // Nearest even. The place of infinity counts as the value that would follow the last one.
  uint32_t nearest(Quad exact) const { return rounded(exact, 0); }

  uint32_t rounded(Quad exact, int mode) const {
    if (exact != exact) return 0x7fff;
    const bool negative = is_negative(exact);
    const uint32_t sign = negative ? 0x8000 : 0;
    const Quad magnitude = size_of(exact);
    if (is_infinite(exact)) return sign | infinity_;
    const auto above = static_cast<uint32_t>(
        std::lower_bound(values_.begin(), values_.end(), magnitude) - values_.begin());
    const bool away = mode == (negative ? 2 : 3);
    if (above == values_.size()) return sign | (mode == 0 || away ? infinity_ : infinity_ - 1);
    if (values_[above] == magnitude && above < infinity_) return sign | above;
    const uint32_t below = above - 1;
    if (mode != 0) return sign | (away ? above : below);
    const Quad to_below = magnitude - values_[below];
    const Quad to_above = values_[above] - magnitude;
    if (to_below == to_above) return sign | (below % 2 == 0 ? below : above);
    return sign | (to_below < to_above ? below : above);
  }

  // Of a + b where the sum may not be exact in quadruple precision.
  uint32_t nearest_sum(Quad a, Quad b) const {
    const Quad sum = a + b;
    if (sum != sum || is_infinite(sum)) return nearest(sum);
    return sum == 0 ? nearest(sum) : nearest(odd_sum(a, b));
  }

 private:
  int fraction_bits_;
  uint32_t infinity_;
  std::vector<Quad>
      values_;  // by bits, of both zeros the positive one; the last stands for infinity
};

}  // namespace kiln::runtime::sim
