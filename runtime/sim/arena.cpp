#include "runtime/sim/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "jit/base/error.h"

namespace kiln::runtime::sim {
namespace {

// Allocations own whole slots. Inside its first one an allocation begins at kLead, so that it is
// aligned to 256 bytes and to no more.
constexpr uint64_t kSlotBytes = uint64_t{1} << 18;
constexpr uint64_t kGapBytes = 4096;
constexpr uint64_t kLead = kGapBytes + 256;
constexpr uint64_t kPageBytes = 4096;

#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kMostBytes = uint64_t{1} << 36;  // all that fits in its map of the address space
#else
constexpr uint64_t kMostBytes = uint64_t{1} << 42;
#endif
constexpr uint64_t kSlackBytes = uint64_t{1} << 30;  // for the gaps of many small allocations

}  // namespace

Arena::Reservation::~Reservation() { drop(); }

bool Arena::Reservation::reserve(uint64_t bytes) {
  drop();
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return false;
  data_ = static_cast<std::byte*>(data);
  bytes_ = bytes;
  // A sparse tensor would commit 2 MiB for each of its rows; and no core dump wants all this.
  madvise(data_, bytes_, MADV_NOHUGEPAGE);
  madvise(data_, bytes_, MADV_DONTDUMP);
  return true;
}

void Arena::Reservation::drop() {
  if (data_ != nullptr) munmap(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

bool Arena::reserve_all(uint64_t bytes) {
  const uint64_t slots = bytes / kSlotBytes;
  return memory_.reserve(bytes) && owner_memory_.reserve(slots * sizeof(*owner_)) &&
         size_memory_.reserve(slots * sizeof(*size_)) &&
         (marks_ == Marks::off ||
          (written_memory_.reserve(bytes) &&
           cell_memory_.reserve(bytes / kRaceGranuleBytes * sizeof(RaceCell))));
}

Arena::Arena(int64_t capacity_bytes, Marks marks) : capacity_(capacity_bytes), marks_(marks) {
  const uint64_t capacity = std::min(static_cast<uint64_t>(capacity_bytes), kMostBytes);
  const uint64_t least = std::min(capacity + kSlackBytes, kMostBytes) / kSlotBytes * kSlotBytes;
  uint64_t bytes = std::min(2 * (capacity + 8 * kSlackBytes), kMostBytes) / kSlotBytes * kSlotBytes;
  while (!reserve_all(bytes)) {
    for (Reservation* part :
         {&memory_, &written_memory_, &cell_memory_, &owner_memory_, &size_memory_}) {
      part->drop();
    }
    if (bytes == least) {
      fail(Status::out_of_memory,
           "A simulated GPU with {} GiB needs {} GiB of addresses (not of memory) in this process, "
           "which the system refused; close other simulated GPUs, or look at `ulimit -v` and "
           "vm.overcommit_memory.",
           capacity >> 30, (marks == Marks::on ? 6 * least : least) >> 30);
    }
    bytes = std::max(bytes / 2 / kSlotBytes * kSlotBytes, least);
  }
  base_ = reinterpret_cast<uint64_t>(memory_.data());
  slots_ = bytes / kSlotBytes;
  written_ = reinterpret_cast<uint8_t*>(written_memory_.data());
  cells_ = reinterpret_cast<RaceCell*>(cell_memory_.data());
  owner_ = reinterpret_cast<std::atomic<uint32_t>*>(owner_memory_.data());
  size_ = reinterpret_cast<std::atomic<uint64_t>*>(size_memory_.data());
}

Arena::~Arena() = default;

// Next fit, so that addresses come back as late as can be.
uint64_t Arena::find_slots(uint64_t count) const {
  const auto search = [&](uint64_t from, uint64_t to) {
    auto next = taken_.upper_bound(from);
    if (next != taken_.begin()) {
      const auto before = std::prev(next);
      from = std::max(from, before->first + before->second);
    }
    for (; next != taken_.end() && next->first - from < count; ++next) {
      from = next->first + next->second;
    }
    return from + count <= to ? from : slots_;
  };
  const uint64_t behind = search(cursor_, slots_);
  return behind != slots_ ? behind : search(0, slots_);
}

uint64_t Arena::allocate(int64_t bytes) {
  if (bytes < 0)
    fail(Status::invalid_argument, "An allocation of {} bytes is not possible.", bytes);
  if (bytes == 0) return 0;
  const std::lock_guard lock(mutex_);
  const auto size = static_cast<uint64_t>(bytes);
  const bool fits_gpu = bytes <= capacity_ - used_;
  // The gap behind this one and kLead of the next allocation lie between them.
  const uint64_t count =
      fits_gpu ? (kLead + size + kGapBytes + kSlotBytes - 1) / kSlotBytes : slots_ + 1;
  const uint64_t first = count <= slots_ ? find_slots(count) : slots_;
  if (first == slots_) {
    fail(Status::out_of_memory,
         "The simulated GPU could not allocate {} bytes: {} of its {} bytes are free{}.", bytes,
         capacity_ - used_, capacity_, fits_gpu ? ", but not in one piece" : "");
  }
  taken_[first] = count;
  cursor_ = first + count;
  used_ += bytes;
  size_[first].store(size, std::memory_order_relaxed);
  for (uint64_t slot = first; slot < first + count; ++slot)
    owner_[slot].store(static_cast<uint32_t>(first + 1), std::memory_order_release);
  return base_ + first * kSlotBytes + kLead;
}

void Arena::forget(uint64_t begin, uint64_t bytes) const noexcept {
  madvise(memory_.data() + begin, bytes, MADV_DONTNEED);
  if (marks_ == Marks::off) return;
  constexpr uint64_t kCellsPerByte = sizeof(RaceCell) / kRaceGranuleBytes;
  madvise(written_ + begin, bytes, MADV_DONTNEED);
  madvise(cell_memory_.data() + begin * kCellsPerByte, bytes * kCellsPerByte, MADV_DONTNEED);
}

void Arena::free(uint64_t pointer) noexcept {
  const std::lock_guard lock(mutex_);
  const Allocation allocation = find(pointer);
  if (allocation.bytes == 0 || allocation.begin != pointer) return;
  const uint64_t first = (pointer - base_) / kSlotBytes;
  const auto place = taken_.find(first);
  for (uint64_t slot = first; slot < first + place->second; ++slot)
    owner_[slot].store(0, std::memory_order_release);
  forget(first * kSlotBytes, place->second * kSlotBytes);
  used_ -= static_cast<int64_t>(allocation.bytes);
  taken_.erase(place);
}

int64_t Arena::free_bytes() const {
  const std::lock_guard lock(mutex_);
  return capacity_ - used_;
}

Allocation Arena::find(uint64_t address) const {
  const uint64_t slot = (address - base_) / kSlotBytes;
  if (slot >= slots_) return {};
  const uint32_t owner = owner_[slot].load(std::memory_order_acquire);
  if (owner == 0) return {};
  const uint64_t first = owner - 1;
  return {.begin = base_ + first * kSlotBytes + kLead,
          .bytes = size_[first].load(std::memory_order_relaxed)};
}

Allocation Arena::nearest(uint64_t address) const {
  const std::lock_guard lock(mutex_);
  const uint64_t slot = address < base_ ? 0 : (address - base_) / kSlotBytes;
  const auto describe = [&](uint64_t first) {
    return Allocation{.begin = base_ + first * kSlotBytes + kLead,
                      .bytes = size_[first].load(std::memory_order_relaxed)};
  };
  const auto distance = [&](const Allocation& allocation) {
    const uint64_t end = allocation.begin + allocation.bytes;
    if (address < allocation.begin) return allocation.begin - address;
    return address < end ? 0 : address - end;
  };
  Allocation best;
  const auto next = taken_.upper_bound(slot);
  if (next != taken_.end()) best = describe(next->first);
  if (next != taken_.begin()) {
    const Allocation before = describe(std::prev(next)->first);
    if (best.bytes == 0 || distance(before) <= distance(best)) best = before;
  }
  return best;
}

void Arena::mark(uint64_t address, uint64_t bytes) const {
  if (marks_ == Marks::on) std::memset(written(address), kHostMark, bytes);
}

void Arena::require(uint64_t address, int64_t bytes, const char* action) const {
  if (bytes >= 0 && contains(address, static_cast<uint64_t>(bytes))) return;
  fail(Status::invalid_argument,
       "Cannot {} {} bytes at {:#x}: they do not lie in one allocation of the simulated GPU.",
       action, bytes, address);
}

void Arena::copy_in(uint64_t to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  require(to, bytes, "copy from the host");
  std::memcpy(reinterpret_cast<void*>(to), from, static_cast<size_t>(bytes));
  mark(to, static_cast<uint64_t>(bytes));
}

void Arena::copy_out(void* to, uint64_t from, int64_t bytes) const {
  if (bytes == 0) return;
  require(from, bytes, "copy to the host");
  std::memcpy(to, reinterpret_cast<const void*>(from), static_cast<size_t>(bytes));
}

void Arena::copy(uint64_t to, uint64_t from, int64_t bytes) {
  if (bytes == 0) return;
  require(from, bytes, "copy from");
  require(to, bytes, "copy to");
  std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from),
               static_cast<size_t>(bytes));
  if (marks_ == Marks::off) return;
  uint8_t* const marks = written(to);
  std::memmove(marks, written(from), static_cast<size_t>(bytes));
  for (int64_t i = 0; i < bytes; ++i) marks[i] &= kHostMark;  // all others are odd as well
}

void Arena::fill(uint64_t to, uint8_t value, int64_t bytes) {
  if (bytes == 0) return;
  require(to, bytes, "fill");
  std::memset(reinterpret_cast<void*>(to), value, static_cast<size_t>(bytes));
  mark(to, static_cast<uint64_t>(bytes));
}

uint32_t Arena::next_launch() {
  constexpr uint32_t kLast = 65535;
  const std::lock_guard lock(mutex_);
  if (launch_ == kLast) {
    if (marks_ == Marks::on) madvise(cell_memory_.data(), cell_memory_.bytes(), MADV_DONTNEED);
    launch_ = 0;
  }
  return ++launch_;
}

}  // namespace kiln::runtime::sim
