// Single instructions on edge operands, for comparing one device with another: each line becomes a
// kernel that computes it for thousands of combinations of operands.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/device.h"

namespace kiln::runtime::sim {

// Interesting values of a type ("f32", "bf16x2", "u16", "pred"; "angle": f32 from -pi to pi):
// zeros, bounds, and for floats subnormals, infinities and NaNs; and `random` draws of two kinds.
std::vector<uint64_t> operand_pool(const std::string& type, int random);
int operand_bits(const std::string& type);
uint64_t operand_draw(uint64_t index);  // 64 random bits, the same on every machine

// "add.f32 D, A, B" with the types of D, A, B, C in that order: "f32 f32 f32".
struct InstructionCase {
  std::string text;
  std::string types;
  // Whether results must agree bit for bit; approximate functions agree within `ulps`.
  bool is_exact = true;
  double ulps = 0;
  double absolute = 0;  // or this near
};

std::vector<InstructionCase> instruction_cases();
std::string instruction_ptx(const InstructionCase& one);

// The operands of all threads, D's type first in `types` is not one of them.
struct InstructionInputs {
  std::vector<uint64_t> a, b, c;
};
InstructionInputs instruction_inputs(const InstructionCase& one);

// One 64-bit word per thread.
std::vector<uint64_t> run_instruction(Device& device, const InstructionCase& one,
                                      const InstructionInputs& inputs);

// "add.f32 D, A, B [f32 f32 f32]"
std::string instruction_name(const InstructionCase& one);
std::string instruction_digest(const std::vector<uint64_t>& results);

}  // namespace kiln::runtime::sim
