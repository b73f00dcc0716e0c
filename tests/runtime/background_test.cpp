// kiln_prepare_start: calls take the default config until the tuned kernel is there, and whatever
// ends the preparation is told.
#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <thread>

#include "runtime/call.h"
#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

constexpr const char* kWorkload =
    R"({"ops": [{"op": "staged_rows", "shape": {"format": "plain", "width": 64}}]})";

// A progress callback that stands still until it is let go.
class Gate {
 public:
  static int pass(void* user, int done, int total, const char*) {
    auto* gate = static_cast<Gate*>(user);
    std::unique_lock lock(gate->mutex_);
    ++gate->visits_;
    gate->done_ = done;
    gate->total_ = total;
    gate->changed_.notify_all();
    gate->changed_.wait(lock, [&] { return gate->is_open_; });
    lock.unlock();
    if (gate->inside) gate->inside();
    return gate->answer;
  }
  void wait_for_a_visit() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return visits_ > 0; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  int visits() {
    const std::lock_guard lock(mutex_);
    return visits_;
  }
  bool saw_the_end() {
    const std::lock_guard lock(mutex_);
    return total_ > 0 && done_ == total_;
  }

  int answer = 0;
  std::function<void()> inside;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  int visits_ = 0;
  int done_ = 0;
  int total_ = 0;
};

class Background : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    with_store([](cache::Store& store) {
      for (const int64_t rows : {16, 256}) {
        seed_decision(store, fake_gpu(0),
                      {.op = &staged_rows(),
                       .fixed = {{"format", 0}, {"C", 64}},
                       .bucket = {{"T", rows}},
                       .config = {{"rows_per_cta", 2}, {"splits", rows == 16 ? 4 : 2}}});
      }
    });
    session_ = open();
  }
  void TearDown() override {
    gate_.open();
    RuntimeTest::TearDown();
  }
  void start() { ASSERT_OK(kiln_prepare_start(session_, kWorkload, Gate::pass, &gate_)); }
  // Blocks along x of the first kernel of a call.
  unsigned blocks_of_a_call(kiln_plan* rows, int64_t num_rows) {
    const uint64_t before = fake_cuda_launches();
    EXPECT_OK(call_staged_rows(rows, staged_rows_args(num_rows)));
    fake_cuda_launch launch{};
    EXPECT_EQ(fake_cuda_get_launch(before, &launch), 1);
    return launch.grid[0];
  }

  kiln_session* session_ = nullptr;
  Gate gate_;
};

TEST_F(Background, C13DefaultServesWhileTheTunedKernelIsMade) {
  EXPECT_REFUSED(kiln_prepare_wait(session_, 0), KILN_BAD_STATE,
                 "no background preparation was started; call kiln_prepare_start first");
  start();
  gate_.wait_for_a_visit();
  kiln_plan* rows = plan(session_, "staged_rows", kStagedShape);
  EXPECT_EQ(blocks_of_a_call(rows, 16), 4u);  // 16 rows, 4 a block, one split
  EXPECT_REFUSED(kiln_prepare_wait(session_, 0), KILN_NOT_PREPARED, " of 6 kernels are ready");
  EXPECT_REFUSED(kiln_prepare_wait(session_, 20), KILN_NOT_PREPARED, "calls take the default");
  char text[1 << 15];
  ASSERT_OK(kiln_explain(session_, "staged_rows", kStagedShape,
                         "{\"num_rows\": 16, \"width_out\": 64}", text, sizeof text, nullptr));
  expect_contains(text, "being prepared in the background");

  gate_.open();
  ASSERT_OK(kiln_prepare_wait(session_, -1));
  EXPECT_OK(kiln_prepare_wait(session_, 0));   // the same answer
  EXPECT_EQ(blocks_of_a_call(rows, 16), 32u);  // 2 rows a block, four splits
  EXPECT_EQ(blocks_of_a_call(rows, 1), 1u);    // no decision: the default
  EXPECT_EQ(stats(session_).decision_hits, 2u);
  EXPECT_TRUE(gate_.saw_the_end());
  EXPECT_OK(kiln_seal(session_));
  EXPECT_EQ(blocks_of_a_call(rows, 256), 256u);  // 2 rows a block, two splits
}

TEST_F(Background, SameDigestsAsAPrepareThatIsWaitedFor) {
  gate_.open();
  start();
  ASSERT_OK(kiln_prepare_wait(session_, -1));
  kiln_session* other = open();
  ASSERT_OK(kiln_prepare(other, kWorkload, nullptr, nullptr));
  kiln_digests one{};
  kiln_digests two{};
  one.size = two.size = sizeof one;
  ASSERT_OK(kiln_get_digests(session_, &one));
  ASSERT_OK(kiln_get_digests(other, &two));
  EXPECT_TRUE(std::equal(one.exact, one.exact + 16, two.exact));
}

TEST_F(Background, C41WorkspaceCoversWhatIsComing) {
  start();
  gate_.wait_for_a_visit();
  kiln_plan* rows = plan(session_, "staged_rows", kStagedShape);
  StagedRowsArgs args = staged_rows_args(300);
  ASSERT_OK(call_workspace(rows, staged_rows_index(), &args, &args.workspace_bytes));
  EXPECT_EQ(args.workspace_bytes, 256u * 300);  // 2 splits; the default needs none
  EXPECT_OK(call_staged_rows(rows, args));
  gate_.open();
  ASSERT_OK(kiln_prepare_wait(session_, -1));
  EXPECT_OK(call_staged_rows(rows, args));
  args.num_rows = 16;
  EXPECT_OK(call_staged_rows(rows, args));
  uint64_t after = 0;
  args.num_rows = 300;
  ASSERT_OK(call_workspace(rows, staged_rows_index(), &args, &after));
  EXPECT_EQ(after, args.workspace_bytes);
}

// What was prepared before has to answer for what is coming too.
TEST_F(Background, C41WorkspaceOfAShapeThatServesAlready) {
  ASSERT_OK(
      kiln_prepare(session_,
                   R"({"ops": [{"op": "staged_rows", "shape": {"format": "plain", "width": 64},
                   "sizes": {"num_rows": [1, 1]}}]})",
                   nullptr, nullptr));
  kiln_plan* rows = plan(session_, "staged_rows", kStagedShape);
  StagedRowsArgs args = staged_rows_args(300);
  ASSERT_OK(call_workspace(rows, staged_rows_index(), &args, &args.workspace_bytes));
  EXPECT_EQ(args.workspace_bytes, 0u);
  start();
  ASSERT_OK(call_workspace(rows, staged_rows_index(), &args, &args.workspace_bytes));
  EXPECT_EQ(args.workspace_bytes, 256u * 300);
}

TEST_F(Background, CloseStopsIt) {
  start();
  gate_.wait_for_a_visit();
  std::atomic<bool> closed{false};
  std::thread closer([&] {
    EXPECT_OK(kiln_close(session_));
    closed = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(closed);  // it waits for the callback
  gate_.open();
  closer.join();
  EXPECT_EQ(gate_.visits(), 1);
  EXPECT_REFUSED(kiln_prepare_wait(session_, 0), KILN_CLOSED, "closed");
}

TEST_F(Background, CloseWithoutAWaitLeavesNoThread) {
  gate_.open();
  start();
  EXPECT_OK(kiln_close(session_));
}

TEST_F(Background, SealAndASecondStartAreRefusedUntilItIsWaitedFor) {
  start();
  EXPECT_REFUSED(kiln_seal(session_), KILN_BAD_STATE,
                 "kiln_seal: kernels of this session are being prepared in the background; call it "
                 "when kiln_prepare_wait has said how that ended");
  EXPECT_REFUSED(kiln_prepare_start(session_, kWorkload, nullptr, nullptr), KILN_BAD_STATE,
                 "are being prepared in the background already");
  gate_.open();
  ASSERT_OK(kiln_prepare_wait(session_, -1));
  EXPECT_OK(kiln_prepare_start(session_, kWorkload, nullptr, nullptr));
  EXPECT_OK(kiln_prepare_wait(session_, -1));
  EXPECT_OK(kiln_seal(session_));
  EXPECT_REFUSED(kiln_prepare_start(session_, kWorkload, nullptr, nullptr), KILN_BAD_STATE,
                 "sealed by kiln_seal");
  EXPECT_OK(kiln_prepare_wait(session_, 0));  // legal in any state
}

TEST_F(Background, ItsCallbackMayNotWaitSealPrepareOrClose) {
  std::atomic<int> refused{0};
  gate_.inside = [&] {
    for (const kiln_status status :
         {kiln_prepare_wait(session_, -1), kiln_seal(session_), kiln_close(session_),
          kiln_prepare(session_, kWorkload, nullptr, nullptr),
          kiln_prepare_start(session_, kWorkload, nullptr, nullptr)}) {
      refused += status == KILN_BAD_STATE ? 1 : 0;
    }
  };
  gate_.open();
  start();
  ASSERT_OK(kiln_prepare_wait(session_, -1));
  EXPECT_EQ(refused, 5 * gate_.visits());
}

TEST_F(Background, FailureIsToldByWait) {
  start();
  gate_.wait_for_a_visit();
  ASSERT_EQ(fake_cuda_fail("cuLibraryLoadData", CUDA_ERROR_OUT_OF_MEMORY, 0), 1);
  gate_.open();
  EXPECT_REFUSED(kiln_prepare_wait(session_, -1), KILN_OUT_OF_MEMORY, "memory");
  EXPECT_REFUSED(kiln_prepare_wait(session_, 0), KILN_OUT_OF_MEMORY, "memory");
  kiln_plan* rows = plan(session_, "staged_rows", kStagedShape);
  EXPECT_EQ(blocks_of_a_call(rows, 16), 4u);  // the default still serves
  fake_cuda_fail("cuLibraryLoadData", 0, 0);
  ASSERT_OK(kiln_prepare_start(session_, kWorkload, nullptr, nullptr));
  ASSERT_OK(kiln_prepare_wait(session_, -1));
  EXPECT_EQ(blocks_of_a_call(rows, 16), 32u);
}

TEST_F(Background, FailureOfADefaultIsToldAtOnce) {
  ASSERT_EQ(fake_cuda_fail("cuLibraryLoadData", CUDA_ERROR_OUT_OF_MEMORY, 0), 1);
  EXPECT_REFUSED(kiln_prepare_start(session_, kWorkload, nullptr, nullptr), KILN_OUT_OF_MEMORY,
                 "memory");
  EXPECT_REFUSED(kiln_prepare_wait(session_, 0), KILN_BAD_STATE, "no background preparation");
  fake_cuda_fail("cuLibraryLoadData", 0, 0);
  EXPECT_REFUSED(kiln_prepare_start(session_, "{\"ops\": 3}", nullptr, nullptr),
                 KILN_INVALID_ARGUMENT, "\"ops\" must be an array");
  EXPECT_OK(kiln_seal(session_));
}

TEST_F(Background, CallbackMayStopIt) {
  gate_.answer = 1;
  gate_.open();
  start();
  EXPECT_REFUSED(kiln_prepare_wait(session_, -1), KILN_INTERRUPTED, "stopped by its progress");
  EXPECT_EQ(gate_.visits(), 1);
}

TEST_F(Background, CallsGoOnDuringTheSwitch) {
  start();
  kiln_plan* rows = plan(session_, "staged_rows", kStagedShape);
  std::atomic<int> failures{0};
  std::atomic<bool> finished{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int64_t n = 0; n < 50 || !finished; ++n) {
        if (call_staged_rows(rows, staged_rows_args(1 + n % 300)) != KILN_OK) ++failures;
      }
    });
  }
  gate_.open();
  EXPECT_OK(kiln_prepare_wait(session_, -1));
  finished = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

}  // namespace
}  // namespace kiln::runtime
