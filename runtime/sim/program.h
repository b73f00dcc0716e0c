// A kernel, decoded: instructions with their handlers and the rows that they read and write.
//
// A row is one register of all 32 lanes: 32 words of 4 bytes (16- and 32-bit registers) or of 8
// bytes. A predicate is one word with a bit per lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/sim/ptx.h"

namespace kiln::runtime::sim {

inline constexpr int kLanes = 32;
inline constexpr uint32_t kAllLanes = 0xffffffff;

class Warp;
struct Instruction;
// Executes an instruction for the lanes of `mask`, which is not empty.
using Handler = void (*)(Warp& warp, const Instruction& instruction, uint32_t mask);

// Which memory a row is in, and where. Patched once registers have their places.
enum class Bank : uint8_t { registers, constants, specials };
struct Row {
  uint32_t offset = 0;
  Bank bank = Bank::registers;
  bool negated = false;  // of a predicate that is read
};

// What the executor has to know; everything else is `simple`.
enum class Flow : uint8_t {
  simple,
  branch,        // rows: none; target
  branch_index,  // rows: index; table
  exit,
  barrier,     // rows: id, thread count, and of a reduction the result and the predicate; mode
  rendezvous,  // rows[0]: member mask; the handler runs once all members are there
  pause        // others may have their turn
};

enum class Rounding : uint8_t { nearest, zero, down, up };

enum class CacheOrder : uint8_t { weak, relaxed, acquire, release, acquire_release };

struct Instruction {
  Handler handler = nullptr;
  const Row* rows = nullptr;
  Flow flow = Flow::simple;
  bool has_guard = false;
  bool guard_negated = false;
  uint8_t row_count = 0;
  Row guard;
  uint32_t target = 0;  // instruction, table, or as the handler wants
  int32_t statement = 0;

  // Of arithmetic.
  Rounding rounding = Rounding::nearest;
  bool flushes = false;       // .ftz
  bool saturates = false;     // .sat
  uint8_t mode = 0;           // comparison, lop3 table, shuffle kind: as the handler wants
  bool synchronises = false;  // of a rendezvous: orders memory (bar.warp.sync)
  bool aligned = false;       // of a barrier: all lanes of the warp execute it together

  // Of memory accesses.
  Space space = Space::generic;
  CacheOrder order = CacheOrder::weak;
  uint8_t element_bytes = 0;
  uint8_t elements = 1;
  bool sign_extends = false;
  bool wide_rows = false;       // the data rows have 64 bits
  bool narrow_address = false;  // the address row has 32-bit words
  int64_t offset = 0;           // added to the address
};

// Instruction::mode of a barrier.
enum class BarrierKind : uint8_t { sync, arrive, popc, all, any };

struct Program {
  std::shared_ptr<const Module> module;
  std::string entry;
  std::vector<Instruction> code;
  std::vector<const Statement*> statements;
  std::vector<Row> rows;
  std::vector<std::vector<uint32_t>> tables;  // of indexed branches

  int64_t register_bytes = 0;
  // Registers that are read where no write may have come before, as a place in the register bank.
  struct UnsetRegister {
    uint32_t offset = 0;
    uint32_t bytes = 0;
  };
  std::vector<UnsetRegister> unset;
  std::vector<std::byte> constants;
  int64_t param_bytes = 0;
  int64_t local_bytes = 0;          // of a thread
  int64_t static_shared_bytes = 0;  // before the launch's dynamic part
  int64_t dynamic_shared_offset = 0;
};

}  // namespace kiln::runtime::sim
