// The search for libnvrtc and the check that its builtins are of the same version.
#include "jit/nvrtc_library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "jit/base/error.h"

namespace kiln::jit {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLibraryPrefix = "libnvrtc.so";
constexpr const char* kBuiltinsPrefix = "libnvrtc-builtins.so";
constexpr const char* kLoaderOrigin = "the loader's path";
constexpr const char* kForcedOrigin = "KILN_NVRTC";

// The sub-folders of a toolkit that hold its libraries.
constexpr const char* kToolkitLibraryFolders[] = {"lib64", "targets/x86_64-linux/lib",
                                                  "targets/sbsa-linux/lib", "lib"};

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<fs::path> files_with_prefix(const fs::path& folder, std::string_view prefix) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    // "libnvrtc.so" and "libnvrtc.so.13", not "libnvrtc.so.bak.txt" or "libnvrtc.alt.so.13".
    const bool versioned =
        name.starts_with(prefix) &&
        name.find_first_not_of("0123456789.", prefix.size()) == std::string::npos;
    if (versioned) files.push_back(it->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

fs::path resolved(const fs::path& path) {
  std::error_code error;
  fs::path real = fs::canonical(path, error);
  return error ? path : real;
}

std::string last_loader_error() {
  const char* text = dlerror();
  return text == nullptr ? "the loader gave no reason" : text;
}

std::string path_of_handle(void* handle) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "";
  return resolved(map->l_name).string();
}

template <typename Function>
bool resolve(void* handle, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (function == nullptr) missing = name;
  return function != nullptr;
}

// The name of a function that this library lacks, or "".
std::string resolve_all(void* handle, NvrtcFunctions& f) {
  std::string missing;
  const bool complete =
      resolve(handle, "nvrtcVersion", f.version, missing) &&
      resolve(handle, "nvrtcGetErrorString", f.error_string, missing) &&
      resolve(handle, "nvrtcGetNumSupportedArchs", f.supported_arch_count, missing) &&
      resolve(handle, "nvrtcGetSupportedArchs", f.supported_archs, missing) &&
      resolve(handle, "nvrtcCreateProgram", f.create_program, missing) &&
      resolve(handle, "nvrtcDestroyProgram", f.destroy_program, missing) &&
      resolve(handle, "nvrtcCompileProgram", f.compile_program, missing) &&
      resolve(handle, "nvrtcGetProgramLogSize", f.log_size, missing) &&
      resolve(handle, "nvrtcGetProgramLog", f.log, missing) &&
      resolve(handle, "nvrtcGetCUBINSize", f.cubin_size, missing) &&
      resolve(handle, "nvrtcGetCUBIN", f.cubin, missing) &&
      resolve(handle, "nvrtcGetPTXSize", f.ptx_size, missing) &&
      resolve(handle, "nvrtcGetPTX", f.ptx, missing);
  return complete ? "" : missing;
}

struct Builtins {
  std::string path;    // what to preload, or "" when there is none that fits
  std::string defect;  // why not
};

// NVRTC opens its builtins by a bare name, so a copy of another version, or none, may answer. The
// right one is the file of NVRTC's own version beside it; failing that, one that the loader finds.
Builtins builtins_of(const NvrtcLibrary& library) {
  const std::string wanted = fmt::format("{}.{}", kBuiltinsPrefix, library.version());
  const fs::path folder = fs::path(library.path).parent_path();
  std::string others;
  for (const fs::path& file : files_with_prefix(folder, kBuiltinsPrefix)) {
    const std::string real = resolved(file).string();
    const std::string name = fs::path(real).filename().string();
    // The version may go on: "libnvrtc-builtins.so.12.4.127" is the pair of 12.4.
    if (name == wanted || name.starts_with(wanted + ".")) return {real, ""};
    if (name.size() > std::string_view(kBuiltinsPrefix).size() + 1) {
      const std::string version = name.substr(std::string_view(kBuiltinsPrefix).size() + 1);
      others = fmt::format("builtins {} at {}", version, real);
    }
  }
  if (!others.empty()) {
    return {"",
            fmt::format("NVRTC {} at {} stands beside {}: their versions must be equal, install "
                        "both from one toolkit",
                        library.version(), library.path, others)};
  }
  void* handle = dlopen(wanted.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle != nullptr) return {path_of_handle(handle), ""};
  return {"", fmt::format("NVRTC {} at {} lacks its builtins: {} is neither in that folder nor on "
                          "the loader's path",
                          library.version(), library.path, wanted)};
}

// Opens one library (a path, or a bare name for the loader) and fills in what it is.
NvrtcFound open_library(const std::string& name, const std::string& origin) {
  NvrtcFound found{.candidate = {.path = name, .origin = origin}};
  NvrtcCandidate& candidate = found.candidate;
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    candidate.why = last_loader_error();
    return found;
  }
  NvrtcLibrary library;
  library.path = path_of_handle(handle);
  candidate.path = library.path;
  const std::string missing = resolve_all(handle, library.functions);
  if (!missing.empty()) {
    candidate.why = fmt::format("it is not an NVRTC of CUDA 11.2 or newer: it lacks {}", missing);
    return found;
  }
  const NvrtcFunctions& f = library.functions;
  int arch_count = 0;
  if (f.version(&library.major, &library.minor) != NVRTC_SUCCESS ||
      f.supported_arch_count(&arch_count) != NVRTC_SUCCESS) {
    candidate.why = "it does not say its version and its architectures";
    return found;
  }
  library.archs.resize(static_cast<size_t>(std::max(arch_count, 0)));
  if (arch_count > 0) f.supported_archs(library.archs.data());
  candidate.version = library.version();
  const Builtins builtins = builtins_of(library);
  candidate.usable = builtins.defect.empty();
  candidate.why = candidate.usable ? "its builtins are " + builtins.path : builtins.defect;
  library.builtins_path = builtins.path;
  if (candidate.usable) found.library = std::move(library);
  return found;
}

class Search {
 public:
  void try_name(const std::string& name, const std::string& origin) {
    NvrtcFound found = open_library(name, origin);
    // A bare name that the loader does not know is not a candidate, only a place searched.
    const bool nowhere = found.candidate.path == name && name.find('/') == std::string::npos;
    if (nowhere || !seen_.insert(found.candidate.path).second) return;
    found_.push_back(std::move(found));
  }

  void try_folder(const fs::path& folder, const std::string& origin) {
    for (const fs::path& file : files_with_prefix(folder, kLibraryPrefix)) {
      const std::string real = resolved(file).string();
      if (seen_.count(real) == 0) try_name(real, origin);
    }
  }

  void try_forced(const std::string& place) {
    std::error_code error;
    if (!fs::is_directory(place, error)) {
      // A bare name would send the loader elsewhere; KILN_NVRTC is a place.
      try_name(resolved(fs::absolute(place)).string(), kForcedOrigin);
      return;
    }
    try_folder(place, kForcedOrigin);
    if (found_.empty()) {
      found_.push_back(
          {.candidate = {
               .path = place, .origin = kForcedOrigin, .why = "the folder holds no libnvrtc.so"}});
    }
  }

  std::vector<NvrtcFound> take() { return std::move(found_); }

 private:
  std::set<std::string> seen_;
  std::vector<NvrtcFound> found_;
};

std::string searched(const NvrtcPlaces& places, const std::vector<NvrtcFound>& found) {
  std::string text;
  if (places.forced.empty()) {
    text = "Searched were the loader's path for";
    for (const std::string& name : places.names) text += " " + name;
    for (const auto& [origin, folder] : places.folders) text += fmt::format(", {}", folder);
    text += ". ";
  }
  for (const NvrtcFound& each : found) {
    const NvrtcCandidate& candidate = each.candidate;
    text += fmt::format("{} (from {}{}) {}: {}. ", candidate.path, candidate.origin,
                        candidate.version.empty() ? "" : ", version " + candidate.version,
                        candidate.usable ? "is usable" : "is not usable", candidate.why);
  }
  return text;
}

}  // namespace

std::string NvrtcLibrary::version() const { return fmt::format("{}.{}", major, minor); }

NvrtcPlaces NvrtcPlaces::of_this_machine() {
  NvrtcPlaces places;
  places.forced = environment("KILN_NVRTC");
  places.names = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
  auto add_toolkit = [&](const std::string& origin, const fs::path& toolkit) {
    for (const char* folder : kToolkitLibraryFolders) {
      places.folders.emplace_back(origin, (toolkit / folder).string());
    }
  };
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    const std::string toolkit = environment(name);
    if (!toolkit.empty()) add_toolkit(name, toolkit);
  }
  std::vector<fs::path> toolkits;
  std::error_code error;
  for (fs::directory_iterator it("/usr/local", error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().filename().string().starts_with("cuda")) toolkits.push_back(it->path());
  }
  std::sort(toolkits.begin(), toolkits.end());
  for (const fs::path& toolkit : toolkits) add_toolkit("/usr/local", toolkit);
  return places;
}

std::vector<NvrtcFound> find_nvrtc(const NvrtcPlaces& places) {
  Search search;
  if (!places.forced.empty()) {
    search.try_forced(places.forced);
    return search.take();
  }
  for (const std::string& name : places.names) search.try_name(name, kLoaderOrigin);
  for (const auto& [origin, folder] : places.folders) search.try_folder(folder, origin);
  return search.take();
}

NvrtcLibrary load_nvrtc(const NvrtcPlaces& places, int driver_cuda_major) {
  std::vector<NvrtcFound> found = find_nvrtc(places);
  const NvrtcFound* best = nullptr;
  for (const NvrtcFound& each : found) {
    if (!each.library) continue;
    const NvrtcLibrary& library = *each.library;
    const bool loadable = driver_cuda_major == 0 || library.major <= driver_cuda_major;
    if (!loadable && places.forced.empty()) continue;
    if (best == nullptr || std::pair(library.major, library.minor) >
                               std::pair(best->library->major, best->library->minor)) {
      best = &each;
    }
  }
  if (best == nullptr) {
    const std::string limit =
        driver_cuda_major == 0 || !places.forced.empty()
            ? ""
            : fmt::format(" whose output a driver of CUDA {} can load", driver_cuda_major);
    fail(Status::no_compiler,
         "No usable NVRTC{} was found. {}Install the CUDA toolkit, or set KILN_NVRTC to a libnvrtc "
         "file or its folder.",
         limit, searched(places, found));
  }
  // NVRTC opens its builtins by a bare name; once these are loaded, that name finds them.
  if (dlopen(best->library->builtins_path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    fail(Status::no_compiler, "The builtins of NVRTC {} at {} do not load: {}.",
         best->library->version(), best->library->path, last_loader_error());
  }
  return *best->library;
}

std::vector<NvrtcCandidate> nvrtc_candidates() {
  std::vector<NvrtcCandidate> candidates;
  for (const NvrtcFound& found : find_nvrtc(NvrtcPlaces::of_this_machine())) {
    candidates.push_back(found.candidate);
  }
  return candidates;
}

}  // namespace kiln::jit
