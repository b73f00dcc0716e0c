// Floating-point arithmetic: f32, f64, f16 and bf16, single and in pairs.
//
// f32 and f64 use the host's unit, in the instruction's rounding and flushing. f16 and bf16 compute
// in a wider type so that the result is rounded once. Approximate functions compute in f64.
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include "runtime/sim/host_vectors.h"
#include "runtime/sim/lanes.h"

namespace kiln::runtime::sim {
namespace {

// --- f32 and f64

// The handler for target = operation(sources...) where all have type T.
template <auto operation, class T, class... Sources>
Handler rounded(const Instruction& instruction) {
  constexpr auto plain = [](Sources... s) -> T { return canonical(operation(s...), s...); };
  constexpr auto saturating = [](Sources... s) -> T { return saturated(operation(s...)); };
  if (instruction.saturates) return in_mode<map<saturating, T, Sources...>>;
  return with_mode<map<plain, T, Sources...>>(instruction);
}
template <auto operation, class T>
Handler rounded_unary(const Instruction& instruction) {
  return rounded<operation, T, T>(instruction);
}
template <auto operation, class T>
Handler rounded_binary(const Instruction& instruction) {
  return rounded<operation, T, T, T>(instruction);
}

template <class T>
T sum(T a, T b) {
  return a + b;
}
template <class T>
T difference(T a, T b) {
  return a - b;
}
template <class T>
T product(T a, T b) {
  return a * b;
}
template <class T>
T quotient(T a, T b) {
  return a / b;
}
template <class T>
T fused(T a, T b, T c) {
  return std::fma(a, b, c);
}
template <class T>
T reciprocal(T a) {
  return T{1} / a;
}
template <class T>
T square_root(T a) {
  return std::sqrt(a);
}

// Signs by bits; in arithmetic a NaN has none.
template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 8, uint64_t,
                                  std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
template <class T>
constexpr BitsOf<T> kSign = static_cast<BitsOf<T>>(BitsOf<T>{1} << (sizeof(T) * 8 - 1));
template <class T>
T negated(T a) {
  return std::bit_cast<T>(static_cast<BitsOf<T>>(std::bit_cast<BitsOf<T>>(a) ^ kSign<T>));
}
template <class T>
T magnitude(T a) {
  return std::bit_cast<T>(static_cast<BitsOf<T>>(std::bit_cast<BitsOf<T>>(a) & ~kSign<T>));
}
template <class T>
T with_sign_of(T sign, T value) {
  const auto bits =
      std::bit_cast<BitsOf<T>>(magnitude(value)) | (std::bit_cast<BitsOf<T>>(sign) & kSign<T>);
  return std::bit_cast<T>(bits);
}

struct Extreme {
  bool is_max = false;
  bool nan_wins = false;   // .NaN
  bool xors_sign = false;  // .xorsign.abs
};

// With one NaN the other operand, with two the canonical one; with .NaN one is enough. -0 is below
// +0.
template <Extreme which, class T>
T extreme(T a, T b) {
  using Bits = BitsOf<T>;
  const Bits sign = (std::bit_cast<Bits>(a) ^ std::bit_cast<Bits>(b)) & kSign<T>;
  if constexpr (which.xors_sign) {
    a = magnitude(a);
    b = magnitude(b);
  }
  const auto a_bits = std::bit_cast<Bits>(a);
  const auto b_bits = std::bit_cast<Bits>(b);
  const T equal = std::bit_cast<T>(which.is_max ? a_bits & b_bits : a_bits | b_bits);
  const bool a_wins = which.is_max ? a > b : a < b;
  const T ordered = a == b ? equal : (a_wins ? a : b);
  const T number = is_nan(a) ? b : (is_nan(b) ? a : ordered);
  const T result = which.nan_wins && is_nan(a) ? a : (which.nan_wins && is_nan(b) ? b : number);
  if constexpr (!which.xors_sign) return canonical(result, result);
  const T signed_result = std::bit_cast<T>(std::bit_cast<Bits>(result) | sign);
  return is_nan(result) ? canonical(result, result) : signed_result;
}

template <auto operation, class... Sources>
constexpr auto kFlushing = [](Sources... s) { return operation(flushed(s)...); };

// For operations that do not round: flushing means flushing the operands.
template <auto operation, class... Sources>
Handler unrounded32(const Instruction& instruction) {
  return instruction.flushes ? map<kFlushing<operation, Sources...>, float, Sources...>
                             : map<operation, float, Sources...>;
}

// --- f16 and bf16

enum class Finish : uint8_t { none, saturate, relu };

template <Finish finish>
float finished(float value) {
  if constexpr (finish == Finish::saturate) return saturated(value);
  if constexpr (finish == Finish::relu) return value > 0 || is_nan(value) ? value : 0.0F;
  return value;
}

template <class Element>
constexpr bool kIsBrain = std::is_same_v<Element, LaneBrain>;

// Each gives a float that narrow() rounds to the right element. f16: a product is exact in f32.
// bf16: in f64, with the exponents of f32 far from its own limits.
struct Fused16 {
  static constexpr int kOperands = 3;
  template <class Element>
  static float of(Element a, Element b, Element c) {
    if constexpr (kIsBrain<Element>) {
      return to_odd(sum_to_odd(double{widen(a)} * double{widen(b)}, double{widen(c)}));
    } else {
      return sum_to_odd(widen(a) * widen(b), widen(c));
    }
  }
};
struct Sum16 {
  static constexpr int kOperands = 2;
  template <class Element>
  static float of(Element a, Element b) {
    return sum_to_odd(widen(a), widen(b));
  }
};
struct Difference16 {
  static constexpr int kOperands = 2;
  template <class Element>
  static float of(Element a, Element b) {
    return sum_to_odd(widen(a), -widen(b));
  }
};
struct Product16 {
  static constexpr int kOperands = 2;
  template <class Element>
  static float of(Element a, Element b) {
    if constexpr (kIsBrain<Element>) return to_odd(double{widen(a)} * double{widen(b)});
    return widen(a) * widen(b);
  }
};
struct Negated16 {
  static constexpr int kOperands = 1;
  template <class Element>
  static float of(Element a) {
    return -widen(a);
  }
};
struct Magnitude16 {
  static constexpr int kOperands = 1;
  template <class Element>
  static float of(Element a) {
    return magnitude(widen(a));
  }
};
// 2^a within 2^-51 of it, without a call, so that loops can be vectorised.
constexpr int kTerms = 13;
constexpr std::array<double, kTerms> kPowerSeries = [] {  // ln(2)^k / k!
  std::array<double, kTerms> series{};
  double term = 1;
  for (size_t k = 0; k < kTerms; ++k) {
    series[k] = term;
    term *= 0x1.62e42fefa39efp-1 / static_cast<double>(k + 1);
  }
  return series;
}();
template <size_t first>
double power_series(double a) {
  if constexpr (first + 1 == kTerms)
    return kPowerSeries[first];
  else
    return kPowerSeries[first] + a * power_series<first + 1>(a);
}
double power_of_two(double a) {
  // Infinities and what is near them become 1000 of their sign; NaN stays.
  constexpr auto kMost = std::bit_cast<uint64_t>(1000.0);
  constexpr auto kInfinity = std::bit_cast<uint64_t>(std::numeric_limits<double>::infinity());
  const auto bits = std::bit_cast<uint64_t>(a);
  const uint64_t size = bits & ~kSign<double>;
  const double inside = std::bit_cast<double>(
      choose(size > kMost && size <= kInfinity, kMost | (bits & kSign<double>), bits));
  constexpr double kShift = 0x1.8p52;  // adding it leaves the nearest integer in the lowest bits
  const double shifted = inside + kShift;
  const double rest = inside - (shifted - kShift);
  const double power = power_series<0>(rest);
  return std::bit_cast<double>(std::bit_cast<uint64_t>(power) +
                               (std::bit_cast<uint64_t>(shifted) << 52));
}

struct Exponential16 {
  static constexpr int kOperands = 1;
  template <class Element>
  static float of(Element a) {
    return to_odd(power_of_two(double{widen(a)}));
  }
};
struct Tangent16 {
  static constexpr int kOperands = 1;
  template <class Element>
  static float of(Element a) {
    return to_odd(std::tanh(double{widen(a)}));
  }
};
template <Extreme which>
struct Extreme16 {
  static constexpr int kOperands = 2;
  template <class Element>
  static float of(Element a, Element b) {
    return extreme<which>(widen(a), widen(b));
  }
};

template <class Operation, Finish finish, class Element>
constexpr auto kOnce =
    [](auto... s) { return narrow<Element>(finished<finish>(Operation::of(s...))); };
template <class Operation, Finish finish, class Element>
constexpr auto kTwice = [](auto... s) {
  constexpr auto once = kOnce<Operation, finish, Element>;
  return pair_of(once(s.low()...), once(s.high()...));
};

template <auto function, int operands, class T>
Handler handler_of() {
  if constexpr (operands == 1) return map<function, T, T>;
  if constexpr (operands == 2) return map<function, T, T, T>;
  if constexpr (operands == 3) return map<function, T, T, T, T>;
}
template <class Operation, Finish finish, class Element>
Handler element_handler(Type type) {
  const bool in_pairs = type == Type::f16x2 || type == Type::bf16x2;
  constexpr int operands = Operation::kOperands;
  return in_pairs ? handler_of<kTwice<Operation, finish, Element>, operands, LanePair<Element>>()
                  : handler_of<kOnce<Operation, finish, Element>, operands, Element>();
}

template <class Operation, Finish finish>
Handler finish_handler(Type type, const Instruction& instruction) {
  if (type == Type::f16 || type == Type::f16x2) {
    return instruction.flushes ? element_handler<Operation, finish, LaneFlushedHalf>(type)
                               : element_handler<Operation, finish, LaneHalf>(type);
  }
  if (type == Type::bf16 || type == Type::bf16x2) {
    return element_handler<Operation, finish, LaneBrain>(type);
  }
  return nullptr;
}

bool is_16(Type type) {
  return type == Type::f16 || type == Type::f16x2 || type == Type::bf16 || type == Type::bf16x2;
}

template <class Operation>
Handler handler16(Type type, const Instruction& instruction) {
  return finish_handler<Operation, Finish::none>(type, instruction);
}

template <class Operation>
Handler finishing_handler16(Binder& binder, Type type) {
  const Instruction& instruction = binder.instruction();
  if (binder.take("relu")) {
    return finish_handler<Operation, Finish::relu>(type, instruction);
  }
  if (instruction.saturates) {
    return finish_handler<Operation, Finish::saturate>(type, instruction);
  }
  return handler16<Operation>(type, instruction);
}

// --- binding of arithmetic

// Takes .rn and its kin, .ftz and .sat; f64 knows neither of the latter.
void take_modes(Binder& binder, Type type) {
  Instruction& instruction = binder.instruction();
  instruction.rounding = binder.take_rounding();
  if (type == Type::f64) return;
  instruction.flushes = binder.take("ftz");
  instruction.saturates = binder.take("sat");
  if (is_16(type) && instruction.rounding != Rounding::nearest)
    binder.unsupported("f16 and bf16 round to nearest only");
}

void bind_operands(Binder& binder, Type type, int sources) {
  binder.require_operands(sources + 1, sources + 1);
  binder.target(binder.operand(0), type);
  for (int i = 1; i <= sources; ++i) binder.source(binder.operand(i), type);
}

template <auto single, auto twofold, class Operation16>
void bind_binary(Binder& binder) {
  const Type type = binder.require_type();
  take_modes(binder, type);
  bind_operands(binder, type, 2);
  const Instruction& instruction = binder.instruction();
  if (type == Type::f32) return bind_handler(binder, rounded_binary<single, float>(instruction));
  if (type == Type::f64) return bind_handler(binder, rounded_binary<twofold, double>(instruction));
  bind_handler(binder, finishing_handler16<Operation16>(binder, type));
}

void bind_add(Binder& binder) { bind_binary<sum<float>, sum<double>, Sum16>(binder); }
void bind_sub(Binder& binder) {
  bind_binary<difference<float>, difference<double>, Difference16>(binder);
}
void bind_mul(Binder& binder) { bind_binary<product<float>, product<double>, Product16>(binder); }

constexpr auto kFused32 = [](float a, float b, float c) { return canonical(fused(a, b, c)); };

void fuse(Warp& warp, const Instruction& instruction, uint32_t mask) {
  map<kFused32, float, float, float, float>(warp, instruction, mask);
}

#if defined(__x86_64__)
// The same for the most frequent instruction of all: the compiler does not vectorise std::fma while
// it has to expect other roundings.
[[gnu::target("avx2,fma")]] void fuse_avx2(Warp& warp, const Instruction& instruction,
                                           uint32_t mask) {
  if (std::popcount(mask) <= kFewLanes) return fuse(warp, instruction, mask);
  float* target = warp.row<float>(instruction.rows[0]);
  const float* a = warp.row<float>(instruction.rows[1]);
  const float* b = warp.row<float>(instruction.rows[2]);
  const float* c = warp.row<float>(instruction.rows[3]);
  alignas(64) float spare[kLanes];
  float* into = mask == kAllLanes ? target : spare;
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(kNan32));
  for (int lane = 0; lane < kLanes; lane += 8) {
    const __m256 result = _mm256_fmadd_ps(_mm256_loadu_ps(a + lane), _mm256_loadu_ps(b + lane),
                                          _mm256_loadu_ps(c + lane));
    const __m256 is_nan = _mm256_cmp_ps(result, result, _CMP_UNORD_Q);
    _mm256_storeu_ps(into + lane, _mm256_blendv_ps(result, nan, is_nan));
  }
  if (mask != kAllLanes) blend(mask, target, spare);
}
#endif

Handler fuse_handler(const Instruction& instruction) {
#if defined(__x86_64__)
  if (host_vectors() == HostVectors::avx2) return with_mode<fuse_avx2>(instruction);
#endif
  return with_mode<fuse>(instruction);
}

void bind_fma(Binder& binder) {
  const Type type = binder.require_type();
  take_modes(binder, type);
  bind_operands(binder, type, 3);
  const Instruction& instruction = binder.instruction();
  if (type == Type::f32) {
    return bind_handler(binder, instruction.saturates
                                    ? rounded<fused<float>, float, float, float, float>(instruction)
                                    : fuse_handler(instruction));
  }
  if (type == Type::f64) {
    return bind_handler(binder,
                        rounded<fused<double>, double, double, double, double>(instruction));
  }
  bind_handler(binder, finishing_handler16<Fused16>(binder, type));
}

void bind_neg(Binder& binder) {
  const Type type = binder.require_type();
  take_modes(binder, type);
  bind_operands(binder, type, 1);
  const bool is_abs = binder.op() == "abs";
  const Instruction& instruction = binder.instruction();
  // The GPU adds -0, which makes every NaN canonical.
  constexpr auto negate = [](float a) { return canonical(negated(a)); };
  constexpr auto absolute = [](float a) { return canonical(magnitude(a)); };
  constexpr auto negate64 = [](double a) { return is_nan(a) ? quieted(a) : negated(a); };
  constexpr auto absolute64 = [](double a) { return is_nan(a) ? quieted(a) : magnitude(a); };
  if (type == Type::f32) {
    return bind_handler(binder, is_abs ? unrounded32<absolute, float>(instruction)
                                       : unrounded32<negate, float>(instruction));
  }
  if (type == Type::f64) {
    return bind_handler(binder,
                        is_abs ? map<absolute64, double, double> : map<negate64, double, double>);
  }
  bind_handler(binder, is_abs ? handler16<Magnitude16>(type, instruction)
                              : handler16<Negated16>(type, instruction));
}

template <Extreme which>
Handler extreme_handler(Type type, const Instruction& instruction) {
  if (type == Type::f32) {
    return unrounded32<extreme<which, float>, float, float>(instruction);
  }
  if (type == Type::f64) {
    if (which.nan_wins || which.xors_sign) return nullptr;
    return map<extreme<which, double>, double, double, double>;
  }
  return handler16<Extreme16<which>>(type, instruction);
}
template <bool is_max>
Handler extreme_handler(const Extreme& which, Type type, const Instruction& instruction) {
  constexpr Extreme kNanWins{.is_max = is_max, .nan_wins = true};
  constexpr Extreme kXorsSign{.is_max = is_max, .xors_sign = true};
  constexpr Extreme kBoth{.is_max = is_max, .nan_wins = true, .xors_sign = true};
  if (which.nan_wins && which.xors_sign) return extreme_handler<kBoth>(type, instruction);
  if (which.nan_wins) return extreme_handler<kNanWins>(type, instruction);
  if (which.xors_sign) return extreme_handler<kXorsSign>(type, instruction);
  return extreme_handler<Extreme{.is_max = is_max}>(type, instruction);
}

void bind_min(Binder& binder) {
  const Type type = binder.require_type();
  Instruction& instruction = binder.instruction();
  instruction.flushes = binder.take("ftz");
  const bool nan_wins = binder.take("NaN");
  const bool xors_sign = binder.take("xorsign");
  const Extreme which{.nan_wins = nan_wins, .xors_sign = xors_sign};
  if (xors_sign && !binder.take("abs")) binder.unsupported("expected .xorsign.abs");
  bind_operands(binder, type, 2);
  bind_handler(binder, binder.op() == "max" ? extreme_handler<true>(which, type, instruction)
                                            : extreme_handler<false>(which, type, instruction));
}

void bind_copysign(Binder& binder) {
  const Type type = binder.require_type();
  bind_operands(binder, type, 2);
  if (type == Type::f32) {
    return bind_handler(binder, map<with_sign_of<float>, float, float, float>);
  }
  bind_handler(binder,
               type == Type::f64 ? map<with_sign_of<double>, double, double, double> : nullptr);
}

// --- division and roots

// The GPU multiplies by the approximate reciprocal, which for a large divisor is a subnormal that
// it flushes.
float approximate_quotient(float a, float b) {
  const float size = magnitude(b);
  if (size > 0x1p126F && size <= std::numeric_limits<float>::max())
    return a * std::copysign(0.0F, b);
  return static_cast<float>(double{a} / double{b});
}
float full_quotient(float a, float b) { return static_cast<float>(double{a} / double{b}); }

template <double (*function)(double)>
float by_double(float a) {
  return static_cast<float>(function(double{a}));
}
double reciprocal_root(double a) { return 1.0 / std::sqrt(a); }
double sine(double a) { return std::sin(a); }
double cosine(double a) { return std::cos(a); }
double logarithm(double a) { return std::log2(a); }
double tangent(double a) { return std::tanh(a); }

void bind_div(Binder& binder) {
  const bool approximate = binder.take("approx");
  const bool full = binder.take("full");
  const Type type = binder.require_type();
  take_modes(binder, type);
  bind_operands(binder, type, 2);
  const Instruction& instruction = binder.instruction();
  if (type == Type::f64 && !approximate && !full) {
    // Here the first of several NaNs goes through.
    constexpr auto divide = [](double a, double b) {
      return is_nan(a) ? quieted(a) : canonical(quotient(a, b), a, b);
    };
    return bind_handler(binder, with_mode<map<divide, double, double, double>>(instruction));
  }
  if (type != Type::f32) binder.unsupported("it has no form for these types");
  bind_handler(binder, approximate ? rounded_binary<approximate_quotient, float>(instruction)
                       : full      ? rounded_binary<full_quotient, float>(instruction)
                                   : rounded_binary<quotient<float>, float>(instruction));
}

// The seed of a software division or root in f64: it sees the upper word alone, and gives it alone.
template <double (*function)(double)>
double seed(double a) {
  constexpr uint64_t kUpper = 0xffffffff00000000;
  const uint64_t bits = std::bit_cast<uint64_t>(a) & kUpper;
  constexpr uint64_t kExponent = uint64_t{0x7ff} << 52;
  const double operand =
      std::bit_cast<double>((bits & kExponent) == 0 ? bits & kSign<double> : bits);
  const auto result = std::bit_cast<uint64_t>(canonical(function(operand), a)) & kUpper;
  return std::bit_cast<double>((result & kExponent) == 0 ? result & kSign<double> : result);
}

void bind_rcp(Binder& binder) {
  const bool approximate = binder.take("approx");
  const Type type = binder.require_type();
  Instruction& instruction = binder.instruction();
  instruction.rounding = binder.take_rounding();
  const bool flushes = binder.take("ftz");
  bind_operands(binder, type, 1);
  if (type == Type::f32) {
    instruction.flushes = flushes;
    return bind_handler(
        binder, approximate ? rounded_unary<by_double<reciprocal<double>>, float>(instruction)
                            : rounded_unary<reciprocal<float>, float>(instruction));
  }
  if (type != Type::f64 || approximate != flushes) binder.unsupported("it has no such form");
  bind_handler(binder, approximate ? map<seed<reciprocal<double>>, double, double>
                                   : rounded_unary<reciprocal<double>, double>(instruction));
}

void bind_sqrt(Binder& binder) {
  const bool approximate = binder.take("approx");
  const Type type = binder.require_type();
  Instruction& instruction = binder.instruction();
  instruction.rounding = binder.take_rounding();
  instruction.flushes = binder.take("ftz");
  bind_operands(binder, type, 1);
  if (type == Type::f32) {
    return bind_handler(
        binder, approximate ? rounded_unary<by_double<square_root<double>>, float>(instruction)
                            : rounded_unary<square_root<float>, float>(instruction));
  }
  if (type != Type::f64 || approximate || instruction.flushes)
    binder.unsupported("it has no such form");
  bind_handler(binder, rounded_unary<square_root<double>, double>(instruction));
}

void bind_rsqrt(Binder& binder) {
  if (!binder.take("approx")) binder.unsupported("expected .approx");
  const Type type = binder.require_type();
  Instruction& instruction = binder.instruction();
  const bool flushes = binder.take("ftz");
  bind_operands(binder, type, 1);
  if (type == Type::f32) {
    instruction.flushes = flushes;
    return bind_handler(binder, rounded_unary<by_double<reciprocal_root>, float>(instruction));
  }
  if (type != Type::f64) binder.unsupported("it has no form for these types");
  bind_handler(binder, flushes ? map<seed<reciprocal_root>, double, double>
                               : rounded_unary<reciprocal_root, double>(instruction));
}

// --- approximate functions

template <double (*function)(double), class Operation16>
void bind_function(Binder& binder) {
  if (!binder.take("approx")) binder.unsupported("expected .approx");
  const Type type = binder.require_type();
  Instruction& instruction = binder.instruction();
  instruction.flushes = binder.take("ftz");
  bind_operands(binder, type, 1);
  if (type == Type::f32) {
    return bind_handler(binder, rounded_unary<by_double<function>, float>(instruction));
  }
  if constexpr (!std::is_void_v<Operation16>) {
    return bind_handler(binder, handler16<Operation16>(type, instruction));
  }
  binder.unsupported("it has no form for these types");
}

void bind_sin(Binder& binder) { bind_function<sine, void>(binder); }
void bind_cos(Binder& binder) { bind_function<cosine, void>(binder); }
void bind_lg2(Binder& binder) { bind_function<logarithm, void>(binder); }
void bind_ex2(Binder& binder) { bind_function<power_of_two, Exponential16>(binder); }
void bind_tanh(Binder& binder) { bind_function<tangent, Tangent16>(binder); }

// --- testp

enum class Test : uint8_t { finite, infinite, number, notanumber, normal, subnormal };
constexpr std::string_view kTests[] = {"finite",     "infinite", "number",
                                       "notanumber", "normal",   "subnormal"};

template <class T>
bool passes(Test test, T value) {
  const int kind = std::fpclassify(value);
  switch (test) {
    case Test::finite:
      return kind != FP_NAN && kind != FP_INFINITE;
    case Test::infinite:
      return kind == FP_INFINITE;
    case Test::number:
      return kind != FP_NAN;
    case Test::notanumber:
      return kind == FP_NAN;
    case Test::normal:
      return kind == FP_NORMAL || kind == FP_ZERO;
    case Test::subnormal:
      return kind == FP_SUBNORMAL;
  }
  return false;
}

template <class T>
void test_property(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const Word<T>* source = warp.row<Word<T>>(instruction.rows[1]);
  const auto test = static_cast<Test>(instruction.mode);
  uint32_t bits = 0;
  each_lane(mask, [&](int lane) {
    bits |= static_cast<uint32_t>(passes(test, get<T>(source, lane))) << lane;
  });
  put_predicate(warp, instruction.rows[0], bits, mask);
}

void bind_testp(Binder& binder) {
  const Type type = binder.require_type();
  bind_rows(binder, Type::pred, {type});
  for (size_t test = 0; test < std::size(kTests); ++test) {
    if (!binder.take(kTests[test])) continue;
    binder.instruction().mode = static_cast<uint8_t>(test);
    return bind_handler(binder, type == Type::f32   ? test_property<float>
                                : type == Type::f64 ? test_property<double>
                                                    : nullptr);
  }
  binder.unsupported("expected .finite, .infinite, .number, .notanumber, .normal or .subnormal");
}

constexpr OpEntry kEntries[] = {
    {"add", bind_add},   {"sub", bind_sub},     {"mul", bind_mul},     {"fma", bind_fma},
    {"mad", bind_fma},   {"div", bind_div},     {"rcp", bind_rcp},     {"sqrt", bind_sqrt},
    {"abs", bind_neg},   {"neg", bind_neg},     {"min", bind_min},     {"max", bind_min},
    {"sin", bind_sin},   {"cos", bind_cos},     {"lg2", bind_lg2},     {"ex2", bind_ex2},
    {"tanh", bind_tanh}, {"rsqrt", bind_rsqrt}, {"testp", bind_testp}, {"copysign", bind_copysign},
};

}  // namespace

bool bind_float(Binder& binder) { return bind_one_of(kEntries, binder); }

}  // namespace kiln::runtime::sim
