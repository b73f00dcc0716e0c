// The simulator against a real GPU: single instructions on edge operands, and every op with its
// default and ten seeded configs on every case of its kit. Both devices run the same PTX. Skipped
// where there is no GPU. KILN_TEST_FULL=1 takes every config.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <set>

#include "runtime/device.h"
#include "templates/kit.h"
#include "tests/sim/instructions.h"
#include "tuner/binaries.h"
#include "tuner/trial.h"

namespace kiln {
namespace {

using runtime::Device;
using templates::Case;
using templates::Config;
using templates::Kit;
using templates::Op;
using templates::Sizes;

constexpr const char* kSimulated = "sim:a100-sxm4-80gb";
constexpr const char* kIsa = "compute_80";

class SimulatorAgainstGpu : public testing::Test {
 protected:
  void SetUp() override {
    const runtime::DeviceList list = runtime::list_devices();
    if (list.devices.empty()) GTEST_SKIP() << list.problem;
  }
};

double distance_in_ulps(uint64_t one, uint64_t other) {
  const auto value = [](uint64_t bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits));
  };
  if (std::isnan(value(one)) && std::isnan(value(other))) return 0;
  const auto place = [](uint64_t bits) {
    const auto word = static_cast<int64_t>(static_cast<int32_t>(bits));
    return word < 0 ? int64_t{INT32_MIN} - word : word;
  };
  return std::abs(static_cast<double>(place(one) - place(other)));
}

bool agrees(const runtime::sim::InstructionCase& one, uint64_t gpu, uint64_t simulated) {
  if (one.is_exact || gpu == simulated) return gpu == simulated;
  if (distance_in_ulps(gpu, simulated) <= one.ulps) return true;
  const auto value = [](uint64_t bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits));
  };
  return std::abs(value(gpu) - value(simulated)) <= one.absolute;
}

TEST_F(SimulatorAgainstGpu, InstructionsGiveTheSameBits) {
  const std::unique_ptr<Device> gpu = Device::open("cuda:0");
  const std::unique_ptr<Device> simulator = Device::open(kSimulated);
  int compared = 0;
  for (const runtime::sim::InstructionCase& one : runtime::sim::instruction_cases()) {
    const runtime::sim::InstructionInputs inputs = runtime::sim::instruction_inputs(one);
    const std::vector<uint64_t> real = run_instruction(*gpu, one, inputs);
    const std::vector<uint64_t> simulated = run_instruction(*simulator, one, inputs);
    size_t wrong = 0;
    for (size_t i = 0; i < real.size(); ++i) {
      if (agrees(one, real[i], simulated[i])) continue;
      if (++wrong > 1) continue;
      ADD_FAILURE() << one.text << " [" << one.types << "] of " << std::hex << inputs.a[i] << ", "
                    << inputs.b[i] << ", " << inputs.c[i] << ": the GPU says " << real[i]
                    << ", the simulator " << simulated[i];
    }
    ++compared;
  }
  std::printf("%d instruction forms compared\n", compared);
}

// One device with the tuner's tools, and what runs a config on it.
struct Bench {
  explicit Bench(const std::string& id, tuner::Binaries& binaries) : device(Device::open(id)) {
    std::map<std::string, jit::Binary> tools;
    for (const auto& [entry, binary] : binaries.tools(device->info().gpu.arch()))
      tools[entry] = *binary;
    tools_.emplace(*device, tools, int64_t{4} << 30);
  }

  tuner::RunnablePlan plan(tuner::Binaries& binaries, const Op& op, const Sizes& shape,
                           const Config& config, const Gpu& gpu) const {
    tuner::RunnablePlan runnable;
    for (const templates::KernelLaunch& launch : op.plan(shape, config, gpu).kernels) {
      runnable.kernels.push_back(kernel(binaries, templates::kernel_source(op, launch), launch,
                                        {&op, shape, templates::config_json(config).dump()}));
    }
    return runnable;
  }
  tuner::RunnablePlan oracle(tuner::Binaries& binaries, const Kit& kit, const Sizes& shape) const {
    const templates::KernelLaunch launch = kit.oracle(shape);
    const tuner::BinaryPtr binary = binaries.oracle(kit, shape, kIsa);
    const runtime::LoadedKernel loaded =
        device->load(*binary, launch.threads, launch.dynamic_smem_bytes);
    device->describe(loaded, {kit.op, shape, "the oracle"});
    tuner::RunnablePlan runnable;
    runnable.kernels.push_back({launch.entry, loaded, launch.grid_x, launch.grid_y, launch.grid_z});
    return runnable;
  }

  std::unique_ptr<Device> device;
  tuner::DeviceTools& tools() { return *tools_; }

 private:
  tuner::RunnableKernel kernel(tuner::Binaries& binaries, const jit::KernelSource& source,
                               const templates::KernelLaunch& launch,
                               const runtime::KernelSubject& subject) const {
    const tuner::BinaryPtr binary =
        binaries.get(source, kIsa, templates::compile_options(launch));
    const runtime::LoadedKernel loaded =
        device->load(*binary, launch.threads, launch.dynamic_smem_bytes);
    device->describe(loaded, subject);
    return {launch.entry, loaded, launch.grid_x, launch.grid_y, launch.grid_z};
  }

  std::optional<tuner::DeviceTools> tools_;
};

std::vector<Config> chosen_configs(const Op& op, const Sizes& shape, const Gpu& gpu) {
  constexpr uint64_t kSeed = 20261130;
  constexpr size_t kSeeded = 10;
  const std::vector<Config> all = templates::enumerate(op, shape, gpu).configs;
  if (std::getenv("KILN_TEST_FULL") != nullptr) return all;
  std::set<size_t> chosen{0};
  for (uint64_t draw = 0; chosen.size() < std::min(kSeeded + 1, all.size()); ++draw)
    chosen.insert(templates::counter_bits(kSeed, 0, draw) % all.size());
  std::vector<Config> configs;
  for (const size_t index : chosen) configs.push_back(all[index]);
  return configs;
}

TEST_F(SimulatorAgainstGpu, OpsGiveTheSameBits) {
  const auto store = cache::Store::open({.path = ":memory:"});
  tuner::Binaries binaries(*store);
  Bench real("cuda:0", binaries);
  Bench simulated(kSimulated, binaries);
  const Gpu gpu = simulated.device->info().gpu;
  for (const Kit* kit : templates::kits()) {
    const Op& op = *kit->op;
    int runs = 0;
    for (const Sizes& shape : op.model_shapes(2)) {
      const std::vector<Config> configs = chosen_configs(op, shape, gpu);
      const Sizes bucket = templates::all_buckets(op).front();
      for (const Case& call : kit->verify_cases(shape, bucket)) {
        const auto prepare = [&](Bench& bench) {
          auto prepared = std::make_unique<tuner::PreparedCase>(
              bench.tools(), *kit, call, tuner::PreparedCase::Alignment::natural);
          prepared->prove_oracle(bench.oracle(binaries, *kit, shape));
          return prepared;
        };
        const auto on_gpu = prepare(real);
        const auto on_simulator = prepare(simulated);
        for (const Config& config : configs) {
          const std::string what = op.name + " " + templates::shape_json(op, shape).dump() + " " +
                                   templates::config_json(config).dump() + ", " + call.name;
          const auto check = [&](Bench& bench, tuner::PreparedCase& prepared) {
            const tuner::RunVerdict verdict =
                prepared.check(bench.plan(binaries, op, shape, config, gpu));
            ASSERT_EQ(verdict.outcome, tuner::Outcome::passed) << what << ": " << verdict.detail;
          };
          check(real, *on_gpu);
          check(simulated, *on_simulator);
          if (HasFatalFailure()) return;
          EXPECT_TRUE(on_gpu->outputs() == on_simulator->outputs()) << what;
          ++runs;
        }
      }
    }
    std::printf("%s: %d calls compared\n", op.name.c_str(), runs);
  }
}

}  // namespace
}  // namespace kiln
