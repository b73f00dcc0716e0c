// The real kiln-worker over the fake CUDA driver, which runs no kernel: opening, faults of the
// driver, and that a device on which kernels do nothing proves nothing.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/fake_cuda/fake_cubin.h"
#include "tests/tuner/toy_op.h"
#include "tuner/binaries.h"
#include "tuner/device_tools.h"
#include "tuner/device_worker.h"
#include "tuner/tuner.h"

namespace kiln::tuner {
namespace {

// A workload of one shape and one bucket of the op.
std::string one_problem(const templates::Op& op) {
  Json sizes = Json::object();
  const Json bucket = templates::dynamic_json(op, templates::all_buckets(op).front());
  for (const auto& [field, edge] : bucket.items()) sizes[field] = {edge, edge};
  const Json shape = templates::shape_json(op, op.model_shapes(2).front());
  const Json entry = {{"op", op.name}, {"shape", shape}, {"sizes", sizes}};
  return Json{{"ops", Json::array({entry})}}.dump();
}

class FakeDriver : public ::testing::Test {
 protected:
  void SetUp() override { setenv("KILN_LIBCUDA", KILN_FAKE_LIBCUDA, 1); }
  void TearDown() override {
    unsetenv("KILN_LIBCUDA");
    unsetenv("KILN_FAKE_CUDA_FAIL");
    unsetenv("KILN_FAKE_CUDA_DEVICES");
    unsetenv("KILN_FAKE_CUDA_DRIVER");
  }
  static std::unique_ptr<DeviceWorker> open(const std::string& device) {
    return std::make_unique<DeviceWorker>(
        WorkerOptions{.executable = KILN_WORKER, .device = device, .log = {}});
  }
  static BinaryPtr binary(const std::string& entry) {
    auto made = std::make_shared<jit::Binary>();
    made->key = hash_text(entry);
    made->arch = "sm_80";
    made->entry = entry;
    made->image = fake::make_cubin(80, {{.name = entry, .param_bytes = 8}});
    return made;
  }
  static std::map<std::string, BinaryPtr> tools() {
    std::map<std::string, BinaryPtr> all;
    for (const auto& [file, entry] : tool_kernels()) all[entry] = binary(entry);
    return all;
  }
};

TEST_F(FakeDriver, DevicesAreDescribedThroughTheChild) {
  EXPECT_EQ(open("cuda:0")->info().match, "a100-sxm4-80gb");
  EXPECT_EQ(open("cuda:1")->info().match, "rtx-3090");
}

TEST_F(FakeDriver, CudaVersionOfTheDriverComesThroughTheChild) {
  EXPECT_EQ(open("cuda:0")->info().cuda_major, 12);
  setenv("KILN_FAKE_CUDA_DRIVER", "98020", 1);
  EXPECT_EQ(open("cuda:0")->info().cuda_major, 98);
}

// No NVRTC that Kiln can use is that old.
TEST_F(FakeDriver, OnlyTheDriverOfTheDeviceInUseLimitsTheCompiler) {
  setenv("KILN_FAKE_CUDA_DRIVER", "10020", 1);
  const auto store = cache::Store::open({.path = ":memory:"});
  TuneOptions options;
  options.worker = KILN_WORKER;
  options.device = "cuda:0";
  try {
    tune(*store, options);
    FAIL() << "the tuner's own kernels were compiled for a driver of CUDA 10";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::no_compiler) << error.what();
    EXPECT_NE(std::string(error.what()).find("a driver of CUDA 10 "), std::string::npos)
        << error.what();
  }
  try {
    jit::Compiler::load();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  options.device.clear();
  options.gpus = {"rtx-3090"};
  options.workload = one_problem(*templates::ops().front());
  options.shortlist = 1;
  EXPECT_NO_THROW(tune(*store, options));
  EXPECT_GT(store->info().binaries, 0);
}

TEST_F(FakeDriver, MissingDeviceIsTheSameErrorAsWithoutAChild) {
  setenv("KILN_FAKE_CUDA_DEVICES", "1", 1);
  try {
    open("cuda:1");
    FAIL() << "a device that is not there was opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::not_found);
  }
}

TEST_F(FakeDriver, DriverThatFailsToStartIsToldWithItsWords) {
  setenv("KILN_FAKE_CUDA_FAIL", "cuInit:999", 1);
  EXPECT_THROW(open("cuda:0"), Error);
}

TEST_F(FakeDriver, KernelsThatDoNothingProveNothing) {
  const auto worker = open("cuda:0");
  worker->set_tools(tools());
  const templates::Op& op = *templates::ops()[0];
  const templates::Kit& kit = templates::require_kit(op);
  const templates::Sizes shape = op.model_shapes(2).front();
  const templates::Sizes bucket = templates::all_buckets(op).front();
  const templates::Config config = op.default_config(shape);
  PlanWork plan{
      .op = &op, .fixed = shape, .config = config, .limits = {}, .binaries = {}, .smem_bytes = {}};
  for (const templates::KernelLaunch& launch : op.plan(shape, config, worker->info().gpu).kernels) {
    plan.binaries.push_back(binary(launch.entry));
    plan.smem_bytes.push_back(launch.dynamic_smem_bytes);
  }
  const RunVerdict verdict =
      worker->verify(plan, binary(kit.oracle(shape).entry), kit.verify_cases(shape, bucket));
  EXPECT_EQ(verdict.outcome, Outcome::harness);
  EXPECT_NE(verdict.detail.find("do not run"), std::string::npos) << verdict.detail;
}

}  // namespace
}  // namespace kiln::tuner
