// Compiles shared with other processes, which here are forked children that hold leases.
#include "runtime/shared_compiles.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <set>
#include <thread>

#include "jit/base/error.h"
#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

using std::chrono::milliseconds;

jit::KernelSource source_of(const std::string& entry) {
  jit::KernelSource source;
  source.main = {"templates/a/kernel.cu", "// a kernel\n"};
  source.entry = entry;
  return source;
}

Hash128 key_of(const std::string& entry) { return jit::binary_key(source_of(entry), "sm_80", {}); }

jit::Binary binary_of(const std::string& entry) {
  jit::Binary binary;
  binary.key = key_of(entry);
  binary.arch = "sm_80";
  binary.entry = entry;
  binary.image =
      "\x7f"
      "ELF " +
      entry;
  return binary;
}

// Compiles in no time; "wrong" fails.
class ScriptedCompiler : public jit::Compiler {
 public:
  std::string version() const override { return "0.0"; }
  std::string library_path() const override { return ""; }
  std::vector<int> supported_archs() const override { return {80}; }
  jit::Binary compile(const jit::KernelSource& source, std::string_view,
                      const jit::CompileOptions&) override {
    ++calls;
    if (source.entry == "wrong") fail(Status::compile_error, "The source is wrong.");
    while (held) std::this_thread::sleep_for(milliseconds(1));
    return binary_of(source.entry);
  }
  std::atomic<int> calls = 0;
  std::atomic<bool> held = false;
};

class SharedCompilesTest : public testing::Test {
 protected:
  ~SharedCompilesTest() override {
    for (const pid_t child : children_) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  }

  std::unique_ptr<cache::Store> open() { return cache::Store::open({.path = path_}); }

  // A process that takes the lease of a kernel and goes on with `rest`, or waits to be killed.
  pid_t start_holder(const std::string& entry, const std::function<void(cache::Store&)>& rest) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      {
        const auto store = open();
        cache::take_leases(*store, cache::LeaseOf::binary, {key_of(entry)}, 8);
        if (::write(ready[1], "y", 1) == 1) rest(*store);
      }
      ::_exit(0);
    }
    ::close(ready[1]);
    char answer = 0;
    EXPECT_EQ(::read(ready[0], &answer, 1), 1);
    ::close(ready[0]);
    children_.push_back(child);
    return child;
  }
  static void wait_for_ever(cache::Store&) {
    for (;;) ::pause();
  }

  // All of them, until each is there or has failed. What was compiled goes to the store as in a
  // prepare: when the others may wait for it, and in the end.
  struct Outcome {
    std::set<std::string> compiled, stored, failed;
  };
  Outcome make(cache::Store& store, const std::vector<std::string>& entries, int workers = 2) {
    auto pool = std::make_shared<jit::CompilePool>(compiler_, workers);
    std::vector<jit::Binary> unwritten;
    const auto publish = [&] {
      if (!unwritten.empty()) {
        EXPECT_TRUE(store.put_kernels(unwritten, {}));
      }
      unwritten.clear();
    };
    Outcome outcome;
    SharedCompiles compiles(
        store, pool, publish, [&](const std::string& line) { log_.push_back(line); }, time_);
    for (const std::string& entry : entries) {
      compiles.add(key_of(entry), source_of(entry), "sm_80", {});
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!compiles.done()) {
      if (std::chrono::steady_clock::now() > deadline) {
        ADD_FAILURE() << "it hangs";
        break;
      }
      const auto finished = compiles.next(milliseconds(50));
      if (!finished) continue;
      if (finished->stored) {
        outcome.stored.insert(finished->stored->entry);
        continue;
      }
      try {
        unwritten.push_back(finished->compiled->result.get());
        outcome.compiled.insert(unwritten.back().entry);
      } catch (const Error&) {
        compiles.give_back(finished->key);
        outcome.failed.insert("one");
      }
    }
    publish();
    return outcome;
  }

  using Names = std::set<std::string>;
  TemporaryFolder folder_;
  const std::string path_ = folder_.file("kiln.db");
  std::shared_ptr<ScriptedCompiler> compiler_ = std::make_shared<ScriptedCompiler>();
  SharingTime time_{.look = milliseconds(5)};
  std::vector<std::string> log_;

 private:
  std::vector<pid_t> children_;
};

TEST_F(SharedCompilesTest, C15WhatAnotherProcessMakesIsTakenFromTheStore) {
  start_holder("theirs", [](cache::Store& store) {
    std::this_thread::sleep_for(milliseconds(200));
    store.put_binary(binary_of("theirs"));
    wait_for_ever(store);
  });
  const auto store = open();
  const Outcome outcome = make(*store, {"ours", "theirs", "ours too"});
  EXPECT_EQ(outcome.compiled, (Names{"ours", "ours too"}));
  EXPECT_EQ(outcome.stored, Names{"theirs"});
  EXPECT_EQ(compiler_->calls, 2);
  EXPECT_TRUE(cache::list_leases(*store).empty());
  EXPECT_TRUE(store->warnings().empty());
}

TEST_F(SharedCompilesTest, C32WhatADeadProcessWasToMakeIsMadeHere) {
  const pid_t child = start_holder("theirs", wait_for_ever);
  std::thread killer([&] {
    std::this_thread::sleep_for(milliseconds(100));
    ::kill(child, SIGKILL);
  });
  const auto store = open();
  EXPECT_EQ(make(*store, {"theirs"}).compiled, Names{"theirs"});
  killer.join();
}

TEST_F(SharedCompilesTest, C32HolderThatIsWaitedForIsNamedOnce) {
  const pid_t child = start_holder("theirs", [](cache::Store& store) {
    std::this_thread::sleep_for(milliseconds(300));
    store.put_binary(binary_of("theirs"));
  });
  time_.told = milliseconds(50);
  const auto store = open();
  make(*store, {"theirs"});
  ASSERT_EQ(log_.size(), 1u);
  expect_contains(log_[0], fmt::format("waiting for a kernel: process {} on ", child));
  expect_contains(log_[0], " has been compiling for ");
}

TEST_F(SharedCompilesTest, C17MachineThatIsFullIsWaitedFor) {
  const pid_t child = start_holder("theirs", [](cache::Store& store) {
    std::this_thread::sleep_for(milliseconds(300));
    store.put_binary(binary_of("theirs"));
  });
  time_.told = milliseconds(50);
  const auto store = open();
  EXPECT_EQ(make(*store, {"ours"}, 1).compiled, Names{"ours"});
  ASSERT_EQ(log_.size(), 1u);
  expect_contains(log_[0], fmt::format("as many as it has room for, process {} on ", child));
  expect_contains(log_[0], "waiting to compile a kernel: ");
}

TEST_F(SharedCompilesTest, C36NothingHeardForLongIsCompiledHereToo) {
  start_holder("theirs", wait_for_ever);
  time_.patience = milliseconds(200);
  const auto store = open();
  EXPECT_EQ(make(*store, {"theirs"}).compiled, Names{"theirs"});
  ASSERT_EQ(log_.size(), 1u);
  expect_contains(log_[0], "nothing was heard of process ");
}

TEST_F(SharedCompilesTest, FailedCompileIsGivenBack) {
  const auto store = open();
  EXPECT_EQ(make(*store, {"wrong", "right"}).failed.size(), 1u);
  EXPECT_TRUE(cache::list_leases(*store).empty());
}

TEST_F(SharedCompilesTest, EndedEarlyGivesAllBack) {
  const auto store = open();
  compiler_->held = true;
  auto pool = std::make_shared<jit::CompilePool>(compiler_, 1);
  {
    SharedCompiles compiles(
        *store, pool, [] {}, [](const std::string&) {}, time_);
    for (const char* entry : {"a", "b", "c"}) {
      compiles.add(key_of(entry), source_of(entry), "sm_80", {});
    }
    EXPECT_FALSE(compiles.next(milliseconds(1)));
    EXPECT_EQ(cache::list_leases(*store).size(), 1u) << "as many as compile at once";
    compiler_->held = false;
  }
  EXPECT_TRUE(cache::list_leases(*store).empty());
}

TEST_F(SharedCompilesTest, LongCompileGivesSignsOfLife) {
  const auto store = open();
  compiler_->held = true;
  auto pool = std::make_shared<jit::CompilePool>(compiler_, 1);
  time_.renew = milliseconds(0);
  SharedCompiles compiles(
      *store, pool, [] {}, [](const std::string&) {}, time_);
  compiles.add(key_of("a"), source_of("a"), "sm_80", {});
  EXPECT_FALSE(compiles.next(milliseconds(2500)));
  ASSERT_EQ(cache::list_leases(*store).size(), 1u);
  EXPECT_GE(cache::list_leases(*store)[0].age_s, 2);
  EXPECT_LE(cache::list_leases(*store)[0].silent_s, 1);
  compiler_->held = false;
}

TEST_F(SharedCompilesTest, StoreInMemoryStartsAllAtOnce) {
  const auto store = cache::Store::open({.path = ":memory:"});
  EXPECT_EQ(make(*store, {"a", "b", "c", "d"}, 1).compiled, (Names{"a", "b", "c", "d"}));
}

}  // namespace
}  // namespace kiln::runtime
