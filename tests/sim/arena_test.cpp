#include "runtime/sim/arena.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "jit/base/error.h"

namespace kiln::runtime::sim {
namespace {

constexpr int64_t kMega = int64_t{1} << 20;

Status status_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.status();
  }
  return Status::ok;
}

TEST(Arena, CopiesWhatWasCopiedIn) {
  Arena arena(kMega, Marks::off);
  const std::vector<int> sent = {1, 2, 3, 4};
  const uint64_t a = arena.allocate(16);
  const uint64_t b = arena.allocate(16);
  arena.copy_in(a, sent.data(), 16);
  arena.copy(b, a, 16);
  arena.fill(b + 4, 0xff, 4);
  std::vector<int> received(4);
  arena.copy_out(received.data(), b, 16);
  EXPECT_EQ(received, (std::vector<int>{1, -1, 3, 4}));
}

TEST(Arena, AllocationsAreAlignedTo256AndNoMore) {
  Arena arena(kMega, Marks::off);
  for (int i = 0; i < 4; ++i) {
    const uint64_t address = arena.allocate(100);
    EXPECT_EQ(address % 256, 0u);
    EXPECT_NE(address % 512, 0u);
  }
}

TEST(Arena, FourKibibytesOnBothSidesBelongToNobody) {
  Arena arena(4 * kMega, Marks::off);
  for (const int64_t bytes : {int64_t{1}, int64_t{4096}, kMega, (int64_t{1} << 18) - 4352}) {
    const uint64_t address = arena.allocate(bytes);
    const auto size = static_cast<uint64_t>(bytes);
    EXPECT_TRUE(arena.contains(address, size));
    EXPECT_FALSE(arena.contains(address, size + 1));
    EXPECT_FALSE(arena.contains(address - 1, 1));
    for (uint64_t distance = 0; distance < 4096; distance += 64) {
      EXPECT_FALSE(arena.contains(address + size + distance, 1)) << distance;
      EXPECT_FALSE(arena.contains(address - 4096 + distance, 1)) << distance;
    }
  }
}

TEST(Arena, NoByteOfAnAllocationIsFoundInTheGapOfAnother) {
  Arena arena(kMega, Marks::off);
  EXPECT_FALSE(arena.contains(0, 1));
  EXPECT_FALSE(arena.contains(~uint64_t{0}, 1));
  const uint64_t address = arena.allocate(8);
  EXPECT_FALSE(arena.contains(address + 4, ~uint64_t{0}));
}

TEST(Arena, FailsWithOutOfMemoryBeyondTheCapacity) {
  Arena arena(kMega, Marks::off);
  const uint64_t half = arena.allocate(kMega / 2);
  EXPECT_EQ(arena.free_bytes(), kMega / 2);
  EXPECT_EQ(status_of([&] { arena.allocate(kMega / 2 + 1); }), Status::out_of_memory);
  arena.free(half);
  EXPECT_EQ(arena.free_bytes(), kMega);
  EXPECT_NE(arena.allocate(kMega), 0u);
}

TEST(Arena, FailsWithOutOfMemoryForMoreThanTheAddressRange) {
  Arena arena(INT64_MAX, Marks::off);
  EXPECT_EQ(status_of([&] { arena.allocate(INT64_MAX); }), Status::out_of_memory);
}

TEST(Arena, NothingAndLessThanNothing) {
  Arena arena(kMega, Marks::off);
  EXPECT_EQ(arena.allocate(0), 0u);
  arena.free(0);
  EXPECT_EQ(status_of([&] { arena.allocate(-1); }), Status::invalid_argument);
}

TEST(Arena, AFreedAddressIsGoneAndIsNotGivenOutAgainSoon) {
  Arena arena(kMega, Marks::on);
  const uint64_t address = arena.allocate(4096);
  arena.fill(address, 7, 4096);
  arena.free(address);
  EXPECT_FALSE(arena.contains(address, 1));
  for (int i = 0; i < 1000; ++i) {
    const uint64_t other = arena.allocate(4096);
    EXPECT_NE(other, address);
    arena.free(other);
  }
}

TEST(Arena, AnAddressThatComesBackIsEmpty) {
  Arena arena(int64_t{1} << 34, Marks::on);
  const uint64_t first = arena.allocate(8);
  arena.fill(first, 7, 8);
  arena.free(first);
  // One after the other through the whole range, until the first address comes back.
  uint64_t address = 0;
  for (int i = 0; i < 1024 && address != first; ++i) {
    address = arena.allocate(int64_t{1} << 33);
    if (address != first) arena.free(address);
  }
  ASSERT_EQ(address, first);
  EXPECT_EQ(*arena.written(address), 0);
  EXPECT_EQ(*reinterpret_cast<const uint8_t*>(address), 0);
}

TEST(Arena, FreeOfSomethingElseIsIgnored) {
  Arena arena(kMega, Marks::off);
  const uint64_t address = arena.allocate(4096);
  arena.free(address + 8);
  arena.free(12345);
  EXPECT_TRUE(arena.contains(address, 4096));
}

TEST(Arena, AHugeAllocationCostsNothingUntilItIsTouched) {
  Arena arena(int64_t{1} << 40, Marks::on);
  const uint64_t address = arena.allocate(int64_t{1} << 35);
  const int value = 42;
  arena.copy_in(address + (uint64_t{1} << 34), &value, sizeof value);
  EXPECT_EQ(*reinterpret_cast<const int*>(address + (uint64_t{1} << 34)), 42);
  EXPECT_EQ(*arena.written(address), 0);
  EXPECT_EQ(*arena.written(address + (uint64_t{1} << 34)), 1);
}

#if !defined(__SANITIZE_THREAD__)  // which leaves a process few addresses
TEST(Arena, ManyLargeOnesFitIntoOneProcess) {
  constexpr int64_t kCapacity = int64_t{80} << 30;
  std::vector<std::unique_ptr<Arena>> arenas;
  for (int i = 0; i < 24; ++i) {
    arenas.push_back(std::make_unique<Arena>(kCapacity, Marks::on));
    EXPECT_NE(arenas.back()->allocate(kCapacity), 0u) << "of arena " << i;
  }
}
#endif

TEST(Arena, CopiesOutsideOfOneAllocationFail) {
  Arena arena(kMega, Marks::off);
  const uint64_t a = arena.allocate(16);
  char byte[32] = {};
  EXPECT_EQ(status_of([&] { arena.copy_in(a, byte, 17); }), Status::invalid_argument);
  EXPECT_EQ(status_of([&] { arena.copy_out(byte, a - 1, 4); }), Status::invalid_argument);
  EXPECT_EQ(status_of([&] { arena.fill(a, 0, -1); }), Status::invalid_argument);
  EXPECT_EQ(status_of([&] { arena.copy(a + 8, a, 16); }), Status::invalid_argument);
}

TEST(Arena, MarksFollowTheBytes) {
  Arena arena(kMega, Marks::on);
  const uint64_t a = arena.allocate(16);
  const uint64_t b = arena.allocate(16);
  arena.fill(a + 4, 0, 4);
  arena.fill(b, 0, 16);
  arena.copy(b, a, 16);
  for (uint64_t i = 0; i < 16; ++i) EXPECT_EQ(*arena.written(b + i), i >= 4 && i < 8) << i;
}

TEST(Arena, NearestIsTheAllocationWhoseEdgeIsClosest) {
  Arena arena(kMega, Marks::off);
  EXPECT_EQ(arena.nearest(1234).bytes, 0u);
  const uint64_t a = arena.allocate(100);
  const uint64_t b = arena.allocate(200);
  EXPECT_EQ(arena.nearest(a + 104).begin, a);
  EXPECT_EQ(arena.nearest(b - 8).begin, b);
  EXPECT_EQ(arena.nearest(b + 10'000).begin, b);
  EXPECT_EQ(arena.nearest(16).begin, a);
}

TEST(Arena, RaceCellsAreClearedBeforeLaunchNumbersRepeat) {
  Arena arena(kMega, Marks::on);
  const uint64_t a = arena.allocate(16);
  uint32_t launch = arena.next_launch();
  EXPECT_EQ(launch, 1u);
  arena.race_cell(a)->write.store(99);
  while (launch != 65535) launch = arena.next_launch();
  EXPECT_EQ(arena.race_cell(a)->write.load(), 99u);
  EXPECT_EQ(arena.next_launch(), 1u);
  EXPECT_EQ(arena.race_cell(a)->write.load(), 0u);
}

TEST(Arena, ServesManyThreads) {
  Arena arena(64 * kMega, Marks::on);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&arena, t] {
      for (int i = 0; i < 200; ++i) {
        const uint64_t address = arena.allocate(64);
        arena.fill(address, static_cast<uint8_t>(t), 64);
        EXPECT_TRUE(arena.contains(address, 64));
        EXPECT_EQ(*reinterpret_cast<const uint8_t*>(address + 63), t);
        arena.free(address);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(arena.free_bytes(), 64 * kMega);
}

}  // namespace
}  // namespace kiln::runtime::sim
