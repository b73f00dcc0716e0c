#include "tuner/binaries.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "cache/sqlite.h"

namespace kiln::tuner {
namespace {

jit::KernelSource kernel(const std::string& entry) {
  jit::KernelSource source;
  source.main = {"templates/small/kernel.cu",
                 fmt::format("extern \"C\" __global__ void {}() {{}}\n", entry)};
  source.entry = entry;
  return source;
}

class BinariesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      pool_ = jit::CompilePool::shared(jit::Compiler::load(), 1);
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  std::unique_ptr<cache::Store> store_ = cache::Store::open({.path = ":memory:"});
  std::shared_ptr<jit::CompilePool> pool_;
};

TEST_F(BinariesTest, AreCompiledWithTheOthersOfThisProcess) {
  Binaries binaries(*store_);
  binaries.ahead(kernel("one"), "sm_80", {});
  EXPECT_FALSE(pool_->request(kernel("one"), "sm_80", {}).is_first);
  EXPECT_EQ(binaries.get(kernel("one"), "sm_80", {})->entry, "one");
}

TEST_F(BinariesTest, NobodyWaitsForWhatHasNotBegunAtTheEnd) {
  {
    Binaries binaries(*store_);
    for (int i = 0; i < 16; ++i) {
      binaries.ahead(kernel(fmt::format("kernel_{}", i)), "sm_80", {});
    }
  }
  EXPECT_EQ(pool_->waiting(), 0);
}

TEST_F(BinariesTest, NoteAtTheEndWhichOfTheStoreTheyUsed) {
  const std::string path = ::testing::TempDir() + "kiln_binaries_test.db";
  for (const char* suffix : {"", "-wal", "-shm", ".lock"}) std::remove((path + suffix).c_str());
  const auto use = [&] {
    const auto store = cache::Store::open({.path = path});
    Binaries binaries(*store);
    binaries.keep(binaries.get(kernel("one"), "sm_80", {}));
  };
  const auto seconds = [&](const char* sql) {
    cache::Database database(path, SQLITE_OPEN_READWRITE);
    return database.query_integer(sql);
  };
  use();
  seconds("UPDATE images SET used_at = 0");
  {
    const auto store = cache::Store::open({.path = path});
    Binaries binaries(*store);
    binaries.get(kernel("one"), "sm_80", {});
  }
  EXPECT_GT(seconds("SELECT used_at FROM images"), 0);
}

}  // namespace
}  // namespace kiln::tuner
