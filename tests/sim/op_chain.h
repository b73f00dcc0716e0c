// Several ops one after another on one simulated GPU, over the same memory.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "templates/kit.h"
#include "tuner/binaries.h"
#include "tuner/tensors.h"

namespace kiln {

class OpChain : public testing::Test {
 protected:
  using Pointers = std::map<std::string, runtime::DevicePtr>;

  runtime::DevicePtr allocate(int64_t bytes) {
    constexpr uint8_t kPoison = 0xab;
    buffers_.push_back(
        std::make_unique<runtime::DeviceBuffer>(*device_, std::max<int64_t>(bytes, 16)));
    device_->fill(buffers_.back()->get(), kPoison, buffers_.back()->bytes(), nullptr);
    device_->synchronize(nullptr);
    return buffers_.back()->get();
  }

  // Every tensor of a case: inputs as its kit fills them, outputs poisoned.
  Pointers tensors_of(const templates::Kit& kit, const templates::Case& c) {
    Pointers pointers;
    for (const tuner::TensorPlan& tensor : tuner::tensor_plans(*kit.op, c)) {
      const runtime::DevicePtr memory = pointers[tensor.arg->name] = allocate(tensor.bytes());
      if (tensor.arg->kind == templates::ArgKind::output || tensor.bytes() == 0) continue;
      const std::vector<std::byte> contents = tuner::host_contents(kit, c, tensor);
      device_->copy_to_device(memory, contents.data(), static_cast<int64_t>(contents.size()));
    }
    return pointers;
  }

  // Sizes, strides and absent arguments are those of the case; what it would fill does not matter.
  void call(const std::string& name, const templates::Case& c, const Pointers& pointers,
            const templates::Config& changes = {}) {
    const templates::Op& op = templates::require_op(name);
    const Gpu& gpu = device_->info().gpu;
    const templates::Config config = op.default_config(c.sizes).merged(changes);
    const templates::LaunchPlan launches = op.plan(c.sizes, config, gpu);
    tuner::RunnablePlan runnable{.kernels = {}, .workspace_bytes = launches.workspace_bytes};
    for (const templates::KernelLaunch& launch : launches.kernels) {
      const tuner::BinaryPtr binary = binaries_.get(templates::kernel_source(op, launch),
                                                    gpu.arch(), templates::compile_options(launch));
      const runtime::LoadedKernel kernel =
          device_->load(*binary, launch.threads, launch.dynamic_smem_bytes);
      runnable.kernels.push_back(
          {launch.entry, kernel, launch.grid_x, launch.grid_y, launch.grid_z});
    }
    const templates::Sizes symbols = tuner::extent_symbols(op, c);
    tuner::Workspace workspace;
    if (const int64_t bytes = runnable.workspace_bytes.value(symbols); bytes > 0)
      workspace = {allocate(bytes), bytes};
    const std::vector<uint64_t> args =
        tuner::pack_arguments(op, c, tuner::tensor_plans(op, c), pointers, workspace);
    EXPECT_EQ(tuner::launch_plan(*device_, runnable, symbols, args.data(), nullptr), "");
    device_->synchronize(nullptr);
  }

  void write(runtime::DevicePtr to, std::span<const std::byte> from) {
    device_->copy_to_device(to, from.data(), static_cast<int64_t>(from.size()));
  }

  std::vector<std::byte> bytes(runtime::DevicePtr from, int64_t count) {
    std::vector<std::byte> result(static_cast<size_t>(count));
    device_->copy_to_host(result.data(), from, count);
    return result;
  }
  template <typename Element>
  std::vector<Element> elements(runtime::DevicePtr from, int64_t count) {
    std::vector<Element> result(static_cast<size_t>(count));
    device_->copy_to_host(result.data(), from, count * static_cast<int64_t>(sizeof(Element)));
    return result;
  }

 private:
  const std::unique_ptr<cache::Store> store_ = cache::Store::open({.path = ":memory:"});
  tuner::Binaries binaries_{*store_};
  const std::unique_ptr<runtime::Device> device_ = runtime::Device::open("sim:a100-sxm4-80gb");
  std::vector<std::unique_ptr<runtime::DeviceBuffer>> buffers_;
};

}  // namespace kiln
