// Where a plan is proven: at the bucket that is wanted, or on the simulator at a smaller one of the
// same fixed shape, and the verdict says so.
#include <gtest/gtest.h>

#include "cache/store.h"
#include "templates/kit.h"
#include "tuner/prover.h"

namespace kiln::tuner {
namespace {

using templates::Kit;
using templates::Op;
using templates::Sizes;

int64_t volume(const Sizes& bucket) {
  int64_t product = 1;
  for (const auto& [symbol, size] : bucket) product *= std::max<int64_t>(size, 1);
  return product;
}

// The bucket with the largest sizes.
Sizes largest_bucket(const Op& op) {
  Sizes largest = templates::all_buckets(op).front();
  for (const Sizes& bucket : templates::all_buckets(op)) {
    if (volume(bucket) > volume(largest)) largest = bucket;
  }
  return largest;
}

class SimulatedBucket : public testing::TestWithParam<const Kit*> {};

TEST_P(SimulatedBucket, IsWithinTheWantedOneAndASmallOneIsItself) {
  const Op& op = *GetParam()->op;
  const Sizes fixed = op.model_shapes(2).front();
  for (const Sizes& bucket : templates::all_buckets(op)) {
    const Sizes used = simulated_bucket(*GetParam(), fixed, bucket);
    for (const auto& [symbol, size] : used) EXPECT_LE(size, bucket[symbol]) << symbol;
    EXPECT_EQ(simulated_bucket(*GetParam(), fixed, used), used);
  }
  const Sizes smallest = templates::all_buckets(op).front();
  EXPECT_EQ(simulated_bucket(*GetParam(), fixed, smallest), smallest);
  if (op.buckets.empty()) return;
  EXPECT_NE(simulated_bucket(*GetParam(), fixed, largest_bucket(op)), largest_bucket(op));
}

INSTANTIATE_TEST_SUITE_P(All, SimulatedBucket, testing::ValuesIn(templates::kits()),
                         [](const auto& kit) { return kit.param->op->name; });

TEST(Prover, VerdictOfALargeBucketSaysWhereItWasExecuted) {
  const Kit& kit = *templates::kits().front();
  const Op& op = *kit.op;
  const auto store = cache::Store::open({.path = ":memory:"});
  Binaries binaries(*store);
  DeviceWorker worker({.executable = KILN_WORKER, .device = "sim:rtx-3090", .log = {}});
  const Gpu gpu = worker.info().gpu;
  worker.set_tools(binaries.tools(gpu.arch()));
  const Sizes fixed = op.model_shapes(2).front();
  PlanWork work{.op = &op, .fixed = fixed, .config = op.default_config(fixed)};
  for (const templates::KernelLaunch& launch : op.plan(fixed, work.config, gpu).kernels) {
    work.binaries.push_back(binaries.get(templates::kernel_source(op, launch), gpu.arch(),
                                         templates::compile_options(launch)));
    work.smem_bytes.push_back(launch.dynamic_smem_bytes);
  }
  const Sizes wanted = largest_bucket(op);
  const Sizes used = simulated_bucket(kit, fixed, wanted);
  Prover prover(worker, binaries);
  const RunVerdict large = prover.prove(work, wanted);
  EXPECT_EQ(large.outcome, Outcome::passed) << large.detail;
  EXPECT_NE(large.detail.find("executed at " + templates::bucket_key(op, used) + " in place of " +
                              templates::bucket_key(op, wanted)),
            std::string::npos)
      << large.detail;
  // Proven before, and where it is wanted.
  const RunVerdict small = prover.prove(work, used);
  EXPECT_EQ(small.outcome, Outcome::passed) << small.detail;
  EXPECT_EQ(small.detail.find("in place of"), std::string::npos) << small.detail;
}

}  // namespace
}  // namespace kiln::tuner
