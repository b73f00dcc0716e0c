// SessionMemory when host memory runs out: nothing of the device is lost.
#include "runtime/session_memory.h"

#include <gtest/gtest.h>

#include <new>

#include "tests/limited_new.h"

namespace kiln::runtime {
namespace {

TEST(SessionMemory, LosesNothingWhenHostMemoryRunsOut) {
  const std::unique_ptr<Device> device = Device::open("sim:rtx-3090");
  SessionMemory memory(*device);
  const int64_t free_bytes = device->free_bytes();
  int failures = 0;
  for (int allowed = 0;; ++allowed) {
    allocations_left = allowed;
    void* given = nullptr;
    try {
      given = memory.allocate(4096);
    } catch (const std::bad_alloc&) {
      ++failures;
    }
    allocations_left = -1;
    if (given != nullptr) {
      memory.free(given);
      break;
    }
    EXPECT_EQ(device->free_bytes(), free_bytes) << "allocation " << allowed << " failed";
  }
  EXPECT_GE(failures, 1);  // that of the session, and the device's where its library counts too
  EXPECT_EQ(device->free_bytes(), free_bytes);
}

TEST(SessionMemory, FreesWhatIsLeft) {
  const std::unique_ptr<Device> device = Device::open("sim:rtx-3090");
  const int64_t free_bytes = device->free_bytes();
  {
    SessionMemory memory(*device);
    memory.free(memory.allocate(100));
    memory.allocate(1000);
    EXPECT_EQ(device->free_bytes(), free_bytes - 1000);
  }
  EXPECT_EQ(device->free_bytes(), free_bytes);
}

}  // namespace
}  // namespace kiln::runtime
