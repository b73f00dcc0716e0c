// The memory of one simulated GPU. A device pointer is a host pointer into one large reservation of
// which nothing is committed before it is touched, so that a tensor with huge strides costs only
// what it uses. Allocations have gaps around them and their addresses are not given out again soon,
// so that an access beside one, or after its end, is found.
//
// With marks the arena also says, for each byte, whether it was ever written and by whom (for the
// checker), and has room for the checker's race cells.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace kiln::runtime::sim {

struct Allocation {
  uint64_t begin = 0;
  uint64_t bytes = 0;
  bool holds(uint64_t address, uint64_t count) const {
    const uint64_t offset = address - begin;
    return offset <= bytes && count <= bytes - offset;
  }
};

// Who touched four bytes of global memory last; what the bits mean is the checker's business.
struct RaceCell {
  std::atomic<uint64_t> write;
  std::atomic<uint64_t> read;
};
inline constexpr uint64_t kRaceGranuleBytes = 4;

// The mark of a byte: 0 until it is written, then an odd number that says who wrote it last.
inline constexpr uint8_t kHostMark = 1;
inline constexpr uint8_t kFirstCallMark = 3;  // calls take turns with the odd numbers from here on

enum class Marks : uint8_t { off, on };

class Arena {
 public:
  // Fails with out_of_memory when the process may not reserve even the smallest address range.
  Arena(int64_t capacity_bytes, Marks marks);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Aligned to 256 bytes and to nothing more, as the least that a driver promises. 0 for 0 bytes.
  // Fails with out_of_memory when the simulated GPU has no more, invalid_argument below 0.
  uint64_t allocate(int64_t bytes);
  void free(uint64_t pointer) noexcept;  // 0 and what is no allocation are ignored
  int64_t capacity_bytes() const { return capacity_; }
  int64_t free_bytes() const;

  // Fail with invalid_argument when a range does not lie in one allocation.
  void copy_in(uint64_t to, const void* from, int64_t bytes);
  void copy_out(void* to, uint64_t from, int64_t bytes) const;
  void copy(uint64_t to, uint64_t from, int64_t bytes);  // may overlap; what is unwritten stays so
  void fill(uint64_t to, uint8_t value, int64_t bytes);

  // Without a lock, for the accesses of a kernel. find() gives {0, 0} outside every allocation.
  Allocation find(uint64_t address) const;
  bool contains(uint64_t address, uint64_t bytes) const {
    return find(address).holds(address, bytes) && find(address).bytes != 0;
  }
  // For messages: the allocation whose edge is nearest; {0, 0} when there is none.
  Allocation nearest(uint64_t address) const;

  Marks marks() const { return marks_; }
  // Only with marks, and for an address of an allocation: its mark.
  uint8_t* written(uint64_t address) const { return written_ + (address - base_); }
  RaceCell* race_cell(uint64_t address) const {
    return cells_ + (address - base_) / kRaceGranuleBytes;
  }
  void mark(uint64_t address, uint64_t bytes) const;  // as written by the host
  // Numbers launches from 1 to 65535 for the race cells; after the last one they are cleared.
  uint32_t next_launch();

 private:
  class Reservation {
   public:
    Reservation() = default;
    ~Reservation();
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;
    bool reserve(uint64_t bytes);
    void drop();
    std::byte* data() const { return data_; }
    uint64_t bytes() const { return bytes_; }

   private:
    std::byte* data_ = nullptr;
    uint64_t bytes_ = 0;
  };

  bool reserve_all(uint64_t bytes);
  uint64_t find_slots(uint64_t count) const;  // first of them, or slots_ when there is no room
  void require(uint64_t address, int64_t bytes, const char* action) const;
  void forget(uint64_t begin, uint64_t bytes) const noexcept;

  const int64_t capacity_;
  const Marks marks_;
  Reservation memory_, written_memory_, cell_memory_, owner_memory_, size_memory_;
  uint64_t base_ = 0;
  uint64_t slots_ = 0;
  uint8_t* written_ = nullptr;
  RaceCell* cells_ = nullptr;
  // For each slot: 1 + the first slot of the allocation that has it, or 0. For a first slot also
  // the bytes of its allocation.
  std::atomic<uint32_t>* owner_ = nullptr;
  std::atomic<uint64_t>* size_ = nullptr;

  mutable std::mutex mutex_;            // guards what follows
  std::map<uint64_t, uint64_t> taken_;  // first slot, number of slots
  uint64_t cursor_ = 0;                 // slots before it were given out more recently
  int64_t used_ = 0;
  uint32_t launch_ = 0;
};

}  // namespace kiln::runtime::sim
