// Each kernel is made by one thread; the others wait for it or take over when it is given up.
#include "runtime/kernel_cache.h"

#include <gtest/gtest.h>

#include <thread>

namespace kiln::runtime {
namespace {

using std::chrono::milliseconds;
using Claim = KernelCache::Claim;

KernelKey key_of(int threads) { return {.binary = hash_text("kernel"), .threads = threads}; }

ReadyKernel kernel_of(uint32_t threads) {
  ReadyKernel kernel;
  kernel.kernel.threads = threads;
  return kernel;
}

TEST(KernelCache, C46OneThreadMakesAndOthersWait) {
  KernelCache cache;
  Claims mine(cache);
  ASSERT_EQ(mine.claim(key_of(128)), Claim::mine);
  Claims other(cache);
  EXPECT_EQ(other.claim(key_of(128)), Claim::busy);
  EXPECT_EQ(other.claim(key_of(256)), Claim::mine);  // another block is another kernel
  EXPECT_FALSE(cache.wait_while_busy(key_of(128), milliseconds(1)));
  EXPECT_EQ(cache.find(key_of(128)), nullptr);

  std::thread waiting([&] {
    while (!cache.wait_while_busy(key_of(128), milliseconds(1000))) {
    }
  });
  mine.hand_in(key_of(128), kernel_of(128));
  waiting.join();
  EXPECT_EQ(other.claim(key_of(128)), Claim::ready);
  ASSERT_NE(cache.find(key_of(128)), nullptr);
  EXPECT_EQ(cache.find(key_of(128))->kernel.threads, 128u);
  EXPECT_EQ(cache.size(), 1u);
}

TEST(KernelCache, WhatIsNotHandedInCanBeClaimedAgain) {
  KernelCache cache;
  {
    Claims given_up(cache);
    ASSERT_EQ(given_up.claim(key_of(128)), Claim::mine);
    ASSERT_EQ(given_up.claim(key_of(256)), Claim::mine);
    given_up.hand_in(key_of(256), kernel_of(256));
  }
  Claims next(cache);
  EXPECT_TRUE(cache.wait_while_busy(key_of(128), milliseconds(0)));
  EXPECT_EQ(next.claim(key_of(128)), Claim::mine);
  EXPECT_EQ(next.claim(key_of(256)), Claim::ready);
}

TEST(KernelCache, TheFirstKernelHandedInStaysAndOnlyTheClaimantGivesUp) {
  KernelCache cache;
  {
    Claims slow(cache);
    ASSERT_EQ(slow.claim(key_of(128)), Claim::mine);
    Claims impatient(cache);
    ASSERT_EQ(impatient.claim(key_of(128)), Claim::busy);
    impatient.abandon(key_of(128));
    EXPECT_EQ(impatient.claim(key_of(128)), Claim::busy);
    impatient.hand_in(key_of(128), kernel_of(1));
    const ReadyKernel* first = cache.find(key_of(128));
    slow.hand_in(key_of(128), kernel_of(2));
    EXPECT_EQ(cache.find(key_of(128)), first);
  }
  ASSERT_NE(cache.find(key_of(128)), nullptr);
  EXPECT_EQ(cache.find(key_of(128))->kernel.threads, 1u);
}

}  // namespace
}  // namespace kiln::runtime
