// Numbers as the GPU has them: f16 and bf16, conversion between any two formats with one rounding,
// canonical NaNs, and the rounding and flushing of the host's floating-point unit.
//
// Everything is local to the file that includes it, so that each instruction family is compiled as a
// whole and keeps only what it uses.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "runtime/sim/binder.h"
#include "runtime/sim/program.h"

namespace kiln::runtime::sim {
namespace {

// Elements of 16 bits, as they lie in memory.
struct Half {
  uint16_t bits;
};
struct Brain {  // bf16
  uint16_t bits;
};
template <class Element>
struct Two {
  Element low, high;
};

// The same in a lane: the low half of a word, and what is above it does not matter. Loops over
// lanes stay free of 16-bit arithmetic, which the host compiler does not vectorise well.
struct LaneHalf {
  uint32_t bits;
};
// f16 whose subnormals, read or made, are zeros of the same sign.
struct LaneFlushedHalf {
  uint32_t bits;
};
struct LaneBrain {
  uint32_t bits;
};
template <class Element>
struct LanePair {
  uint32_t bits;

  Element low() const { return {bits}; }
  Element high() const { return {bits >> 16}; }
};
template <class Element>
inline LanePair<Element> pair_of(Element low, Element high) {  // as narrow() gives them
  return {low.bits | high.bits << 16};
}

// --- the host's floating-point unit

struct FloatModes {
  Rounding rounding = Rounding::nearest;
  bool flushes = false;  // subnormal results and operands to zero
};

// Rounding and flushing of the host while it lives, without the traps that the host may have on. The memory clobbers keep the arithmetic inside:
// operands are loaded after the first one and results stored before the second.
class FloatMode {
 public:
  explicit FloatMode(FloatModes modes) : saved_(read()) {
    write(with(saved_, modes));
    asm volatile("" ::: "memory");
  }
  ~FloatMode() {
    asm volatile("" ::: "memory");
    write(saved_);
  }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
#if defined(__x86_64__)
  using Control = uint32_t;
  static Control read() { return _mm_getcsr(); }
  static void write(Control control) { _mm_setcsr(control); }
  static Control with(Control control, FloatModes modes) {
    constexpr Control kRounding[] = {0x0000, 0x6000, 0x2000, 0x4000};
    constexpr Control kFlush = 0x8040;  // results to zero, and operands
    constexpr Control kNoTraps = 0x1f80;
    return (control & ~(kFlush | 0x6000U)) | kNoTraps | kRounding[static_cast<int>(modes.rounding)] |
           (modes.flushes ? kFlush : 0);
  }
#elif defined(__aarch64__)
  using Control = uint64_t;
  static Control read() {
    Control control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    return control;
  }
  static void write(Control control) { asm volatile("msr fpcr, %0" : : "r"(control)); }
  static Control with(Control control, FloatModes modes) {
    constexpr Control kRounding[] = {0, 3 << 22, 2 << 22, 1 << 22};
    constexpr Control kFlush = 1 << 24;
    constexpr Control kTraps = 0x9f00;
    return (control & ~(kFlush | (3 << 22) | kTraps)) | kRounding[static_cast<int>(modes.rounding)] |
           (modes.flushes ? kFlush : 0);
  }
#else
#error "The simulator needs the floating-point control of this processor."
#endif
  Control saved_;
};

// --- NaNs

constexpr uint32_t kNan32 = 0x7fffffff;
constexpr uint32_t kNan16 = 0x7fff;
constexpr uint64_t kNan64 = 0xfff8000000000000;    // of an invalid operation
constexpr uint64_t kQuiet64 = 0x0008000000000000;  // turns a signalling NaN into a quiet one

template <class T>
inline bool is_nan(T value) {
  return value != value;
}

// A result of f32 arithmetic: there is one NaN.
inline float canonical(float result) {
  return is_nan(result) ? std::bit_cast<float>(kNan32) : result;
}

inline double quieted(double nan) {
  return std::bit_cast<double>(std::bit_cast<uint64_t>(nan) | kQuiet64);
}
// A result of f64 arithmetic: a NaN operand goes through, the last one of several.
template <class... Operands>
inline double canonical(double result, Operands... operands) {
  if (!is_nan(result)) return result;
  double nan = std::bit_cast<double>(kNan64);
  for (const double operand : {operands...}) {
    if (is_nan(operand)) nan = quieted(operand);
  }
  return nan;
}
// Of fma: the second factor, else the summand, else the first factor.
inline double canonical(double result, double a, double b, double c) {
  if (!is_nan(result)) return result;
  for (const double operand : {b, c, a}) {
    if (is_nan(operand)) return quieted(operand);
  }
  return std::bit_cast<double>(kNan64);
}
template <class... Operands>
inline float canonical(float result, Operands...) {
  return canonical(result);
}

// --- f32 and f64

inline float flushed(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return (bits & 0x7f800000) == 0 ? std::bit_cast<float>(bits & 0x80000000) : value;
}

// .sat: into [0, 1]; NaN and -0 become +0.
template <class T>
inline T saturated(T value) {
  const T positive = value > T{0} ? value : T{0};
  return positive < T{1} ? positive : T{1};
}

// The f32 nearest to `value` of those that have an odd last bit, or `value` itself: a second
// rounding to at most 22 bits then gives what one rounding had given.
inline float to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  const auto back = static_cast<double>(nearest);
  const auto bits = std::bit_cast<uint32_t>(nearest);
  const uint32_t toward = std::fabs(back) < std::fabs(value) ? bits + 1 : bits - 1;
  const bool exact = back == value || is_nan(value);
  return std::bit_cast<float>(exact || (bits & 1) != 0 ? bits : toward);
}

// a + b, rounded to odd.
template <class T>
inline T sum_to_odd(T a, T b) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  const T sum = a + b;
  const T part = sum - a;
  const T error = (a - (sum - part)) + (b - part);
  const auto bits = std::bit_cast<Bits>(sum);
  const Bits toward = (error > 0) == (sum > 0) ? bits + 1 : bits - 1;
  // An infinite or NaN operand makes the error NaN, which is not above or below zero either.
  const bool inexact = error < 0 || error > 0;
  return std::bit_cast<T>(inexact && (bits & 1) == 0 ? toward : bits);
}

// --- f16 and bf16: to f32, which is exact, and from it, nearest even

// A choice that leaves no branch to the compiler: it would move the arithmetic of one side into it,
// and could not vectorise the loop.
template <class Bits>
inline Bits choose(bool condition, std::type_identity_t<Bits> yes, Bits no) {
  const Bits mask = Bits{0} - static_cast<Bits>(condition);
  return (yes & mask) | (no & ~mask);
}

inline float widen(LaneHalf value) {
  constexpr uint32_t kExponent = 0x7c00U << 13;
  const uint32_t magnitude = (value.bits & 0x7fff) << 13;
  const uint32_t exponent = magnitude & kExponent;
  const uint32_t rebiased = magnitude + (112U << 23);
  const float subnormal =
      std::bit_cast<float>(rebiased + (1U << 23)) - std::bit_cast<float>(113U << 23);
  const uint32_t finite = choose(exponent == 0, std::bit_cast<uint32_t>(subnormal), rebiased);
  const uint32_t number = choose(exponent == kExponent, 0x7f800000, finite);
  const uint32_t with_sign = number | (value.bits & 0x8000) << 16;
  return std::bit_cast<float>(choose(magnitude > kExponent, kNan32, with_sign));
}
inline uint32_t flushed_half(uint32_t bits) {
  return bits & choose((bits & 0x7c00) == 0, 0x8000, 0xffffU);
}
inline float widen(LaneFlushedHalf value) { return widen(LaneHalf{flushed_half(value.bits)}); }
inline float widen(LaneBrain value) { return std::bit_cast<float>(value.bits << 16); }
inline float widen(Half value) { return widen(LaneHalf{value.bits}); }
inline float widen(Brain value) { return widen(LaneBrain{value.bits}); }

template <class T>
T narrow(float value);
template <>
inline LaneHalf narrow<LaneHalf>(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  // Below the least normal: adding 0.5 shifts the bits to where they belong, and rounds them.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000;
  const uint32_t normal = (magnitude - (112U << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const uint32_t finite = choose(magnitude < (113U << 23), subnormal, normal);
  const uint32_t number = choose(magnitude >= 0x47800000, 0x7c00, finite);
  const uint32_t with_sign = number | ((bits >> 16) & 0x8000);
  return {choose(magnitude > 0x7f800000, kNan16, with_sign)};
}
template <>
inline LaneFlushedHalf narrow<LaneFlushedHalf>(float value) {
  // What is below the least normal is flushed before it is rounded.
  const auto bits = std::bit_cast<uint32_t>(value);
  const bool is_small = (bits & 0x7fffffff) < (113U << 23);
  return {choose(is_small, (bits >> 16) & 0x8000, narrow<LaneHalf>(value).bits)};
}
template <>
inline LaneBrain narrow<LaneBrain>(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return {choose((bits & 0x7fffffff) > 0x7f800000, kNan16, rounded)};
}
template <>
inline Half narrow<Half>(float value) {
  return {static_cast<uint16_t>(narrow<LaneHalf>(value).bits)};
}
template <>
inline Brain narrow<Brain>(float value) {
  return {static_cast<uint16_t>(narrow<LaneBrain>(value).bits)};
}

// --- any format, any rounding

struct Format {
  int exponent_bits;
  int fraction_bits;

  int bits() const { return 1 + exponent_bits + fraction_bits; }
  int least_exponent() const { return 2 - (1 << (exponent_bits - 1)); }
  uint64_t sign() const { return uint64_t{1} << (exponent_bits + fraction_bits); }
  uint64_t infinity() const { return ((uint64_t{1} << exponent_bits) - 1) << fraction_bits; }
};
constexpr Format kHalfFormat{5, 10};
constexpr Format kBrainFormat{8, 7};
constexpr Format kTf32Format{8, 10};
constexpr Format kFloatFormat{8, 23};
constexpr Format kDoubleFormat{11, 52};

// significand * 2^exponent, or one of the values that are none.
struct Exact {
  enum class Kind : uint8_t { finite, infinite, nan } kind = Kind::finite;
  bool negative = false;
  uint64_t significand = 0;
  int exponent = 0;
};

inline Exact decode_float(Format format, uint64_t bits) {
  Exact result{.negative = (bits & format.sign()) != 0};
  const uint64_t magnitude = bits & (format.sign() - 1);
  const uint64_t fraction = bits & ((uint64_t{1} << format.fraction_bits) - 1);
  const auto exponent = static_cast<int>(magnitude >> format.fraction_bits);
  result.significand = exponent == 0 ? fraction : fraction | uint64_t{1} << format.fraction_bits;
  result.exponent =
      format.least_exponent() + (exponent == 0 ? 0 : exponent - 1) - format.fraction_bits;
  if (magnitude >= format.infinity()) {
    result.kind = fraction == 0 ? Exact::Kind::infinite : Exact::Kind::nan;
    result.significand = fraction;
  }
  return result;
}

// significand * 2^-shift, rounded to an integer.
inline uint64_t shift_right(uint64_t significand, int shift, bool negative, Rounding rounding) {
  if (shift <= 0) return significand << -shift;
  const uint64_t kept = shift < 64 ? significand >> shift : 0;
  const uint64_t rest = shift < 64 ? significand & ((uint64_t{1} << shift) - 1) : significand;
  const uint64_t half = shift <= 64 ? uint64_t{1} << (shift - 1) : 0;  // 0: the rest is below it
  switch (rounding) {
    case Rounding::nearest: {
      const bool up = half != 0 && (rest > half || (rest == half && (kept & 1) != 0));
      return kept + (up ? 1 : 0);
    }
    case Rounding::zero:
      return kept;
    case Rounding::down:
      return kept + (negative && rest != 0 ? 1 : 0);
    case Rounding::up:
      return kept + (!negative && rest != 0 ? 1 : 0);
  }
  return kept;
}

// A NaN becomes that of the format.
inline uint64_t encode_float(Format format, const Exact& value, Rounding rounding) {
  const uint64_t sign = value.negative ? format.sign() : 0;
  if (value.kind == Exact::Kind::nan) return format.sign() - 1;
  if (value.kind == Exact::Kind::infinite) return sign | format.infinity();
  if (value.significand == 0) return sign;
  const int top = 63 - std::countl_zero(value.significand) + value.exponent;
  const int scale = top > format.least_exponent() ? top : format.least_exponent();
  const int shift = scale - format.fraction_bits - value.exponent;
  const uint64_t kept = shift_right(value.significand, shift, value.negative, rounding);
  // The leading one, if there is one, adds itself to the exponent; so does a carry.
  const auto biased = static_cast<uint64_t>(scale - format.least_exponent());
  const uint64_t magnitude = (biased << format.fraction_bits) + kept;
  if (magnitude < format.infinity()) return sign | magnitude;
  const bool away =
      rounding == Rounding::nearest || rounding == (value.negative ? Rounding::down : Rounding::up);
  return sign | (format.infinity() - (away ? 0 : 1));
}

}  // namespace
}  // namespace kiln::runtime::sim
