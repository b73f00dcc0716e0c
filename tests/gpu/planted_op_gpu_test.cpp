// The tuner against planted candidates on a real GPU. Skipped where there is none.
#include <gtest/gtest.h>

#include "runtime/device.h"
#include "tests/gpu/planted_op.h"
#include "tuner/binaries.h"
#include "tuner/device_worker.h"
#include "tuner/tuner.h"

namespace kiln::tuner {
namespace {

constexpr double kKilledWithinS = 5;

std::string config_text(int64_t variant) { return fmt::format("{{\"variant\":{}}}", variant); }

class PlantedOp : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { testing::register_planted(); }
  void SetUp() override {
    const runtime::DeviceList list = runtime::list_devices();
    if (list.devices.empty()) GTEST_SKIP() << list.problem;
  }
  std::unique_ptr<cache::Store> store_ = cache::Store::open({.path = ":memory:"});
};

TEST_F(PlantedOp, FastOneWinsAndEachBadOneIsRejectedWithItsReason) {
  std::string log;
  TuneOptions options;
  options.device = "cuda:0";
  options.ops = {"planted"};
  options.worker = PLANTED_WORKER;
  options.log = [&](const std::string& line) { log += line + "\n"; };
  const TuneReport report = tune(*store_, options);
  ASSERT_EQ(report.problems.size(), 1u);
  const ProblemReport& row = report.problems[0];
  EXPECT_EQ(row.state_text(), "tuned") << log;
  EXPECT_EQ(row.winner, config_text(testing::kPlantedFast)) << log;
  EXPECT_EQ(row.kind, cache::DecisionKind::measured);
  EXPECT_LT(row.winner_ns, row.default_ns);
  EXPECT_EQ(row.rejected.at("wrong"), 1) << log;
  EXPECT_EQ(row.rejected.at("trap"), 1) << log;
  EXPECT_EQ(row.rejected.at("timeout"), 1) << log;
  EXPECT_EQ(report.worker_restarts, 2);
  for (const cache::Rejection& rejection :
       store_->rejections(row.problem, store_->list_decisions().at(0).decision.gpu_class)) {
    EXPECT_EQ(rejection.stage, "verify");
    EXPECT_FALSE(rejection.detail.empty());
  }
  fmt::print("{}{}\n", log, report.json().dump(1));
}

TEST_F(PlantedOp, EndlessOneIsKilledInTime) {
  DeviceWorker worker({.executable = PLANTED_WORKER, .device = "cuda:0", .log = {}});
  Binaries binaries(*store_);
  const std::string arch = worker.info().gpu.arch();
  worker.set_tools(binaries.tools(arch));
  const templates::Op& op = templates::require_op("planted");
  const templates::Kit& kit = templates::require_kit(op);
  const templates::Sizes shape{{"kind", 1}};
  const auto verify = [&](int64_t variant) {
    const templates::Config config{{"variant", variant}};
    const templates::KernelLaunch launch = op.plan(shape, config, worker.info().gpu).kernels[0];
    const PlanWork plan{.op = &op,
                        .fixed = shape,
                        .config = config,
                        .limits = {},
                        .binaries = {binaries.get(templates::kernel_source(op, launch), arch,
                                                  templates::compile_options(launch))},
                        .smem_bytes = {0}};
    const BinaryPtr oracle = binaries.oracle(kit, shape, arch);
    const double start_s = now_s();
    const RunVerdict verdict = worker.verify(plan, oracle, kit.verify_cases(shape, {}));
    return std::pair(verdict, now_s() - start_s);
  };
  EXPECT_EQ(verify(testing::kPlantedFast).first.outcome, Outcome::passed);
  const auto [verdict, seconds] = verify(testing::kPlantedSpin);
  EXPECT_EQ(verdict.outcome, Outcome::timeout) << verdict.detail;
  EXPECT_LT(seconds, kKilledWithinS);
  const auto [after, unused] = verify(testing::kPlantedFast);
  EXPECT_EQ(after.outcome, Outcome::passed) << after.detail;
  fmt::print("the endless candidate cost {:.2f} s\n", seconds);
}

}  // namespace
}  // namespace kiln::tuner
