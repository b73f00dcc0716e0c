// Comparisons into predicates (setp) and registers (set), and choices (selp, slct).
//
// A comparison of all lanes becomes one word; combining it with another predicate and writing a
// second, negated target are operations on words.
#include <string_view>

#include "runtime/sim/lanes.h"

namespace kiln::runtime::sim {
namespace {

// Those from `equ` on are for floats: unordered operands make them true; `num` asks for no NaN.
enum class Compare : uint8_t { eq, ne, lt, le, gt, ge, equ, neu, ltu, leu, gtu, geu, num, nan };
constexpr std::string_view kCompares[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                          "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};

enum class Combine : uint8_t { none, conjunction, disjunction, difference };

// One half of a register that holds two elements.
template <class Element, int shift>
struct Part {
  uint32_t bits;
};
template <class T>
T value_of(T value) {
  return value;
}
float value_of(LaneHalf value) { return widen(value); }
float value_of(LaneFlushedHalf value) { return widen(value); }
float value_of(LaneBrain value) { return widen(value); }
template <class Element, int shift>
float value_of(Part<Element, shift> value) {
  return widen(Element{value.bits >> shift});
}

template <Compare compare, class T>
bool holds(T a, T b) {
  switch (compare) {
    case Compare::eq:
      return a == b && !is_nan(a);
    case Compare::ne:
      return a != b && !is_nan(a) && !is_nan(b);
    case Compare::lt:
      return a < b;
    case Compare::le:
      return a <= b;
    case Compare::gt:
      return a > b;
    case Compare::ge:
      return a >= b;
    case Compare::equ:
      return a == b || is_nan(a) || is_nan(b);
    case Compare::neu:
      return a != b;
    case Compare::ltu:
      return !(a >= b);
    case Compare::leu:
      return !(a > b);
    case Compare::gtu:
      return !(a <= b);
    case Compare::geu:
      return !(a < b);
    case Compare::num:
      return !is_nan(a) && !is_nan(b);
    case Compare::nan:
      return is_nan(a) || is_nan(b);
  }
  return false;
}

// The sign bits of 32 words.
uint32_t gather_signs(const int32_t* words) {
#if defined(__SSE2__)
  uint32_t bits = 0;
  for (int half = 0; half < 2; ++half) {
    const auto* four = reinterpret_cast<const __m128i*>(words + 16 * half);
    const __m128i low = _mm_packs_epi32(_mm_load_si128(four), _mm_load_si128(four + 1));
    const __m128i high = _mm_packs_epi32(_mm_load_si128(four + 2), _mm_load_si128(four + 3));
    const auto part = static_cast<uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(low, high)));
    bits |= part << (16 * half);
  }
  return bits;
#else
  uint32_t bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    bits |= static_cast<uint32_t>(words[lane] < 0) << lane;
  }
  return bits;
#endif
}

template <Compare compare, class T>
uint32_t compare_rows(const Warp& warp, Row left, Row right) {
  const Word<T>* a = warp.row<const Word<T>>(left);
  const Word<T>* b = warp.row<const Word<T>>(right);
  alignas(32) int32_t flags[kLanes];
#pragma GCC ivdep
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto x = value_of(get<T>(a, lane));
    const auto y = value_of(get<T>(b, lane));
    flags[lane] = holds<compare>(x, y) ? -1 : 0;
  }
  return gather_signs(flags);
}

uint32_t combined(const Instruction& instruction, uint32_t bits, uint32_t other) {
  switch (static_cast<Combine>(instruction.mode)) {
    case Combine::none:
      return bits;
    case Combine::conjunction:
      return bits & other;
    case Combine::disjunction:
      return bits | other;
    case Combine::difference:
      return bits ^ other;
  }
  return bits;
}

// rows: p, q, a, b, c
template <Compare compare, class T>
void set_predicate(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const Row* rows = instruction.rows;
  const uint32_t bits = compare_rows<compare, T>(warp, rows[2], rows[3]);
  const uint32_t other = warp.value(rows[4]);
  put_predicate(warp, rows[0], combined(instruction, bits, other), mask);
  put_predicate(warp, rows[1], combined(instruction, ~bits, other), mask);
}

// The same for two elements a register: p is for the low one, q for the high one.
template <Compare compare, class Element>
void set_predicates(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const Row* rows = instruction.rows;
  const uint32_t low = compare_rows<compare, Part<Element, 0>>(warp, rows[2], rows[3]);
  const uint32_t high = compare_rows<compare, Part<Element, 16>>(warp, rows[2], rows[3]);
  const uint32_t other = warp.value(rows[4]);
  put_predicate(warp, rows[0], combined(instruction, low, other), mask);
  put_predicate(warp, rows[1], combined(instruction, high, other), mask);
}

// rows: d, a, b, c; instruction.target: what "true" is.
template <Compare compare, class T>
void set_register(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const Row* rows = instruction.rows;
  const uint32_t bits =
      combined(instruction, compare_rows<compare, T>(warp, rows[1], rows[2]), warp.value(rows[3]));
  uint32_t* target = warp.row<uint32_t>(rows[0]);
  each_lane(mask,
            [&](int lane) { target[lane] = (bits >> lane & 1) != 0 ? instruction.target : 0; });
}
template <Compare compare, class Element>
void set_registers(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const Row* rows = instruction.rows;
  const uint32_t other = warp.value(rows[3]);
  const uint32_t low =
      combined(instruction, compare_rows<compare, Part<Element, 0>>(warp, rows[1], rows[2]), other);
  const uint32_t high = combined(
      instruction, compare_rows<compare, Part<Element, 16>>(warp, rows[1], rows[2]), other);
  uint32_t* target = warp.row<uint32_t>(rows[0]);
  each_lane(mask, [&](int lane) {
    target[lane] = ((low >> lane & 1) != 0 ? instruction.target & 0xffff : 0) |
                   ((high >> lane & 1) != 0 ? instruction.target & 0xffff0000 : 0);
  });
}

template <class Make>
Handler by_compare(Compare compare, Make make) {
  switch (compare) {
    case Compare::eq:
      return make.template operator()<Compare::eq>();
    case Compare::ne:
      return make.template operator()<Compare::ne>();
    case Compare::lt:
      return make.template operator()<Compare::lt>();
    case Compare::le:
      return make.template operator()<Compare::le>();
    case Compare::gt:
      return make.template operator()<Compare::gt>();
    case Compare::ge:
      return make.template operator()<Compare::ge>();
    case Compare::equ:
      return make.template operator()<Compare::equ>();
    case Compare::neu:
      return make.template operator()<Compare::neu>();
    case Compare::ltu:
      return make.template operator()<Compare::ltu>();
    case Compare::leu:
      return make.template operator()<Compare::leu>();
    case Compare::gtu:
      return make.template operator()<Compare::gtu>();
    case Compare::geu:
      return make.template operator()<Compare::geu>();
    case Compare::num:
      return make.template operator()<Compare::num>();
    case Compare::nan:
      return make.template operator()<Compare::nan>();
  }
  return nullptr;
}

enum class Into : uint8_t { predicate, registers };

template <Into into, class T>
Handler compare_handler(Compare compare) {
  return by_compare(compare, []<Compare known>() -> Handler {
    if constexpr (std::is_integral_v<T> && known > Compare::ge)
      return nullptr;
    else if constexpr (into == Into::predicate)
      return set_predicate<known, T>;
    else
      return set_register<known, T>;
  });
}
template <Into into>
Handler flushing_compare_handler(Compare compare) {
  return by_compare(compare, []<Compare known>() -> Handler {
    if constexpr (into == Into::predicate)
      return in_mode<set_predicate<known, float>>;
    else
      return in_mode<set_register<known, float>>;
  });
}
template <Into into, class Element>
Handler pair_handler(Compare compare) {
  return by_compare(compare, []<Compare known>() -> Handler {
    if constexpr (into == Into::predicate)
      return set_predicates<known, Element>;
    else
      return set_registers<known, Element>;
  });
}

template <Into into>
Handler compare_handler(Compare compare, Type type, const Instruction& instruction) {
  switch (type) {
    case Type::f16:
      return instruction.flushes ? compare_handler<into, LaneFlushedHalf>(compare)
                                 : compare_handler<into, LaneHalf>(compare);
    case Type::f16x2:
      return instruction.flushes ? pair_handler<into, LaneFlushedHalf>(compare)
                                 : pair_handler<into, LaneHalf>(compare);
    case Type::bf16:
      return compare_handler<into, LaneBrain>(compare);
    case Type::bf16x2:
      return pair_handler<into, LaneBrain>(compare);
    case Type::f32:
      return instruction.flushes ? flushing_compare_handler<into>(compare)
                                 : compare_handler<into, float>(compare);
    case Type::f64:
      return compare_handler<into, double>(compare);
    default:
      return by_integer(type,
                        [&]<class T>() -> Handler { return compare_handler<into, T>(compare); });
  }
}

Compare take_compare(Binder& binder) {
  for (size_t i = 0; i < std::size(kCompares); ++i) {
    if (binder.take(kCompares[i])) return static_cast<Compare>(i);
  }
  if (binder.take("lo")) return Compare::lt;
  if (binder.take("ls")) return Compare::le;
  if (binder.take("hi")) return Compare::gt;
  if (binder.take("hs")) return Compare::ge;
  binder.unsupported("it has no comparison that the simulator knows");
}

Combine take_combine(Binder& binder) {
  if (binder.take("and")) return Combine::conjunction;
  if (binder.take("or")) return Combine::disjunction;
  return binder.take("xor") ? Combine::difference : Combine::none;
}

// a, b and, when there is an operator, c.
void bind_compared(Binder& binder, Type type, Combine combine) {
  const bool combines = combine != Combine::none;
  binder.require_operands(combines ? 4 : 3, combines ? 4 : 3);
  binder.source(binder.operand(1), type);
  binder.source(binder.operand(2), type);
  if (combines) {
    binder.source(binder.operand(3), Type::pred);
  } else {
    binder.scratch();
  }
}

// What the modifiers before the types say, as set and setp have them.
struct Comparison {
  Compare compare;
  Combine combine;
};
Comparison take_comparison(Binder& binder) {
  const Comparison taken{take_compare(binder), take_combine(binder)};
  binder.instruction().mode = static_cast<uint8_t>(taken.combine);
  binder.instruction().flushes = binder.take("ftz");
  return taken;
}

void bind_setp(Binder& binder) {
  const auto [compare, combine] = take_comparison(binder);
  const Type type = binder.require_type();
  const Operand& targets = binder.operand(0);
  const Operand none{.kind = Operand::Kind::sink};
  if (targets.kind == Operand::Kind::group) {
    if (targets.parts.size() != 2) binder.unsupported("expected two targets, p|q");
    binder.target(targets.parts[0], Type::pred);
    binder.target(targets.parts[1], Type::pred);
  } else {
    binder.target(targets, Type::pred);
    binder.target(none, Type::pred);
  }
  bind_compared(binder, type, combine);
  bind_handler(binder, compare_handler<Into::predicate>(compare, type, binder.instruction()));
}

// What a true comparison writes.
uint32_t truth(Binder& binder, Type type) {
  switch (type) {
    case Type::u16:
    case Type::s16:
      return 0xffff;
    case Type::u32:
    case Type::s32:
      return 0xffffffff;
    case Type::f32:
      return 0x3f800000;
    case Type::f16:
      return 0x3c00;
    case Type::f16x2:
      return 0x3c003c00;
    case Type::bf16:
      return 0x3f80;
    case Type::bf16x2:
      return 0x3f803f80;
    default:
      binder.unsupported("it has no form for these types");
  }
}

void bind_set(Binder& binder) {
  const auto [compare, combine] = take_comparison(binder);
  Instruction& instruction = binder.instruction();
  const Type target = binder.require_type();
  const Type type = binder.require_type();
  instruction.target = truth(binder, target);
  binder.target(binder.operand(0), target);
  bind_compared(binder, type, combine);
  bind_handler(binder, compare_handler<Into::registers>(compare, type, instruction));
}

// --- choices

// rows: d, a, b, p
template <class W>
void select(Warp& warp, const Instruction& instruction, uint32_t mask) {
  W* target = warp.row<W>(instruction.rows[0]);
  const W* a = warp.row<W>(instruction.rows[1]);
  const W* b = warp.row<W>(instruction.rows[2]);
  const uint32_t which = warp.value(instruction.rows[3]);
  fill(mask, target, [&](int lane) {
    return (which & kLaneBits[static_cast<size_t>(lane)]) != 0 ? a[lane] : b[lane];
  });
}

void bind_selp(Binder& binder) {
  const Type type = binder.require_type();
  bind_rows(binder, type, {type, type, Type::pred});
  bind_handler(binder, type_bits(type) == 64                         ? select<uint64_t>
                       : type_bits(type) <= 32 && type != Type::pred ? select<uint32_t>
                                                                     : nullptr);
}

// d = c >= 0 ? a : b; a NaN is not.
template <class W, class C>
constexpr auto kSelectBySign = [](W a, W b, C c) { return c >= C{0} ? a : b; };

void bind_slct(Binder& binder) {
  Instruction& instruction = binder.instruction();
  // A subnormal that becomes zero of its sign is not below zero any more.
  instruction.flushes = binder.take("ftz");
  const Type type = binder.require_type();
  const Type by = binder.require_type();
  if (by != Type::s32 && by != Type::f32) binder.unsupported("expected .s32 or .f32");
  bind_rows(binder, type, {type, type, by});
  const auto make = [&]<class W>() -> Handler {
    if (by == Type::s32) return map<kSelectBySign<W, int32_t>, W, W, W, int32_t>;
    return with_mode<map<kSelectBySign<W, float>, W, W, W, float>>(instruction);
  };
  bind_handler(binder, by_bits(type, make));
}

}  // namespace

bool bind_compare(Binder& binder) {
  if (binder.op() == "setp") {
    bind_setp(binder);
  } else if (binder.op() == "set") {
    bind_set(binder);
  } else if (binder.op() == "selp") {
    bind_selp(binder);
  } else if (binder.op() == "slct") {
    bind_slct(binder);
  } else {
    return false;
  }
  return true;
}

}  // namespace kiln::runtime::sim
