// What a server does for days: calls, plans that come and go, questions. Memory must not grow with
// it beyond what kiln.h says.
#include <malloc.h>

#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

class Soak : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    fake_cuda_set_recording(0);  // its logs are bounded, but not small
    session_ = open();
    ASSERT_OK(kiln_prepare(session_, kWorkload, nullptr, nullptr));
    ASSERT_OK(kiln_seal(session_));
    rows_ = plan(session_, "staged_rows", kStagedShape);
  }

  void serve(int rounds) {
    constexpr int kCallsPerRound = 1000;
    char text[512];
    for (int round = 0; round < rounds; ++round) {
      for (int i = 0; i < kCallsPerRound; ++i) {
        ASSERT_OK(call_staged_rows(rows_, staged_rows_args(1 + (i * 7919) % 5000)));
      }
      StagedRowsArgs wrong = staged_rows_args(8);
      wrong.width_out = round % 64;  // another sentence each time
      EXPECT_EQ(call_staged_rows(rows_, wrong), KILN_INVALID_ARGUMENT);
      kiln_plan* passing = plan(session_, "staged_rows", kStagedShape);
      ASSERT_OK(kiln_plan_destroy(passing));
      const std::string sizes =
          fmt::format("{{\"num_rows\": {}, \"width_out\": 64}}", 1 + round % 5000);
      ASSERT_OK(kiln_explain(session_, "staged_rows", kStagedShape, sizes.c_str(), text,
                             sizeof text, nullptr));
      EXPECT_EQ(kiln_plan_create(session_, fmt::format("no_op_{}", round).c_str(), kStagedShape,
                                 &passing),
                KILN_NOT_FOUND);
      ASSERT_OK(
          kiln_op_supported(session_, "staged_rows", kStagedShape, text, sizeof text, nullptr));
      ASSERT_OK(kiln_get_workload(session_, text, sizeof text, nullptr));
    }
  }

  static constexpr const char* kWorkload =
      "{\"ops\": [{\"op\": \"staged_rows\", \"shape\": {\"format\": \"plain\", \"width\": 64}}]}";
  kiln_session* session_ = nullptr;
  kiln_plan* rows_ = nullptr;
};

size_t allocated_bytes() { return mallinfo2().uordblks; }

TEST_F(Soak, C27MemoryOfTheProcessDoesNotGrow) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the allocator of a sanitizer does not count like this";
#endif
  constexpr int kRounds = 1000;
  constexpr size_t kShellBytes = 256;  // of a plan that was closed: kiln.h says about 200
  constexpr size_t kSlackBytes = 16384;
  serve(kRounds / 10);
  const size_t before = allocated_bytes();
  serve(kRounds);
  EXPECT_LE(allocated_bytes(), before + kRounds * kShellBytes + kSlackBytes);
}

}  // namespace
}  // namespace kiln::runtime
