// libnvrtc as a table of functions, found with dlopen: where it is looked for, which of several is
// taken, and the builtins that must go with it. A library is never unloaded: its own exit handlers
// and threads outlive every Compiler.
#pragma once

#include <nvrtc.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "jit/compiler.h"

namespace kiln::jit {

struct NvrtcFunctions {
  decltype(&nvrtcVersion) version = nullptr;
  decltype(&nvrtcGetErrorString) error_string = nullptr;
  decltype(&nvrtcGetNumSupportedArchs) supported_arch_count = nullptr;
  decltype(&nvrtcGetSupportedArchs) supported_archs = nullptr;
  decltype(&nvrtcCreateProgram) create_program = nullptr;
  decltype(&nvrtcDestroyProgram) destroy_program = nullptr;
  decltype(&nvrtcCompileProgram) compile_program = nullptr;
  decltype(&nvrtcGetProgramLogSize) log_size = nullptr;
  decltype(&nvrtcGetProgramLog) log = nullptr;
  decltype(&nvrtcGetCUBINSize) cubin_size = nullptr;
  decltype(&nvrtcGetCUBIN) cubin = nullptr;
  decltype(&nvrtcGetPTXSize) ptx_size = nullptr;
  decltype(&nvrtcGetPTX) ptx = nullptr;
};

struct NvrtcLibrary {
  NvrtcFunctions functions;
  std::string path;           // with symbolic links resolved
  std::string builtins_path;  // of the same version
  int major = 0;
  int minor = 0;
  std::vector<int> archs;  // 75, 80, ...
  void* handle = nullptr;

  std::string version() const;
};

// Where to look. Tests hand in their own; the real ones come from the environment.
struct NvrtcPlaces {
  std::string forced;              // KILN_NVRTC: a file or a folder, nothing else is tried then
  std::vector<std::string> names;  // for the loader's own search
  std::vector<std::pair<std::string, std::string>> folders;  // origin and folder

  static NvrtcPlaces of_this_machine();
};

struct NvrtcFound {
  NvrtcCandidate candidate;
  std::optional<NvrtcLibrary> library;  // set when usable
};

// Everything found at these places, in their order, each file once. Opens all of it.
std::vector<NvrtcFound> find_nvrtc(const NvrtcPlaces& places);

// The newest usable one whose major version is at most driver_cuda_major (0: any), with its
// builtins loaded and its hands off the host's signals. Opens from the newest down, by what the
// names of the files say, until none of the others can be newer than one that works. Fails with
// no_compiler and every place searched. A forced one is taken whatever the driver.
NvrtcLibrary load_nvrtc(const NvrtcPlaces& places, int driver_cuda_major);

}  // namespace kiln::jit
