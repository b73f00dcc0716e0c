#include "runtime/read_ahead.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kiln::runtime {
namespace {

class ReadAheadTest : public ::testing::Test {
 protected:
  // Enough to be read by a thread, and more than it may hold.
  ReadAheadTest() {
    for (int i = 0; i < 50; ++i) {
      jit::Binary binary;
      binary.key = hash_text(fmt::format("kernel {}", i));
      binary.arch = "sm_80";
      binary.entry = fmt::format("kernel_{}", i);
      binary.image = std::string(1000, static_cast<char>('a' + i % 26));
      EXPECT_TRUE(store_->put_binary(binary));
      keys_.push_back(binary.key);
    }
    std::reverse(keys_.begin(), keys_.end());
  }

  std::unique_ptr<cache::Store> store_ = cache::Store::open({.path = ":memory:"});
  std::vector<Hash128> keys_;
};

TEST_F(ReadAheadTest, GivesThemInTheOrderAskedFor) {
  ReadAhead binaries(*store_, keys_);
  for (int i = 49; i >= 0; --i) {
    const std::optional<jit::Binary> binary = binaries.next();
    ASSERT_TRUE(binary) << i;
    EXPECT_EQ(binary->entry, fmt::format("kernel_{}", i));
    EXPECT_EQ(binary->image.size(), 1000u);
  }
}

TEST_F(ReadAheadTest, WhatTheStoreLacksHasItsTurn) {
  keys_[7] = hash_text("nowhere");
  for (const size_t count : {size_t{8}, size_t{50}}) {
    ReadAhead binaries(*store_, {keys_.begin(), keys_.begin() + static_cast<ptrdiff_t>(count)});
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(binaries.next().has_value(), i != 7) << i;
  }
}

TEST_F(ReadAheadTest, FewAreReadByWhoAsks) {
  keys_.resize(2);
  ReadAhead binaries(*store_, keys_);
  EXPECT_EQ(binaries.next()->entry, "kernel_49");
  EXPECT_EQ(binaries.next()->entry, "kernel_48");
}

TEST_F(ReadAheadTest, EndsWithWhatNobodyAskedFor) {
  ReadAhead untouched(*store_, keys_);
  ReadAhead begun(*store_, keys_);
  EXPECT_TRUE(begun.next());
}

}  // namespace
}  // namespace kiln::runtime
