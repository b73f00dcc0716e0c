// The state that instructions work on: a warp, its CTA, and the launch.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <type_traits>

#include "runtime/sim/program.h"

namespace kiln::runtime::sim {

class Arena;
class Checker;
class CtaChecker;

struct Size3 {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }
};

// Ends the launch: what a real GPU would answer with an error of the context, told better.
struct Fault : std::exception {
  explicit Fault(std::string text, int lane_index = -1, std::string address_text = "")
      : what_happened(std::move(text)), lane(lane_index), where(std::move(address_text)) {}
  const char* what() const noexcept override { return what_happened.c_str(); }
  std::string what_happened;
  int lane;
  std::string where;  // argument and offset
};

// Rows that every warp has beside its registers, in the order of Bank::specials.
enum class Special : uint8_t {
  tid_x,
  tid_y,
  tid_z,
  ntid_x,
  ntid_y,
  ntid_z,
  ctaid_x,
  ctaid_y,
  ctaid_z,
  nctaid_x,
  nctaid_y,
  nctaid_z,
  laneid,
  warpid,
  nwarpid,
  smid,
  nsmid,
  lanemask_eq,
  lanemask_le,
  lanemask_lt,
  lanemask_ge,
  lanemask_gt,
  dynamic_smem_size,
  total_smem_size,
  zero,
  sink,  // sink: 8 bytes a lane
  count
};
inline constexpr uint32_t kRowBytes = 128;
inline constexpr uint32_t special_offset(Special special) {
  return static_cast<uint32_t>(special) * kRowBytes;
}
inline constexpr size_t kSpecialBytes = (static_cast<size_t>(Special::count) + 1) * kRowBytes;

// Generic addresses of memory that is not global: windows far from any that the arena gives out.
inline constexpr uint64_t kSharedWindow = uint64_t{1} << 56;
inline constexpr uint64_t kLocalWindow = uint64_t{2} << 56;
inline constexpr uint64_t kParamWindow = uint64_t{3} << 56;
inline constexpr uint64_t kWindowMask = uint64_t{0xff} << 56;

struct Launch {
  const Program* program = nullptr;
  Size3 grid, block;
  std::span<const std::byte> params;
  int64_t dynamic_shared_bytes = 0;
  Arena* arena = nullptr;
  Checker* checker = nullptr;  // nullptr: off
  uint32_t sm_count = 1;
  std::atomic<bool> stop = false;
};

struct Group {
  enum class State : uint8_t {
    ready,
    at_rendezvous,
    entering,   // a barrier, which waits for the other lanes of the warp
    at_barrier  // with its warp, and waits for other warps
  };
  uint32_t pc = 0;
  uint32_t mask = 0;
  State state = State::ready;
  uint8_t barrier = 0;
};

class Cta;

// Of polls that found what the same poll had found before; so many in a row end a turn.
inline constexpr uint32_t kIdlePollsOfTurn = 32;
inline constexpr uint64_t kIdlePollsOfSleep = 8;  // for how many nanosleep counts

class Warp {
 public:
  template <class T>
  T* row(Row r) const {
    return reinterpret_cast<T*>(banks[static_cast<size_t>(r.bank)] + r.offset);
  }
  uint32_t& predicate(Row r) const { return *row<uint32_t>(r); }  // to be written
  uint32_t value(Row r) const { return r.negated ? ~*row<uint32_t>(r) : *row<uint32_t>(r); }

  std::array<std::byte*, 3> banks{};
  Cta* cta = nullptr;
  int index = 0;
  uint32_t live = 0;
  std::vector<Group> groups;  // of live lanes; never two ready ones at one pc
  uint32_t carry = 0;         // CC.CF of add.cc and its kin, a bit per lane
  const Instruction* current = nullptr;
  uint64_t instructions = 0;  // executed, for figures and the watchdog
  uint64_t mmas = 0;
  uint64_t slice_end = 0;      // of `instructions`, when others have their turn
  std::byte* local = nullptr;  // local_bytes a lane

  // What the last polls of an instruction and its lanes found.
  struct Poll {
    uint64_t key = 0;
    uint64_t found = 0;
  };
  std::array<Poll, 8> polls{};
  uint32_t idle_polls = 0;  // in a row
  bool pauses = false;      // ended its slice early

  void pause() {
    slice_end = instructions;
    pauses = true;
  }
};

// Tells that lanes saw `found`, a digest, with a strong access that changed nothing. Who sees the
// same again and again waits for others, and gives them their turn.
void note_poll(Warp& warp, const Instruction& instruction, uint32_t mask, Space space,
               uint64_t found);
void note_progress(Warp& warp, Space space);

// Counts whole warps: a warp arrives once all its lanes that have not exited are there, and counts
// as 32 threads however many these are.
struct Barrier {
  uint32_t arrived = 0;                  // threads
  uint32_t expected = 0;                 // 0: all warps of the CTA that have not exited
  BarrierKind kind = BarrierKind::sync;  // of the first arrival
  uint32_t lanes = 0;                    // that arrived
  uint32_t ones = 0;                     // of these, those whose predicate of bar.red holds
};

// Lanes that a barrier lets go.
struct BarrierGroup {
  Warp* warp = nullptr;
  uint32_t lanes = 0;
  uint32_t pc = 0;
};

class Cta {
 public:
  Launch* launch = nullptr;
  Size3 index;
  uint64_t flat_index = 0;
  std::vector<Warp> warps;
  std::vector<std::byte> shared;
  std::array<Barrier, 16> barriers;
  uint32_t live_threads = 0;
  uint32_t live_warps = 0;
  uint64_t idle_polls = 0;               // of global memory, in a row
  uint64_t patience = kIdlePollsOfTurn;  // so many, and another CTA has its turn
  CtaChecker* checker = nullptr;
};

// Row elements by type. Values of fewer than 4 bytes live in the low part of a word.
template <class T>
using Word = std::conditional_t<(sizeof(T) > 4), uint64_t, uint32_t>;
template <class T>
inline T get(const Word<T>* row, int lane) {
  if constexpr (sizeof(T) == sizeof(Word<T>)) {
    return std::bit_cast<T>(row[lane]);
  } else if constexpr (sizeof(T) == 2) {
    return std::bit_cast<T>(static_cast<uint16_t>(row[lane]));
  } else {
    return std::bit_cast<T>(static_cast<uint8_t>(row[lane]));
  }
}
template <class T>
inline void put(Word<T>* row, int lane, T value) {
  if constexpr (sizeof(T) == sizeof(Word<T>)) {
    row[lane] = std::bit_cast<Word<T>>(value);
  } else if constexpr (sizeof(T) == 2) {
    row[lane] = std::bit_cast<uint16_t>(value);
  } else {
    row[lane] = std::bit_cast<uint8_t>(value);
  }
}

// "kernel.cu:12, inlined into kernel.cu:40"
std::string location_text(const Module& module, const Statement& statement);

template <class Body>
inline void each_lane(uint32_t mask, Body body) {
  for (; mask != 0; mask &= mask - 1) body(std::countr_zero(mask));
}

}  // namespace kiln::runtime::sim
