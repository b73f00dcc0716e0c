// The simulator against a real GPU: single instructions on edge operands, and every op with its
// default and ten seeded configs on every case of its kit. Both devices run the same PTX. Skipped
// where there is no GPU. KILN_TEST_FULL=1 takes every config.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>

#include <fmt/format.h>

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

// KILN_WRITE_GOLDEN=FILE writes what the GPU gave, for tests/sim/golden.txt.
TEST_F(SimulatorAgainstGpu, InstructionsGiveTheSameBits) {
  std::ofstream golden;
  if (const char* path = std::getenv("KILN_WRITE_GOLDEN")) golden.open(path);
  const std::unique_ptr<Device> gpu = Device::open("cuda:0");
  const std::unique_ptr<Device> simulator = Device::open(kSimulated);
  int compared = 0;
  for (const runtime::sim::InstructionCase& one : runtime::sim::instruction_cases()) {
    const runtime::sim::InstructionInputs inputs = runtime::sim::instruction_inputs(one);
    const std::vector<uint64_t> real = run_instruction(*gpu, one, inputs);
    if (one.is_exact)
      golden << runtime::sim::instruction_digest(real) << " " << runtime::sim::instruction_name(one)
             << "\n";
    const std::vector<uint64_t> simulated = run_instruction(*simulator, one, inputs);
    size_t wrong = 0;
    for (size_t i = 0; i < real.size(); ++i) {
      if (agrees(one, real[i], simulated[i])) continue;
      if (++wrong > 1) continue;
      ADD_FAILURE() << runtime::sim::instruction_name(one) << " of " << std::hex << inputs.a[i]
                    << ", " << inputs.b[i] << ", " << inputs.c[i] << ": the GPU says " << real[i]
                    << ", the simulator " << simulated[i];
    }
    ++compared;
  }
  std::printf("%d instruction forms compared\n", compared);
}

// One form of mma.sync, with the registers of a lane.
struct Mma {
  std::string form;  // behind "mma.sync.aligned."
  int k = 0;
  int a = 0, b = 0, d = 0;  // registers
  enum class Element { bf16, f16, tf32, s8, u8 } element = Element::bf16;

  bool is_integer() const { return element == Element::s8 || element == Element::u8; }
};

const std::vector<Mma> kMmas = {
    {"m16n8k8.row.col.f32.bf16.bf16.f32", 8, 2, 1, 4, Mma::Element::bf16},
    {"m16n8k16.row.col.f32.bf16.bf16.f32", 16, 4, 2, 4, Mma::Element::bf16},
    {"m16n8k8.row.col.f32.f16.f16.f32", 8, 2, 1, 4, Mma::Element::f16},
    {"m16n8k16.row.col.f32.f16.f16.f32", 16, 4, 2, 4, Mma::Element::f16},
    {"m16n8k4.row.col.f32.tf32.tf32.f32", 4, 2, 1, 4, Mma::Element::tf32},
    {"m16n8k8.row.col.f32.tf32.tf32.f32", 8, 4, 2, 4, Mma::Element::tf32},
    {"m16n8k16.row.col.s32.s8.s8.s32", 16, 2, 1, 4, Mma::Element::s8},
    {"m16n8k32.row.col.s32.s8.s8.s32", 32, 4, 2, 4, Mma::Element::s8},
    {"m16n8k32.row.col.s32.u8.u8.s32", 32, 4, 2, 4, Mma::Element::u8},
    {"m16n8k32.row.col.satfinite.s32.s8.s8.s32", 32, 4, 2, 4, Mma::Element::s8},
};

// Each lane has its registers beside each other: A, then B, then C; D goes elsewhere.
std::string mma_ptx(const Mma& mma) {
  const char* const sum = mma.is_integer() ? "s32" : "f32";
  std::string text =
      ".version 7.8\n.target sm_80\n.address_size 64\n"
      ".visible .entry one(.param .align 8 .b8 p[16])\n{\n"
      "  .reg .b32 %t, %a<4>, %b<2>;\n  .reg .b64 %in, %out, %offset;\n";
  text += fmt::format("  .reg .{} %c<4>, %d<4>;\n", sum);
  text += "  ld.param.u64 %out, [p];\n  ld.param.u64 %in, [p+8];\n  mov.u32 %t, %tid.x;\n";
  text += fmt::format("  mul.wide.u32 %offset, %t, {};\n  add.s64 %in, %in, %offset;\n",
                      4 * (mma.a + mma.b + mma.d));
  text +=
      fmt::format("  mul.wide.u32 %offset, %t, {};\n  add.s64 %out, %out, %offset;\n", 4 * mma.d);
  int word = 0;
  const auto load = [&](const char* name, const char* type, int count) {
    for (int i = 0; i < count; ++i)
      text += fmt::format("  ld.global.{} %{}{}, [%in+{}];\n", type, name, i, 4 * word++);
  };
  load("a", "b32", mma.a);
  load("b", "b32", mma.b);
  load("c", sum, mma.d);
  const auto list = [](const char* name, int count) {
    std::string registers;
    for (int i = 0; i < count; ++i) registers += fmt::format("{}%{}{}", i > 0 ? ", " : "", name, i);
    return "{" + registers + "}";
  };
  text += fmt::format("  mma.sync.aligned.{} {}, {}, {}, {};\n", mma.form, list("d", mma.d),
                      list("a", mma.a), list("b", mma.b), list("c", mma.d));
  for (int i = 0; i < mma.d; ++i)
    text += fmt::format("  st.global.{} [%out+{}], %d{};\n", sum, 4 * i, i);
  return text + "  ret;\n}\n";
}

std::vector<uint32_t> run_mma(Device& device, const Mma& mma, const std::vector<uint32_t>& words) {
  jit::Binary binary;
  binary.kind = jit::BinaryKind::ptx;
  binary.arch = kIsa;
  binary.entry = "one";
  binary.image = mma_ptx(mma);
  const runtime::LoadedKernel kernel = device.load(binary, 32, 0);
  std::vector<uint32_t> result(static_cast<size_t>(32 * mma.d));
  const auto in_bytes = static_cast<int64_t>(words.size() * 4);
  const auto out_bytes = static_cast<int64_t>(result.size() * 4);
  runtime::DeviceBuffer in(device, in_bytes), out(device, out_bytes);
  device.copy_to_device(in.get(), words.data(), in_bytes);
  const uint64_t args[] = {out.get(), in.get()};
  const tuner::OwnStream stream(device);
  EXPECT_EQ(device.launch(kernel, {}, args, stream.get()).driver_error, 0) << mma.form;
  device.synchronize(stream.get());
  device.copy_to_host(result.data(), out.get(), out_bytes);
  return result;
}

uint32_t bits_of(Mma::Element element, float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  switch (element) {
    case Mma::Element::bf16:
      return bits >> 16;
    case Mma::Element::f16: {  // of a normal value in range, cut off
      const int exponent = static_cast<int>(bits >> 23 & 0xff) - 127 + 15;
      if (value == 0) return 0;
      return bits >> 31 << 15 | static_cast<uint32_t>(exponent) << 10 | (bits >> 13 & 0x3ff);
    }
    case Mma::Element::tf32:
      return bits & 0xffffe000;
    case Mma::Element::s8:
    case Mma::Element::u8:
      return static_cast<uint32_t>(static_cast<int>(value)) & 0xff;
  }
  return 0;
}

enum class Values { small_integers, any };

// All registers of a warp. Small integers have exact sums, in whatever order they are added.
std::vector<uint32_t> mma_words(const Mma& mma, Values values, uint64_t seed) {
  uint64_t index = 0;
  const auto value = [&] {
    const uint64_t bits = templates::counter_bits(seed, 0, index++);
    if (values == Values::small_integers || mma.is_integer()) {
      const int range = mma.is_integer() && values == Values::any ? 256 : 8;
      const int drawn = static_cast<int>(bits % static_cast<uint64_t>(range));
      return static_cast<float>(mma.element == Mma::Element::u8 ? drawn : drawn - range / 2);
    }
    const float size = std::ldexp(1.0F + static_cast<float>(bits % 4096) / 4096,
                                  static_cast<int>(bits >> 20 & 7) - 4);
    return (bits >> 32 & 1) != 0 ? -size : size;
  };
  const int bytes = mma.is_integer() ? 1 : mma.element == Mma::Element::tf32 ? 4 : 2;
  std::vector<uint32_t> words;
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < mma.a + mma.b; ++i) {
      uint32_t word = 0;
      for (int part = 0; part < 4 / bytes; ++part)
        word |= bits_of(mma.element, value()) << (8 * bytes * part);
      words.push_back(word);
    }
    for (int i = 0; i < mma.d; ++i) {
      const float sum = value();
      words.push_back(mma.is_integer() ? static_cast<uint32_t>(static_cast<int>(sum))
                                       : std::bit_cast<uint32_t>(sum));
    }
  }
  return words;
}

std::vector<uint32_t> without_signs(const Mma& mma, std::vector<uint32_t> words) {
  const int lane_words = mma.a + mma.b + mma.d;
  for (size_t i = 0; i < words.size(); ++i) {
    const bool is_half =
        static_cast<int>(i) % lane_words < mma.a + mma.b && mma.element != Mma::Element::tf32;
    words[i] &= is_half ? 0x7fff7fffU : 0x7fffffffU;
  }
  return words;
}

TEST_F(SimulatorAgainstGpu, TensorCoresPlaceElementsAlikeAndSumWithinTheBound) {
  const std::unique_ptr<Device> gpu = Device::open("cuda:0");
  const std::unique_ptr<Device> simulator = Device::open(kSimulated);
  for (const Mma& mma : kMmas) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      const std::vector<uint32_t> small = mma_words(mma, Values::small_integers, seed);
      EXPECT_EQ(run_mma(*gpu, mma, small), run_mma(*simulator, mma, small)) << mma.form;
      const std::vector<uint32_t> words = mma_words(mma, Values::any, seed);
      const std::vector<uint32_t> real = run_mma(*gpu, mma, words);
      const std::vector<uint32_t> simulated = run_mma(*simulator, mma, words);
      if (mma.is_integer()) {
        EXPECT_EQ(real, simulated) << mma.form;
        continue;
      }
      // |c| + sum|a*b|, of the same instruction without signs
      const std::vector<uint32_t> sizes = run_mma(*simulator, mma, without_signs(mma, words));
      for (size_t i = 0; i < real.size(); ++i) {
        const double bound = (mma.k + 2) * 0x1p-23 * std::bit_cast<float>(sizes[i]);
        EXPECT_NEAR(std::bit_cast<float>(real[i]), std::bit_cast<float>(simulated[i]), bound)
            << mma.form;
      }
    }
  }
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
    const tuner::BinaryPtr binary = binaries.get(source, kIsa, templates::compile_options(launch));
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
