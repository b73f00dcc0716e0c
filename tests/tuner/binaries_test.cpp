#include "tuner/binaries.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>
#include <vector>

#include "cache/leases.h"
#include "cache/sqlite.h"
#include "tuner/device_tools.h"

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

// As another process does that has begun to make the tools and goes on for long.
TEST_F(BinariesTest, StopEndsTheWaitForToolsOfAnotherProcess) {
  const std::string path = ::testing::TempDir() + "kiln_binaries_stop_test.db";
  for (const char* suffix : {"", "-wal", "-shm", ".lock"}) std::remove((path + suffix).c_str());
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto store = cache::Store::open({.path = path});
    std::vector<Hash128> keys;
    for (const auto& [file, entry] : tool_kernels())
      keys.push_back(jit::binary_key(tool_source(file, entry), "sm_80", {}));
    constexpr int kAnyNumber = 1000;
    cache::take_leases(*store, cache::LeaseOf::binary, keys, kAnyNumber);
    if (::write(ready[1], "y", 1) == 1) ::pause();
    ::_exit(0);
  }
  char answer = 0;
  ASSERT_EQ(::read(ready[0], &answer, 1), 1);
  std::atomic<bool> stop = false;
  const auto store = cache::Store::open({.path = path});
  Binaries binaries(*store, {}, &stop);
  std::thread user([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    stop = true;
  });
  try {
    binaries.tools("sm_80");
    ADD_FAILURE() << "nobody made them";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::interrupted) << error.what();
  }
  user.join();
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
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
