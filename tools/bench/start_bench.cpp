// Wall time of kiln_open and of kiln_prepare for a workload (without one: 256 linears, which need
// 256 kernels; {} is the model's), first from an empty store (every kernel compiled), then from the
// warm one, with the device's context alive as in a serving process. Beside it what the driver
// needs to load the same images from memory, with nothing around it, in the main thread. Each time
// in a process of its own, by turns: a process starts once, and memory that an earlier round
// returned would be at hand for the next. Usage:
// start_bench STORE_FILE [rounds [WORKLOAD_FILE]]
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "cache/store.h"
#include "runtime/abi/kiln.h"
#include "runtime/cuda/driver.h"
#include "runtime/device.h"

namespace {

using Clock = std::chrono::steady_clock;

// First arguments of the processes that measure.
constexpr const char* kPrepare = "--prepare";
constexpr const char* kDriver = "--driver";

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

struct Start {
  double milliseconds = 0;  // of kiln_prepare
  double open_milliseconds = 0;
  uint64_t loaded = 0;
  uint64_t compiled = 0;
  uint64_t decisions = 0;
  uint64_t defaults = 0;
};

void require(kiln_status status) {
  if (status == KILN_OK) return;
  std::fprintf(stderr, "%s: %s\n", kiln_status_name(status), kiln_last_error());
  std::exit(1);
}

Start start(const char* store, const char* workload) {
  kiln_options options{};
  options.size = sizeof(options);
  options.store = store;
  const auto begin = Clock::now();
  kiln_session* session = nullptr;
  require(kiln_open(&options, &session));
  const double open_milliseconds = milliseconds_since(begin);
  require(kiln_prepare(session, workload, nullptr, nullptr));
  Start result{.milliseconds = milliseconds_since(begin) - open_milliseconds,
               .open_milliseconds = open_milliseconds};
  kiln_stats stats{};
  stats.size = sizeof(stats);
  require(kiln_get_stats(session, &stats));
  result.loaded = stats.kernels_loaded;
  result.compiled = stats.compiles;
  result.decisions = stats.decision_hits;
  result.defaults = stats.decision_defaults;
  require(kiln_close(session));
  return result;
}

void print(const char* what, const Start& s) {
  fmt::print(
      "{:<6} {:8.1f} ms after {:.1f} of kiln_open   {} kernels loaded, {} compiled, {} decisions, "
      "{} defaults\n",
      what, s.milliseconds, s.open_milliseconds, s.loaded, s.compiled, s.decisions, s.defaults);
}

std::vector<kiln::jit::Binary> binaries_of(const char* path) {
  const auto store = kiln::cache::Store::open({.path = path});
  std::vector<kiln::jit::Binary> binaries;
  for (const kiln::cache::BinaryRow& row : store->list_binaries()) {
    if (auto binary = store->find_binary(row.key)) binaries.push_back(std::move(*binary));
  }
  return binaries;
}

void require_success(const kiln::runtime::cuda::Driver& driver, CUresult result) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s\n", driver.error_text(result).c_str());
  std::exit(1);
}

struct Alone {
  double milliseconds = 0;
  uint64_t images = 0;
};

// Load, find and upload, as any program has to; the images are unloaded outside of the time.
double driver_milliseconds(const kiln::runtime::cuda::Driver& driver,
                           const std::vector<kiln::jit::Binary>& binaries) {
  if (driver.library_load_data == nullptr || driver.func_load == nullptr) {
    std::fprintf(stderr, "the comparison with the driver needs a driver for CUDA 12.4 or newer\n");
    std::exit(1);
  }
  std::vector<CUlibrary> libraries(binaries.size());
  const auto begin = Clock::now();
  for (size_t i = 0; i < binaries.size(); ++i) {
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    require_success(driver, driver.library_load_data(&libraries[i], binaries[i].image.c_str(),
                                                     nullptr, nullptr, 0, nullptr, nullptr, 0));
    require_success(driver,
                    driver.library_get_kernel(&kernel, libraries[i], binaries[i].entry.c_str()));
    require_success(driver, driver.kernel_get_function(&function, kernel));
    require_success(driver, driver.func_load(function));
  }
  const double milliseconds = milliseconds_since(begin);
  for (const CUlibrary library : libraries) require_success(driver, driver.library_unload(library));
  return milliseconds;
}

// The driver alone, with all images of a store.
Alone driver_alone(const char* store) {
  const auto driver = kiln::runtime::cuda::Driver::load();
  const std::vector<kiln::jit::Binary> binaries = binaries_of(store);
  CUdevice device = 0;
  CUcontext context = nullptr;
  require_success(driver, driver.device_get(&device, 0));
  require_success(driver, driver.primary_ctx_retain(&context, device));
  require_success(driver, driver.ctx_push_current(context));
  const double milliseconds = driver_milliseconds(driver, binaries);
  CUcontext popped = nullptr;
  driver.ctx_pop_current(&popped);
  driver.primary_ctx_release(device);
  return {.milliseconds = milliseconds, .images = binaries.size()};
}

// Shapes of one op that share no kernel.
std::string many_kernels() {
  constexpr int kFeatures[][2] = {{16384, 1280}, {5120, 4096}, {1792, 5120}, {25600, 6144},
                                  {4096, 1280},  {1152, 5120}, {5120, 1152}, {5120, 15360}};
  std::string entries;
  const auto add = [&](const std::string& shape) {
    for (const int rows : {1, 4096}) {
      entries +=
          fmt::format(R"({}{{"op":"linear_fp8","shape":{{{}}},"sizes":{{"num_rows":[{},{}]}}}})",
                      entries.empty() ? "" : ",", shape, rows, rows);
    }
  };
  for (const auto& [out, in] : kFeatures) {
    for (const int divisor : {1, 2}) {
      for (const char* w_layout : {"packed", "checkpoint"}) {
        for (const char* x_format : {"bf16_q8a", "codes_q8a"}) {
          for (const char* y_format : {"bf16", "f32"}) {
            add(fmt::format(R"("out_features":{},"in_features":{},"groups":1,"x_format":"{}",)"
                            R"("y_format":"{}","w_layout":"{}")",
                            out / divisor, in, x_format, y_format, w_layout));
          }
        }
      }
    }
  }
  return fmt::format(R"({{"ops":[{}]}})", entries);
}

std::string text_of(const char* path) {
  std::ifstream file(path);
  if (!file) {
    std::fprintf(stderr, "%s cannot be read\n", path);
    std::exit(1);
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

// What a process of its own prints that runs this program's `part`.
template <typename Type>
Type in_process_of_its_own(const char* part, const char* store, const char* workload_file) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) std::exit(1);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    execl("/proc/self/exe", "start_bench", part, store, workload_file, nullptr);
    _exit(1);
  }
  close(ends[1]);
  Type result{};
  const bool came = read(ends[0], &result, sizeof(result)) == sizeof(result);
  close(ends[0]);
  waitpid(child, nullptr, 0);
  if (!came) {
    std::fprintf(stderr, "the process for %s ended early\n", part);
    std::exit(1);
  }
  return result;
}

template <typename Type>
void hand_over(const Type& result) {
  if (write(STDOUT_FILENO, &result, sizeof(result)) != sizeof(result)) std::exit(1);
}

int run(int argc, char** argv) {
  const std::string first = argv[1];
  if (first == kPrepare || first == kDriver) {
    const auto context_holder = kiln::runtime::Device::open("cuda:0");
    if (first == kDriver) {
      hand_over(driver_alone(argv[2]));
    } else {
      const std::string workload = argc > 3 ? text_of(argv[3]) : many_kernels();
      hand_over(start(argv[2], workload.c_str()));
    }
    return 0;
  }

  const int rounds = argc > 2 ? std::max(1, std::atoi(argv[2])) : 9;
  const char* workload_file = argc > 3 ? argv[3] : nullptr;
  print("first", in_process_of_its_own<Start>(kPrepare, argv[1], workload_file));
  std::vector<Start> warm;
  std::vector<Alone> driver;
  for (int round = 0; round < rounds; ++round) {  // by turns: the driver's times drift
    warm.push_back(in_process_of_its_own<Start>(kPrepare, argv[1], workload_file));
    driver.push_back(in_process_of_its_own<Alone>(kDriver, argv[1], workload_file));
  }
  const auto is_sooner = [](const auto& a, const auto& b) {
    return a.milliseconds < b.milliseconds;
  };
  std::sort(driver.begin(), driver.end(), is_sooner);
  std::sort(warm.begin(), warm.end(), is_sooner);
  print("best", warm.front());
  print("median", warm[warm.size() / 2]);
  print("worst", warm.back());
  const Alone& alone = driver[driver.size() / 2];
  fmt::print("driver {:8.1f} ms (best {:.1f}, worst {:.1f})   {} images, from memory\n",
             alone.milliseconds, driver.front().milliseconds, driver.back().milliseconds,
             alone.images);
  if (alone.images == warm.front().loaded) return 0;
  std::fprintf(stderr,
               "the store has %llu images, but %llu were prepared: give a store of its own\n",
               static_cast<unsigned long long>(alone.images),
               static_cast<unsigned long long>(warm.front().loaded));
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: start_bench STORE_FILE [rounds [WORKLOAD_FILE]]\n");
    return 2;
  }
  try {
    return run(argc, argv);
  } catch (const kiln::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
