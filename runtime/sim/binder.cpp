#include "runtime/sim/binder.h"

#include <algorithm>
#include <array>
#include <utility>

#include "jit/base/error.h"

namespace kiln::runtime::sim {
namespace {

constexpr std::array<std::pair<std::string_view, Type>, 21> kTypes{{
    {"pred", Type::pred}, {"b8", Type::b8},     {"u8", Type::u8},       {"s8", Type::s8},
    {"b16", Type::b16},   {"u16", Type::u16},   {"s16", Type::s16},     {"f16", Type::f16},
    {"bf16", Type::bf16}, {"b32", Type::b32},   {"u32", Type::u32},     {"s32", Type::s32},
    {"f32", Type::f32},   {"tf32", Type::tf32}, {"f16x2", Type::f16x2}, {"bf16x2", Type::bf16x2},
    {"b64", Type::b64},   {"u64", Type::u64},   {"s64", Type::s64},     {"f64", Type::f64},
    {"b128", Type::b128},
}};

}  // namespace

int type_bits(Type type) {
  switch (type) {
    case Type::pred:
      return 1;
    case Type::b8:
    case Type::u8:
    case Type::s8:
      return 8;
    case Type::b16:
    case Type::u16:
    case Type::s16:
    case Type::f16:
    case Type::bf16:
      return 16;
    case Type::b64:
    case Type::u64:
    case Type::s64:
    case Type::f64:
      return 64;
    case Type::b128:
      return 128;
    default:
      return 32;
  }
}

bool is_float(Type type) {
  switch (type) {
    case Type::f16:
    case Type::bf16:
    case Type::f32:
    case Type::tf32:
    case Type::f16x2:
    case Type::bf16x2:
    case Type::f64:
      return true;
    default:
      return false;
  }
}

bool is_signed(Type type) {
  return type == Type::s8 || type == Type::s16 || type == Type::s32 || type == Type::s64;
}

std::optional<Type> parse_type(std::string_view part) {
  for (const auto& [name, type] : kTypes) {
    if (name == part) return type;
  }
  return std::nullopt;
}

bool Binder::take(std::string_view part) {
  for (size_t i = 1; i < statement_->name.size(); ++i) {
    if (taken_[i] || statement_->name[i] != part) continue;
    taken_[i] = true;
    return true;
  }
  return false;
}

std::optional<Type> Binder::take_type() {
  for (size_t i = 1; i < statement_->name.size(); ++i) {
    if (taken_[i]) continue;
    const std::optional<Type> type = parse_type(statement_->name[i]);
    if (!type) continue;
    taken_[i] = true;
    return type;
  }
  return std::nullopt;
}

Type Binder::require_type() {
  const std::optional<Type> type = take_type();
  if (!type) unsupported("it has no type that the simulator knows");
  return *type;
}

Rounding Binder::take_rounding() {
  if (take("rn") || take("rni")) return Rounding::nearest;
  if (take("rz") || take("rzi")) return Rounding::zero;
  if (take("rm") || take("rmi")) return Rounding::down;
  if (take("rp") || take("rpi")) return Rounding::up;
  return Rounding::nearest;
}

std::string_view Binder::take_any() {
  for (size_t i = 1; i < statement_->name.size(); ++i) {
    if (taken_[i]) continue;
    taken_[i] = true;
    return statement_->name[i];
  }
  return "";
}

const Operand& Binder::operand(int index) const {
  if (index >= operand_count()) unsupported(fmt::format("operand {} is missing", index + 1));
  return statement_->operands[static_cast<size_t>(index)];
}

void Binder::require_operands(int least, int most) const {
  if (operand_count() < least || operand_count() > most) {
    unsupported(
        least == most
            ? fmt::format("it has {} operands, expected {}", operand_count(), least)
            : fmt::format("it has {} operands, expected {} to {}", operand_count(), least, most));
  }
}

void Binder::source(const Operand& operand, Type type) { add_row(operand, type, {.reads = true}); }
void Binder::target(const Operand& operand, Type type) { add_row(operand, type, {.writes = true}); }
void Binder::both(const Operand& operand, Type type) {
  add_row(operand, type, {.reads = true, .writes = true});
}

namespace {

Type at_least_word(RegisterClass kind) {
  switch (kind) {
    case RegisterClass::predicate:
      return Type::pred;
    case RegisterClass::bits16:
      return Type::b16;
    case RegisterClass::bits32:
      return Type::b32;
    case RegisterClass::bits64:
      return Type::b64;
  }
  return Type::b32;
}

}  // namespace

bool Binder::wide_source(const Operand& operand, Type type) {
  if (operand.kind != Operand::Kind::reg) {
    source(operand, type_bits(type) < 32 ? Type::b32 : type);
    return type_bits(type) == 64;
  }
  const Type stored = at_least_word(class_of(operand));
  if (type_bits(stored) < type_bits(type)) unsupported("a register is narrower than the type");
  source(operand, stored);
  return stored == Type::b64;
}

bool Binder::wide_target(const Operand& operand, Type type) {
  if (operand.kind != Operand::Kind::reg) {
    target(operand, type);
    return type_bits(type) == 64;
  }
  const Type stored = at_least_word(class_of(operand));
  if (type_bits(stored) < type_bits(type)) unsupported("a register is narrower than the type");
  target(operand, stored);
  return stored == Type::b64;
}

void Binder::scratch() {
  add_row(Operand{.kind = Operand::Kind::immediate}, Type::b64, {.reads = true});
}

void bind_whole_warp(Binder& binder) {
  static const Operand kMembers{.kind = Operand::Kind::immediate, .bits = kAllLanes};
  if (!binder.take("sync") || !binder.take("aligned"))
    binder.unsupported("the instruction exists with .sync.aligned only");
  binder.instruction().flow = Flow::rendezvous;
  binder.source(kMembers, Type::b32);
}

void Binder::unsupported(std::string_view why) const {
  fail(Status::unsupported, "PTX line {}: \"{}\" is not supported by the simulator: {}",
       statement_->line, statement_->text, why);
}

}  // namespace kiln::runtime::sim
