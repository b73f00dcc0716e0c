// Moves, and the choice between integer, floating-point and comparing instructions.
#include <string_view>

#include "runtime/sim/lanes.h"

namespace kiln::runtime::sim {
namespace {

// --- mov

void move_predicate(Warp& warp, const Instruction& instruction, uint32_t mask) {
  put_predicate(warp, instruction.rows[0], warp.value(instruction.rows[1]), mask);
}

template <class Body>
void lanes(uint32_t mask, Body body) {
  if (mask == kAllLanes) {
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane) body(lane);
  } else {
    each_lane(mask, body);
  }
}

// Packs rows 1 to n into row 0, the first one lowest.
template <class W, int parts>
void pack(Warp& warp, const Instruction& instruction, uint32_t mask) {
  constexpr int bits = static_cast<int>(sizeof(W)) * 8 / parts;
  W* target = warp.row<W>(instruction.rows[0]);
  const uint32_t* sources[parts];
  for (int i = 0; i < parts; ++i) sources[i] = warp.row<uint32_t>(instruction.rows[i + 1]);
  fill(mask, target, [&](int lane) {
    W packed = 0;
    for (int i = 0; i < parts; ++i) {
      const uint64_t part = sources[i][lane] & ((uint64_t{1} << bits) - 1);
      packed |= static_cast<W>(part << (i * bits));
    }
    return packed;
  });
}

// Unpacks row n into rows 0 to n - 1. All of a lane is read before any of it is written: a target
// may be the source.
template <class W, int parts>
void unpack(Warp& warp, const Instruction& instruction, uint32_t mask) {
  constexpr int bits = static_cast<int>(sizeof(W)) * 8 / parts;
  const W* source = warp.row<W>(instruction.rows[parts]);
  uint32_t* targets[parts];
  for (int i = 0; i < parts; ++i) targets[i] = warp.row<uint32_t>(instruction.rows[i]);
  lanes(mask, [&](int lane) {
    const W packed = source[lane];
    for (int i = 0; i < parts; ++i) {
      targets[i][lane] = static_cast<uint32_t>(packed >> (i * bits) & ((uint64_t{1} << bits) - 1));
    }
  });
}

// 16-bit values lie in words of 32, which two bytes are packed into as well.
struct Shape {
  int bits;
  size_t parts;
  Handler pack;
  Handler unpack;
};
void pack_bytes(Warp& warp, const Instruction& instruction, uint32_t mask) {
  uint32_t* target = warp.row<uint32_t>(instruction.rows[0]);
  const uint32_t* low = warp.row<uint32_t>(instruction.rows[1]);
  const uint32_t* high = warp.row<uint32_t>(instruction.rows[2]);
  fill(mask, target, [&](int lane) { return (low[lane] & 0xff) | (high[lane] & 0xff) << 8; });
}
void unpack_bytes(Warp& warp, const Instruction& instruction, uint32_t mask) {
  uint32_t* low = warp.row<uint32_t>(instruction.rows[0]);
  uint32_t* high = warp.row<uint32_t>(instruction.rows[1]);
  const uint32_t* source = warp.row<uint32_t>(instruction.rows[2]);
  lanes(mask, [&](int lane) {
    const uint32_t packed = source[lane];
    low[lane] = packed & 0xff;
    high[lane] = packed >> 8 & 0xff;
  });
}
constexpr Shape kShapes[] = {
    {16, 2, pack_bytes, unpack_bytes},
    {32, 2, pack<uint32_t, 2>, unpack<uint32_t, 2>},
    {32, 4, pack<uint32_t, 4>, unpack<uint32_t, 4>},
    {64, 2, pack<uint64_t, 2>, unpack<uint64_t, 2>},
    {64, 4, pack<uint64_t, 4>, unpack<uint64_t, 4>},
};

Type part_type(int bits) {
  if (bits == 8) return Type::b8;
  return bits == 16 ? Type::b16 : Type::b32;
}

void bind_vector_mov(Binder& binder, Type type, const Operand& target, const Operand& source) {
  const bool packs = source.kind == Operand::Kind::group;
  if (packs == (target.kind == Operand::Kind::group))
    binder.unsupported("one operand must be a vector and the other one a register");
  const std::vector<Operand>& parts = packs ? source.parts : target.parts;
  for (const Shape& shape : kShapes) {
    if (shape.bits != type_bits(type) || shape.parts != parts.size()) continue;
    const Type part = part_type(shape.bits / static_cast<int>(shape.parts));
    if (packs) binder.target(target, type);
    for (const Operand& operand : parts) {
      if (packs) {
        binder.source(operand, part);
      } else {
        binder.target(operand, part);
      }
    }
    if (!packs) binder.source(source, type);
    return bind_handler(binder, packs ? shape.pack : shape.unpack);
  }
  binder.unsupported("the vector does not have as many bits as the type");
}

template <class W>
constexpr auto kSame = [](W value) { return value; };

void bind_mov(Binder& binder) {
  const Type type = binder.require_type();
  binder.require_operands(2, 2);
  const Operand& target = binder.operand(0);
  const Operand& source = binder.operand(1);
  if (target.kind == Operand::Kind::group || source.kind == Operand::Kind::group) {
    return bind_vector_mov(binder, type, target, source);
  }
  binder.target(target, type);
  binder.source(source, type);
  if (type == Type::pred) return bind_handler(binder, move_predicate);
  if (type_bits(type) > 64) binder.unsupported("it has no form for these types");
  bind_handler(binder, type_bits(type) == 64 ? map<kSame<uint64_t>, uint64_t, uint64_t>
                                             : map<kSame<uint32_t>, uint32_t, uint32_t>);
}

// --- dispatch

void ignore(Warp&, const Instruction&, uint32_t) {}

bool has_float_type(const Statement& statement) {
  for (size_t i = 1; i < statement.name.size(); ++i) {
    const std::optional<Type> type = parse_type(statement.name[i]);
    if (type && is_float(*type)) return true;
  }
  return false;
}

}  // namespace

bool bind_one_of(std::span<const OpEntry> entries, Binder& binder) {
  for (const OpEntry& entry : entries) {
    if (entry.op != binder.op()) continue;
    entry.bind(binder);
    return true;
  }
  return false;
}

bool bind_arithmetic(Binder& binder) {
  if (binder.op() == "mov") {
    bind_mov(binder);
    return true;
  }
  if (binder.op() == "pmevent") {  // nothing listens
    binder.take("mask");
    binder.instruction().handler = ignore;
    return true;
  }
  if (bind_compare(binder)) return true;
  return has_float_type(binder.statement()) ? bind_float(binder) : bind_integer(binder);
}

}  // namespace kiln::runtime::sim
