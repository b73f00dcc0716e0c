// Helpers of the jit tests: errors as values, a small kernel source, temporary folders.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "jit/compiler.h"

namespace kiln::jit {

struct Caught {
  Status status = Status::ok;
  std::string text;

  bool says(std::string_view part) const { return text.find(part) != std::string::npos; }
};

// The Error that a call throws; status ok when it throws none.
template <typename Call>
Caught error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.status(), error.what()};
  }
  return {};
}

// A kernel with a header that includes another, a constant, and 1024 bytes of static shared memory.
inline KernelSource small_source() {
  KernelSource source;
  source.main = {"templates/small/kernel.cu",
                 "#include \"kiln_constants.h\"\n"
                 "#include \"templates/common/scale.cuh\"\n"
                 "\n"
                 "extern \"C\" __global__ void small(const float* in, float* out) {\n"
                 "  __shared__ float staged[256];\n"
                 "  staged[threadIdx.x] = in[threadIdx.x];\n"
                 "  __syncthreads();\n"
                 "  out[threadIdx.x] = scaled(staged[255 - threadIdx.x]) + kOffset;\n"
                 "}\n"};
  source.headers = {{"templates/common/factor.cuh",
                     "#pragma once\n__device__ inline float factor() { return 2.0f; }\n"},
                    {"templates/common/scale.cuh",
                     "#pragma once\n#include \"templates/common/factor.cuh\"\n"
                     "__device__ inline float scaled(float x) { return factor() * x; }\n"},
                    {"templates/common/unused.cuh", "#pragma once\nthis is not C++\n"}};
  source.constants = {{"kOffset", "int", "3"}};
  source.entry = "small";
  return source;
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kiln-jit-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) ADD_FAILURE() << "mkdtemp failed for " << pattern;
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  std::filesystem::path write(const std::string& name, std::string_view text) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace kiln::jit
