// One warp whose registers a test sets by hand, and one instruction run on it: no decoder, no
// executor. Registers: %p0.. (predicates), %r0..%r31 (32 bits), %d0..%d15 (64 bits).
#pragma once

#include <array>
#include <string>
#include <vector>

#include "runtime/sim/binder.h"
#include "runtime/sim/warp.h"

namespace kiln::runtime::sim {

class LoneWarp {
 public:
  static constexpr size_t kPredicates = 8;
  static constexpr size_t kWords = 32;
  static constexpr size_t kDoubles = 16;

  LoneWarp() {
    warp_.banks = {reinterpret_cast<std::byte*>(&registers_),
                   reinterpret_cast<std::byte*>(constants_.data()),
                   reinterpret_cast<std::byte*>(specials_.data())};
  }

  uint32_t& p(size_t index) { return registers_.predicates[index]; }
  uint32_t* r(size_t index) { return registers_.words[index].data(); }
  uint64_t* d(size_t index) { return registers_.doubles[index].data(); }
  const Warp& warp() const { return warp_; }

  // Runs `text` (an instruction with its semicolon) of the family that `bind` knows for the lanes
  // of `mask`; gives what was bound.
  Instruction run(const std::string& text, uint32_t mask = kAllLanes,
                  bool (*bind)(Binder&) = bind_warp);

 private:
  struct Registers {
    alignas(64) std::array<uint32_t, kPredicates> predicates{};
    alignas(64) std::array<std::array<uint32_t, kLanes>, kWords> words{};
    alignas(64) std::array<std::array<uint64_t, kLanes>, kDoubles> doubles{};
  };
  class HandBinder;

  static constexpr size_t kConstants = 8;
  Registers registers_;
  alignas(64) std::array<std::array<uint64_t, kLanes>, kConstants> constants_{};
  alignas(64) std::array<std::byte, kSpecialBytes> specials_{};
  Warp warp_;
};

// Rows are where the register of that number is.
class LoneWarp::HandBinder : public Binder {
 public:
  HandBinder(LoneWarp& lone, const Statement& statement, Instruction& instruction) : lone_(lone) {
    statement_ = &statement;
    instruction_ = &instruction;
    taken_.assign(statement.name.size(), false);
  }

  void finish(Instruction& instruction) {
    for (size_t i = 1; i < taken_.size(); ++i) {
      if (!taken_[i]) unsupported("a part of the name was not taken");
    }
    instruction.row_count = static_cast<uint8_t>(rows_.size());
    instruction.rows = rows_.data();
  }

  void address(const Operand&, Space) override { unsupported("no addresses here"); }
  uint64_t symbol_address(std::string_view) override { unsupported("no symbols here"); }

 protected:
  RegisterClass class_of(const Operand& operand) const override {
    const auto index = static_cast<size_t>(operand.reg);
    if (index < kPredicates) return RegisterClass::predicate;
    return index < kPredicates + kWords ? RegisterClass::bits32 : RegisterClass::bits64;
  }

  void add_row(const Operand& operand, Type type, RowUse) override {
    if (operand.kind == Operand::Kind::reg) {
      const RegisterClass wanted = type == Type::pred      ? RegisterClass::predicate
                                   : type_bits(type) == 64 ? RegisterClass::bits64
                                                           : RegisterClass::bits32;
      if (class_of(operand) != wanted) unsupported("a register has another class");
      rows_.push_back({.offset = place(static_cast<size_t>(operand.reg)),
                       .bank = Bank::registers,
                       .negated = operand.negated});
    } else if (operand.kind == Operand::Kind::sink) {
      rows_.push_back({.offset = special_offset(Special::sink), .bank = Bank::specials});
    } else if (operand.kind == Operand::Kind::immediate && next_constant_ < kConstants) {
      auto& constant = lone_.constants_[next_constant_];
      for (size_t lane = 0; lane < kLanes; ++lane) {
        if (type_bits(type) == 64) {
          constant[lane] = operand.bits;
        } else {
          const auto word = static_cast<uint32_t>(operand.bits);
          std::memcpy(reinterpret_cast<uint32_t*>(constant.data()) + lane, &word, sizeof(word));
        }
      }
      rows_.push_back({.offset = static_cast<uint32_t>(next_constant_++ * sizeof(constant)),
                       .bank = Bank::constants});
    } else {
      unsupported("an operand has another form");
    }
  }

 private:
  uint32_t place(size_t index) const {
    const auto& registers = lone_.registers_;
    const void* at = nullptr;
    if (index < kPredicates) {
      at = &registers.predicates[index];
    } else if (index < kPredicates + kWords) {
      at = &registers.words[index - kPredicates];
    } else {
      at = &registers.doubles[index - kPredicates - kWords];
    }
    return static_cast<uint32_t>(static_cast<const std::byte*>(at) -
                                 reinterpret_cast<const std::byte*>(&registers));
  }

  LoneWarp& lone_;
  std::vector<Row> rows_;
  size_t next_constant_ = 0;
};

inline Instruction LoneWarp::run(const std::string& text, uint32_t mask, bool (*bind)(Binder&)) {
  const Module module = parse_ptx(
      ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry kernel()\n{\n"
      ".reg .pred %p<8>;\n.reg .b32 %r<32>;\n.reg .b64 %d<16>;\n" +
      text + "\n}\n");
  Instruction instruction;
  HandBinder binder(*this, module.functions.at(0).statements.at(0), instruction);
  if (!bind(binder)) binder.unsupported("its family does not know it");
  binder.finish(instruction);
  instruction.handler(warp_, instruction, mask);
  instruction.rows = nullptr;
  return instruction;
}

}  // namespace kiln::runtime::sim
