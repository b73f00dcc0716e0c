// What the analytic model must get right about an order of configs and GPUs, whatever its constants
// are.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/tuner/toy_op.h"
#include "tuner/tuner.h"

namespace kiln::tuner {
namespace {

ModelInput input(int64_t rows, int64_t columns, int threads, int registers,
                 int64_t smem_bytes = 0) {
  ModelInput in;
  in.op = &testing::toy_op();
  in.sizes = {{"scale", 3}, {"R", rows}, {"N", columns}, {"limit", columns}};
  in.config = {{"behaviour", testing::kToyFastMoreRegisters}, {"twin", 0}};
  templates::KernelLaunch launch{.file = "kernel.cu", .entry = "toy"};
  launch.grid_x = {.terms = {{.symbol = "R"}}};
  launch.threads = threads;
  launch.dynamic_smem_bytes = smem_bytes;
  in.plan.kernels = {launch};
  in.resources = {{.registers = registers}};
  return in;
}

TEST(Model, MoreBytesTakeLonger) {
  const Gpu& gpu = find_gpu("a100-sxm4-80gb");
  const double small_ns = model_time_ns(input(2000, 4096, 256, 32), gpu);
  const double large_ns = model_time_ns(input(16000, 4096, 256, 32), gpu);
  EXPECT_GT(large_ns, 3 * small_ns);
}

TEST(Model, IsNeverFasterThanTheMemory) {
  for (const char* slug : {"a100-sxm4-80gb", "rtx-3090", "a10"}) {
    const Gpu& gpu = find_gpu(slug);
    const ModelInput in = input(50000, 4096, 256, 32);
    const double bytes = 2.0 * 4 * 50000 * 4096;
    EXPECT_GE(model_time_ns(in, gpu), bytes / gpu.dram_gb_per_s) << slug;
  }
}

TEST(Model, OccupancyLimitsTheBytesInFlight) {
  const Gpu& gpu = find_gpu("a100-sxm4-80gb");
  const double many_ns = model_time_ns(input(20000, 4096, 256, 32), gpu);
  const double few_ns = model_time_ns(input(20000, 4096, 32, 32, 100 << 10), gpu);
  EXPECT_GT(few_ns, 2 * many_ns);
}

TEST(Model, A3090IsSlowerThanAnA100ByAboutItsBandwidth) {
  const ModelInput in = input(50000, 4096, 256, 32);
  const double ratio =
      model_time_ns(in, find_gpu("rtx-3090")) / model_time_ns(in, find_gpu("a100-sxm4-80gb"));
  EXPECT_GT(ratio, 1.7);
  EXPECT_LT(ratio, 3.0);
}

TEST(Model, WhatDoesNotFitIsInfinite) {
  EXPECT_TRUE(std::isinf(model_time_ns(input(100, 100, 256, 32, 120 << 10), find_gpu("rtx-3090"))));
  EXPECT_FALSE(
      std::isinf(model_time_ns(input(100, 100, 256, 32, 120 << 10), find_gpu("a100-sxm4-80gb"))));
}

TEST(Model, SpillsCostTime) {
  const Gpu& gpu = find_gpu("a100-sxm4-80gb");
  ModelInput clean = input(20000, 64, 256, 64);
  ModelInput spilling = clean;
  spilling.resources[0].spill_load_bytes = 4000;
  EXPECT_GT(model_time_ns(spilling, gpu), model_time_ns(clean, gpu));
}

TEST(Model, EmptyGridTakesNoLongerThanItsLaunches) {
  EXPECT_LE(model_time_ns(input(0, 4096, 256, 32), find_gpu("a100-sxm4-80gb")), 5000);
}

}  // namespace
}  // namespace kiln::tuner
