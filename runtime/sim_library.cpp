#include "runtime/sim_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "jit/base/error.h"
#include "runtime/sim/sim_device.h"

namespace kiln::runtime {
namespace {

constexpr const char* kFile = "libkiln_sim.so";

using OpenFunction = Device* (*)(const sim::SimOptions*);

// Beside the file that holds this code (libkiln.so, or a program with the library inside), and
// where the build and the installation put libraries from there.
std::vector<std::filesystem::path> places() {
  Dl_info info{};
  std::vector<std::filesystem::path> result;
  std::error_code error;
  std::filesystem::path self;
  if (dladdr(reinterpret_cast<void*>(&places), &info) != 0 && info.dli_fname != nullptr)
    self = std::filesystem::canonical(info.dli_fname, error);
  // A program is named as it was started, which need not be a path.
  if (self.empty()) self = std::filesystem::canonical("/proc/self/exe", error);
  for (std::filesystem::path folder = self.parent_path(); folder.has_relative_path();
       folder = folder.parent_path()) {
    for (const char* below : {"", "lib", "lib/x86_64-linux-gnu", "runtime/sim"})
      result.push_back(folder / below / kFile);
    if (result.size() >= 12) break;
  }
  return result;
}

OpenFunction load_simulator() {
  std::string tried;
  for (const std::filesystem::path& path : places()) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
      tried += "\n  " + path.string();
      continue;
    }
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == nullptr) {
      fail(Status::not_found, "The simulator {} could not be loaded: {}", path.string(), dlerror());
    }
    const auto open = reinterpret_cast<OpenFunction>(dlsym(handle, "kiln_sim_open"));
    if (open == nullptr) {
      fail(Status::not_found, "{} is not Kiln's simulator: it has no kiln_sim_open", path.string());
    }
    return open;
  }
  fail(Status::not_found,
       "The simulator {} was not found; it is installed beside libkiln.so. Searched:{}", kFile,
       tried);
}

}  // namespace

std::unique_ptr<Device> open_simulator(std::string_view slug) {
  sim::SimOptions options{.gpu = find_gpu(slug)};
  const char* const check = std::getenv("KILN_SIM_CHECK");
  if (check != nullptr && std::string_view(check) == "0") options.checking = sim::Checking::off;
  static const OpenFunction open = load_simulator();
  return std::unique_ptr<Device>(open(&options));
}

}  // namespace kiln::runtime
