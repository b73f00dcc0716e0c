#include "runtime/sim_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "jit/base/error.h"
#include "jit/base/library_file.h"
#include "kiln_build_id.h"
#include "runtime/sim/sim_device.h"

namespace kiln::runtime {
namespace {

constexpr const char* kFile = "libkiln_sim.so";

using BuildFunction = const char* (*)();

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
  // No higher: what lies above the installation may belong to others.
  constexpr int kFolders = 3;
  std::filesystem::path folder = self.parent_path();
  for (int i = 0; i < kFolders && folder.has_relative_path(); ++i, folder = folder.parent_path()) {
    for (const char* below : {"", KILN_LIBDIR, "lib", "runtime/sim"}) {
      std::filesystem::path place = folder / below / kFile;
      if (std::find(result.begin(), result.end(), place) == result.end())
        result.push_back(std::move(place));
    }
  }
  return result;
}

std::filesystem::path find_library() {
  std::string tried;
  for (const std::filesystem::path& path : places()) {
    std::error_code error;
    if (std::filesystem::exists(path, error)) return path;
    tried += "\n  " + path.string();
  }
  fail(Status::unsupported,
       "The simulator {} was not found; it is installed beside libkiln.so. Searched:{}", kFile,
       tried);
}

}  // namespace

OpenSimulator load_simulator(const std::filesystem::path& path) {
  const auto [handle, why] =
      open_library_file(path.string(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    fail(Status::unsupported, "The simulator {} could not be loaded: {}", path.string(), why);
  }
  const auto open = reinterpret_cast<OpenSimulator>(dlsym(handle, "kiln_sim_open"));
  if (open == nullptr) {
    fail(Status::unsupported, "{} is not Kiln's simulator: it has no kiln_sim_open", path.string());
  }
  const auto build = reinterpret_cast<BuildFunction>(dlsym(handle, "kiln_sim_build"));
  const std::string_view found = build != nullptr ? build() : "an earlier one";
  if (found != kBuildId) {
    fail(Status::unsupported,
         "{} is of another build of Kiln ({}) than the library that opens it ({}): install both "
         "from one build",
         path.string(), found, kBuildId);
  }
  return open;
}

std::unique_ptr<Device> open_simulator(std::string_view slug) {
  sim::SimOptions options{.gpu = find_gpu(slug)};
  const char* const check = std::getenv("KILN_SIM_CHECK");
  if (check != nullptr && std::string_view(check) == "0") options.checking = sim::Checking::off;
  static const OpenSimulator open = load_simulator(find_library());
  return std::unique_ptr<Device>(open(&options));
}

}  // namespace kiln::runtime
