#include "jit/compiler.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "jit/resources.h"
#include "tests/jit/jit_testing.h"

namespace kiln::jit {
namespace {

class CompilerTest : public testing::Test {
 protected:
  void SetUp() override {
    const Caught caught = error_of([&] { compiler_ = Compiler::load(); });
    if (caught.status == Status::no_compiler) GTEST_SKIP() << caught.text;
    ASSERT_NE(compiler_, nullptr) << caught.text;
  }

  Caught compile_error(const KernelSource& source, std::string_view arch = "sm_80",
                       const CompileOptions& options = {}) {
    return error_of([&] { compiler_->compile(source, arch, options); });
  }

  std::shared_ptr<Compiler> compiler_;
};

KernelSource one_file(const std::string& text) {
  KernelSource source;
  source.main = {"templates/one/kernel.cu", text};
  source.entry = "one";
  return source;
}

TEST_F(CompilerTest, KnowsTheArchsOfThisProject) {
  for (int arch : {80, 86, 90}) {
    const std::vector<int> archs = compiler_->supported_archs();
    EXPECT_EQ(std::count(archs.begin(), archs.end(), arch), 1) << arch;
  }
}

TEST_F(CompilerTest, CandidatesHoldTheLoadedOne) {
  const std::vector<NvrtcCandidate> candidates = nvrtc_candidates();
  EXPECT_TRUE(std::any_of(candidates.begin(), candidates.end(), [&](const NvrtcCandidate& each) {
    return each.usable && each.path == compiler_->library_path() &&
           each.version == compiler_->version();
  }));
}

TEST_F(CompilerTest, EveryLoadGivesTheSameCompiler) {
  EXPECT_EQ(compiler_, Compiler::load());
  constexpr int kNewestDriver = 97;  // finds the same library
  EXPECT_EQ(compiler_, Compiler::load(kNewestDriver));
}

// NVRTC would open the driver and write beside its cache, whose hits are no compiles.
TEST_F(CompilerTest, NvrtcsOwnCacheIsOff) {
  int major = 0;
  int minor = 0;
  ASSERT_EQ(std::sscanf(compiler_->version().c_str(), "%d.%d", &major, &minor), 2);
  const Caught caught = compile_error(one_file("wrong"));
  EXPECT_EQ(caught.says("--no-cache"), std::pair(major, minor) >= std::pair(12, 9)) << caught.text;
}

std::atomic<int> host_signals = 0;
void count_signal(int) { ++host_signals; }

TEST_F(CompilerTest, SignalsDuringACompileGoToTheHost) {
  struct sigaction host {
  }, before{};
  host.sa_handler = count_signal;
  sigaction(SIGINT, &host, &before);
  host_signals = 0;
  std::atomic<bool> done = false;
  std::thread compiling([&] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    for (const char* arch : {"sm_80", "sm_86", "sm_90"}) {
      compiler_->compile(small_source(), arch, {});
    }
    done = true;
  });
  int raised = 0;
  int taken_over = 0;
  while (!done) {
    struct sigaction now {};
    sigaction(SIGINT, nullptr, &now);
    if (now.sa_handler != count_signal) ++taken_over;
    if (taken_over != 0) continue;  // NVRTC's handler would end this process
    raise(SIGINT);
    ++raised;
  }
  compiling.join();
  sigaction(SIGINT, &before, nullptr);
  EXPECT_EQ(taken_over, 0);
  EXPECT_GT(raised, 0);
  EXPECT_EQ(host_signals, raised);
}

class CompilerArchTest : public CompilerTest, public testing::WithParamInterface<const char*> {};

TEST_P(CompilerArchTest, MakesACubinWithItsResources) {
  const KernelSource source = small_source();
  const Binary binary = compiler_->compile(source, GetParam(), {});
  EXPECT_EQ(binary.image.substr(0, 4),
            "\x7f"
            "ELF");
  EXPECT_EQ(entries_of_cubin(binary.image), std::vector<std::string>{"small"});
  EXPECT_EQ(binary.arch, GetParam());
  EXPECT_EQ(binary.entry, "small");
  EXPECT_EQ(binary.key, binary_key(source, GetParam(), {}));
  EXPECT_EQ(binary.nvrtc_version, compiler_->version());
  EXPECT_GT(binary.resources.registers, 0);
  EXPECT_EQ(binary.resources.static_smem_bytes, 1024);
  EXPECT_EQ(binary.resources.spill_store_bytes, 0);
  EXPECT_EQ(binary.resources.spill_load_bytes, 0);
  EXPECT_EQ(binary.resources.stack_bytes, 0);
  EXPECT_EQ(binary.log.find("Compile time"), std::string::npos) << binary.log;
}

TEST_P(CompilerArchTest, LogAndElfAgreeOnResources) {
  const Binary binary =
      compiler_->compile(one_file("__device__ __noinline__ float far(const float* p, int i) {\n"
                                  "  float a[50];\n"
                                  "  for (int k = 0; k < 50; ++k) a[k] = p[k * i];\n"
                                  "  return a[i % 50] + a[(i * 7) % 50];\n"
                                  "}\n"
                                  "extern \"C\" __global__ void other(float* p) { p[0] = 1; }\n"
                                  "extern \"C\" __global__ void one(float* p, int i) {\n"
                                  "  __shared__ float s[300];\n"
                                  "  s[threadIdx.x] = p[threadIdx.x];\n"
                                  "  __syncthreads();\n"
                                  "  p[threadIdx.x] = s[299 - threadIdx.x] + far(p, i);\n"
                                  "}\n"),
                         GetParam(), {});
  const auto from_log = resources_from_log(binary.log, "one");
  const auto from_elf = resources_from_cubin(binary.image, "one");
  ASSERT_TRUE(from_log && from_elf) << binary.log;
  EXPECT_EQ(from_log->registers, from_elf->registers);
  EXPECT_EQ(from_log->stack_bytes, from_elf->stack_bytes);
  EXPECT_EQ(from_log->static_smem_bytes, from_elf->static_smem_bytes);
  EXPECT_GE(from_elf->stack_bytes, 200);
  EXPECT_EQ(from_elf->static_smem_bytes, 1200);
}

TEST_P(CompilerArchTest, C79EqualInputsGiveEqualImages) {
  EXPECT_EQ(compiler_->compile(small_source(), GetParam(), {}).image,
            compiler_->compile(small_source(), GetParam(), {}).image);
}

INSTANTIATE_TEST_SUITE_P(Archs, CompilerArchTest, testing::Values("sm_80", "sm_86", "sm_90"));

TEST_F(CompilerTest, MakesPtxForAVirtualArch) {
  const Binary binary = compiler_->compile(small_source(), "compute_80", {.kind = BinaryKind::ptx});
  EXPECT_NE(binary.image.find(".target sm_80"), std::string::npos);
  EXPECT_EQ(entries_of_ptx(binary.image), std::vector<std::string>{"small"});
  EXPECT_EQ(binary.kind, BinaryKind::ptx);
}

TEST_F(CompilerTest, FusesNothingThatIsNotWrittenFused) {
  const Binary binary = compiler_->compile(
      one_file("extern \"C\" __global__ void one(float* p) { p[0] = p[1] * p[2] + p[3]; }\n"),
      "compute_80", {.kind = BinaryKind::ptx});
  EXPECT_EQ(binary.image.find("fma"), std::string::npos) << binary.image;
}

TEST_F(CompilerTest, ReportsSpillsUnderARegisterLimit) {
  const Binary binary = compiler_->compile(
      one_file(
          "extern \"C\" __global__ void one(float* p) {\n"
          "  float a[64];\n"
          "#pragma unroll\n"
          "  for (int k = 0; k < 64; ++k) a[k] = p[k * 32 + threadIdx.x];\n"
          "  __syncthreads();\n"
          "#pragma unroll\n"
          "  for (int k = 0; k < 64; ++k) p[k * 32 + threadIdx.x] = a[63 - k] + a[(k * 7) % 64];\n"
          "}\n"),
      "sm_80", {.max_registers = 32});
  EXPECT_LE(binary.resources.registers, 32);
  EXPECT_GT(binary.resources.spill_store_bytes, 0) << binary.log;
  EXPECT_GT(binary.resources.spill_load_bytes, 0) << binary.log;
}

TEST_F(CompilerTest, C121C124ErrorHasLogOptionsAndTheLinesAround) {
  KernelSource source = small_source();
  source.headers[1].text =
      "#pragma once\n#include \"templates/common/factor.cuh\"\n"
      "__device__ inline float scaled(float x) {\n  return factor() * y;\n}\n";
  const Caught caught = compile_error(source);
  EXPECT_EQ(caught.status, Status::compile_error);
  EXPECT_TRUE(caught.says("identifier \"y\" is undefined")) << caught.text;
  EXPECT_TRUE(caught.says("--gpu-architecture=sm_80 --std=c++17 --fmad=false")) << caught.text;
  EXPECT_TRUE(caught.says("templates/common/scale.cuh:")) << caught.text;
  EXPECT_TRUE(caught.says(">     4 |   return factor() * y;")) << caught.text;
  EXPECT_TRUE(caught.says("      3 | __device__ inline float scaled")) << caught.text;
}

TEST_F(CompilerTest, ErrorInTheConstantsShowsThem) {
  KernelSource source = small_source();
  source.constants[0].type = "NoSuchType";
  const Caught caught = compile_error(source);
  EXPECT_EQ(caught.status, Status::compile_error);
  EXPECT_TRUE(caught.says(">     4 | constexpr NoSuchType kOffset = 3;")) << caught.text;
}

TEST_F(CompilerTest, EntryThatIsNotThereIsNamedWithThoseThatAre) {
  KernelSource source = small_source();
  source.entry = "large";
  const Caught caught = compile_error(source);
  EXPECT_EQ(caught.status, Status::compile_error);
  EXPECT_TRUE(caught.says("called large; it defines: small")) << caught.text;
}

TEST_F(CompilerTest, C129bUnknownArchIsRefusedBeforeTheCall) {
  const Caught caught = compile_error(small_source(), "sm_37");
  EXPECT_EQ(caught.status, Status::unsupported);
  EXPECT_TRUE(caught.says("sm_37") && caught.says("80 86") && caught.says(compiler_->version()))
      << caught.text;
}

TEST_F(CompilerTest, VirtualArchGivesPtxThatNamesItsSourceAlone) {
  const Binary binary = compiler_->compile(small_source(), "compute_80", {});
  EXPECT_EQ(binary.kind, BinaryKind::ptx);
  EXPECT_NE(binary.image.find(".target sm_80"), std::string::npos);
  EXPECT_NE(binary.image.find(".file"), std::string::npos);
  EXPECT_EQ(binary.image.find(std::filesystem::current_path().string() + "/"), std::string::npos);
}

TEST_F(CompilerTest, ArchOfTheWrongKindIsRefused) {
  EXPECT_EQ(compile_error(small_source(), "sm_80", {.kind = BinaryKind::ptx}).status,
            Status::unsupported);
  EXPECT_EQ(compile_error(small_source(), "sm_").status, Status::unsupported);
  EXPECT_EQ(compile_error(small_source(), "sm_80x").status, Status::unsupported);
}

TEST_F(CompilerTest, OptionsThatReachTheMachineOrBreakTheRulesAreRefused) {
  for (const char* option : {"-I/usr/include", "--include-path=/usr/include", "--fmad=true",
                             "-arch=sm_90", "--use_fast_math", "--std=c++20"}) {
    const Caught caught = compile_error(small_source(), "sm_80", {.extra = {option}});
    EXPECT_EQ(caught.status, Status::invalid_argument) << option;
    EXPECT_TRUE(caught.says(option)) << caught.text;
  }
}

TEST_F(CompilerTest, ExtraOptionsReachNvrtc) {
  KernelSource source = one_file("extern \"C\" __global__ void one(int* p) { p[0] = LEVEL; }\n");
  EXPECT_EQ(compile_error(source).status, Status::compile_error);
  EXPECT_EQ(compile_error(source, "sm_80", {.extra = {"-DLEVEL=3"}}).text, "");
}

TEST_F(CompilerTest, CompilesFromManyThreadsAtOnce) {
  std::vector<Binary> binaries(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < binaries.size(); ++i) {
    threads.emplace_back([&, i] {
      KernelSource source = small_source();
      source.constants[0].value = std::to_string(i);
      binaries[i] = compiler_->compile(source, "sm_80", {});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < binaries.size(); ++i) {
    KernelSource source = small_source();
    source.constants[0].value = std::to_string(i);
    EXPECT_EQ(binaries[i].image, compiler_->compile(source, "sm_80", {}).image);
  }
}

}  // namespace
}  // namespace kiln::jit
