// Memory that a session gives to its caller: what was written is read, and what does not lie in it
// is refused before it reaches the device.
#include <cstdint>
#include <vector>

#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

class MemoryTest : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    session_ = open();
    EXPECT_OK(kiln_memory_allocate(session_, kBytes, &memory_));
  }
  std::byte* at(size_t offset) const { return static_cast<std::byte*>(memory_) + offset; }

  static constexpr size_t kBytes = 4096;
  kiln_session* session_ = nullptr;
  void* memory_ = nullptr;
};

TEST_F(MemoryTest, GivesBackWhatWasWritten) {
  std::vector<uint8_t> bytes(100);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(3 * i);
  EXPECT_OK(kiln_memory_write(session_, at(kBytes - 100), bytes.data(), bytes.size()));
  EXPECT_OK(kiln_synchronize(session_, nullptr));
  std::vector<uint8_t> read(bytes.size());
  EXPECT_OK(kiln_memory_read(session_, read.data(), at(kBytes - 100), read.size()));
  EXPECT_EQ(read, bytes);
}

TEST_F(MemoryTest, WhatDoesNotLieInAnAllocationIsRefused) {
  uint8_t byte[2] = {};
  EXPECT_EQ(kiln_memory_write(session_, at(kBytes - 1), byte, 2), KILN_INVALID_ARGUMENT);
  expect_contains(kiln_last_error(), "2 bytes at offset 4095 do not lie in an allocation of 4096");
  EXPECT_EQ(kiln_memory_read(session_, byte, at(kBytes), 1), KILN_INVALID_ARGUMENT);
  EXPECT_EQ(kiln_memory_read(session_, byte, byte, 1), KILN_INVALID_ARGUMENT);
  EXPECT_EQ(kiln_memory_free(session_, at(1)), KILN_INVALID_ARGUMENT);
  EXPECT_OK(kiln_memory_write(session_, memory_, byte, 2));
}

TEST_F(MemoryTest, IsFreedOnceAndNothingIsLegal) {
  EXPECT_OK(kiln_memory_free(session_, nullptr));
  EXPECT_OK(kiln_memory_write(session_, memory_, nullptr, 0));
  EXPECT_OK(kiln_memory_free(session_, memory_));
  EXPECT_EQ(kiln_memory_free(session_, memory_), KILN_INVALID_ARGUMENT);
  expect_contains(kiln_last_error(), "still has");
  uint8_t byte = 0;
  EXPECT_EQ(kiln_memory_read(session_, &byte, memory_, 1), KILN_INVALID_ARGUMENT);
}

TEST_F(MemoryTest, BadSizesAndPointersAreNamed) {
  void* more = &more;
  EXPECT_EQ(kiln_memory_allocate(session_, 0, &more), KILN_INVALID_ARGUMENT);
  EXPECT_EQ(more, nullptr);
  EXPECT_EQ(kiln_memory_allocate(session_, SIZE_MAX, &more), KILN_INVALID_ARGUMENT);
  EXPECT_EQ(kiln_memory_allocate(session_, 1, nullptr), KILN_INVALID_ARGUMENT);
  expect_contains(kiln_last_error(), "kiln_memory_allocate: memory is NULL");
  EXPECT_EQ(kiln_memory_write(session_, memory_, nullptr, 1), KILN_INVALID_ARGUMENT);
  EXPECT_EQ(kiln_memory_read(session_, nullptr, memory_, 1), KILN_INVALID_ARGUMENT);
}

TEST_F(MemoryTest, AnotherSessionsMemoryIsNotThisOnes) {
  kiln_session* other = open("cuda:1");
  uint8_t byte = 0;
  EXPECT_EQ(kiln_memory_read(other, &byte, memory_, 1), KILN_INVALID_ARGUMENT);
  EXPECT_EQ(kiln_memory_free(other, memory_), KILN_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace kiln::runtime
