// What a session's calls leave behind: kiln_get_workload while it is open, rows of the store once
// it is closed.
#include <algorithm>

#include "jit/base/gpu.h"
#include "jit/base/json.h"
#include "runtime/plan_record.h"
#include "runtime/workload.h"
#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

constexpr const char* kWorkload =
    R"({"ops": [{"op": "staged_rows", "shape": {"format": "plain", "width": 64}},
                {"op": "combine_topk_swa", "shape": {"ratio": 2, "top_k": 512}}]})";

class Usage : public RuntimeTest {
 protected:
  void prepare(kiln_session* session) {
    ASSERT_OK(kiln_prepare(session, kWorkload, nullptr, nullptr));
    rows_ = plan(session, "staged_rows", kStagedShape);
    combine_ = plan(session, "combine_topk_swa", kCombineShape);
  }
  void call_rows(int64_t num_rows) {
    EXPECT_OK(call_staged_rows(rows_, staged_rows_args(num_rows)));
  }
  std::string workload(kiln_session* session) {
    char text[4096];
    size_t needed = 0;
    EXPECT_OK(kiln_get_workload(session, text, sizeof text, &needed));
    EXPECT_EQ(needed, std::string(text).size() + 1);
    return text;
  }
  std::vector<cache::UsedSize> stored() {
    std::vector<cache::UsedSize> used;
    with_store([&](cache::Store& store) { used = store.used_sizes(); });
    return used;
  }

  kiln_plan* rows_ = nullptr;
  kiln_plan* combine_ = nullptr;
};

TEST_F(Usage, BucketsThatWereCalledAreTheWorkload) {
  kiln_session* session = open();
  EXPECT_EQ(workload(session), R"({"ops":[]})");
  prepare(session);
  EXPECT_EQ(workload(session), R"({"ops":[]})");
  call_rows(14);  // of buckets 1, 16, 256, 4096
  call_rows(300);
  call_rows(16);
  EXPECT_EQ(parse_json(workload(session), "workload"), parse_json(R"({"ops": [
      {"op": "staged_rows", "shape": {"format": "plain", "width": 64},
       "sizes": {"num_rows": [16, 256]}}]})",
                                                                  "expected"));
  call_rows(1'000'000);
  const kiln_combine_topk_swa_args args = combine_args(1);
  EXPECT_OK(kiln_combine_topk_swa(combine_, &args, nullptr));
  const std::vector<WorkloadItem> items = parse_workload(workload(session));
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[1].op, &staged_rows());
  EXPECT_EQ(items[1].buckets.size(), 3u);

  size_t needed = 0;
  ASSERT_OK(kiln_get_workload(session, nullptr, 0, &needed));
  EXPECT_EQ(needed, workload(session).size() + 1);
}

TEST_F(Usage, GapsAreTwoRanges) {
  kiln_session* session = open();
  prepare(session);
  call_rows(1);
  call_rows(256);
  const Json used = parse_json(workload(session), "workload");
  ASSERT_EQ(used["ops"].size(), 2u);
  EXPECT_EQ(used["ops"][0]["sizes"]["num_rows"], Json({1, 1}));
  EXPECT_EQ(used["ops"][1]["sizes"]["num_rows"], Json({256, 256}));
}

TEST_F(Usage, RefusedAndEmptyCallsDoNotCount) {
  kiln_session* session = open();
  prepare(session);
  StagedRowsArgs args = staged_rows_args(16);
  args.in = nullptr;
  EXPECT_REFUSED(call_staged_rows(rows_, args), KILN_INVALID_ARGUMENT, "in is NULL");
  call_rows(0);
  fake_cuda_fail_times("cuLaunchKernel", 1, 0, 1);
  EXPECT_EQ(call_staged_rows(rows_, staged_rows_args(16)), KILN_DRIVER_ERROR);
  EXPECT_EQ(workload(session), R"({"ops":[]})");
  EXPECT_OK(kiln_close(session));
  EXPECT_TRUE(stored().empty());
}

TEST_F(Usage, WrittenWhenTheSessionCloses) {
  kiln_session* session = open();
  prepare(session);
  call_rows(16);
  call_rows(256);
  EXPECT_OK(kiln_plan_destroy(rows_));  // its calls still count
  EXPECT_TRUE(stored().empty());        // never inside a call
  EXPECT_OK(kiln_close(session));
  std::vector<cache::UsedSize> used = stored();
  ASSERT_EQ(used.size(), 2u);
  const templates::Sizes fixed{{"format", 0}, {"C", 64}};
  for (const cache::UsedSize& one : used) {
    EXPECT_EQ(one.gpu_class, gpu_class_key(fake_gpu(0)));
    EXPECT_EQ(one.gpu_label, fake_gpu(0).slug);
    EXPECT_EQ(one.sessions, 1);
    EXPECT_GT(one.first_used_at, 0);
  }
  const auto has = [&](int64_t rows) {
    const cache::Problem problem = problem_of(staged_rows(), fixed, {{"T", rows}});
    return std::any_of(used.begin(), used.end(),
                       [&](const cache::UsedSize& one) { return one.problem == problem; });
  };
  EXPECT_TRUE(has(16));
  EXPECT_TRUE(has(256));

  kiln_session* again = open();
  prepare(again);
  call_rows(16);
  EXPECT_OK(kiln_close(again));
  used = stored();
  ASSERT_EQ(used.size(), 2u);
  EXPECT_EQ(used[0].sessions + used[1].sessions, 3);
}

TEST_F(Usage, SessionWithoutCallsWritesNothing) {
  kiln_session* session = open();
  prepare(session);
  EXPECT_OK(kiln_close(session));
  EXPECT_TRUE(stored().empty());
}

TEST_F(Usage, ReadOnlyStoreLosesItWithOneWarning) {
  kiln_options options{};
  options.size = sizeof options;
  options.store = store_path_.c_str();
  options.store_mode = "read-only";
  options.log = LogLines::receive;
  options.log_user = &log_;
  options.log_level = KILN_LOG_WARNING;
  kiln_session* session = nullptr;
  ASSERT_OK(kiln_open(&options, &session));
  prepare(session);
  call_rows(16);
  EXPECT_EQ(log_.count("warning"), 0) << log_.text();
  EXPECT_OK(kiln_close(session));
  EXPECT_EQ(log_.count("warning"), 1) << log_.text();
  EXPECT_TRUE(log_.has("was opened for reading only, so nothing is kept")) << log_.text();
  EXPECT_TRUE(stored().empty());
}

TEST_F(Usage, PreparingTheRecordServesTheSameCalls) {
  with_store([](cache::Store& store) {
    seed_decision(store, fake_gpu(0),
                  {.op = &staged_rows(),
                   .fixed = {{"format", 0}, {"C", 64}},
                   .bucket = {{"T", 256}},
                   .config = {{"rows_per_cta", 2}, {"splits", 4}}});
  });
  kiln_session* first = open();
  prepare(first);
  call_rows(256);
  const std::string used = workload(first);
  kiln_session* second = open();
  ASSERT_OK(kiln_prepare(second, used.c_str(), nullptr, nullptr));
  ASSERT_OK(kiln_seal(second));
  EXPECT_EQ(stats(second).decision_hits, 1u);
  EXPECT_EQ(stats(second).decision_defaults, 0u);
  EXPECT_OK(call_staged_rows(plan(second, "staged_rows", kStagedShape), staged_rows_args(256)));
}

}  // namespace
}  // namespace kiln::runtime
