// Small PTX programs of what single instructions on registers cannot show: memory in every state
// space, atomics, copies, matrices, barriers, and lanes that exchange values while they are apart.
// The same list runs on a GPU (simulator_gpu_test) and on the simulator (golden_test, against
// digests of what the GPU left).
//
// A program is one launch. Before its body the input is copied to shared memory; after it, the
// shared memory of every CTA is written out. What is compared is all that it leaves: the words that
// its threads store, shared memory and the input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/device.h"

namespace kiln::runtime::sim {

struct PtxProgram {
  std::string name;      // "ld.global.u8"
  std::string body;      // what it does, between the copy to shared memory and the copy back
  std::string elements;  // of the input: a type of operand_pool()
  uint32_t threads = 64;
  uint32_t ctas = 1;
};

std::vector<PtxProgram> ptx_programs();
std::string program_ptx(const PtxProgram& program);

// Which part of a result a byte is in, for messages: "thread 3, byte 16 of its words".
std::string program_place(const PtxProgram& program, size_t offset);

enum class ProgramChecks { off, on };  // on: a device that checks accesses checks this one
std::vector<std::byte> run_program(Device& device, const PtxProgram& program, ProgramChecks checks);

// Of the program's line in golden.txt: "program: ld.global.u8".
std::string program_golden_name(const PtxProgram& program);
std::string program_digest(const std::vector<std::byte>& result);

}  // namespace kiln::runtime::sim
