// What the tests of all ops have in common, on a GPU and on the simulator.
#pragma once

#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "templates/kit.h"
#include "tuner/binaries.h"
#include "tuner/device_worker.h"
#include "tuner/tensors.h"

namespace kiln {

inline tuner::PlanWork plan_of(const templates::Op& op, const templates::Sizes& shape,
                               const templates::Config& config, const Gpu& gpu,
                               tuner::Binaries& binaries) {
  tuner::PlanWork plan{
      .op = &op, .fixed = shape, .config = config, .limits = {}, .binaries = {}, .smem_bytes = {}};
  for (const templates::KernelLaunch& launch : op.plan(shape, config, gpu).kernels) {
    plan.binaries.push_back(binaries.get(templates::kernel_source(op, launch), gpu.arch(),
                                         templates::compile_options(launch)));
    plan.smem_bytes.push_back(launch.dynamic_smem_bytes);
  }
  return plan;
}

// A device on which plans are proven, through the child process of the tuner.
struct ProvingDevice {
  explicit ProvingDevice(const std::string& id)
      : worker({.executable = KILN_WORKER, .device = id, .log = {}}) {
    worker.set_tools(binaries.tools(gpu.arch()));
  }
  tuner::RunVerdict verify(const templates::Kit& kit, const templates::Sizes& shape,
                           const templates::Config& config,
                           const std::vector<templates::Case>& cases) {
    return worker.verify(plan_of(*kit.op, shape, config, gpu, binaries),
                         binaries.oracle(kit, shape, gpu.arch()), cases);
  }

  const std::unique_ptr<cache::Store> store = cache::Store::open({.path = ":memory:"});
  tuner::Binaries binaries{*store};
  tuner::DeviceWorker worker;
  const Gpu gpu = worker.info().gpu;
};

// Calls over the sizes of ops.md B25 and the model's shapes at every tensor-parallel degree, so
// that every two of rows, degree and shape meet.

struct MatrixCall {
  templates::Sizes shape;
  templates::Case call;
};

inline std::vector<MatrixCall> matrix_calls(const templates::Kit& kit, int64_t most_rows) {
  constexpr int64_t kMostBytes = int64_t{1} << 30;
  constexpr int kDegrees[] = {1, 2, 4, 8};
  constexpr int64_t kRows[] = {1, 2, 3, 5, 6, 16, 17, 64, 96, 384, 4096, 8192};
  const templates::Op& op = *kit.op;
  std::vector<std::vector<templates::Sizes>> shapes;
  for (const int degree : kDegrees) shapes.push_back(op.model_shapes(degree));
  std::vector<MatrixCall> calls;
  const auto add = [&](size_t degree, size_t shape, const templates::Sizes& bucket) {
    const templates::Sizes& fixed = shapes[degree][shape];
    templates::Case call = kit.measured_case(fixed, bucket);
    int64_t bytes = 0;
    for (const tuner::TensorPlan& tensor : tuner::tensor_plans(op, call)) bytes += tensor.bytes();
    if (bytes <= kMostBytes) calls.push_back({fixed, std::move(call)});
  };
  for (size_t row = 0; row < std::size(kRows) && kRows[row] <= most_rows; ++row) {
    templates::Sizes bucket = templates::all_buckets(op)[row % templates::all_buckets(op).size()];
    if (!op.buckets.empty()) bucket.set(op.buckets.front().symbol, kRows[row]);
    // A degree for each shape, another one at other rows; all of them where shapes are few.
    const size_t turns = shapes.front().size() < std::size(kDegrees) ? std::size(kDegrees) : 1;
    for (size_t turn = 0; turn < turns; ++turn) {
      for (size_t shape = 0; shape < shapes.front().size(); ++shape)
        add((row + shape + turn) % std::size(kDegrees), shape, bucket);
    }
    if (op.buckets.empty()) break;
  }
  return calls;
}

}  // namespace kiln
