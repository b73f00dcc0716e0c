// The seam between the decoder and the instructions: an instruction family looks at a statement,
// takes the parts of its name, asks for rows, and sets the handler. It knows nothing of register
// allocation.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "runtime/sim/program.h"

namespace kiln::runtime::sim {

enum class Type : uint8_t {
  pred,
  b8,
  u8,
  s8,
  b16,
  u16,
  s16,
  f16,
  bf16,
  b32,
  u32,
  s32,
  f32,
  tf32,
  f16x2,
  bf16x2,
  b64,
  u64,
  s64,
  f64,
  b128
};
int type_bits(Type type);  // 1 for pred
bool is_float(Type type);
bool is_signed(Type type);
std::optional<Type> parse_type(std::string_view part);

// What an instruction does with a row.
struct RowUse {
  bool reads = false;
  bool writes = false;
};

class Binder {
 public:
  virtual ~Binder() = default;

  const Statement& statement() const { return *statement_; }
  std::string_view op() const { return statement_->name[0]; }  // "ld"
  Instruction& instruction() { return *instruction_; }

  // Parts of the name after the first. take() uses one up and says whether it was there; parts that
  // nobody took make the statement unsupported.
  bool take(std::string_view part);
  std::optional<Type> take_type();  // the first type that is left
  Type require_type();
  Rounding take_rounding();     // .rn .rz .rm .rp and .rni .rzi .rmi .rpi; nearest without one
  std::string_view take_any();  // the first part that is left, or ""

  int operand_count() const { return static_cast<int>(statement_->operands.size()); }
  const Operand& operand(int index) const;  // fails when there are too few
  void require_operands(int least, int most) const;

  // Appends a row to the instruction. A source that is an immediate, a special register or the
  // address of a variable becomes a row as well: a float immediate is converted to `type`, an
  // integer is cut to it. A target may be the sink. For Type::pred the row is one word. `wide` of a
  // data operand that may be wider than its type (ld, st, cvt): says what the register has.
  void source(const Operand& operand, Type type);
  void target(const Operand& operand, Type type);
  void both(const Operand& operand, Type type);  // read and written: the lanes not in the mask stay
  // For operands whose register may be wider than the type. Returns whether it has 64 bits.
  bool wide_source(const Operand& operand, Type type);
  bool wide_target(const Operand& operand, Type type);
  void scratch();  // a row of zeros, for an operand that was left out
  RegisterClass register_class(const Operand& operand) const { return class_of(operand); }

  // Base register of `[...]` as a row of 64-bit words, or of 32-bit words and then
  // instruction().narrow_address is set; the constant part goes to instruction().offset. A variable
  // as base becomes a constant row: its address in its space.
  virtual void address(const Operand& operand, Space space) = 0;
  virtual uint64_t symbol_address(std::string_view name) = 0;

  [[noreturn]] void unsupported(std::string_view why) const;  // with the text and the line

 protected:
  virtual void add_row(const Operand& operand, Type type, RowUse use) = 0;
  virtual RegisterClass class_of(const Operand& operand) const = 0;

  const Statement* statement_ = nullptr;
  Instruction* instruction_ = nullptr;
  std::vector<bool> taken_;
};

// For .sync.aligned instructions of whole warps: takes these parts, makes the instruction a
// rendezvous and gives it its first row.
void bind_whole_warp(Binder& binder);

// Each returns false when the statement is none of its family.
bool bind_arithmetic(Binder& binder);  // arithmetic.cpp: integers, floats, logic, moves, set
bool bind_integer(Binder& binder);     // integer_ops.cpp, of bind_arithmetic
bool bind_float(Binder& binder);       // float_ops.cpp, of bind_arithmetic
bool bind_compare(Binder& binder);     // compare.cpp, of bind_arithmetic
bool bind_convert(Binder& binder);     // convert.cpp: cvt
bool bind_warp(Binder& binder);    // warp_ops.cpp: shfl, vote, match, redux, activemask; bind_mma
bool bind_mma(Binder& binder);     // mma.cpp: mma, movmatrix
bool bind_memory(Binder& binder);  // memory_ops.cpp: ld, st, atom, red, cp.async, ldmatrix, fence

}  // namespace kiln::runtime::sim
