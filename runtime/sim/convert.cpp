// cvt: between any two number types, with one rounding.
//
// One general handler takes a value apart exactly, rounds it and puts it together; it serves every
// pair of types. The pairs that kernels are full of have handlers of their own, which the host
// compiler can vectorise; both must agree.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

#include "runtime/sim/lanes.h"

namespace kiln::runtime::sim {
namespace {

// What the general handler has to know; kept in Instruction::target.
struct Conversion {
  Type target = Type::u32;
  Type source = Type::u32;
  bool integral = false;  // rounds to an integer, also from float to float
  bool relu = false;
  bool wide_target = false;  // of 64 bits, in the register
  bool wide_source = false;
};
uint32_t packed(const Conversion& conversion) {
  return static_cast<uint32_t>(conversion.target) | static_cast<uint32_t>(conversion.source) << 8 |
         static_cast<uint32_t>(conversion.integral) << 16 |
         static_cast<uint32_t>(conversion.relu) << 17;
}
Conversion unpacked(uint32_t bits) {
  return {.target = static_cast<Type>(bits & 0xff),
          .source = static_cast<Type>(bits >> 8 & 0xff),
          .integral = (bits >> 16 & 1) != 0,
          .relu = (bits >> 17 & 1) != 0};
}

Format format_of(Type type) {
  switch (type) {
    case Type::f16:
      return kHalfFormat;
    case Type::bf16:
      return kBrainFormat;
    case Type::f64:
      return kDoubleFormat;
    default:
      return kFloatFormat;
  }
}

uint64_t low_bits(uint64_t value, int bits) {
  return bits >= 64 ? value : value & ((uint64_t{1} << bits) - 1);
}
// The value of an integer type, extended to 64 bits.
uint64_t extended(uint64_t value, Type type) {
  const int unused = 64 - type_bits(type);
  return is_signed(type) ? static_cast<uint64_t>(static_cast<int64_t>(value << unused) >> unused)
                         : low_bits(value, type_bits(type));
}

// --- the general handler

// The magnitudes of the least and the greatest value of an integer type.
struct Range {
  uint64_t least;  // of its magnitude, below zero
  uint64_t most;
};
Range range_of(Type type) {
  const int bits = type_bits(type);
  if (!is_signed(type)) return {.least = 0, .most = low_bits(~uint64_t{0}, bits)};
  const uint64_t half = uint64_t{1} << (bits - 1);
  return {.least = half, .most = half - 1};
}
uint64_t clamped(const Exact& integer, Type type) {
  const Range range = range_of(type);
  return integer.negative ? 0 - std::min(integer.significand, range.least)
                          : std::min(integer.significand, range.most);
}

Exact exact_integer(uint64_t value, Type type) {
  const bool negative = is_signed(type) && static_cast<int64_t>(value) < 0;
  return {.negative = negative, .significand = negative ? 0 - value : value};
}

// To an integer; what is too large for 64 bits stays as it is, and is larger than every bound.
Exact rounded_to_integer(Exact value, Rounding rounding) {
  if (value.kind != Exact::Kind::finite || value.exponent >= 0) return value;
  value.significand = shift_right(value.significand, -value.exponent, value.negative, rounding);
  value.exponent = 0;
  return value;
}

// A NaN becomes 0, but where 64 bits are on one side the value with the highest bit alone.
uint64_t integer_from(const Exact& value, Type target, Type source) {
  if (value.kind == Exact::Kind::nan) {
    const bool zero = source != Type::f64 && type_bits(target) != 64;
    return zero ? 0 : uint64_t{1} << (type_bits(target) - 1);
  }
  const bool infinite = value.kind == Exact::Kind::infinite;
  const bool huge =
      infinite || (value.significand != 0 && value.exponent > std::countl_zero(value.significand));
  const uint64_t magnitude = huge ? ~uint64_t{0} : value.significand << value.exponent;
  return clamped({.negative = value.negative, .significand = magnitude}, target);
}

constexpr uint64_t one_of(Format format) {
  return static_cast<uint64_t>((1 << (format.exponent_bits - 1)) - 1) << format.fraction_bits;
}

// .sat into [0, 1] with NaN as +0, .relu to +0 from below.
uint64_t finished(uint64_t bits, const Conversion& conversion, const Instruction& instruction) {
  const Format format = format_of(conversion.target);
  const bool negative = (bits & format.sign()) != 0;
  const bool nan = (bits & (format.sign() - 1)) > format.infinity();
  if (instruction.saturates) {
    if (nan || negative) return 0;
    return std::min(bits, one_of(format));
  }
  return conversion.relu && negative && !nan ? 0 : bits;
}

uint64_t flushed_float(uint64_t bits) {
  return (bits & 0x7f800000) == 0 ? bits & 0x80000000 : bits;
}

// A NaN that only changes its width to 64 bits keeps its payload.
uint64_t widened_nan(Format from, uint64_t bits) {
  const uint64_t fraction = low_bits(bits, from.fraction_bits);
  const uint64_t sign = (bits & from.sign()) != 0 ? kDoubleFormat.sign() : 0;
  return sign | kDoubleFormat.infinity() | kQuiet64 | fraction << (52 - from.fraction_bits);
}

// From 64 bits what fits of the payload stays, quieted; from bf16 to f32 all bits do.
std::optional<uint64_t> kept_nan(const Conversion& conversion, uint64_t bits) {
  if (conversion.target == Type::f64) return widened_nan(format_of(conversion.source), bits);
  if (conversion.source == Type::bf16 && conversion.target == Type::f32) return bits << 16;
  if (conversion.source != Type::f64) return std::nullopt;
  const Format to = format_of(conversion.target);
  const uint64_t sign = (bits & kDoubleFormat.sign()) != 0 ? to.sign() : 0;
  const uint64_t fraction = low_bits(bits | kQuiet64, 52) >> (52 - to.fraction_bits);
  return sign | to.infinity() | fraction;
}

uint64_t float_from(const Exact& value, const Conversion& conversion, uint64_t bits,
                    const Instruction& instruction) {
  const Format format = format_of(conversion.target);
  const bool from_float = is_float(conversion.source);
  if (value.kind == Exact::Kind::nan) {
    if (const std::optional<uint64_t> nan = kept_nan(conversion, bits))
      return finished(*nan, conversion, instruction);
  }
  const Exact integral =
      conversion.integral ? rounded_to_integer(value, instruction.rounding) : value;
  const Rounding rounding = conversion.integral ? Rounding::nearest : instruction.rounding;
  uint64_t result = encode_float(format, integral, rounding);
  if (instruction.flushes && conversion.target == Type::f32 && from_float) {
    result = flushed_float(result);
  }
  return finished(result, conversion, instruction);
}

// Without rounding, flushing and the like a value of the same type goes through, a NaN as it is.
bool is_copy(const Conversion& conversion, const Instruction& instruction) {
  return conversion.source == conversion.target && !conversion.integral && !instruction.saturates &&
         !instruction.flushes && !conversion.relu;
}

uint64_t converted(const Conversion& conversion, const Instruction& instruction, uint64_t word) {
  const Type source = conversion.source;
  const Type target = conversion.target;
  if (!is_float(source)) {
    const uint64_t value = extended(word, source);
    const Exact exact = exact_integer(value, source);
    if (is_float(target)) return float_from(exact, conversion, value, instruction);
    if (!instruction.saturates) return extended(value, target);
    return extended(clamped(exact, target), target);
  }
  uint64_t bits = low_bits(word, type_bits(source));
  if (instruction.flushes && source == Type::f32) bits = flushed_float(bits);
  if (is_copy(conversion, instruction)) return bits;
  const Exact exact = decode_float(format_of(source), bits);
  if (is_float(target)) return float_from(exact, conversion, bits, instruction);
  const Exact integral = rounded_to_integer(exact, instruction.rounding);
  return extended(integer_from(integral, target, source), target);
}

template <class TargetWord, class SourceWord>
void convert(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const Conversion conversion = unpacked(instruction.target);
  TargetWord* target = warp.row<TargetWord>(instruction.rows[0]);
  const SourceWord* source = warp.row<SourceWord>(instruction.rows[1]);
  each_lane(mask, [&](int lane) {
    target[lane] = static_cast<TargetWord>(converted(conversion, instruction, source[lane]));
  });
}

Handler general_handler(const Conversion& conversion) {
  if (conversion.wide_target) {
    return conversion.wide_source ? convert<uint64_t, uint64_t> : convert<uint64_t, uint32_t>;
  }
  return conversion.wide_source ? convert<uint32_t, uint64_t> : convert<uint32_t, uint32_t>;
}

// --- handlers of frequent pairs

// Integer to integer: the value of type T in the source, extended to the target's word.
template <class T, class TargetWord, class SourceWord>
void extend(Warp& warp, const Instruction& instruction, uint32_t mask) {
  map<[](SourceWord word) { return static_cast<TargetWord>(static_cast<T>(word)); }, TargetWord,
      SourceWord>(warp, instruction, mask);
}

template <class T>
Handler extending_handler(const Conversion& conversion) {
  if (conversion.wide_target) {
    return conversion.wide_source ? extend<T, uint64_t, uint64_t> : extend<T, uint64_t, uint32_t>;
  }
  return conversion.wide_source ? extend<T, uint32_t, uint64_t> : extend<T, uint32_t, uint32_t>;
}

Handler integer_handler(const Conversion& conversion, const Instruction& instruction) {
  if (instruction.saturates) return nullptr;
  const bool narrows = type_bits(conversion.target) <= type_bits(conversion.source);
  // A negative value that is widened to an unsigned type is cut there: left to the general handler,
  // as is a register that is wider than the type.
  const bool is_simple = narrows || !is_signed(conversion.source) || is_signed(conversion.target) ||
                         type_bits(conversion.target) == (conversion.wide_target ? 64 : 32);
  if (!is_simple) return nullptr;
  switch (narrows ? conversion.target : conversion.source) {
    case Type::u8:
      return extending_handler<uint8_t>(conversion);
    case Type::s8:
      return extending_handler<int8_t>(conversion);
    case Type::u16:
      return extending_handler<uint16_t>(conversion);
    case Type::s16:
      return extending_handler<int16_t>(conversion);
    case Type::u32:
      return extending_handler<uint32_t>(conversion);
    case Type::s32:
      return extending_handler<int32_t>(conversion);
    case Type::u64:
      return extending_handler<uint64_t>(conversion);
    case Type::s64:
      return extending_handler<int64_t>(conversion);
    default:
      return nullptr;
  }
}

// Exact in f64, so that one rounding is left; 64 bits are converted at once.
template <class Float, class Integer>
Float float_of(Integer value) {
  if constexpr (sizeof(Integer) == 8) return static_cast<Float>(value);
  return static_cast<Float>(static_cast<double>(value));
}
template <class Float>
Handler from_integer_handler(Type source, const Instruction& instruction) {
  return by_integer(source, [&]<class T>() -> Handler {
    return with_mode<map<float_of<Float, T>, Float, T>>(instruction);
  });
}

template <Rounding rounding, class Float>
Float integral(Float value) {
  switch (rounding) {
    case Rounding::nearest:
      return std::nearbyint(value);
    case Rounding::zero:
      return std::trunc(value);
    case Rounding::down:
      return std::floor(value);
    case Rounding::up:
      return std::ceil(value);
  }
  return value;
}

// f32 to 32-bit integers. The bounds are exact in f64.
template <Rounding rounding, class Integer>
Integer integer_of(float value) {
  constexpr auto kLeast = static_cast<double>(std::numeric_limits<Integer>::min());
  constexpr auto kMost = static_cast<double>(std::numeric_limits<Integer>::max());
  // The last cast cuts, which is rounding to zero.
  const double whole =
      rounding == Rounding::zero ? double{value} : integral<rounding>(double{value});
  const double above = whole > kLeast ? whole : kLeast;
  const double inside = above < kMost ? above : kMost;
  using Cut = std::conditional_t<std::is_signed_v<Integer>, Integer, int64_t>;
  return static_cast<Integer>(static_cast<Cut>(is_nan(value) ? 0.0 : inside));
}
template <class Make>
Handler by_rounding(Rounding rounding, Make make) {
  switch (rounding) {
    case Rounding::nearest:
      return make.template operator()<Rounding::nearest>();
    case Rounding::zero:
      return make.template operator()<Rounding::zero>();
    case Rounding::down:
      return make.template operator()<Rounding::down>();
    case Rounding::up:
      return make.template operator()<Rounding::up>();
  }
  return nullptr;
}

template <class Element>
constexpr auto kWiden = [](Element value) { return canonical(widen(value)); };
template <class Element>
constexpr auto kNarrow = [](float value) { return narrow<Element>(value); };

// nullptr: the general handler has to do it. Registers are as wide as their types here.
Handler frequent_handler(const Conversion& conversion, const Instruction& instruction) {
  const Type target = conversion.target;
  const Type source = conversion.source;
  if (!is_float(target) && !is_float(source)) return integer_handler(conversion, instruction);
  const auto fits = [](Type type, bool wide) { return (type_bits(type) == 64) == wide; };
  if (!fits(target, conversion.wide_target) || !fits(source, conversion.wide_source))
    return nullptr;
  if (conversion.relu) return nullptr;
  if (instruction.saturates) {  // __saturatef
    const bool is_clamp = source == Type::f32 && target == Type::f32 && !conversion.integral;
    return is_clamp ? with_mode<map<saturated<float>, float, float>>(instruction) : nullptr;
  }
  if (target == Type::f32 && !is_float(source) && !instruction.flushes)
    return from_integer_handler<float>(source, instruction);
  if (target == Type::f64 && !is_float(source))
    return from_integer_handler<double>(source, instruction);
  if (instruction.flushes) return nullptr;
  if (source == Type::f32 && (target == Type::s32 || target == Type::u32)) {
    return by_rounding(instruction.rounding, [&]<Rounding rounding>() -> Handler {
      return target == Type::s32 ? map<integer_of<rounding, int32_t>, int32_t, float>
                                 : map<integer_of<rounding, uint32_t>, uint32_t, float>;
    });
  }
  if (conversion.integral && source == Type::f32 && target == Type::f32) {
    return by_rounding(instruction.rounding, []<Rounding rounding>() -> Handler {
      return map<[](float value) { return canonical(integral<rounding>(value)); }, float, float>;
    });
  }
  if (conversion.integral) return nullptr;
  if (source == Type::f16 && target == Type::f32) return map<kWiden<LaneHalf>, float, LaneHalf>;
  if (source == Type::f64 && target == Type::f32) {
    return with_mode<map<[](double value) { return static_cast<float>(value); }, float, double>>(
        instruction);
  }
  if (instruction.rounding != Rounding::nearest || source != Type::f32) return nullptr;
  if (target == Type::f16) return map<kNarrow<LaneHalf>, LaneHalf, float>;
  if (target == Type::bf16) return map<kNarrow<LaneBrain>, LaneBrain, float>;
  return nullptr;
}

// --- pairs and tf32

// Two f32 into one register, the first one high.
template <class Element>
constexpr auto kNarrowPair =
    [](float high, float low) { return pair_of(narrow<Element>(low), narrow<Element>(high)); };

void convert_pair(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const Conversion conversion = unpacked(instruction.target);
  uint32_t* target = warp.row<uint32_t>(instruction.rows[0]);
  const uint32_t* high = warp.row<uint32_t>(instruction.rows[1]);
  const uint32_t* low = warp.row<uint32_t>(instruction.rows[2]);
  each_lane(mask, [&](int lane) {
    const auto half = [&](uint32_t word) {
      return static_cast<uint32_t>(converted(conversion, instruction, word));
    };
    target[lane] = half(high[lane]) << 16 | half(low[lane]);
  });
}

void bind_pair(Binder& binder, Type target) {
  Instruction& instruction = binder.instruction();
  if (binder.require_type() != Type::f32) binder.unsupported("expected .f32");
  const bool is_half = target == Type::f16x2;
  const Conversion conversion{
      .target = is_half ? Type::f16 : Type::bf16, .source = Type::f32, .relu = binder.take("relu")};
  instruction.target = packed(conversion);
  bind_rows(binder, target, {Type::f32, Type::f32});
  if (conversion.relu || instruction.rounding != Rounding::nearest) {
    return bind_handler(binder, convert_pair);
  }
  bind_handler(binder, is_half ? map<kNarrowPair<LaneHalf>, LanePair<LaneHalf>, float, float>
                               : map<kNarrowPair<LaneBrain>, LanePair<LaneBrain>, float, float>);
}

// Nearest, ties away from zero: half a unit is added below the kept bits. An infinity or a NaN is
// cut.
uint32_t rounded_to_tf32(uint32_t bits) {
  const uint32_t half = (bits & 0x7f800000) == 0x7f800000 ? 0 : 0x1000;
  return (bits + half) & 0xffffe000;
}

void bind_tf32(Binder& binder) {
  if (!binder.take("rna")) binder.unsupported("expected .rna");
  if (binder.require_type() != Type::f32) binder.unsupported("expected .f32");
  bind_rows(binder, Type::b32, {Type::f32});
  bind_handler(binder, map<rounded_to_tf32, uint32_t, uint32_t>);
}

// --- cvt.pack

// Element types of cvt.pack, down to 2 bits. They saturate from s32.
struct PackType {
  std::string_view name;
  int bits;
  int32_t least;
  int32_t most;
};
constexpr PackType kPackTypes[] = {
    {"u16", 16, 0, 65535}, {"s16", 16, -32768, 32767}, {"u8", 8, 0, 255}, {"s8", 8, -128, 127},
    {"u4", 4, 0, 15},      {"s4", 4, -8, 7},           {"u2", 2, 0, 3},   {"s2", 2, -2, 1}};

// {c, a, b}: b lowest, and as much of c as there is room for.
template <int index>
uint32_t pack_words(int32_t a, int32_t b, uint32_t c) {
  constexpr int bits = kPackTypes[index].bits;
  const auto cut = [](int32_t value) {
    const PackType& type = kPackTypes[index];
    return static_cast<uint32_t>(std::clamp(value, type.least, type.most)) & ((1U << bits) - 1);
  };
  const uint32_t both = cut(a) << bits | cut(b);
  return bits == 16 ? both : c << (2 * bits % 32) | both;
}
template <int index>
constexpr Handler kPack = map<pack_words<index>, uint32_t, int32_t, int32_t, uint32_t>;

void bind_pack(Binder& binder) {
  constexpr Handler kHandlers[] = {kPack<0>, kPack<1>, kPack<2>, kPack<3>,
                                   kPack<4>, kPack<5>, kPack<6>, kPack<7>};
  if (!binder.take("sat")) binder.unsupported("expected .sat");
  size_t index = 0;
  while (index < std::size(kPackTypes) && !binder.take(kPackTypes[index].name)) ++index;
  if (index == std::size(kPackTypes)) binder.unsupported("it has no form for these types");
  if (binder.require_type() != Type::s32) binder.unsupported("expected .s32");
  const bool has_third = binder.take("b32");
  if (has_third != (kPackTypes[index].bits < 16))
    binder.unsupported(".b32 goes with elements of at most 8 bits");
  binder.require_operands(has_third ? 4 : 3, has_third ? 4 : 3);
  binder.target(binder.operand(0), Type::b32);
  binder.source(binder.operand(1), Type::s32);
  binder.source(binder.operand(2), Type::s32);
  if (has_third) {
    binder.source(binder.operand(3), Type::b32);
  } else {
    binder.scratch();
  }
  bind_handler(binder, kHandlers[index]);
}

// --- binding

bool has_integer_rounding(const Statement& statement) {
  for (const std::string_view part : statement.name) {
    if (part == "rni" || part == "rzi" || part == "rmi" || part == "rpi") return true;
  }
  return false;
}

bool is_number(Type type) {
  switch (type) {
    case Type::pred:
    case Type::b8:
    case Type::b16:
    case Type::b32:
    case Type::b64:
    case Type::b128:
    case Type::tf32:
    case Type::f16x2:
    case Type::bf16x2:
      return false;
    default:
      return true;
  }
}

void bind_scalar(Binder& binder, Type target) {
  Instruction& instruction = binder.instruction();
  instruction.flushes = binder.take("ftz");
  instruction.saturates = binder.take("sat");
  Conversion conversion{.target = target, .source = binder.require_type()};
  if (!is_number(target) || !is_number(conversion.source))
    binder.unsupported("it has no form for these types");
  conversion.integral = has_integer_rounding(binder.statement());
  conversion.relu = binder.take("relu");
  binder.require_operands(2, 2);
  conversion.wide_target = binder.wide_target(binder.operand(0), target);
  conversion.wide_source = binder.wide_source(binder.operand(1), conversion.source);
  instruction.target = packed(conversion);
  const Handler frequent = frequent_handler(conversion, instruction);
  bind_handler(binder, frequent != nullptr ? frequent : general_handler(conversion));
}

}  // namespace

bool bind_convert(Binder& binder) {
  if (binder.op() != "cvt") return false;
  if (binder.take("pack")) {
    bind_pack(binder);
    return true;
  }
  binder.instruction().rounding = binder.take_rounding();
  const Type target = binder.require_type();
  if (target == Type::f16x2 || target == Type::bf16x2) {
    bind_pair(binder, target);
  } else if (target == Type::tf32) {
    bind_tf32(binder);
  } else {
    bind_scalar(binder, target);
  }
  return true;
}

}  // namespace kiln::runtime::sim
