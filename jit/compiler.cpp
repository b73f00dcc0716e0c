// NVRTC as a Compiler: options, the call, the image with its resources, and errors that show the
// log, the options and the source.
#include "jit/compiler.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "jit/base/json.h"
#include "jit/nvrtc_library.h"
#include "jit/resources.h"
#include "jit/source.h"

namespace kiln::jit {
namespace {

constexpr int kWindowLines = 4;  // shown before and after the line of the first error

constexpr std::pair<int, int> kFirstVersionWithCache = {12, 9};

// Options that Kiln fixes itself, or that let NVRTC read or write files of the machine. One dash or
// two.
constexpr std::string_view kForbiddenOptions[] = {"I",
                                                  "include-path",
                                                  "include",
                                                  "pre-include",
                                                  "arch",
                                                  "gpu-arch",
                                                  "maxrregcount",
                                                  "fmad",
                                                  "use_fast_math",
                                                  "std",
                                                  "pch",
                                                  "create-pch",
                                                  "use-pch",
                                                  "pch-dir",
                                                  "time",
                                                  "fdevice-time-trace",
                                                  "default-dev",
                                                  "device-as-default",
                                                  "ptxas-options",
                                                  "Xptxas",
                                                  "no-cache"};

constexpr const char* kLineInfo = "--generate-line-info";

// "compute_80" asks for PTX, with the source lines that the simulator names in its reports.
CompileOptions for_arch(CompileOptions options, std::string_view arch) {
  if (!arch.starts_with("compute_")) return options;
  options.kind = BinaryKind::ptx;
  if (std::count(options.extra.begin(), options.extra.end(), kLineInfo) == 0)
    options.extra.emplace_back(kLineInfo);
  return options;
}

// NVRTC puts the working folder before the names of sources that have none of their own, but the
// same source must give the same image wherever it is compiled.
void strip_working_folder(std::string& ptx) {
  std::error_code error;
  const std::string prefix = '"' + std::filesystem::current_path(error).string() + '/';
  if (error) return;
  for (size_t at = ptx.find(prefix); at != std::string::npos; at = ptx.find(prefix, at + 1))
    ptx.erase(at + 1, prefix.size() - 1);
}

bool is_cubin(const CompileOptions& options) { return options.kind == BinaryKind::cubin; }

// What decides the code, in a fixed order: part of the key.
std::vector<std::string> key_options(const CompileOptions& options) {
  std::vector<std::string> list = {"--std=c++17", "--fmad=false"};
  if (options.max_registers < 0 || options.max_registers > 255) {
    fail(Status::invalid_argument, "max_registers is 0 to 255, but {} was given.",
         options.max_registers);
  }
  if (options.max_registers > 0) {
    list.push_back(fmt::format("--maxrregcount={}", options.max_registers));
  }
  for (const std::string& option : options.extra) {
    const std::string_view name =
        std::string_view(option).substr(std::min(option.find_first_not_of('-'), option.size()));
    for (std::string_view forbidden : kForbiddenOptions) {
      if (name.starts_with(forbidden)) {
        fail(Status::invalid_argument,
             "The NVRTC option \"{}\" may not be given: Kiln fixes it, or it reaches files of the "
             "machine.",
             option);
      }
    }
    list.push_back(option);
  }
  return list;
}

// "sm_86" -> 86 for a cubin, "compute_80" -> 80 for PTX. A suffix such as that of "sm_90a" stays
// legal.
int arch_number(std::string_view arch, const CompileOptions& options) {
  const std::string_view prefix = is_cubin(options) ? "sm_" : "compute_";
  int number = 0;
  if (arch.starts_with(prefix)) {
    const char* end = arch.data() + arch.size();
    const auto result = std::from_chars(arch.data() + prefix.size(), end, number);
    const bool suffix = result.ptr != end && (*result.ptr == 'a' || *result.ptr == 'f');
    if (result.ec == std::errc{} && result.ptr + (suffix ? 1 : 0) == end) return number;
  }
  fail(Status::unsupported, "{} is not an architecture for {}: \"{}80\" is an example.",
       in_quotes(arch), is_cubin(options) ? "a cubin" : "PTX", prefix);
}

Hash128 key_of(const Hash128& closure, std::string_view arch, const CompileOptions& options,
               std::string_view options_text) {
  return HashRecord()
      .field("record", "kiln binary 1")
      .field("source", closure.hex())
      .field("arch", arch)
      .field("kind", static_cast<int64_t>(options.kind))
      .field("options", options_text)
      .hash();
}

// Times differ from run to run and say nothing about the code.
std::string without_times(std::string_view log) {
  std::string kept;
  while (!log.empty()) {
    const size_t end = log.find('\n');
    const size_t length = end == std::string_view::npos ? log.size() : end + 1;
    const std::string_view line = log.substr(0, length);
    if (line.find("Compile time = ") == std::string_view::npos) kept += line;
    log.remove_prefix(length);
  }
  return kept;
}

struct Location {
  std::string file;
  int line = 0;
};

// Of a line such as `templates/common/bf16.cuh(12): error: ...`.
std::optional<Location> error_location(std::string_view line) {
  const size_t close = line.find("): ");
  if (close == std::string_view::npos) return std::nullopt;
  const std::string_view message = line.substr(close + 3);
  if (!message.starts_with("error") && !message.starts_with("catastrophic error")) {
    return std::nullopt;
  }
  const size_t open = line.rfind('(', close);
  if (open == std::string_view::npos) return std::nullopt;
  Location location{std::string(line.substr(0, open)), 0};
  std::from_chars(line.data() + open + 1, line.data() + close, location.line);
  return location;
}

std::optional<Location> first_error(std::string_view log) {
  while (!log.empty()) {
    const size_t end = log.find('\n');
    if (auto location = error_location(log.substr(0, end))) return location;
    log.remove_prefix(end == std::string_view::npos ? log.size() : end + 1);
  }
  return std::nullopt;
}

// The lines around a location, numbered, the line itself marked; "" when the file is not one of
// ours.
std::string source_window(const SourceFile& main, const std::vector<SourceFile>& headers,
                          const Location& location) {
  const SourceFile* file = main.path == location.file ? &main : nullptr;
  for (const SourceFile& header : headers) {
    if (header.path == location.file) file = &header;
  }
  if (file == nullptr) return "";
  std::string window;
  std::string_view rest = file->text;
  for (int line = 1; !rest.empty(); ++line) {
    const size_t end = rest.find('\n');
    if (line >= location.line - kWindowLines && line <= location.line + kWindowLines) {
      window += fmt::format("{} {:5} | {}\n", line == location.line ? '>' : ' ', line,
                            rest.substr(0, end));
    }
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  return fmt::format("\n{}:\n{}", location.file, window);
}

class Program {
 public:
  Program(const NvrtcFunctions& nvrtc, const SourceFile& main,
          const std::vector<SourceFile>& headers)
      : nvrtc_(nvrtc) {
    std::vector<const char*> texts;
    std::vector<const char*> names;
    for (const SourceFile& header : headers) {
      texts.push_back(header.text.c_str());
      names.push_back(header.path.c_str());
    }
    check(nvrtc_.create_program(&program_, main.text.c_str(), main.path.c_str(),
                                static_cast<int>(headers.size()), texts.data(), names.data()),
          "create a program");
  }
  ~Program() { nvrtc_.destroy_program(&program_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  nvrtcResult compile(const std::vector<std::string>& options) {
    std::vector<const char*> pointers;
    for (const std::string& option : options) pointers.push_back(option.c_str());
    return nvrtc_.compile_program(program_, static_cast<int>(pointers.size()), pointers.data());
  }

  std::string log() {
    std::string text = fetch(nvrtc_.log_size, nvrtc_.log, "read the log");
    while (!text.empty() && text.back() == '\0') text.pop_back();
    return text;
  }

  std::string image(BinaryKind kind) {
    if (kind == BinaryKind::cubin) return fetch(nvrtc_.cubin_size, nvrtc_.cubin, "read the cubin");
    std::string ptx = fetch(nvrtc_.ptx_size, nvrtc_.ptx, "read the PTX");
    // The driver needs the terminator, and std::string supplies one; the stored bytes are the text.
    while (!ptx.empty() && ptx.back() == '\0') ptx.pop_back();
    return ptx;
  }

 private:
  void check(nvrtcResult result, const char* what) {
    if (result == NVRTC_SUCCESS) return;
    fail(result == NVRTC_ERROR_OUT_OF_MEMORY ? Status::out_of_memory : Status::internal,
         "NVRTC could not {}: {}.", what, nvrtc_.error_string(result));
  }

  template <typename Size, typename Get>
  std::string fetch(Size size, Get get, const char* what) {
    size_t size_bytes = 0;
    check(size(program_, &size_bytes), what);
    std::string bytes(size_bytes, '\0');
    check(get(program_, bytes.data()), what);
    return bytes;
  }

  const NvrtcFunctions& nvrtc_;
  nvrtcProgram program_ = nullptr;
};

class NvrtcCompiler final : public Compiler {
 public:
  explicit NvrtcCompiler(NvrtcLibrary library) : library_(std::move(library)) {}

  std::string version() const override { return library_.version(); }
  std::string library_path() const override { return library_.path; }
  std::vector<int> supported_archs() const override { return library_.archs; }

  Binary compile(const KernelSource& source, std::string_view arch,
                 const CompileOptions& wanted) override {
    const CompileOptions options = for_arch(wanted, arch);
    check_arch(arch, options);
    const std::vector<SourceFile> headers = reached_headers(source);
    const std::vector<std::string> chosen = key_options(options);

    Binary binary;
    binary.arch = arch;
    binary.options = fmt::format("{}", fmt::join(chosen, " "));
    binary.entry = source.entry;
    binary.kind = options.kind;
    binary.nvrtc_version = version();
    binary.source_hash = closure_hash(source, headers);
    binary.key = key_of(binary.source_hash, arch, options, binary.options);

    std::vector<std::string> all = {fmt::format("--gpu-architecture={}", arch)};
    all.insert(all.end(), chosen.begin(), chosen.end());
    all.insert(all.end(), {"--no-source-include", "--ptxas-options=-v"});
    // Kiln's store is the cache. NVRTC's own would be a second one, in the driver's folder under
    // the user's home, and NVRTC would open libcuda.so.1 for it.
    if (std::pair(library_.major, library_.minor) >= kFirstVersionWithCache) {
      all.emplace_back("--no-cache");
    }

    Program program(library_.functions, source.main, headers);
    const auto begin = std::chrono::steady_clock::now();
    const nvrtcResult result = program.compile(all);
    const auto end = std::chrono::steady_clock::now();
    binary.compile_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(end - begin).count();
    binary.log = without_times(program.log());
    if (result != NVRTC_SUCCESS) report(result, source, headers, all, binary.log);
    binary.image = program.image(options.kind);
    if (options.kind == BinaryKind::ptx) strip_working_folder(binary.image);
    read_image(source, all, binary);
    return binary;
  }

 private:
  void check_arch(std::string_view arch, const CompileOptions& options) const {
    const int number = arch_number(arch, options);
    if (std::count(library_.archs.begin(), library_.archs.end(), number) > 0) return;
    std::string known;
    for (int each : library_.archs) known += fmt::format(" {}", each);
    fail(Status::unsupported, "NVRTC {} at {} does not compile for {}; it knows{}.", version(),
         library_.path, arch, known);
  }

  [[noreturn]] void report(nvrtcResult result, const KernelSource& source,
                           const std::vector<SourceFile>& headers,
                           const std::vector<std::string>& options, std::string_view log) const {
    const std::optional<Location> location = first_error(log);
    fail(result == NVRTC_ERROR_OUT_OF_MEMORY ? Status::out_of_memory : Status::compile_error,
         "NVRTC {} refused {} ({}).\noptions: {}\nlog:\n{}{}", version(), source.main.path,
         library_.functions.error_string(result), fmt::join(options, " "), log,
         location ? source_window(source.main, headers, *location) : "");
  }

  // Fills in the resources, and checks that the kernel the caller will look up is really there.
  static void read_image(const KernelSource& source, const std::vector<std::string>& options,
                         Binary& binary) {
    const std::vector<std::string> entries = binary.kind == BinaryKind::cubin
                                                 ? entries_of_cubin(binary.image)
                                                 : entries_of_ptx(binary.image);
    if (std::count(entries.begin(), entries.end(), source.entry) == 0) {
      fail(Status::compile_error,
           "{} compiles, but defines no `extern \"C\" __global__` function called {}; it defines: "
           "{}.\n"
           "options: {}\nlog:\n{}",
           source.main.path, source.entry,
           entries.empty() ? "none" : fmt::format("{}", fmt::join(entries, " ")),
           fmt::join(options, " "), binary.log);
    }
    if (binary.kind == BinaryKind::ptx) return;  // registers are the driver's choice
    std::optional<Resources> resources = resources_from_log(binary.log, source.entry);
    // Older versions print no such lines.
    if (!resources) resources = resources_from_cubin(binary.image, source.entry);
    if (!resources) {
      fail(Status::internal,
           "Neither the log nor the cubin of {} says what {} needs.\noptions: {}\nlog:\n{}",
           source.main.path, source.entry, fmt::join(options, " "), binary.log);
    }
    binary.resources = *resources;
  }

  const NvrtcLibrary library_;
};

}  // namespace

Hash128 binary_key(const KernelSource& source, std::string_view arch,
                   const CompileOptions& wanted) {
  const CompileOptions options = for_arch(wanted, arch);
  arch_number(arch, options);
  return key_of(closure_hash(source, reached_headers(source)), arch, options,
                fmt::format("{}", fmt::join(key_options(options), " ")));
}

std::shared_ptr<Compiler> Compiler::load(int driver_cuda_major) {
  // One compiler per driver limit for the life of the process; a failure is not remembered, so that
  // a corrected environment helps. Never destroyed: NVRTC may still be in use by threads when
  // static objects die.
  static std::mutex& mutex = *new std::mutex;
  static auto& loaded = *new std::map<int, std::shared_ptr<Compiler>>;
  const std::lock_guard lock(mutex);
  if (const auto known = loaded.find(driver_cuda_major); known != loaded.end()) {
    return known->second;
  }
  NvrtcLibrary library = load_nvrtc(NvrtcPlaces::of_this_machine(), driver_cuda_major);
  const auto same = std::find_if(loaded.begin(), loaded.end(), [&](const auto& other) {
    return other.second->library_path() == library.path;
  });
  return loaded[driver_cuda_major] = same != loaded.end()
                                         ? same->second
                                         : std::make_shared<NvrtcCompiler>(std::move(library));
}

}  // namespace kiln::jit
