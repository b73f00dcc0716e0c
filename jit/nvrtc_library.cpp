// The search for libnvrtc and the check that its builtins are of the same version.
#include "jit/nvrtc_library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <set>
#include <utility>

#include "jit/base/environment.h"
#include "jit/base/error.h"
#include "jit/base/library_file.h"
#include "jit/nvrtc_signals.h"

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
  const LibraryFile file = open_library_file(wanted, RTLD_NOW | RTLD_GLOBAL);
  if (file.handle != nullptr) return {path_of_handle(file.handle), ""};
  return {"", fmt::format("NVRTC {} at {} lacks its builtins: {} is neither in that folder nor on "
                          "the loader's path",
                          library.version(), library.path, wanted)};
}

// Opens one library (a path, or a bare name for the loader) and fills in what it is.
NvrtcFound open_library(const std::string& name, const std::string& origin) {
  NvrtcFound found{.candidate = {.path = name, .origin = origin}};
  NvrtcCandidate& candidate = found.candidate;
  const LibraryFile file = open_library_file(name);
  if (file.handle == nullptr) {
    candidate.why = file.why;
    return found;
  }
  NvrtcLibrary library;
  library.handle = file.handle;
  library.path = path_of_handle(file.handle);
  candidate.path = library.path;
  const std::string missing = resolve_all(file.handle, library.functions);
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

using Version = std::pair<int, int>;  // major, minor
constexpr int kAnything = std::numeric_limits<int>::max();
constexpr Version kAnyVersion = {kAnything, kAnything};

// "libnvrtc.so.13.0.48" -> 13, 0, 48
std::vector<int> numbers_of(std::string_view name, std::string_view prefix) {
  std::vector<int> numbers;
  name.remove_prefix(std::min(prefix.size(), name.size()));
  while (name.starts_with('.')) {
    name.remove_prefix(1);
    int number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error != std::errc{}) break;
    numbers.push_back(number);
    name.remove_prefix(static_cast<size_t>(end - name.data()));
  }
  return numbers;
}

// Somewhere that an NVRTC may be, not opened yet.
struct Place {
  std::string name;  // a path with symbolic links resolved, or a bare name for the loader
  std::string origin;
  Version at_most = kAnyVersion;  // what is known of its version without opening it

  bool is_bare() const { return name.find('/') == std::string::npos; }
};

// The name of a bare library is its soname, which says the major version at best.
Place bare_place(const std::string& name) {
  Place place{.name = name, .origin = kLoaderOrigin};
  const std::vector<int> numbers = numbers_of(name, kLibraryPrefix);
  if (!numbers.empty()) place.at_most.first = numbers[0];
  return place;
}

// A file called by its soname ("libnvrtc.so.12", or "libnvrtc.so.11.2" from 11.2 to 11.8) says less
// than the builtins beside it.
Place file_place(const std::string& path, const std::string& origin) {
  Place place{.name = path, .origin = origin};
  const fs::path file = path;
  const std::vector<int> numbers = numbers_of(file.filename().string(), kLibraryPrefix);
  if (numbers.size() > 2) {
    place.at_most = {numbers[0], numbers[1]};
    return place;
  }
  std::optional<Version> newest;
  for (const fs::path& each : files_with_prefix(file.parent_path(), kBuiltinsPrefix)) {
    const std::vector<int> pair = numbers_of(resolved(each).filename().string(), kBuiltinsPrefix);
    if (pair.size() < 2 || (!numbers.empty() && pair[0] != numbers[0])) continue;
    newest = std::max(newest.value_or(Version{}), Version{pair[0], pair[1]});
  }
  if (newest) {
    place.at_most = *newest;
  } else if (!numbers.empty()) {
    place.at_most.first = numbers[0];
  }
  return place;
}

// All of them in the order of the search, each file once.
std::vector<Place> list_places(const NvrtcPlaces& places) {
  std::vector<Place> list;
  std::set<std::string> seen;
  const auto add_folder = [&](const fs::path& folder, const std::string& origin) {
    for (const fs::path& file : files_with_prefix(folder, kLibraryPrefix)) {
      const std::string real = resolved(file).string();
      if (seen.insert(real).second) list.push_back(file_place(real, origin));
    }
  };
  if (!places.forced.empty()) {
    std::error_code error;
    if (fs::is_directory(places.forced, error)) {
      add_folder(places.forced, kForcedOrigin);
    } else {
      // A bare name would send the loader elsewhere; KILN_NVRTC is a place.
      list.push_back(file_place(resolved(fs::absolute(places.forced)).string(), kForcedOrigin));
    }
    return list;
  }
  for (const std::string& name : places.names) list.push_back(bare_place(name));
  for (const auto& [origin, folder] : places.folders) add_folder(folder, origin);
  return list;
}

// Opens places, and keeps what came of it: each library once, whatever names lead to it.
class Opener {
 public:
  // nullptr: opened before, or a bare name that the loader does not know, which is no candidate.
  NvrtcFound* open(const Place& place) {
    NvrtcFound found = open_library(place.name, place.origin);
    const bool nowhere = place.is_bare() && found.candidate.path == place.name;
    if (nowhere || !seen_.insert(found.candidate.path).second) return nullptr;
    found_.push_back(std::move(found));
    return &found_.back();
  }

  // As if it had been opened and were of no use.
  void pass_over(const Place& place, std::string why) {
    if (place.is_bare()) return;
    found_.push_back(
        {.candidate = {.path = place.name, .origin = place.origin, .why = std::move(why)}});
  }

  // A forced folder that holds nothing is said to.
  std::vector<NvrtcFound> take(const NvrtcPlaces& places) {
    if (!places.forced.empty() && found_.empty()) {
      pass_over({.name = fs::absolute(places.forced).string(), .origin = kForcedOrigin},
                "the folder holds no libnvrtc.so");
    }
    return std::move(found_);
  }

 private:
  std::set<std::string> seen_;
  std::vector<NvrtcFound> found_;
};

void refuse(NvrtcFound& found, std::string why) {
  found.library.reset();
  found.candidate.usable = false;
  found.candidate.why = std::move(why);
}

// NVRTC opens its builtins by a bare name; once these are loaded, that name finds them.
void load_builtins(NvrtcFound& found) {
  const std::string& path = found.library->builtins_path;
  const LibraryFile file = open_library_file(path, RTLD_NOW | RTLD_GLOBAL);
  if (file.handle != nullptr) return;
  refuse(found, fmt::format("its builtins at {} do not load: {}", path, file.why));
}

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
  Opener opener;
  for (const Place& place : list_places(places)) opener.open(place);
  return opener.take(places);
}

NvrtcLibrary load_nvrtc(const NvrtcPlaces& places, int driver_cuda_major) {
  const int newest_major =
      driver_cuda_major == 0 || !places.forced.empty() ? kAnything : driver_cuda_major;
  const auto newer_than_driver = [&](std::string_view version) {
    return fmt::format("it is of CUDA {}, and the driver, of CUDA {}, does not load what it makes",
                       version, driver_cuda_major);
  };
  Opener opener;
  std::optional<NvrtcLibrary> best;
  std::vector<Place> left = list_places(places);
  while (!left.empty()) {
    const auto next = std::max_element(
        left.begin(), left.end(),
        [](const Place& one, const Place& other) { return one.at_most < other.at_most; });
    if (best && next->at_most <= Version{best->major, best->minor}) break;
    const Place place = *next;
    left.erase(next);
    if (place.at_most.first != kAnything && place.at_most.first > newest_major) {
      opener.pass_over(place, newer_than_driver(std::to_string(place.at_most.first)));
      continue;
    }
    NvrtcFound* found = opener.open(place);
    if (found == nullptr || !found->library) continue;
    const Version version = {found->library->major, found->library->minor};
    if (version.first > newest_major) {
      refuse(*found, newer_than_driver(found->candidate.version));
    } else if (!best || version > Version{best->major, best->minor}) {
      load_builtins(*found);
      if (found->library) best = found->library;
    }
  }
  if (!best) {
    const bool is_limited = newest_major != kAnything;
    fail(Status::no_compiler,
         "No usable NVRTC{} was found. {}Install the CUDA toolkit{}, set KILN_NVRTC to a libnvrtc "
         "file or its folder, or serve from a pack that another machine has made: `kiln build "
         "--gpu SLUG --pack FILE` there, KILN_PACK=FILE here.",
         is_limited ? fmt::format(" whose output a driver of CUDA {} can load", newest_major) : "",
         searched(places, opener.take(places)),
         is_limited ? fmt::format(" {} or a newer driver", newest_major) : "");
  }
  keep_signals_from(best->handle);
  return *std::move(best);
}

std::vector<NvrtcCandidate> nvrtc_candidates() {
  std::vector<NvrtcCandidate> candidates;
  for (const NvrtcFound& found : find_nvrtc(NvrtcPlaces::of_this_machine())) {
    candidates.push_back(found.candidate);
  }
  return candidates;
}

}  // namespace kiln::jit
