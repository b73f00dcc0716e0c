#include "runtime/session_memory.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "jit/base/error.h"

namespace kiln::runtime {
namespace {

DevicePtr address_of(const void* memory) { return reinterpret_cast<DevicePtr>(memory); }

}  // namespace

void* SessionMemory::allocate(size_t bytes) {
  if (bytes == 0 || bytes > static_cast<size_t>(std::numeric_limits<int64_t>::max())) {
    fail(Status::invalid_argument, "expected a number of bytes to allocate, but {} came", bytes);
  }
  DeviceBuffer buffer(device_, static_cast<int64_t>(bytes));
  const DevicePtr begin = buffer.get();
  const std::lock_guard lock(mutex_);
  allocations_.emplace(begin, std::move(buffer));
  return reinterpret_cast<void*>(begin);
}

void SessionMemory::free(void* memory) {
  if (memory == nullptr) return;
  decltype(allocations_)::node_type taken;  // freed without the lock
  {
    const std::lock_guard lock(mutex_);
    taken = allocations_.extract(address_of(memory));
    if (taken.empty()) {
      fail(Status::invalid_argument,
           "{} is not the begin of memory that this session allocated and still has", memory);
    }
  }
}

void SessionMemory::write(void* memory, const void* from, size_t bytes) {
  require_inside(memory, bytes);
  device_.copy_to_device(address_of(memory), from, static_cast<int64_t>(bytes));
}

void SessionMemory::read(void* to, const void* memory, size_t bytes) {
  require_inside(memory, bytes);
  device_.copy_to_host(to, address_of(memory), static_cast<int64_t>(bytes));
}

void SessionMemory::require_inside(const void* memory, size_t bytes) const {
  const DevicePtr address = address_of(memory);
  const std::lock_guard lock(mutex_);
  auto next = allocations_.upper_bound(address);
  if (next == allocations_.begin()) {
    fail(Status::invalid_argument, "{} does not lie in memory that this session allocated", memory);
  }
  const auto& [begin, buffer] = *--next;
  const auto size = static_cast<size_t>(buffer.bytes());
  const size_t offset = address - begin;
  if (offset >= size) {
    fail(Status::invalid_argument, "{} does not lie in memory that this session allocated", memory);
  }
  if (bytes > size - offset) {
    fail(Status::invalid_argument, "{} bytes at offset {} do not lie in an allocation of {} bytes",
         bytes, offset, size);
  }
}

}  // namespace kiln::runtime
