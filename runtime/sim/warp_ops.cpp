// Instructions with which the lanes of a warp exchange values: shfl, vote, match, redux, activemask
// and bar.warp.sync. A handler runs once for the lanes that arrived together; what it reads from
// other lanes it reads before it writes, since a target may be a source too.
#include "runtime/sim/binder.h"
#include "runtime/sim/warp.h"

namespace kiln::runtime::sim {
namespace {

// What a lane gets from a lane that is not there: PTX leaves it undefined. Neither a plausible
// number (a NaN in every float format) nor a plausible index, so that a kernel that uses it shows.
constexpr uint32_t kUndefined = 0xfffefffe;

void put_bits(Warp& warp, Row row, uint32_t mask, uint32_t bits) {
  uint32_t& predicate = warp.predicate(row);
  predicate = (predicate & ~mask) | (bits & mask);
}

void put_values(Warp& warp, Row row, uint32_t mask, const uint32_t* values) {
  uint32_t* target = warp.row<uint32_t>(row);
  if (mask == kAllLanes) {
    std::memcpy(target, values, kRowBytes);
  } else {
    each_lane(mask, [&](int lane) { target[lane] = values[lane]; });
  }
}

void put_same(Warp& warp, Row row, uint32_t mask, uint32_t value) {
  uint32_t values[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) values[lane] = value;
  put_values(warp, row, mask, values);
}

// The row of members is first everywhere; only the executor reads it. The legacy forms without
// .sync have an unused row in its place and work on the active lanes.

// shfl. Rows: members, d, p, a, b, c.
enum class Shuffle : uint8_t { up, down, butterfly, index };

// The lane to read from, and -1 in `in_range` where that lane is inside the segment.
template <Shuffle kind>
void source_lanes(const uint32_t* distances, const uint32_t* bounds, int32_t* sources,
                  int32_t* in_range) {
  for (int32_t lane = 0; lane < kLanes; ++lane) {
    const auto distance = static_cast<int32_t>(distances[lane] & 31);
    const auto clamp = static_cast<int32_t>(bounds[lane] & 31);
    const auto segment = static_cast<int32_t>((bounds[lane] >> 8) & 31);
    const int32_t first = lane & segment;
    const int32_t limit = first | (clamp & ~segment);
    int32_t source = 0;
    if constexpr (kind == Shuffle::up) source = lane - distance;
    if constexpr (kind == Shuffle::down) source = lane + distance;
    if constexpr (kind == Shuffle::butterfly) source = lane ^ distance;
    if constexpr (kind == Shuffle::index) source = first | (distance & ~segment);
    const bool inside = kind == Shuffle::up ? source >= limit : source <= limit;
    in_range[lane] = inside ? -1 : 0;
    sources[lane] = inside ? source : lane;
  }
}

template <Shuffle kind>
void shuffle(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const Row* rows = instruction.rows;
  int32_t sources[kLanes];
  int32_t in_range[kLanes];
  source_lanes<kind>(warp.row<uint32_t>(rows[4]), warp.row<uint32_t>(rows[5]), sources, in_range);
  const uint32_t* a = warp.row<uint32_t>(rows[3]);
  uint32_t values[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) values[lane] = a[sources[lane] & 31];
  if (mask != kAllLanes) {
    each_lane(mask, [&](int lane) {
      if ((mask >> sources[lane] & 1) == 0) values[lane] = kUndefined;
    });
  }
  uint32_t bits = 0;
  for (int lane = 0; lane < kLanes; ++lane)
    bits |= static_cast<uint32_t>(in_range[lane]) & (uint32_t{1} << lane);
  put_values(warp, rows[1], mask, values);
  put_bits(warp, rows[2], mask, bits);
}

// vote. Rows: members, d, a.
enum class Vote : uint8_t { all, any, uniform };

template <Vote kind>
void vote(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const uint32_t ones = warp.value(instruction.rows[2]) & mask;
  bool result = false;
  if constexpr (kind == Vote::all) result = ones == mask;
  if constexpr (kind == Vote::any) result = ones != 0;
  if constexpr (kind == Vote::uniform) result = ones == 0 || ones == mask;
  put_bits(warp, instruction.rows[1], mask, result ? kAllLanes : 0);
}

void ballot(Warp& warp, const Instruction& instruction, uint32_t mask) {
  put_same(warp, instruction.rows[1], mask, warp.value(instruction.rows[2]) & mask);
}

// match. Rows: members, d, a; then p of match.all.
template <class T>
uint32_t lanes_with(const T* values, T value) {
  uint32_t bits = 0;
  for (int lane = 0; lane < kLanes; ++lane)
    bits |= (values[lane] == value ? kAllLanes : 0) & (uint32_t{1} << lane);
  return bits;
}

template <class T>
void match_any(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const T* a = warp.row<T>(instruction.rows[2]);
  uint32_t values[kLanes];
  for (uint32_t left = mask; left != 0;) {
    const uint32_t same = lanes_with(a, a[std::countr_zero(left)]) & left;
    each_lane(same, [&](int lane) { values[lane] = same; });
    left &= ~same;
  }
  put_values(warp, instruction.rows[1], mask, values);
}

template <class T>
void match_all(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const T* a = warp.row<T>(instruction.rows[2]);
  const bool equal = (lanes_with(a, a[std::countr_zero(mask)]) & mask) == mask;
  put_same(warp, instruction.rows[1], mask, equal ? mask : 0);
  put_bits(warp, instruction.rows[3], mask, equal ? kAllLanes : 0);
}

// redux. Rows: members, d, a.
struct Add {
  uint32_t operator()(uint32_t a, uint32_t b) const { return a + b; }
};
struct And {
  uint32_t operator()(uint32_t a, uint32_t b) const { return a & b; }
};
struct Or {
  uint32_t operator()(uint32_t a, uint32_t b) const { return a | b; }
};
struct Xor {
  uint32_t operator()(uint32_t a, uint32_t b) const { return a ^ b; }
};
template <class T>
struct Min {
  uint32_t operator()(uint32_t a, uint32_t b) const {
    return static_cast<T>(a) < static_cast<T>(b) ? a : b;
  }
};
template <class T>
struct Max {
  uint32_t operator()(uint32_t a, uint32_t b) const {
    return static_cast<T>(a) > static_cast<T>(b) ? a : b;
  }
};

template <class Operation>
void reduce(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const uint32_t* a = warp.row<uint32_t>(instruction.rows[2]);
  uint32_t result = a[std::countr_zero(mask)];
  each_lane(mask & (mask - 1), [&](int lane) { result = Operation{}(result, a[lane]); });
  put_same(warp, instruction.rows[1], mask, result);
}

void active_mask(Warp& warp, const Instruction& instruction, uint32_t mask) {
  put_same(warp, instruction.rows[0], mask, mask);
}

// The lanes have met; there is nothing to do.
void warp_barrier(Warp&, const Instruction&, uint32_t) {}

const Operand kSink{};

// The row of the member mask, which is the last operand of the .sync forms.
void bind_members(Binder& binder, int operands_without_it) {
  if (binder.take("sync")) {
    binder.require_operands(operands_without_it + 1, operands_without_it + 1);
    binder.instruction().flow = Flow::rendezvous;
    binder.source(binder.operand(operands_without_it), Type::b32);
  } else {
    binder.require_operands(operands_without_it, operands_without_it);
    binder.scratch();
  }
}

void require_sync(Binder& binder) {
  if (!binder.take("sync")) binder.unsupported("the instruction exists with .sync only");
}

// `d` or `d|p`
const Operand& value_part(const Operand& operand) {
  return operand.kind == Operand::Kind::group ? operand.parts.at(0) : operand;
}
const Operand& predicate_part(Binder& binder, const Operand& operand) {
  if (operand.kind != Operand::Kind::group) return kSink;
  if (operand.parts.size() != 2) binder.unsupported("the target is either d or d|p");
  return operand.parts[1];
}

void bind_shuffle(Binder& binder) {
  bind_members(binder, 4);
  Instruction& instruction = binder.instruction();
  if (binder.take("up")) {
    instruction.handler = shuffle<Shuffle::up>;
  } else if (binder.take("down")) {
    instruction.handler = shuffle<Shuffle::down>;
  } else if (binder.take("bfly")) {
    instruction.handler = shuffle<Shuffle::butterfly>;
  } else if (binder.take("idx")) {
    instruction.handler = shuffle<Shuffle::index>;
  } else {
    binder.unsupported("shfl has one of .up, .down, .bfly and .idx");
  }
  if (!binder.take("b32")) binder.unsupported("shfl moves .b32 only");
  binder.target(value_part(binder.operand(0)), Type::b32);
  binder.target(predicate_part(binder, binder.operand(0)), Type::pred);
  binder.source(binder.operand(1), Type::b32);
  binder.source(binder.operand(2), Type::b32);
  binder.source(binder.operand(3), Type::b32);
}

void bind_vote(Binder& binder) {
  bind_members(binder, 2);
  Instruction& instruction = binder.instruction();
  Type type = Type::pred;
  if (binder.take("all")) {
    instruction.handler = vote<Vote::all>;
  } else if (binder.take("any")) {
    instruction.handler = vote<Vote::any>;
  } else if (binder.take("uni")) {
    instruction.handler = vote<Vote::uniform>;
  } else if (binder.take("ballot")) {
    instruction.handler = ballot;
    type = Type::b32;
  } else {
    binder.unsupported("vote has one of .all, .any, .uni and .ballot");
  }
  if (!binder.take(type == Type::pred ? "pred" : "b32")) {
    binder.unsupported("vote.all, .any and .uni give a .pred, vote.ballot gives a .b32");
  }
  binder.target(binder.operand(0), type);
  binder.source(binder.operand(1), Type::pred);
}

void bind_match(Binder& binder) {
  require_sync(binder);
  binder.require_operands(3, 3);
  Instruction& instruction = binder.instruction();
  instruction.flow = Flow::rendezvous;
  const bool is_all = binder.take("all");
  if (!is_all && !binder.take("any")) binder.unsupported("match has one of .any and .all");
  const Type type = binder.require_type();
  if (type == Type::b32) {
    instruction.handler = is_all ? match_all<uint32_t> : match_any<uint32_t>;
  } else if (type == Type::b64) {
    instruction.handler = is_all ? match_all<uint64_t> : match_any<uint64_t>;
  } else {
    binder.unsupported("match compares .b32 or .b64");
  }
  const Operand& target = binder.operand(0);
  if (!is_all && target.kind == Operand::Kind::group) {
    binder.unsupported("match.any has no predicate target");
  }
  binder.source(binder.operand(2), Type::b32);
  binder.target(value_part(target), Type::b32);
  binder.source(binder.operand(1), type);
  if (is_all) binder.target(predicate_part(binder, target), Type::pred);
}

Handler reduction(std::string_view operation, Type type) {
  const bool is_signed_type = type == Type::s32;
  if (type == Type::b32) {
    if (operation == "and") return reduce<And>;
    if (operation == "or") return reduce<Or>;
    if (operation == "xor") return reduce<Xor>;
  } else if (type == Type::u32 || is_signed_type) {
    if (operation == "add") return reduce<Add>;
    if (operation == "min") return is_signed_type ? reduce<Min<int32_t>> : reduce<Min<uint32_t>>;
    if (operation == "max") return is_signed_type ? reduce<Max<int32_t>> : reduce<Max<uint32_t>>;
  }
  return nullptr;
}

void bind_reduction(Binder& binder) {
  require_sync(binder);
  binder.require_operands(3, 3);
  Instruction& instruction = binder.instruction();
  instruction.flow = Flow::rendezvous;
  const Type type = binder.require_type();
  instruction.handler = reduction(binder.take_any(), type);
  if (instruction.handler == nullptr) {
    binder.unsupported(
        "redux has .add, .min and .max of .u32 and .s32, and .and, .or and .xor of .b32");
  }
  binder.source(binder.operand(2), Type::b32);
  binder.target(binder.operand(0), type);
  binder.source(binder.operand(1), type);
}

void bind_active_mask(Binder& binder) {
  binder.require_operands(1, 1);
  if (!binder.take("b32")) binder.unsupported("activemask gives a .b32");
  binder.instruction().handler = active_mask;
  binder.target(binder.operand(0), Type::b32);
}

void bind_warp_barrier(Binder& binder) {
  binder.take("warp");
  require_sync(binder);
  binder.require_operands(1, 1);
  binder.instruction().flow = Flow::rendezvous;
  binder.instruction().synchronises = true;
  binder.instruction().handler = warp_barrier;
  binder.source(binder.operand(0), Type::b32);
}

bool is_warp_barrier(const Statement& statement) {
  return statement.name[0] == "bar" && statement.name.size() > 1 && statement.name[1] == "warp";
}

}  // namespace

bool bind_warp(Binder& binder) {
  const std::string_view op = binder.op();
  if (op == "shfl") {
    bind_shuffle(binder);
  } else if (op == "vote") {
    bind_vote(binder);
  } else if (op == "match") {
    bind_match(binder);
  } else if (op == "redux") {
    bind_reduction(binder);
  } else if (op == "activemask") {
    bind_active_mask(binder);
  } else if (is_warp_barrier(binder.statement())) {
    bind_warp_barrier(binder);
  } else if (op == "elect") {
    binder.unsupported("elect needs sm_90; the simulator executes code for sm_80");
  } else {
    return bind_mma(binder);
  }
  return true;
}

}  // namespace kiln::runtime::sim
