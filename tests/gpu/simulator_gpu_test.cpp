// The simulator against a real GPU: single instructions on edge operands, small programs, mma.sync,
// and every op with its default and ten seeded configs on every case of its kit, and with its
// default in every bucket for which there is time. Both devices run the same PTX. Skipped where
// there is no GPU. KILN_TEST_FULL=1 takes every config and every bucket.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <set>

#include <fmt/format.h>

#include "runtime/device.h"
#include "templates/kit.h"
#include "tests/sim/instructions.h"
#include "tests/sim/programs.h"
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

// KILN_WRITE_GOLDEN=FILE puts what the GPU gave into FILE, for tests/sim/golden.txt: lines with a
// digest and a name. A line with another name stays where it is.
class GoldenFile {
 public:
  GoldenFile() {
    if (const char* const path = std::getenv("KILN_WRITE_GOLDEN")) path_ = path;
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) {
      const size_t space = line.find(' ');
      put(line.substr(0, space), line.substr(space + 1));
    }
  }
  void put(const std::string& digest, const std::string& name) {
    if (!digests_.contains(name)) names_.push_back(name);
    digests_[name] = digest;
  }
  void write() const {
    if (path_.empty()) return;
    std::ofstream file(path_);
    for (const std::string& name : names_) file << digests_.at(name) << " " << name << "\n";
  }

 private:
  std::string path_;
  std::vector<std::string> names_;  // in the order of the file
  std::map<std::string, std::string> digests_;
};

TEST_F(SimulatorAgainstGpu, InstructionsGiveTheSameBits) {
  GoldenFile golden;
  const std::unique_ptr<Device> gpu = Device::open("cuda:0");
  const std::unique_ptr<Device> simulator = Device::open(kSimulated);
  int compared = 0;
  for (const runtime::sim::InstructionCase& one : runtime::sim::instruction_cases()) {
    const runtime::sim::InstructionInputs inputs = runtime::sim::instruction_inputs(one);
    const std::vector<uint64_t> real = run_instruction(*gpu, one, inputs);
    if (one.is_exact)
      golden.put(runtime::sim::instruction_digest(real), runtime::sim::instruction_name(one));
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
  golden.write();
  std::printf("%d instruction forms compared\n", compared);
}

TEST_F(SimulatorAgainstGpu, ProgramsLeaveTheSameBytes) {
  using runtime::sim::ProgramChecks;
  GoldenFile golden;
  const std::unique_ptr<Device> gpu = Device::open("cuda:0");
  int compared = 0;
  for (const runtime::sim::PtxProgram& program : runtime::sim::ptx_programs()) {
    const std::vector<std::byte> real = run_program(*gpu, program, ProgramChecks::off);
    golden.put(runtime::sim::program_digest(real), program_golden_name(program));
    ++compared;
    try {
      const std::unique_ptr<Device> simulator = Device::open(kSimulated);
      const std::vector<std::byte> simulated = run_program(*simulator, program, ProgramChecks::on);
      const auto [at, other] = std::mismatch(real.begin(), real.end(), simulated.begin());
      if (at == real.end()) continue;
      int different = 0;
      for (size_t i = 0; i < real.size(); ++i) different += real[i] != simulated[i];
      const auto offset = static_cast<size_t>(at - real.begin());
      const auto word = [&](const std::vector<std::byte>& bytes) {
        uint64_t value = 0;
        std::memcpy(&value, bytes.data() + offset / 8 * 8, sizeof value);
        return value;
      };
      ADD_FAILURE() << program.name << ": " << different << " bytes differ, the first is "
                    << program_place(program, offset) << std::hex << "; of the 8 bytes around the "
                    << "GPU left " << word(real) << ", the simulator " << word(simulated);
    } catch (const Error& error) {
      ADD_FAILURE() << program.name << ": " << error.what();
    }
  }
  golden.write();
  std::printf("%d programs compared\n", compared);
}

enum class Element { bf16, f16, tf32, f64, s8, u8, s4, u4, b1 };
enum class Sum { f32, f16, f64, s32 };

int bits_of(Element element) {
  switch (element) {
    case Element::b1:
      return 1;
    case Element::s4:
    case Element::u4:
      return 4;
    case Element::s8:
    case Element::u8:
      return 8;
    case Element::bf16:
    case Element::f16:
      return 16;
    case Element::tf32:
      return 32;
    case Element::f64:
      return 64;
  }
  return 0;
}
std::string name_of(Element element) {
  constexpr const char* kNames[] = {"bf16", "f16", "tf32", "f64", "s8", "u8", "s4", "u4", "b1"};
  return kNames[static_cast<size_t>(element)];
}
std::string name_of(Sum sum) {
  constexpr const char* kNames[] = {"f32", "f16", "f64", "s32"};
  return kNames[static_cast<size_t>(sum)];
}

// One form of mma.sync.
struct Mma {
  int m = 16, k = 0;
  Element a = Element::bf16, b = Element::bf16;
  Sum d = Sum::f32, c = Sum::f32;
  std::string suffix{};   // ".xor.popc"
  std::string options{};  // ".satfinite", behind the layouts

  // Behind "mma.sync.aligned.".
  std::string form() const {
    return fmt::format("m{}n8k{}.row.col{}.{}.{}.{}.{}{}", m, k, options, name_of(d), name_of(a),
                       name_of(b), name_of(c), suffix);
  }
  bool is_integer() const { return d == Sum::s32; }
  bool is_double() const { return d == Sum::f64; }
  // 32-bit words that a lane has of a matrix.
  int words_of_a() const { return m * k * bits_of(a) / (32 * 32); }
  int words_of_b() const { return 8 * k * bits_of(b) / (32 * 32); }
  int words_of(Sum sum) const {
    return m * 8 * (sum == Sum::f64 ? 64 : sum == Sum::f16 ? 16 : 32) / (32 * 32);
  }
  int words_in() const { return words_of_a() + words_of_b() + words_of(c); }
};

std::vector<Mma> all_mmas() {
  std::vector<Mma> all;
  const auto floats = [&](Element element, int k, Sum sum) {
    all.push_back({.k = k, .a = element, .b = element, .d = sum, .c = sum});
  };
  for (const int k : {8, 16}) {
    floats(Element::bf16, k, Sum::f32);
    floats(Element::f16, k, Sum::f32);
    floats(Element::f16, k, Sum::f16);
  }
  for (const int k : {4, 8}) floats(Element::tf32, k, Sum::f32);
  struct Shape {
    int m, k;
  };
  const auto integers = [&](Shape shape, Element a, Element b) {
    for (const char* options : {"", ".satfinite"}) {
      all.push_back({.m = shape.m,
                     .k = shape.k,
                     .a = a,
                     .b = b,
                     .d = Sum::s32,
                     .c = Sum::s32,
                     .options = options});
    }
  };
  for (const Shape shape : {Shape{8, 16}, Shape{16, 16}, Shape{16, 32}}) {
    for (const Element a : {Element::s8, Element::u8}) {
      for (const Element b : {Element::s8, Element::u8}) integers(shape, a, b);
    }
  }
  for (const Shape shape : {Shape{8, 32}, Shape{16, 32}, Shape{16, 64}}) {
    for (const Element a : {Element::s4, Element::u4}) {
      for (const Element b : {Element::s4, Element::u4}) integers(shape, a, b);
    }
  }
  for (const Shape shape : {Shape{8, 128}, Shape{16, 128}, Shape{16, 256}}) {
    for (const char* suffix : {".xor.popc", ".and.popc"}) {
      all.push_back({.m = shape.m,
                     .k = shape.k,
                     .a = Element::b1,
                     .b = Element::b1,
                     .d = Sum::s32,
                     .c = Sum::s32,
                     .suffix = suffix});
    }
  }
  all.push_back(
      {.m = 8, .k = 4, .a = Element::f64, .b = Element::f64, .d = Sum::f64, .c = Sum::f64});
  return all;
}

// Each lane has its words beside each other: A, then B, then C; D goes elsewhere.
std::string mma_ptx(const Mma& mma) {
  const bool is_double = mma.is_double();
  const int word_bytes = is_double ? 8 : 4;  // of a register
  const auto type_of = [](Sum sum) { return sum == Sum::f16 ? "b32" : name_of(sum); };
  const std::string ab_type = is_double ? "f64" : "b32";
  std::string text =
      ".version 7.8\n.target sm_80\n.address_size 64\n"
      ".visible .entry one(.param .align 8 .b8 p[16])\n{\n"
      "  .reg .b32 %t;\n  .reg .b64 %in, %out, %offset;\n";
  text += fmt::format("  .reg .{0} %a<4>, %b<2>;\n  .reg .{1} %c<4>;\n  .reg .{2} %d<4>;\n",
                      ab_type, type_of(mma.c), type_of(mma.d));
  text += "  ld.param.u64 %out, [p];\n  ld.param.u64 %in, [p+8];\n  mov.u32 %t, %tid.x;\n";
  text += fmt::format("  mul.wide.u32 %offset, %t, {};\n  add.s64 %in, %in, %offset;\n",
                      4 * mma.words_in());
  text += fmt::format("  mul.wide.u32 %offset, %t, {};\n  add.s64 %out, %out, %offset;\n",
                      4 * mma.words_of(mma.d));
  int at = 0;
  const auto load = [&](const char* name, const std::string& type, int words) {
    std::string list;
    for (int i = 0; i < 4 * words / word_bytes; ++i) {
      text += fmt::format("  ld.global.{} %{}{}, [%in+{}];\n", type, name, i, at);
      list += fmt::format("{}%{}{}", i > 0 ? ", " : "", name, i);
      at += word_bytes;
    }
    return "{" + list + "}";
  };
  const std::string a = load("a", ab_type, mma.words_of_a());
  const std::string b = load("b", ab_type, mma.words_of_b());
  const std::string c = load("c", type_of(mma.c), mma.words_of(mma.c));
  std::string d, stores;
  for (int i = 0; i < 4 * mma.words_of(mma.d) / word_bytes; ++i) {
    d += fmt::format("{}%d{}", i > 0 ? ", " : "", i);
    stores += fmt::format("  st.global.{} [%out+{}], %d{};\n", type_of(mma.d), word_bytes * i, i);
  }
  text += fmt::format("  mma.sync.aligned.{} {{{}}}, {}, {}, {};\n", mma.form(), d, a, b, c);
  return text + stores + "  ret;\n}\n";
}

class MmaKernel {
 public:
  MmaKernel(Device& device, const Mma& mma) : device_(device), mma_(mma) {
    jit::Binary binary;
    binary.kind = jit::BinaryKind::ptx;
    binary.arch = kIsa;
    binary.entry = "one";
    binary.image = mma_ptx(mma);
    kernel_ = device.load(binary, 32, 0);
  }
  // From the words of a warp to those of D.
  std::vector<uint32_t> run(const std::vector<uint32_t>& words) const {
    std::vector<uint32_t> result(static_cast<size_t>(32 * mma_.words_of(mma_.d)));
    const auto in_bytes = static_cast<int64_t>(words.size() * 4);
    const auto out_bytes = static_cast<int64_t>(result.size() * 4);
    runtime::DeviceBuffer in(device_, in_bytes), out(device_, out_bytes);
    device_.copy_to_device(in.get(), words.data(), in_bytes);
    const uint64_t args[] = {out.get(), in.get()};
    const tuner::OwnStream stream(device_);
    EXPECT_EQ(device_.launch(kernel_, {}, args, stream.get()).driver_error, 0) << mma_.form();
    device_.synchronize(stream.get());
    device_.copy_to_host(result.data(), out.get(), out_bytes);
    return result;
  }

 private:
  Device& device_;
  const Mma& mma_;
  runtime::LoadedKernel kernel_;
};

// Of zero or a normal value in range, cut off.
uint64_t half_bits(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value == 0) return 0;
  const int exponent = static_cast<int>(bits >> 23 & 0xff) - 127 + 15;
  return bits >> 31 << 15 | static_cast<uint32_t>(exponent) << 10 | (bits >> 13 & 0x3ff);
}
double half_value(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31);
  const auto mantissa = static_cast<double>(bits & 1023);
  const double size =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits >> 15 & 1) != 0 ? -size : size;
}

uint64_t element_bits(Element element, double value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  const int width = bits_of(element);
  switch (element) {
    case Element::bf16:
      return bits >> 16;
    case Element::f16:
      return half_bits(static_cast<float>(value));
    case Element::tf32:
      return bits & 0xffffe000;
    case Element::f64:
      return std::bit_cast<uint64_t>(value);
    default:
      return static_cast<uint64_t>(static_cast<int64_t>(value)) & ((uint64_t{1} << width) - 1);
  }
}
uint64_t sum_bits(Sum sum, double value) {
  switch (sum) {
    case Sum::f32:
      return std::bit_cast<uint32_t>(static_cast<float>(value));
    case Sum::f16:
      return half_bits(static_cast<float>(value));
    case Sum::f64:
      return std::bit_cast<uint64_t>(value);
    case Sum::s32:
      return static_cast<uint32_t>(static_cast<int32_t>(value));
  }
  return 0;
}

enum class Values { small_integers, any };
enum class Signs { as_drawn, none };

// All words of a warp. Small integers have exact sums, in whatever order they are added. What is
// drawn does not depend on `signs`.
std::vector<uint32_t> mma_words(const Mma& mma, Values values, Signs signs, uint64_t seed) {
  uint64_t index = 0;
  const auto draw = [&] { return templates::counter_bits(seed, 0, index++); };
  const auto signed_value = [&](double value) {
    return signs == Signs::none ? std::abs(value) : value;
  };
  const auto real = [&](uint64_t bits) {
    if (values == Values::small_integers) return static_cast<double>(bits % 8) - 4;
    const double fraction = mma.is_double() ? std::ldexp(static_cast<double>(bits >> 12), -52)
                                            : static_cast<double>(bits % 4096) / 4096;
    const double size = std::ldexp(1 + fraction, static_cast<int>(bits >> 20 & 7) - 4);
    return (bits >> 32 & 1) != 0 ? -size : size;
  };
  const auto element = [&](Element kind) -> uint64_t {
    const uint64_t bits = draw();
    if (!mma.is_integer()) return element_bits(kind, signed_value(real(bits)));
    const int width = bits_of(kind);
    if (values == Values::any || width < 4) return bits >> 20 & ((uint64_t{1} << width) - 1);
    const bool is_unsigned = kind == Element::u8 || kind == Element::u4;
    return element_bits(kind, static_cast<double>(bits % 8) - (is_unsigned ? 0 : 4));
  };
  const auto sum = [&](Sum kind) -> uint64_t {
    const uint64_t bits = draw();
    if (kind != Sum::s32) return sum_bits(kind, signed_value(real(bits)));
    if (values == Values::small_integers) return sum_bits(kind, static_cast<double>(bits % 8) - 4);
    // Near the ends, where a sum goes over and .satfinite shows.
    const auto near = static_cast<uint32_t>(bits >> 32 & 0xfff);
    return (bits & 3) == 0   ? uint64_t{0x7fffffff} - near
           : (bits & 3) == 1 ? uint64_t{0x80000000} + near
                             : bits >> 32;
  };
  std::vector<uint32_t> words;
  const auto append = [&](int count, int width, const auto& next) {
    for (int i = 0; i < count; i += std::max(width / 32, 1)) {
      uint64_t word = 0;
      for (int part = 0; part < std::max(32 / width, 1); ++part) word |= next() << (width * part);
      words.push_back(static_cast<uint32_t>(word));
      if (width == 64) words.push_back(static_cast<uint32_t>(word >> 32));
    }
  };
  const int sum_width = mma.c == Sum::f64 ? 64 : mma.c == Sum::f16 ? 16 : 32;
  for (int lane = 0; lane < 32; ++lane) {
    append(mma.words_of_a(), bits_of(mma.a), [&] { return element(mma.a); });
    append(mma.words_of_b(), bits_of(mma.b), [&] { return element(mma.b); });
    append(mma.words_of(mma.c), sum_width, [&] { return sum(mma.c); });
  }
  return words;
}

std::vector<double> sums_of(Sum sum, const std::vector<uint32_t>& words) {
  std::vector<double> sums;
  for (size_t i = 0; i < words.size(); ++i) {
    if (sum == Sum::f32) sums.push_back(std::bit_cast<float>(words[i]));
    if (sum == Sum::f16) {
      sums.push_back(half_value(words[i] & 0xffff));
      sums.push_back(half_value(words[i] >> 16));
    }
    if (sum == Sum::f64 && i % 2 == 0)
      sums.push_back(std::bit_cast<double>(words[i] | uint64_t{words[i + 1]} << 32));
  }
  return sums;
}

// How far two sums of k products and a summand may be apart whose sizes add up to `size`.
double mma_bound(const Mma& mma, double size, double sum) {
  const double bound = (mma.k + 2) * (mma.is_double() ? 0x1p-52 : 0x1p-23) * size;
  // Rounded to f16 they may fall on two neighbours.
  return mma.d == Sum::f16 ? bound + std::max(0x1p-10 * std::abs(sum), 0x1p-24) : bound;
}

TEST_F(SimulatorAgainstGpu, TensorCoresPlaceElementsAlikeAndSumWithinTheBound) {
  const std::unique_ptr<Device> gpu = Device::open("cuda:0");
  const std::unique_ptr<Device> simulator = Device::open(kSimulated);
  constexpr uint64_t kDraws = 20;
  const std::vector<Mma> mmas = all_mmas();
  for (const Mma& mma : mmas) {
    SCOPED_TRACE(mma.form());
    const MmaKernel on_gpu(*gpu, mma);
    const MmaKernel on_simulator(*simulator, mma);
    for (uint64_t seed = 1; seed <= kDraws; ++seed) {
      const std::vector<uint32_t> small =
          mma_words(mma, Values::small_integers, Signs::as_drawn, seed);
      EXPECT_EQ(on_gpu.run(small), on_simulator.run(small));
      const std::vector<uint32_t> words = mma_words(mma, Values::any, Signs::as_drawn, seed);
      const std::vector<uint32_t> real_words = on_gpu.run(words);
      const std::vector<uint32_t> simulated_words = on_simulator.run(words);
      if (mma.is_integer()) {
        EXPECT_EQ(real_words, simulated_words);
        continue;
      }
      // |c| + sum|a*b|, of the same instruction without signs
      const std::vector<double> sizes =
          sums_of(mma.d, on_simulator.run(mma_words(mma, Values::any, Signs::none, seed)));
      const std::vector<double> real = sums_of(mma.d, real_words);
      const std::vector<double> simulated = sums_of(mma.d, simulated_words);
      for (size_t i = 0; i < real.size(); ++i)
        EXPECT_NEAR(real[i], simulated[i], mma_bound(mma, sizes[i], simulated[i]));
    }
  }
  std::printf("%zu forms of mma.sync compared\n", mmas.size());
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
    const templates::LaunchPlan launches = op.plan(shape, config, gpu);
    tuner::RunnablePlan runnable;
    runnable.workspace_bytes = launches.workspace_bytes;
    for (const templates::KernelLaunch& launch : launches.kernels) {
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

bool is_full() { return std::getenv("KILN_TEST_FULL") != nullptr; }

std::vector<Config> chosen_configs(const Op& op, const Sizes& shape, const Gpu& gpu) {
  constexpr uint64_t kSeed = 20261130;
  constexpr size_t kSeeded = 10;
  const std::vector<Config> all = templates::enumerate(op, shape, gpu).configs;
  if (is_full()) return all;
  std::set<size_t> chosen{0};
  for (uint64_t draw = 0; chosen.size() < std::min(kSeeded + 1, all.size()); ++draw)
    chosen.insert(templates::counter_bits(kSeed, 0, draw) % all.size());
  std::vector<Config> configs;
  for (const size_t index : chosen) configs.push_back(all[index]);
  return configs;
}

using Outputs = std::map<std::string, std::vector<std::byte>>;

// Outputs without a tolerance to the bit; of the others, which each add in their own order, at most
// twice what one may be off. Poison is the same on both, and finite.
void expect_alike(const Op& op, const Sizes& fixed, const Outputs& on_gpu,
                  const Outputs& on_simulator, const std::string& what) {
  for (const auto& [name, real] : on_gpu) {
    const std::vector<std::byte>& simulated = on_simulator.at(name);
    const templates::Arg& arg = *op.find_arg(name);
    const templates::Tolerance tolerance = op.tolerance_of(arg, fixed);
    if (tolerance.kind == templates::Tolerance::Kind::bit_exact) {
      EXPECT_TRUE(real == simulated) << what << ": " << name;
      continue;
    }
    const auto size = static_cast<size_t>(templates::dtype_bytes(arg.dtype));
    double error_squares = 0, squares = 0;
    int64_t apart = 0;
    for (size_t at = 0; at + size <= real.size(); at += size) {
      uint64_t one = 0, other = 0;
      std::memcpy(&one, real.data() + at, size);
      std::memcpy(&other, simulated.data() + at, size);
      const double a = tuner::element_value(arg.dtype, one);
      if (one == other) {
        squares += std::isfinite(a) ? a * a : 0;
        continue;
      }
      const double b = tuner::element_value(arg.dtype, other);
      if (!std::isfinite(a) || !std::isfinite(b)) {
        apart += std::isnan(a) && std::isnan(b) ? 0 : 1;
        continue;
      }
      error_squares += (a - b) * (a - b);
      squares += a * a;
    }
    EXPECT_EQ(apart, 0) << what << ": " << name;
    EXPECT_LE(std::sqrt(error_squares), 2 * tolerance.bound * std::sqrt(squares))
        << what << ": " << name;
  }
}

// Both devices, and one call of an op on both.
struct TwoBenches {
  const std::unique_ptr<cache::Store> store = cache::Store::open({.path = ":memory:"});
  tuner::Binaries binaries{*store};
  Bench real{"cuda:0", binaries};
  Bench simulated{kSimulated, binaries};
  const Gpu gpu = simulated.device->info().gpu;

  // Returns how many configs were compared; a difference is a failure.
  int compare(const Kit& kit, const Sizes& shape, const Case& call,
              const std::vector<Config>& configs) {
    const Op& op = *kit.op;
    const auto prepare = [&](Bench& bench) {
      auto prepared = std::make_unique<tuner::PreparedCase>(
          bench.tools(), kit, call, tuner::PreparedCase::Alignment::natural);
      prepared->prove_oracle(bench.oracle(binaries, kit, shape));
      return prepared;
    };
    const auto on_gpu = prepare(real);
    const auto on_simulator = prepare(simulated);
    int compared = 0;
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
      if (testing::Test::HasFatalFailure()) return compared;
      expect_alike(op, call.sizes, on_gpu->outputs(), on_simulator->outputs(), what);
      ++compared;
    }
    return compared;
  }
};

class OpOnBoth : public SimulatorAgainstGpu, public testing::WithParamInterface<const Kit*> {};

TEST_P(OpOnBoth, GivesTheSameBits) {
  const Kit& kit = *GetParam();
  const Op& op = *kit.op;
  TwoBenches both;
  int runs = 0;
  for (const Sizes& shape : op.model_shapes(2)) {
    const std::vector<Config> configs = chosen_configs(op, shape, both.gpu);
    const Sizes bucket = templates::all_buckets(op).front();
    for (const Case& call : kit.verify_cases(shape, bucket)) {
      runs += both.compare(kit, shape, call, configs);
      if (HasFatalFailure()) return;
    }
  }
  std::printf("%s: %d calls compared\n", op.name.c_str(), runs);
}

struct BucketCall {
  double bytes = 0;
  Sizes shape;
  Case call;
};

// The call that each bucket stands for, small ones first. Kits put it last.
std::vector<BucketCall> bucket_calls(const Kit& kit) {
  const Op& op = *kit.op;
  std::vector<BucketCall> calls;
  for (const Sizes& shape : op.model_shapes(2)) {
    for (const Sizes& bucket : templates::all_buckets(op)) {
      Case call = kit.verify_cases(shape, bucket).back();
      // Several large buckets may be verified at one size.
      if (!calls.empty() && calls.back().call.sizes == call.sizes) continue;
      const templates::Cost cost = op.cost(templates::with_derived(op, call.sizes));
      calls.push_back({cost.cold_read_bytes + cost.warm_read_bytes + cost.in_place_read_bytes +
                           cost.write_bytes,
                       shape, std::move(call)});
    }
  }
  std::stable_sort(calls.begin(), calls.end(),
                   [](const BucketCall& a, const BucketCall& b) { return a.bytes < b.bytes; });
  return calls;
}

TEST_P(OpOnBoth, GivesTheSameBitsInEveryBucketThatTimeAllows) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::seconds kBudget{90};
  const Kit& kit = *GetParam();
  TwoBenches both;
  const Clock::time_point end = Clock::now() + kBudget;
  const std::vector<BucketCall> calls = bucket_calls(kit);
  int runs = 0;
  for (const BucketCall& one : calls) {
    if (Clock::now() > end && !is_full()) break;
    runs += both.compare(kit, one.shape, one.call, {kit.op->default_config(one.shape)});
    if (HasFatalFailure()) return;
  }
  EXPECT_GE(runs, std::min<int>(2, static_cast<int>(calls.size())));
  std::printf("%s: the calls of %d of %zu buckets compared\n", kit.op->name.c_str(), runs,
              calls.size());
}

INSTANTIATE_TEST_SUITE_P(Registry, OpOnBoth,
                         testing::ValuesIn(templates::kits().begin(), templates::kits().end()),
                         [](const auto& kit) { return kit.param->op->name; });

}  // namespace
}  // namespace kiln
