#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/jit/jit_testing.h"

namespace kiln::jit {
namespace {

// Counts its calls; a gate can hold them, and the entry's name says how they end.
class ScriptedCompiler : public Compiler {
 public:
  std::string version() const override { return "0.0"; }
  std::string library_path() const override { return ""; }
  std::vector<int> supported_archs() const override { return {80}; }

  Binary compile(const KernelSource& source, std::string_view arch,
                 const CompileOptions&) override {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    if (sigismember(&mask, SIGINT) == 1 && sigismember(&mask, SIGUSR1) == 1) ++masked_calls;
    {
      std::unique_lock lock(mutex_);
      ++calls;
      most_at_once = std::max(most_at_once, ++now_inside_);
      changed_.notify_all();
      changed_.wait(lock, [&] { return open_; });
      --now_inside_;
    }
    if (source.entry == "wrong") fail(Status::compile_error, "The source is wrong.");
    if (source.entry == "exhausted") fail(Status::out_of_memory, "No memory.");
    Binary binary;
    binary.arch = arch;
    binary.entry = source.entry;
    return binary;
  }

  void close_gate() {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  void open_gate() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait_for_calls(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return calls >= count; });
  }

  std::atomic<int> calls = 0;
  std::atomic<int> masked_calls = 0;
  int most_at_once = 0;  // read it when no compile runs

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int now_inside_ = 0;
};

KernelSource source_of(const std::string& entry) {
  KernelSource source;
  source.main = {"templates/a/kernel.cu", "// a kernel\n"};
  source.entry = entry;
  return source;
}

class CompilePoolTest : public testing::Test {
 protected:
  std::shared_ptr<ScriptedCompiler> compiler_ = std::make_shared<ScriptedCompiler>();
};

TEST_F(CompilePoolTest, GivesBackWhatTheCompilerMade) {
  CompilePool pool(compiler_, 2);
  EXPECT_EQ(pool.workers(), 2);
  const Binary binary = pool.submit(source_of("a"), "sm_80", {}).get();
  EXPECT_EQ(binary.entry, "a");
  EXPECT_EQ(binary.arch, "sm_80");
}

TEST_F(CompilePoolTest, EqualRequestsFromManyThreadsAreOneCompile) {
  CompilePool pool(compiler_, 4);
  compiler_->close_gate();
  std::vector<std::thread> threads;
  std::vector<std::shared_future<Binary>> futures(16);
  for (size_t i = 0; i < futures.size(); ++i) {
    threads.emplace_back([&, i] { futures[i] = pool.submit(source_of("a"), "sm_80", {}); });
  }
  for (std::thread& thread : threads) thread.join();
  compiler_->open_gate();
  for (auto& future : futures) EXPECT_EQ(future.get().entry, "a");
  EXPECT_EQ(compiler_->calls, 1);
}

TEST_F(CompilePoolTest, ResultsAreRememberedWhileThePoolLives) {
  CompilePool pool(compiler_, 1);
  pool.submit(source_of("a"), "sm_80", {}).get();
  pool.submit(source_of("a"), "sm_80", {}).get();
  EXPECT_EQ(compiler_->calls, 1);
}

TEST_F(CompilePoolTest, DifferentRequestsAreDifferentCompiles) {
  CompilePool pool(compiler_, 3);
  std::vector<std::shared_future<Binary>> futures = {
      pool.submit(source_of("a"), "sm_80", {}), pool.submit(source_of("b"), "sm_80", {}),
      pool.submit(source_of("a"), "sm_86", {}),
      pool.submit(source_of("a"), "sm_80", {.max_registers = 64})};
  for (auto& future : futures) future.wait();
  EXPECT_EQ(compiler_->calls, 4);
}

TEST_F(CompilePoolTest, ErrorsComeThroughTheFutureAndStay) {
  CompilePool pool(compiler_, 1);
  for (int i = 0; i < 2; ++i) {
    const Caught caught = error_of([&] { pool.submit(source_of("wrong"), "sm_80", {}).get(); });
    EXPECT_EQ(caught.status, Status::compile_error);
  }
  EXPECT_EQ(compiler_->calls, 1);
}

TEST_F(CompilePoolTest, PassingFailuresAreTriedAgain) {
  CompilePool pool(compiler_, 1);
  for (int i = 0; i < 2; ++i) {
    const Caught caught = error_of([&] { pool.submit(source_of("exhausted"), "sm_80", {}).get(); });
    EXPECT_EQ(caught.status, Status::out_of_memory);
  }
  EXPECT_EQ(compiler_->calls, 2);
}

TEST_F(CompilePoolTest, SourceWithoutAKeyFailsInTheFuture) {
  CompilePool pool(compiler_, 1);
  KernelSource source = source_of("a");
  source.main.text = "#include \"lost.cuh\"\n";
  const auto future = pool.submit(source, "sm_80", {});
  EXPECT_TRUE(error_of([&] { future.get(); }).says("lost.cuh"));
  EXPECT_EQ(compiler_->calls, 0);
}

TEST_F(CompilePoolTest, ClosingDropsWhatHasNotBegunAndWaitsForWhatHas) {
  compiler_->close_gate();
  auto pool = std::make_unique<CompilePool>(compiler_, 1);
  const auto begun = pool->submit(source_of("a"), "sm_80", {});
  const auto queued = pool->submit(source_of("b"), "sm_80", {});
  compiler_->wait_for_calls(1);
  std::thread closer([&] { pool.reset(); });
  const Caught caught = error_of([&] { queued.get(); });
  EXPECT_EQ(caught.status, Status::interrupted);
  EXPECT_TRUE(caught.says("templates/a/kernel.cu for sm_80")) << caught.text;
  compiler_->open_gate();
  closer.join();
  EXPECT_EQ(begun.get().entry, "a");
  EXPECT_EQ(compiler_->calls, 1);
}

TEST_F(CompilePoolTest, WithdrawnRequestsThatHaveNotBegunAreDropped) {
  compiler_->close_gate();
  CompilePool pool(compiler_, 1);
  const CompilePool::Request begun = pool.request(source_of("a"), "sm_80", {});
  compiler_->wait_for_calls(1);
  const CompilePool::Request queued = pool.request(source_of("b"), "sm_80", {});
  const CompilePool::Request both = pool.request(source_of("c"), "sm_80", {});
  const CompilePool::Request again = pool.request(source_of("c"), "sm_80", {});
  EXPECT_TRUE(both.is_first);
  EXPECT_FALSE(again.is_first);
  EXPECT_EQ(pool.withdraw(begun), CompilePool::Withdrawn::expected);
  EXPECT_EQ(pool.withdraw(queued), CompilePool::Withdrawn::dropped);
  EXPECT_EQ(pool.withdraw(both), CompilePool::Withdrawn::shared);
  EXPECT_EQ(error_of([&] { queued.result.get(); }).status, Status::interrupted);
  compiler_->open_gate();
  EXPECT_EQ(begun.result.get().entry, "a");
  EXPECT_EQ(again.result.get().entry, "c");
  EXPECT_EQ(compiler_->calls, 2);
  EXPECT_EQ(pool.submit(source_of("b"), "sm_80", {}).get().entry, "b");
}

// Somebody's request failed, and somebody else's of the same key waits: the first one's late
// withdrawal is not about it.
TEST_F(CompilePoolTest, WithdrawingAFailedRequestLeavesALaterOneAlone) {
  CompilePool pool(compiler_, 1);
  const CompilePool::Request failed = pool.request(source_of("exhausted"), "sm_80", {});
  EXPECT_EQ(error_of([&] { failed.result.get(); }).status, Status::out_of_memory);
  compiler_->close_gate();
  const CompilePool::Request begun = pool.request(source_of("a"), "sm_80", {});
  compiler_->wait_for_calls(2);
  const CompilePool::Request later = pool.request(source_of("exhausted"), "sm_80", {});
  EXPECT_EQ(later.key, failed.key);
  EXPECT_TRUE(later.is_first);
  EXPECT_EQ(pool.withdraw(failed), CompilePool::Withdrawn::expected);
  EXPECT_EQ(pool.waiting(), 1);
  compiler_->open_gate();
  EXPECT_EQ(error_of([&] { later.result.get(); }).status, Status::out_of_memory);
  EXPECT_EQ(compiler_->calls, 3);
}

TEST_F(CompilePoolTest, AsManyRunAtOnceAsThereAreWorkers) {
  compiler_->close_gate();
  auto pool = std::make_unique<CompilePool>(compiler_, 2);
  std::vector<std::shared_future<Binary>> futures;
  for (int i = 0; i < 16; ++i) {
    futures.push_back(pool->submit(source_of(fmt::format("kernel_{}", i)), "sm_80", {}));
  }
  compiler_->wait_for_calls(2);
  EXPECT_EQ(pool->waiting(), 14);
  compiler_->open_gate();
  for (auto& future : futures) future.wait();
  pool.reset();
  EXPECT_EQ(compiler_->calls, 16);
  EXPECT_EQ(compiler_->most_at_once, 2);
}

TEST_F(CompilePoolTest, SharedPoolLivesAsLongAsItsHolders) {
  const auto other = std::make_shared<ScriptedCompiler>();
  auto pool = CompilePool::shared(compiler_, 3);
  EXPECT_EQ(CompilePool::shared(compiler_, 5), pool);
  EXPECT_EQ(pool->workers(), 3);
  EXPECT_NE(CompilePool::shared(other, 3), pool);
  pool.reset();
  EXPECT_EQ(CompilePool::shared(compiler_, 5)->workers(), 5);
}

TEST_F(CompilePoolTest, AForkedChildSharesItsOwnPool) {
  const auto pool = CompilePool::shared(compiler_, 1);
  pool->submit(source_of("a"), "sm_80", {}).get();
  const pid_t child = fork();
  // ThreadSanitizer lets no such child start a thread, so it asks for no compile.
  if (child == 0) _exit(CompilePool::shared(compiler_, 2) != pool ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(CompilePool::shared(compiler_, 1), pool);
}

TEST_F(CompilePoolTest, WorkersTakeNoSignalsAndTheCallersMaskIsKept) {
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  CompilePool pool(compiler_, 1);
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_EQ(sigismember(&before, SIGINT), sigismember(&after, SIGINT));
  pool.submit(source_of("a"), "sm_80", {}).get();
  EXPECT_EQ(compiler_->masked_calls, 1);
}

TEST_F(CompilePoolTest, NeedsACompilerAndAWorker) {
  EXPECT_EQ(error_of([&] { CompilePool(compiler_, 0); }).status, Status::invalid_argument);
  EXPECT_EQ(error_of([&] { CompilePool(nullptr, 1); }).status, Status::invalid_argument);
  EXPECT_EQ(error_of([&] { CompilePool::shared(nullptr, 1); }).status, Status::invalid_argument);
}

TEST(CompilePoolWithNvrtc, CompilesSeveralKernelsAtOnce) {
  std::shared_ptr<Compiler> compiler;
  const Caught caught = error_of([&] { compiler = Compiler::load(); });
  if (!compiler) GTEST_SKIP() << caught.text;
  CompilePool pool(compiler, 2);
  std::vector<std::shared_future<Binary>> futures;
  for (const char* arch : {"sm_80", "sm_86", "sm_80"}) {
    futures.push_back(pool.submit(small_source(), arch, {}));
  }
  EXPECT_EQ(futures[0].get().key, binary_key(small_source(), "sm_80", {}));
  EXPECT_EQ(futures[1].get().arch, "sm_86");
  EXPECT_EQ(futures[2].get().image, futures[0].get().image);
}

}  // namespace
}  // namespace kiln::jit
