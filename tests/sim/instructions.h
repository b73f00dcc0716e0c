// Single instructions on edge operands, for comparing one device with another: each line becomes a
// kernel that computes it for thousands of combinations of operands.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/device.h"

namespace kiln::runtime::sim {

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
