// Op calls: every mistake in the struct is answered by a sentence, and what is legal reaches the
// driver as it was given.
#include <cuda.h>

#include <array>
#include <cstring>
#include <limits>
#include <random>

#include "jit/base/error.h"
#include "runtime/call.h"
#include "runtime/call_checks.h"
#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

class CallTest : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    session_ = open();
    ASSERT_OK(kiln_prepare(session_, nullptr, nullptr, nullptr));
    rows_ = plan(session_, "staged_rows", kStagedShape);
    combine_ = plan(session_, "combine_topk_swa", kCombineShape);
  }
  // The same legal call with one field changed.
  kiln_status call_with(int64_t StagedRowsArgs::*field, int64_t value) {
    StagedRowsArgs args = staged_rows_args(8);
    args.*field = value;
    return call_staged_rows(rows_, args);
  }

  kiln_session* session_ = nullptr;
  kiln_plan* rows_ = nullptr;
  kiln_plan* combine_ = nullptr;
};

TEST_F(CallTest, KernelsReceiveTheStructAndTheStream) {
  const CurrentContext context;
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  const StagedRowsArgs args = staged_rows_args(100);
  ASSERT_OK(call_staged_rows(rows_, args, stream));
  ASSERT_EQ(fake_cuda_launches(), 2u);
  fake_cuda_launch first{};
  fake_cuda_launch second{};
  ASSERT_EQ(fake_cuda_get_launch(0, &first), 1);
  ASSERT_EQ(fake_cuda_get_launch(1, &second), 1);
  EXPECT_STREQ(first.kernel, "stage_rows");
  EXPECT_STREQ(second.kernel, "merge_rows");
  EXPECT_EQ(first.stream, stream);
  EXPECT_EQ(first.grid[0], 25u);
  EXPECT_EQ(first.dynamic_smem_bytes, 4096u);
  EXPECT_EQ(second.grid[1], 7u);
  EXPECT_EQ(std::memcmp(first.params, &args, sizeof args), 0);
  EXPECT_EQ(first.param, &args);  // no copy on the way
  cuStreamDestroy(stream);
}

TEST_F(CallTest, SizesOutOfRange) {
  EXPECT_REFUSED(call_with(&StagedRowsArgs::num_rows, -1), KILN_INVALID_ARGUMENT,
                 "staged_rows: num_rows is -1, but it must be 0 to 10000000");
  EXPECT_REFUSED(call_with(&StagedRowsArgs::num_rows, 10'000'001), KILN_INVALID_ARGUMENT,
                 "num_rows is 10000001");
  EXPECT_REFUSED(call_with(&StagedRowsArgs::width_out, -5), KILN_INVALID_ARGUMENT,
                 "width_out is -5, but it must be at least 0");
  EXPECT_EQ(fake_cuda_launches(), 0u);
}

TEST_F(CallTest, RequiredPointerIsNull) {
  StagedRowsArgs args = staged_rows_args(8);
  args.in = nullptr;
  EXPECT_REFUSED(call_staged_rows(rows_, args), KILN_INVALID_ARGUMENT,
                 "staged_rows: in is NULL, but it is required and not empty (num_rows = 8");
  args = staged_rows_args(8);
  args.out = nullptr;
  EXPECT_REFUSED(call_staged_rows(rows_, args), KILN_INVALID_ARGUMENT, "out is NULL");
  EXPECT_EQ(fake_cuda_launches(), 0u);
}

TEST_F(CallTest, EmptyTensorsNeedNoPointersAndLaunchNothing) {
  StagedRowsArgs args;
  args.width_out = 64;
  EXPECT_OK(call_staged_rows(rows_, args));
  EXPECT_EQ(fake_cuda_launches(), 0u);
  EXPECT_EQ(stats(session_).calls, 0u);
}

TEST_F(CallTest, MisalignedPointer) {
  StagedRowsArgs args = staged_rows_args(8);
  args.in = reinterpret_cast<const void*>(0x10008);
  EXPECT_REFUSED(call_staged_rows(rows_, args), KILN_INVALID_ARGUMENT,
                 "in is 0x10008, but it must be aligned to 16 bytes");
}

TEST_F(CallTest, StrideTooShort) {
  EXPECT_REFUSED(call_with(&StagedRowsArgs::in_stride, 56), KILN_INVALID_ARGUMENT,
                 "in_stride is 56, but a row of in has 64 elements");
  EXPECT_REFUSED(call_with(&StagedRowsArgs::in_stride, -64), KILN_INVALID_ARGUMENT,
                 "in_stride is -64");
  // The innermost extent of out is a derived size: width_out + 8.
  EXPECT_REFUSED(call_with(&StagedRowsArgs::out_stride1, 71), KILN_INVALID_ARGUMENT,
                 "out_stride1 is 71, but a row of out has 72 elements");
}

TEST_F(CallTest, StrideNotAMultiple) {
  EXPECT_REFUSED(call_with(&StagedRowsArgs::in_stride, 68), KILN_INVALID_ARGUMENT,
                 "in_stride is 68, but it must be a multiple of 8 elements");
}

TEST_F(CallTest, StrideOfASingleRowMayHoldAnything) {
  StagedRowsArgs args = staged_rows_args(1);
  args.in_stride = 0;
  args.out_stride0 = -3;
  EXPECT_OK(call_staged_rows(rows_, args));
}

TEST_F(CallTest, RowsOfAnOutputMustNotOverlap) {
  EXPECT_REFUSED(call_with(&StagedRowsArgs::out_stride0, 72 * 64 - 1), KILN_INVALID_ARGUMENT,
                 "out_stride0 is 4607, but it steps over 64 rows of out with 72 elements each, 72 "
                 "apart (out_stride1): it must be at least 4608");
  EXPECT_REFUSED(call_with(&StagedRowsArgs::out_stride0, 72), KILN_INVALID_ARGUMENT,
                 "out_stride0 is 72, ");
  EXPECT_EQ(fake_cuda_launches(), 0u);
  EXPECT_OK(call_with(&StagedRowsArgs::out_stride0, 72 * 64));
}

TEST_F(CallTest, TheStrideThatTheSentenceNamesIsTheLeastLegalOne) {
  StagedRowsArgs args = staged_rows_args(8);
  args.out_stride1 = 100;  // rows with gaps; the last one needs no gap behind it
  args.out_stride0 = 63 * 100 + 71;
  EXPECT_REFUSED(call_staged_rows(rows_, args), KILN_INVALID_ARGUMENT, "must be at least 6372");
  args.out_stride0 = 6372;
  EXPECT_OK(call_staged_rows(rows_, args));
}

// Rows at 160 a + 240 b with a < 3: no element is written twice, but neither dimension nests in the
// other.
TEST_F(CallTest, StridesThatInterleaveAreRefused) {
  StagedRowsArgs args = staged_rows_args(3);
  args.out_stride0 = 160;
  args.out_stride1 = 240;
  EXPECT_REFUSED(call_staged_rows(rows_, args), KILN_INVALID_ARGUMENT,
                 "out_stride1 is 240, but it steps over 3 rows of out with 72 elements each, 160 "
                 "apart (out_stride0): it must be at least 392");
}

TEST_F(CallTest, OutputMayHaveItsDimensionsInAnotherOrder) {
  StagedRowsArgs args = staged_rows_args(8);
  args.out_stride0 = 72;
  args.out_stride1 = 72 * 8;
  EXPECT_OK(call_staged_rows(rows_, args));
  args.out_stride1 = 72 * 8 - 1;
  EXPECT_REFUSED(call_staged_rows(rows_, args), KILN_INVALID_ARGUMENT,
                 "out_stride1 is 575, but it steps over 8 rows of out with 72 elements each, 72 "
                 "apart (out_stride0): it must be at least 576");
}

TEST(CallChecks, DimensionsOfAnInputMayShareRowsOfFullExtent) {
  templates::Op op = staged_rows();
  op.args.back().kind = templates::ArgKind::input;
  const CallChecks checks(op, {{"format", 0}, {"C", 64}});
  StagedRowsArgs args = staged_rows_args(8);
  args.out_stride0 = 72;
  args.out_stride1 = 72;
  std::array<int64_t, kMaxFields> storage;
  EXPECT_TRUE(checks.holds(checks.view(&args, storage.data())));
  args.out_stride1 = 71;
  EXPECT_FALSE(checks.holds(checks.view(&args, storage.data())));
}

TEST(CallChecks, OutputsWithMoreStridesThanTheCheckKnowsAreADefect) {
  templates::Op op = staged_rows();
  op.args.back() = templates::out("out", templates::DType::f32, "T C W padded", "result");
  try {
    const CallChecks checks(op, {{"format", 0}, {"C", 64}});
    FAIL() << "the rows of an output with three strides are not checked";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::internal);
    expect_contains(error.what(), "staged_rows: the output out has 3 strides");
  }
}

TEST(CallChecks, ArgumentOfOtherShapesHasToBeNull) {
  templates::Op op = staged_rows();
  op.args[1].only_in = {.symbol = "format", .values = {1}};
  op.args[1].presence = templates::Presence::required;
  StagedRowsArgs args = staged_rows_args(8);
  std::array<int64_t, kMaxFields> storage;
  const CallChecks plain(op, {{"format", 0}, {"C", 64}});
  const CallChecks packed(op, {{"format", 1}, {"C", 64}});
  const auto text = [&](const CallChecks& checks) {
    return checks.explain(checks.view(&args, storage.data()));
  };
  EXPECT_EQ(text(plain), "");
  expect_contains(text(packed), "scale is NULL, but it is required");
  args.scale = reinterpret_cast<const void*>(0x40000);
  args.scale_stride = 64;
  EXPECT_EQ(text(packed), "");
  expect_contains(text(plain),
                  "scale is 0x40000, but it must be NULL: it is used only with format packed");
}

TEST_F(CallTest, C140StridesBeyond32BitsAreLegal) {
  EXPECT_OK(call_with(&StagedRowsArgs::in_stride, int64_t{1} << 40));
}

TEST_F(CallTest, TensorBeyondTheAddressesIsRefused) {
  EXPECT_REFUSED(call_with(&StagedRowsArgs::in_stride, int64_t{1} << 61), KILN_INVALID_ARGUMENT,
                 "in would span more than 2^63 bytes (in_stride = 2305843009213693952");
}

TEST_F(CallTest, TensorOfBytesBeyondTheAddressesIsRefused) {
  StagedRowsArgs args = staged_rows_args(8);
  args.scale = reinterpret_cast<const void*>(0x40000);
  args.scale_stride = int64_t{1} << 62;
  EXPECT_REFUSED(call_staged_rows(rows_, args), KILN_INVALID_ARGUMENT,
                 "scale would span more than 2^63 bytes (scale_stride = 4611686018427387904");
}

// The checks as numbers that cannot overflow, and all divisions where they stand in the rules.
bool is_legal(const StagedRowsArgs& args) {
  __extension__ using Int128 = __int128;
  struct Walk {
    Int128 steps, stride, row, multiple;
    bool holds() const { return steps <= 1 || (stride >= row && stride % multiple == 0); }
    Int128 reach() const { return steps <= 1 ? 0 : (steps - 1) * stride; }
  };
  const Int128 most = std::numeric_limits<int64_t>::max();
  const Walk in{args.num_rows, args.in_stride, 64, 8};
  const Int128 row = Int128{args.width_out} + 8;
  const Walk out0{args.num_rows, args.out_stride0, row, 1};
  const Walk out1{64, args.out_stride1, row, 1};
  if (args.num_rows == 0) return true;
  const bool good_in = in.holds() && (in.reach() + 64) * 2 <= most;
  bool good_out = out0.holds() && out1.holds() && (out0.reach() + out1.reach() + row) * 4 <= most;
  if (args.num_rows > 1) {
    const Walk& inner = out0.stride < out1.stride ? out0 : out1;
    const Walk& outer = out0.stride < out1.stride ? out1 : out0;
    good_out = good_out && outer.stride >= inner.reach() + row;
  }
  return good_in && good_out;
}

TEST(CallChecks, HoldWhatTheRulesSayAndTellWhatTheyRefuse) {
  const CallChecks checks(staged_rows(), {{"format", 0}, {"C", 64}});
  std::mt19937_64 random(20240611);
  const auto near = [&](int64_t value) {  // on, beside and far from the edge
    switch (random() % 8) {
      case 0:
        return value - 1 - static_cast<int64_t>(random() % 9);
      case 1:
        return value + 8 * static_cast<int64_t>(random() % 100);
      case 2:
        return static_cast<int64_t>(random());
      case 3:
        return static_cast<int64_t>(random() >> (1 + random() % 62));
      default:
        return value;
    }
  };
  int legal = 0;
  constexpr int kRounds = 200'000;
  for (int round = 0; round < kRounds; ++round) {
    constexpr int64_t kRows[] = {0, 1, 2, 8, 1000, 10'000'000};
    StagedRowsArgs args = staged_rows_args(kRows[random() % std::size(kRows)]);
    args.width_out = 64 + static_cast<int64_t>(random() % 3);
    const int64_t row = args.width_out + 8;
    args.in_stride = near(64);
    const bool swapped = random() % 2 == 0;
    args.out_stride1 = near(swapped ? row * std::max<int64_t>(args.num_rows, 1) : row);
    args.out_stride0 = near(swapped ? row : row * 64);
    std::array<int64_t, kMaxFields> storage;
    const int64_t* fields = checks.view(&args, storage.data());
    ASSERT_EQ(checks.holds(fields), is_legal(args))
        << "round " << round << ": " << args.num_rows << " rows, in_stride " << args.in_stride
        << ", out_stride0 " << args.out_stride0 << ", out_stride1 " << args.out_stride1;
    ASSERT_EQ(checks.explain(fields).empty(), is_legal(args)) << "round " << round;
    legal += is_legal(args) ? 1 : 0;
  }
  EXPECT_GT(legal, kRounds / 10);
  EXPECT_LT(legal, kRounds - kRounds / 10);
}

TEST_F(CallTest, OptionalArgumentIsCheckedWhenGiven) {
  StagedRowsArgs args = staged_rows_args(8);
  args.scale_stride = -7;  // not looked at
  EXPECT_OK(call_staged_rows(rows_, args));
  args.scale = reinterpret_cast<const void*>(0x40000);
  EXPECT_REFUSED(call_staged_rows(rows_, args), KILN_INVALID_ARGUMENT, "scale_stride is -7");
}

TEST_F(CallTest, RequirementIsSaidWithItsNumbers) {
  EXPECT_REFUSED(call_with(&StagedRowsArgs::width_out, 63), KILN_INVALID_ARGUMENT,
                 "width_out is at least width; here width = 64, width_out = 63");
  kiln_combine_topk_swa_args args = combine_args(8);
  args.num_requests = 1 << 30;
  EXPECT_REFUSED(kiln_combine_topk_swa(combine_, &args, nullptr), KILN_INVALID_ARGUMENT,
                 "at most 2147483647");
}

TEST_F(CallTest, GridBeyondTheLimitIsRefusedBeforeAnythingRuns) {
  EXPECT_OK(call_with(&StagedRowsArgs::num_rows, 65535 * 16));
  EXPECT_EQ(fake_cuda_launches(), 2u);
  EXPECT_REFUSED(call_with(&StagedRowsArgs::num_rows, 65535 * 16 + 1), KILN_INVALID_ARGUMENT,
                 "a grid of 1 x 65536 x 1 blocks");
  expect_contains(kiln_last_error(), "x 65535: lower num_rows, for which the call may have to be");
  EXPECT_EQ(fake_cuda_launches(), 2u);  // not even the first kernel, which would fit
}

TEST_F(CallTest, PlanOfAnotherOp) {
  const StagedRowsArgs args = staged_rows_args(8);
  EXPECT_REFUSED(call_staged_rows(combine_, args), KILN_INVALID_ARGUMENT,
                 "kiln_staged_rows was called with a plan of combine_topk_swa");
}

TEST_F(CallTest, StructOfAnOlderHeader) {
  StagedRowsArgs args = staged_rows_args(8);
  args.struct_bytes = offsetof(StagedRowsArgs, workspace);  // before the op had a workspace
  ASSERT_OK(call_staged_rows(rows_, args));
  fake_cuda_launch launch{};
  ASSERT_EQ(fake_cuda_get_launch(0, &launch), 1);
  EXPECT_NE(launch.param, &args);
  StagedRowsArgs seen;
  std::memcpy(&seen, launch.params, sizeof seen);
  EXPECT_EQ(seen.num_rows, 8);
  EXPECT_EQ(seen.workspace, nullptr);
  EXPECT_EQ(seen.workspace_bytes, 0u);
}

TEST_F(CallTest, StructWithoutARequiredField) {
  for (const uint64_t bytes : {0, 8, 72, 95, 97}) {
    StagedRowsArgs args = staged_rows_args(8);
    args.struct_bytes = bytes;
    EXPECT_REFUSED(call_staged_rows(rows_, args), KILN_INVALID_ARGUMENT,
                   "set it to sizeof(kiln_staged_rows_args), which is 96 here");
  }
}

TEST_F(CallTest, StructOfANewerHeader) {
  struct Newer {
    StagedRowsArgs known = staged_rows_args(8);
    uint64_t unknown[2] = {0, 0};
  } newer;
  newer.known.struct_bytes = sizeof newer;
  EXPECT_OK(call_op(rows_, staged_rows_index(), &newer, nullptr));
  newer.unknown[1] = 1;
  EXPECT_REFUSED(call_op(rows_, staged_rows_index(), &newer, nullptr), KILN_INVALID_ARGUMENT,
                 "sets a field that this library does not know");
  newer.known.struct_bytes = ~uint64_t{0} - 7;
  EXPECT_REFUSED(call_op(rows_, staged_rows_index(), &newer, nullptr), KILN_INVALID_ARGUMENT,
                 "struct_bytes is");
}

TEST_F(CallTest, C156LaunchErrorIsReturnedAndNamed) {
  ASSERT_EQ(fake_cuda_fail_times("cuLaunchKernel", CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 0, 1), 1);
  EXPECT_REFUSED(call_with(&StagedRowsArgs::num_rows, 8), KILN_DRIVER_ERROR,
                 "staged_rows: the launch of 2 x 1 x 1 blocks (num_rows = 8");
  expect_contains(kiln_last_error(), "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES");
  EXPECT_OK(call_with(&StagedRowsArgs::num_rows, 8));
}

TEST_F(CallTest, AFaultOfAnEarlierKernelIsNotBlamedOnTheCall) {
  for (const int error : {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED}) {
    ASSERT_EQ(fake_cuda_fail_times("cuLaunchKernel", error, 0, 1), 1);
    EXPECT_REFUSED(call_with(&StagedRowsArgs::num_rows, 8), KILN_DRIVER_ERROR,
                   "staged_rows: a kernel that was launched earlier");
  }
  expect_contains(kiln_last_error(), "CUDA_ERROR_LAUNCH_FAILED");
}

TEST_F(CallTest, PlansComeAndGoWithoutEndAndTheirCallsStayCounted) {
  constexpr int kPlans = 100'000;
  const StagedRowsArgs args = staged_rows_args(8);
  fake_cuda_set_recording(0);
  kiln_plan* gone = nullptr;
  for (int i = 0; i < kPlans; ++i) {
    ASSERT_OK(kiln_plan_create(session_, "staged_rows", kStagedShape, &gone));
    if (i % 1000 == 0) {
      ASSERT_OK(call_staged_rows(gone, args));
    }
    ASSERT_OK(kiln_plan_destroy(gone));
  }
  EXPECT_REFUSED(kiln_plan_destroy(gone), KILN_CLOSED, "kiln_plan_destroy");
  EXPECT_REFUSED(call_staged_rows(gone, args), KILN_CLOSED, "kiln_plan_destroy");
  ASSERT_OK(call_staged_rows(rows_, args));
  EXPECT_EQ(stats(session_).calls, kPlans / 1000 + 1u);
}

TEST_F(CallTest, PlansLeaveTheirSessionInAnyOrder) {
  kiln_session* other = open("cuda:1");
  ASSERT_OK(kiln_prepare(other, nullptr, nullptr, nullptr));
  kiln_plan* kept = plan(other, "staged_rows", kStagedShape);
  std::array<kiln_plan*, 3> plans{};
  for (kiln_plan*& one : plans) one = plan(session_, "staged_rows", kStagedShape);
  const StagedRowsArgs args = staged_rows_args(8);
  for (const size_t i : {1, 2, 0}) {
    ASSERT_OK(call_staged_rows(plans[i], args));
    ASSERT_OK(kiln_plan_destroy(plans[i]));
    ASSERT_OK(call_staged_rows(rows_, args));
  }
  EXPECT_EQ(stats(session_).calls, 6u);
  EXPECT_EQ(stats(other).calls, 0u);
  ASSERT_OK(kiln_close(session_));
  EXPECT_REFUSED(call_staged_rows(rows_, args), KILN_CLOSED, "kiln_close");
  EXPECT_OK(call_staged_rows(kept, args));
}

class WorkspaceTest : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    with_store([](cache::Store& store) {  // 4 splits for sizes near 256, 2 near 4096
      for (const auto& [bucket, splits] : {std::pair{256, 4}, std::pair{4096, 2}}) {
        seed_decision(store, fake_gpu(0),
                      {.op = &staged_rows(),
                       .fixed = {{"format", 0}, {"C", 64}},
                       .bucket = {{"T", bucket}},
                       .config = {{"rows_per_cta", 4}, {"splits", splits}}});
      }
    });
    session_ = open();
    ASSERT_OK(kiln_prepare(session_, nullptr, nullptr, nullptr));
    rows_ = plan(session_, "staged_rows", kStagedShape);
  }
  uint64_t workspace_bytes(int64_t num_rows) {
    const StagedRowsArgs args = staged_rows_args(num_rows);
    uint64_t bytes = 12345;
    EXPECT_OK(call_workspace(rows_, staged_rows_index(), &args, &bytes));
    return bytes;
  }

  kiln_session* session_ = nullptr;
  kiln_plan* rows_ = nullptr;
};

TEST_F(WorkspaceTest, C41EnoughForEverySmallerCall) {
  EXPECT_EQ(workspace_bytes(64), 0u);               // bucket 16: one split
  EXPECT_EQ(workspace_bytes(300), 300u * 256 * 3);  // bucket 256
  EXPECT_EQ(workspace_bytes(1500),
            1024u * 256 * 3);  // 1,024 rows with 4 splits need more than 1,500 with 2
  EXPECT_EQ(workspace_bytes(8192), 8192u * 256);
  uint64_t most = 0;
  for (int64_t num_rows = 0; num_rows < 6000; ++num_rows) {
    const uint64_t bytes = workspace_bytes(num_rows);
    EXPECT_GE(bytes, most) << num_rows;
    most = bytes;
    StagedRowsArgs args = staged_rows_args(num_rows);
    args.workspace_bytes = bytes;
    if (bytes == 0) args.workspace = nullptr;
    ASSERT_OK(call_staged_rows(rows_, args)) << num_rows;
  }
}

TEST_F(WorkspaceTest, TooLittleIsRefused) {
  StagedRowsArgs args = staged_rows_args(300);
  args.workspace_bytes = ~uint64_t{0};
  EXPECT_REFUSED(call_staged_rows(rows_, args), KILN_INVALID_ARGUMENT,
                 "workspace_bytes is 18446744073709551615, which no memory has");
  args.workspace_bytes = 300 * 256 * 3 - 1;
  EXPECT_REFUSED(call_staged_rows(rows_, args), KILN_INVALID_ARGUMENT,
                 "workspace_bytes is 230399, but this call needs 230400");
  args = staged_rows_args(300);
  args.workspace = nullptr;
  EXPECT_REFUSED(call_staged_rows(rows_, args), KILN_INVALID_ARGUMENT, "workspace is NULL");
  args.workspace = reinterpret_cast<void*>(0x30080);
  EXPECT_REFUSED(call_staged_rows(rows_, args), KILN_INVALID_ARGUMENT, "aligned to 256 bytes");
}

TEST_F(WorkspaceTest, OpsWithoutOneNeedNone) {
  kiln_plan* combine = plan(session_, "combine_topk_swa", kCombineShape);
  const kiln_combine_topk_swa_args args = combine_args(100);
  uint64_t bytes = 7;
  EXPECT_OK(kiln_combine_topk_swa_workspace(combine, &args, &bytes));
  EXPECT_EQ(bytes, 0u);
}

TEST_F(WorkspaceTest, IsAskedAfterPreparing) {
  kiln_session* fresh = open();
  kiln_plan* unprepared = plan(fresh, "staged_rows", kStagedShape);
  const StagedRowsArgs args = staged_rows_args(300);
  uint64_t bytes = 7;
  EXPECT_REFUSED(call_workspace(unprepared, staged_rows_index(), &args, &bytes), KILN_NOT_PREPARED,
                 "call kiln_prepare first");
  EXPECT_EQ(bytes, 0u);
}

}  // namespace
}  // namespace kiln::runtime
