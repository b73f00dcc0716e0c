// Counts that all threads add to: none is lost, and threads do not write the same memory.
#include "runtime/call_counts.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

namespace kiln::runtime {
namespace {

template <typename Body>
void in_threads(int count, Body body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(body);
  for (std::thread& thread : threads) thread.join();
}

TEST(StripedCounter, LosesNothing) {
  StripedCounter counter;
  in_threads(8, [&] {
    for (int i = 0; i < 20'000; ++i) counter.add_one();
  });
  EXPECT_EQ(counter.sum(), 160'000u);
}

// Stacks as pthread lays them out: sizes of 256 KiB to 64 MiB, each with a guard page.
TEST(StripedCounter, EightStacksHardlyShareAStripe) {
  constexpr uintptr_t kPage = 4096;
  constexpr uintptr_t kTop = 0x7f3a'1234'5000;
  for (const uintptr_t stack : {uintptr_t{1} << 18, uintptr_t{1} << 20, uintptr_t{1} << 21,
                                uintptr_t{1} << 23, uintptr_t{1} << 26}) {
    for (const uintptr_t guard : {uintptr_t{0}, kPage}) {
      std::set<size_t> stripes;
      for (uintptr_t thread = 0; thread < 8; ++thread) {
        const uintptr_t frame = kTop - thread * (stack + guard) - 1000;
        stripes.insert(StripedCounter::stripe_of(reinterpret_cast<const void*>(frame)));
      }
      EXPECT_GE(stripes.size(), 7u) << stack << " bytes and a guard of " << guard;
    }
  }
}

TEST(UsedBuckets, HoldsWhatWasNoted) {
  UsedBuckets used(3);
  in_threads(4, [&] {
    for (int i = 0; i < 1000; ++i) used.note(1);
  });
  EXPECT_FALSE(used.has(0));
  EXPECT_TRUE(used.has(1));
  EXPECT_FALSE(used.has(2));
  EXPECT_EQ(used.count(), 3u);
}

}  // namespace
}  // namespace kiln::runtime
