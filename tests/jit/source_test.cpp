#include "jit/source.h"

#include <sys/wait.h>

#include <cstdlib>

#include "tests/jit/jit_testing.h"

namespace kiln::jit {
namespace {

std::vector<std::string> paths_of(const std::vector<SourceFile>& files) {
  std::vector<std::string> paths;
  for (const SourceFile& file : files) paths.push_back(file.path);
  return paths;
}

TEST(Constants, AreOneConstexprLineEach) {
  EXPECT_EQ(constants_header({{"kRows", "int", "4"}, {"kFormat", "Format", "Format::f1"}}),
            "// The constants of this specialisation.\n#pragma once\n\n"
            "constexpr int kRows = 4;\nconstexpr Format kFormat = Format::f1;\n");
}

TEST(Constants, RefusesWhatIsNotOneDeclaration) {
  EXPECT_TRUE(error_of([] { constants_header({{"k Rows", "int", "4"}}); }).says("k Rows"));
  EXPECT_EQ(error_of([] {
              constants_header({{"kRows", "int", "4;int x = 2"}});
            }).status,
            Status::compile_error);
  EXPECT_TRUE(error_of([] {
                constants_header({{"kRows", "int", "4"}, {"kRows", "int", "5"}});
              }).says("given twice"));
}

TEST(Closure, HoldsReachedHeadersInTheOrderOfTheirFirstInclude) {
  EXPECT_EQ(paths_of(reached_headers(small_source())),
            (std::vector<std::string>{"kiln_constants.h", "templates/common/scale.cuh",
                                      "templates/common/factor.cuh"}));
}

TEST(Closure, IncludesInCommentsAndLiteralsDoNotCount) {
  KernelSource source = small_source();
  source.main.text =
      "// #include \"a.cuh\"\n/*\n#include \"b.cuh\"\n*/\n"
      "const char* text = R\"(\n#include \"c.cuh\"\n)\";\nconst int large = 1'000'000;  // it's\n"
      "#include \"kiln_constants.h\"\n";
  EXPECT_EQ(paths_of(reached_headers(source)), (std::vector<std::string>{"kiln_constants.h"}));
}

TEST(Closure, MissingHeaderIsNamedWithItsPlace) {
  KernelSource source = small_source();
  source.headers[1].text += "#include \"templates/common/lost.cuh\"\n";
  const Caught caught = error_of([&] { reached_headers(source); });
  EXPECT_EQ(caught.status, Status::compile_error);
  EXPECT_TRUE(
      caught.says("templates/common/scale.cuh line 4 includes \"templates/common/lost.cuh\""))
      << caught.text;
}

TEST(Closure, C125RefusesHeadersOfTheMachine) {
  KernelSource source = small_source();
  source.main.text = "#include <cuda_fp16.h>\n" + source.main.text;
  const Caught caught = error_of([&] { reached_headers(source); });
  EXPECT_EQ(caught.status, Status::compile_error);
  EXPECT_TRUE(caught.says("line 1 includes <cuda_fp16.h>")) << caught.text;
}

TEST(Closure, RefusesAnIncludeInsideAConditional) {
  KernelSource source = small_source();
  source.main.text = "#ifdef X\n#include \"kiln_constants.h\"\n#endif\n";
  EXPECT_TRUE(error_of([&] { reached_headers(source); }).says("inside a conditional"));
}

TEST(Closure, RefusesAHeaderTwiceWithoutPragmaOnce) {
  KernelSource source = small_source();
  source.headers[0].text = "// #pragma once\nint x;\n";
  source.main.text += "#include \"templates/common/factor.cuh\"\n";
  EXPECT_TRUE(error_of([&] { reached_headers(source); }).says("lacks `#pragma once`"));
}

TEST(Closure, RefusesConstantsThatNothingIncludes) {
  KernelSource source = small_source();
  source.main.text = "extern \"C\" __global__ void small() {}\n";
  EXPECT_TRUE(error_of([&] { reached_headers(source); }).says("kiln_constants.h"));
}

TEST(Closure, RefusesTwoHeadersOfOneName) {
  KernelSource source = small_source();
  source.headers.push_back(source.headers[0]);
  EXPECT_TRUE(error_of([&] { reached_headers(source); }).says("two headers"));
}

TEST(BinaryKey, C70Golden) {
  EXPECT_EQ(binary_key(small_source(), "sm_80", {}).hex(), "a3c759c83b4db412746d86446ceb01a8");
}

TEST(BinaryKey, C72IsAPureFunctionOfItsInputs) {
  const Hash128 first = binary_key(small_source(), "sm_80", {});
  KernelSource other = small_source();
  other.constants[0].value = "4";
  binary_key(other, "sm_86", {});
  EXPECT_EQ(first, binary_key(small_source(), "sm_80", {}));
}

TEST(BinaryKey, C77EveryInputThatReachesTheCompilerChangesIt) {
  const KernelSource base = small_source();
  std::vector<Hash128> keys = {binary_key(base, "sm_80", {}), binary_key(base, "sm_86", {}),
                               binary_key(base, "sm_80", {.max_registers = 64}),
                               binary_key(base, "compute_80", {.kind = BinaryKind::ptx}),
                               binary_key(base, "sm_80", {.extra = {"-DX=1"}})};
  KernelSource changed = base;
  changed.main.text += " ";
  keys.push_back(binary_key(changed, "sm_80", {}));
  changed = base;
  changed.headers[0].text += " ";
  keys.push_back(binary_key(changed, "sm_80", {}));
  changed = base;
  changed.constants[0].value = "4";
  keys.push_back(binary_key(changed, "sm_80", {}));
  changed = base;
  changed.constants[0].type = "long long";
  keys.push_back(binary_key(changed, "sm_80", {}));
  changed = base;
  changed.entry = "smaller";
  keys.push_back(binary_key(changed, "sm_80", {}));
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::adjacent_find(keys.begin(), keys.end()), keys.end());
}

TEST(BinaryKey, C24C71WhatTheSourceDoesNotReachDoesNotMatter) {
  KernelSource other = small_source();
  other.headers.pop_back();
  std::swap(other.headers[0], other.headers[1]);
  other.main.path = "/somewhere/else/kernel.cu";
  EXPECT_EQ(binary_key(other, "sm_80", {}), binary_key(small_source(), "sm_80", {}));
}

TEST(DumpSource, IsOneFileWithEachHeaderOnce) {
  KernelSource source = small_source();
  source.main.text = "#include \"templates/common/factor.cuh\"\n" + source.main.text;
  EXPECT_EQ(dump_source(source),
            "// From templates/common/factor.cuh.\n"
            "__device__ inline float factor() { return 2.0f; }\n"
            "// Back in templates/small/kernel.cu.\n"
            "// From kiln_constants.h.\n"
            "// The constants of this specialisation.\n"
            "\n"
            "constexpr int kOffset = 3;\n"
            "// Back in templates/small/kernel.cu.\n"
            "// From templates/common/scale.cuh.\n"
            "__device__ inline float scaled(float x) { return factor() * x; }\n"
            "// Back in templates/small/kernel.cu.\n"
            "\n"
            "extern \"C\" __global__ void small(const float* in, float* out) {\n"
            "  __shared__ float staged[256];\n"
            "  staged[threadIdx.x] = in[threadIdx.x];\n"
            "  __syncthreads();\n"
            "  out[threadIdx.x] = scaled(staged[255 - threadIdx.x]) + kOffset;\n"
            "}\n");
}

TEST(DumpSource, CompilesAloneWithNvcc) {
  if (std::system("nvcc --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "nvcc is not installed";
  const TemporaryFolder folder;
  const std::string file = folder.write("dump.cu", dump_source(small_source())).string();
  const std::string command =
      "nvcc --fmad=false -std=c++17 -arch=sm_80 -cubin -o " + file + ".cubin " + file;
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

}  // namespace
}  // namespace kiln::jit
