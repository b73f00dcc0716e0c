// A session on a simulated GPU through the C interface, with a real compiler: the whole life of a
// call, what the checker says of a bad kernel, and a second session that compiles nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/call.h"
#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

using namespace templates;

// sums[r] = sum of rows[r, 0..width). One kernel clears the sums and keeps the number of rows in
// the workspace, the next one adds to what the first has written.
const char* const kSource = R"(
#include "kiln_args.h"
#include "kiln_constants.h"  // width, fault
enum { none, write_behind_end, read_before_write, stale_workspace };

extern "C" __global__ void clear_sums(const __grid_constant__ Args args) {
  const long long row = blockIdx.x * 64ll + threadIdx.x;
  if (row < args.num_rows && fault != read_before_write) args.sums[row] = 0;
  if (row == 0 && fault != stale_workspace) *static_cast<long long*>(args.workspace) = args.num_rows;
}

extern "C" __global__ void add_rows(const __grid_constant__ Args args) {
  const long long num_rows = *static_cast<const volatile long long*>(args.workspace);
  const long long row = blockIdx.x;
  if (row >= num_rows) return;
  int sum = 0;
  for (int i = threadIdx.x; i < width; i += 32) sum += args.rows[row * args.rows_stride + i];
  atomicAdd(args.sums + row, sum);
  if (fault == write_behind_end && row == 0 && threadIdx.x == 0) args.sums[num_rows] = 1;
}
)";
enum Fault { kNone, kWriteBehindEnd, kReadBeforeWrite, kStaleWorkspace };

Op make_summed_rows() {
  Op op;
  op.name = "summed_rows";
  op.summary = "A test.";
  op.source = "this file";
  op.sizes = {fixed("W", "width", "columns", 1, 4096), fixed("fault", "fault", "planted", 0, 3),
              dynamic("N", "num_rows", "rows", 0, 1000)};
  op.args = {in("rows", DType::i32, "N W", "input"), out("sums", DType::i32, "N", "output")};
  op.has_workspace = true;
  op.model_shapes = [](int) { return std::vector<Sizes>{{{"W", 40}, {"fault", kNone}}}; };
  op.cost = [](const Sizes&) { return Cost{}; };
  op.space = [](const Sizes&, const Gpu&) {
    Space space;
    space.axes = {{"only", {0}, "nothing"}};
    return space;
  };
  op.default_config = [](const Sizes&) { return Config{{"only", 0}}; };
  op.plan = [](const Sizes& fixed, const Config&, const Gpu&) {
    KernelLaunch clear{.file = "kernel.cu", .entry = "clear_sums"};
    clear.constants = {{"width", "int", std::to_string(fixed["W"])},
                       {"fault", "int", std::to_string(fixed["fault"])}};
    KernelLaunch add = clear;
    add.entry = "add_rows";
    clear.grid_x = {.terms = {{.symbol = "N", .divisor = 64}}};
    clear.threads = 64;
    add.grid_x = {.terms = {{.symbol = "N"}}};
    add.threads = 32;
    LaunchPlan plan{.kernels = {clear, add}};
    plan.workspace_bytes = {.offset = 256, .scale = 0};
    return plan;
  };
  op.model = [](const Sizes&, const Config&, const Gpu&) { return ModelHints{}; };
  return op;
}

int summed_rows_index() {
  static const int index = [] {
    static const Op op = make_summed_rows();
    register_test_op(&op);
    register_test_source({"templates/summed_rows/kernel.cu", kSource});
    const auto all = ops();
    return static_cast<int>(std::find(all.begin(), all.end(), &op) - all.begin());
  }();
  return index;
}

struct SummedRowsArgs {
  uint64_t struct_bytes = sizeof(SummedRowsArgs);
  void* rows = nullptr;
  int64_t rows_stride = 0;
  void* sums = nullptr;
  int64_t num_rows = 0;
  void* workspace = nullptr;
  uint64_t workspace_bytes = 0;
};

std::string shape_of(Fault fault) {
  return "{\"width\": 40, \"fault\": " + std::to_string(fault) + "}";
}
std::string workload_of(Fault fault) {
  return "{\"ops\": [{\"op\": \"summed_rows\", \"shape\": " + shape_of(fault) + "}]}";
}

class SimSession : public testing::Test {
 protected:
  static constexpr int64_t kRows = 100;
  static constexpr int64_t kWidth = 40;
  static constexpr int64_t kStride = 44;
  static constexpr size_t kSumBytes = kRows * sizeof(int32_t);

  void SetUp() override {
    summed_rows_index();
    open();
  }
  void TearDown() override { EXPECT_OK(kiln_close(session_)); }

  void open() {
    kiln_options options{};
    options.size = sizeof options;
    options.device = "sim:rtx-3090";
    options.store = store_.c_str();
    ASSERT_OK(kiln_open(&options, &session_));
  }

  void prepare(Fault fault) {
    ASSERT_OK(kiln_prepare(session_, workload_of(fault).c_str(), nullptr, nullptr));
    ASSERT_OK(kiln_seal(session_));
    ASSERT_OK(kiln_plan_create(session_, "summed_rows", shape_of(fault).c_str(), &plan_));
    std::vector<int32_t> rows(kRows * kStride);
    std::iota(rows.begin(), rows.end(), -1000);
    args_.rows = allocate(rows.size() * sizeof(int32_t));
    ASSERT_OK(kiln_memory_write(session_, args_.rows, rows.data(), rows.size() * sizeof(int32_t)));
    args_.rows_stride = kStride;
    args_.sums = allocate(kSumBytes + 64);  // what lies behind is not the op's
    args_.num_rows = kRows;
    args_.workspace = allocate(256);
    args_.workspace_bytes = 256;
  }
  void* allocate(size_t bytes) {
    void* memory = nullptr;
    EXPECT_OK(kiln_memory_allocate(session_, bytes, &memory));
    return memory;
  }
  kiln_status call(void* stream = nullptr) {
    return call_op(plan_, summed_rows_index(), &args_, stream);
  }
  std::vector<int32_t> sums() {
    std::vector<int32_t> result(kRows);
    EXPECT_OK(kiln_memory_read(session_, result.data(), args_.sums, kSumBytes));
    return result;
  }
  std::vector<int32_t> expected() const {
    std::vector<int32_t> result;
    for (int64_t row = 0; row < kRows; ++row) {
      const int64_t first = row * kStride - 1000;
      result.push_back(static_cast<int32_t>(kWidth * first + kWidth * (kWidth - 1) / 2));
    }
    return result;
  }
  // The report that the wait gives after a call of a bad kernel.
  std::string report_of(Fault fault) {
    prepare(fault);
    call();
    EXPECT_EQ(kiln_synchronize(session_, nullptr), KILN_DRIVER_ERROR);
    return kiln_last_error();
  }

  TemporaryFolder folder_;
  std::string store_ = folder_.file("kiln.db");
  kiln_session* session_ = nullptr;
  kiln_plan* plan_ = nullptr;
  SummedRowsArgs args_;
};

TEST_F(SimSession, ACallComputesWhatItShould) {
  prepare(kNone);
  EXPECT_OK(call());
  EXPECT_OK(kiln_synchronize(session_, nullptr));
  EXPECT_EQ(sums(), expected());
  EXPECT_OK(call());  // once more over what is there
  EXPECT_OK(kiln_synchronize(session_, nullptr));
  EXPECT_EQ(sums(), expected());
  args_.num_rows = 0;
  EXPECT_OK(call());
  EXPECT_EQ(sums(), expected());
}

TEST_F(SimSession, AForeignStreamIsRefused) {
  prepare(kNone);
  uint64_t foreign[64] = {};
  EXPECT_REFUSED(kiln_synchronize(session_, foreign), KILN_INVALID_ARGUMENT, "only NULL");
  EXPECT_REFUSED(call(foreign), KILN_DRIVER_ERROR, "NULL is the only one");
  EXPECT_OK(call());
  EXPECT_EQ(sums(), expected());
}

TEST_F(SimSession, AWriteBehindTheEndIsReportedWithItsPlace) {
  const std::string report = report_of(kWriteBehindEnd);
  for (const char* part : {"4 bytes outside of `sums`", "op        summed_rows", "add_rows",
                           "kernel.cu:", "thread (0, 0, 0)", "byte offset 400, element 100"})
    expect_contains(report, part);
  // Like a context, the device is of no use any more, and says why.
  std::vector<int32_t> result(kRows);
  EXPECT_REFUSED(kiln_memory_read(session_, result.data(), args_.sums, kSumBytes),
                 KILN_DRIVER_ERROR, "outside of `sums`");
  EXPECT_REFUSED(call(), KILN_DRIVER_ERROR, "outside of `sums`");
  expect_contains(kiln_last_error(), "a kernel that was launched earlier");
}

TEST_F(SimSession, ACallThatIsWrongItselfIsBlamed) {
  prepare(kWriteBehindEnd);
  EXPECT_REFUSED(call(), KILN_DRIVER_ERROR, "the launch of 100 x 1 x 1 blocks");
}

TEST_F(SimSession, WhatTheCallHasNotWrittenOfAnOutputIsNotRead) {
  expect_contains(report_of(kReadBeforeWrite),
                  "updates 4 bytes of the output `sums` that this call has not written");
}

TEST_F(SimSession, TheWorkspaceHoldsNothingAtFirst) {
  prepare(kStaleWorkspace);
  const int64_t left = kRows;  // as an earlier call would have left it
  EXPECT_OK(kiln_memory_write(session_, args_.workspace, &left, sizeof left));
  call();
  EXPECT_REFUSED(kiln_synchronize(session_, nullptr), KILN_DRIVER_ERROR,
                 "of the output `workspace` that this call has not written");
}

TEST_F(SimSession, ASecondSessionCompilesNothing) {
  const auto stats = [&] {
    kiln_stats result{};
    result.size = sizeof result;
    EXPECT_OK(kiln_get_stats(session_, &result));
    return result;
  };
  prepare(kNone);
  EXPECT_EQ(stats().compiles, 2u);
  EXPECT_OK(kiln_close(session_));
  open();
  args_ = {};
  prepare(kNone);
  EXPECT_EQ(stats().compiles, 0u);
  EXPECT_EQ(stats().binary_hits, 2u);
  EXPECT_OK(call());
  EXPECT_EQ(sums(), expected());
}

}  // namespace
}  // namespace kiln::runtime
