// A function of one lane as a handler for all of them: rows[0] is the target, the other rows are
// the operands. Local to the file that includes it, as numbers.h is.
#pragma once

#include <array>
#include <bit>
#include <initializer_list>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "runtime/sim/numbers.h"
#include "runtime/sim/warp.h"

namespace kiln::runtime::sim {
namespace {

constexpr std::array<uint32_t, kLanes> kLaneBits = [] {
  std::array<uint32_t, kLanes> bits{};
  for (int lane = 0; lane < kLanes; ++lane) bits[static_cast<size_t>(lane)] = 1U << lane;
  return bits;
}();

// Copies the lanes of `mask`.
template <class W>
inline void blend(uint32_t mask, W* target, const W* source) {
#pragma GCC ivdep
  for (size_t lane = 0; lane < kLanes; ++lane) {
    target[lane] = (mask & kLaneBits[lane]) != 0 ? source[lane] : target[lane];
  }
}

// Under a mask of some lanes it is cheaper to compute all of them and keep those than to go from
// lane to lane, but for very few. No operation faults, so the others do no harm.
constexpr int kFewLanes = 3;

// Without `ivdep` the compiler would have to prove that rows do not overlap. The decoder gives a
// target a place of its own, or exactly that of an operand.
template <auto function, class Target, class... Sources>
inline void apply(uint32_t mask, Word<Target>* target, const Word<Sources>*... sources) {
  const auto put_lane = [&](Word<Target>* into, int lane) {
    put<Target>(into, lane, function(get<Sources>(sources, lane)...));
  };
  if (std::popcount(mask) <= kFewLanes) {
    each_lane(mask, [&](int lane) { put_lane(target, lane); });
    return;
  }
  alignas(64) Word<Target> spare[kLanes];
  Word<Target>* into = mask == kAllLanes ? target : spare;
#pragma GCC ivdep
  for (int lane = 0; lane < kLanes; ++lane) put_lane(into, lane);
  if (mask != kAllLanes) blend(mask, target, spare);
}

// target = body(lane), in the same way.
template <class W, class Body>
inline void fill(uint32_t mask, W* target, Body body) {
  if (std::popcount(mask) <= kFewLanes) {
    each_lane(mask, [&](int lane) { target[lane] = body(lane); });
    return;
  }
  alignas(64) W spare[kLanes];
  W* into = mask == kAllLanes ? target : spare;
#pragma GCC ivdep
  for (int lane = 0; lane < kLanes; ++lane) into[lane] = body(lane);
  if (mask != kAllLanes) blend(mask, target, spare);
}

template <auto function, class Target, class... Sources, size_t... index>
inline void apply_rows(Warp& warp, const Instruction& instruction, uint32_t mask,
                       std::index_sequence<index...>) {
  apply<function, Target, Sources...>(
      mask, warp.row<Word<Target>>(instruction.rows[0]),
      warp.row<const Word<Sources>>(instruction.rows[index + 1])...);
}

// The handler: target = function(sources...). Flattened: a call in the loop would keep the compiler
// from vectorising it.
template <auto function, class Target, class... Sources>
[[gnu::flatten]] void map(Warp& warp, const Instruction& instruction, uint32_t mask) {
  apply_rows<function, Target, Sources...>(warp, instruction, mask,
                                           std::index_sequence_for<Sources...>{});
}

// The handler under the instruction's rounding and flushing.
template <Handler handler>
void in_mode(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const FloatMode mode({.rounding = instruction.rounding, .flushes = instruction.flushes});
  handler(warp, instruction, mask);
}
inline bool needs_mode(const Instruction& instruction) {
  return instruction.flushes || instruction.rounding != Rounding::nearest;
}
template <Handler handler>
Handler with_mode(const Instruction& instruction) {
  return needs_mode(instruction) ? in_mode<handler> : handler;
}

// Writes lanes of a predicate.
inline void put_predicate(Warp& warp, Row row, uint32_t bits, uint32_t mask) {
  uint32_t& predicate = warp.predicate(row);
  predicate = (predicate & ~mask) | (bits & mask);
}

// --- binding

inline void bind_rows(Binder& binder, Type target, std::initializer_list<Type> sources) {
  const int count = static_cast<int>(sources.size()) + 1;
  binder.require_operands(count, count);
  binder.target(binder.operand(0), target);
  int index = 1;
  for (const Type source : sources) binder.source(binder.operand(index++), source);
}

inline void bind_handler(Binder& binder, Handler handler) {
  if (handler == nullptr) binder.unsupported("it has no form for these types");
  binder.instruction().handler = handler;
}

// make.operator()<T>() with the host type of an integer type; nullptr for every other type.
template <class Make>
Handler by_integer(Type type, Make make) {
  switch (type) {
    case Type::b16:
    case Type::u16:
      return make.template operator()<uint16_t>();
    case Type::s16:
      return make.template operator()<int16_t>();
    case Type::b32:
    case Type::u32:
      return make.template operator()<uint32_t>();
    case Type::s32:
      return make.template operator()<int32_t>();
    case Type::b64:
    case Type::u64:
      return make.template operator()<uint64_t>();
    case Type::s64:
      return make.template operator()<int64_t>();
    default:
      return nullptr;
  }
}

// The same where the sign does not matter; float types count by their size.
template <class Make>
Handler by_bits(Type type, Make make) {
  switch (type_bits(type)) {
    case 16:
      return make.template operator()<uint16_t>();
    case 32:
      return make.template operator()<uint32_t>();
    case 64:
      return make.template operator()<uint64_t>();
    default:
      return nullptr;
  }
}

}  // namespace
// An op of a family and what binds it.
struct OpEntry {
  std::string_view op;
  void (*bind)(Binder&);
};
bool bind_one_of(std::span<const OpEntry> entries, Binder& binder);  // false: none of them

}  // namespace kiln::runtime::sim
