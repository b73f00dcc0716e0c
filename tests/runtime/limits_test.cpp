// What a GPU can run, before and after compiling.
#include "runtime/limits.h"

#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

templates::LaunchPlan plan_of(int threads, int64_t dynamic_smem_bytes) {
  return {
      .kernels = {{.entry = "k", .threads = threads, .dynamic_smem_bytes = dynamic_smem_bytes}}};
}

std::string reason(const std::optional<BrokenLimit>& broken) {
  return broken ? broken->reason : "none";
}

TEST(Limits, ThreadsAreThoseOfABlockAndOfAnSm) {
  Gpu gpu = fake_gpu(0);
  EXPECT_EQ(reason(limit_broken(plan_of(1024, 0), gpu)), "none");
  EXPECT_EQ(reason(limit_broken(plan_of(1056, 0), gpu)), "threads");
  EXPECT_EQ(reason(limit_broken(plan_of(0, 0), gpu)), "threads");
  gpu.max_warps_per_sm = 16;
  EXPECT_EQ(reason(limit_broken(plan_of(512, 0), gpu)), "none");
  EXPECT_EQ(reason(limit_broken(plan_of(544, 0), gpu)), "threads");
}

TEST(Limits, C114SharedMemoryIsJudgedByTheGpuAtHand) {
  EXPECT_EQ(reason(limit_broken(plan_of(256, 120 << 10), fake_gpu(0))), "none");
  const auto broken = limit_broken(plan_of(256, 120 << 10), fake_gpu(1));
  EXPECT_EQ(reason(broken), "shared memory");
  expect_contains(broken->detail, "122880 bytes");
}

TEST(Limits, StaticSharedMemoryCountsBesideTheDynamic) {
  const Gpu& gpu = fake_gpu(1);
  const int64_t most_bytes = gpu.smem_per_cta_optin_bytes;
  const jit::Resources resources{.registers = 32, .static_smem_bytes = 1024};
  EXPECT_EQ(reason(resources_broken(plan_of(256, most_bytes - 1024), {resources}, gpu)), "none");
  EXPECT_EQ(reason(limit_broken(plan_of(256, most_bytes - 1023), gpu)), "none");
  EXPECT_EQ(reason(resources_broken(plan_of(256, most_bytes - 1023), {resources}, gpu)),
            "shared memory");
}

TEST(Limits, RegistersOfABlockMustFitAnSm) {
  EXPECT_EQ(reason(resources_broken(plan_of(1024, 0), {{.registers = 64}}, fake_gpu(0))), "none");
  EXPECT_EQ(reason(resources_broken(plan_of(1024, 0), {{.registers = 128}}, fake_gpu(0))),
            "registers");
}

}  // namespace
}  // namespace kiln::runtime
