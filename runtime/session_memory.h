// Device memory that a session gave to its caller: kept in a list, so that a wrong address or
// length is an error and not a fault of the device, and so that kiln_close frees what is left.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

#include "runtime/device.h"

namespace kiln::runtime {

class SessionMemory {
 public:
  explicit SessionMemory(Device& device) : device_(device) {}
  SessionMemory(const SessionMemory&) = delete;
  SessionMemory& operator=(const SessionMemory&) = delete;

  // All fail with invalid_argument for what does not lie in one allocation of this session.
  void* allocate(size_t bytes);  // 0 is refused; out_of_memory
  void free(void* memory);       // null is legal
  void write(void* memory, const void* from, size_t bytes);
  void read(void* to, const void* memory, size_t bytes);

 private:
  void require_inside(const void* memory, size_t bytes) const;

  Device& device_;
  mutable std::mutex mutex_;
  std::map<DevicePtr, DeviceBuffer> allocations_;  // by their begin
};

}  // namespace kiln::runtime
