// Wall time of kiln_open and of kiln_prepare for a workload (without one: 256 linears, which need
// 256 kernels; {} is the model's), first from an empty store (every kernel compiled), then from the
// warm one, with the device's context alive as in a serving process. Beside it what the driver
// needs to load the same images from memory, with nothing around it, by turns with ours. Usage:
// start_bench STORE_FILE [rounds [WORKLOAD_FILE]]
#include <fmt/format.h>

#include <algorithm>
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

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

struct Start {
  double milliseconds = 0;  // of kiln_prepare
  double open_milliseconds = 0;
  kiln_stats stats{};
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
  result.stats.size = sizeof(result.stats);
  require(kiln_get_stats(session, &result.stats));
  require(kiln_close(session));
  return result;
}

void print(const char* what, const Start& s) {
  std::printf(
      "%-6s %8.1f ms after %.1f of kiln_open   %llu kernels loaded, %llu compiled, %llu decisions, "
      "%llu defaults\n",
      what, s.milliseconds, s.open_milliseconds,
      static_cast<unsigned long long>(s.stats.kernels_loaded),
      static_cast<unsigned long long>(s.stats.compiles),
      static_cast<unsigned long long>(s.stats.decision_hits),
      static_cast<unsigned long long>(s.stats.decision_defaults));
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

// The driver alone, with the images of a store.
class Driver {
 public:
  explicit Driver(const char* store)
      : driver_(kiln::runtime::cuda::Driver::load()), binaries_(binaries_of(store)) {
    require_success(driver_, driver_.device_get(&device_, 0));
    require_success(driver_, driver_.primary_ctx_retain(&context_, device_));
  }
  ~Driver() { driver_.primary_ctx_release(device_); }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  size_t images() const { return binaries_.size(); }

  double milliseconds() const {
    require_success(driver_, driver_.ctx_push_current(context_));
    const double result = driver_milliseconds(driver_, binaries_);
    CUcontext popped = nullptr;
    driver_.ctx_pop_current(&popped);
    return result;
  }

 private:
  const kiln::runtime::cuda::Driver driver_;
  const std::vector<kiln::jit::Binary> binaries_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
};

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

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: start_bench STORE_FILE [rounds [WORKLOAD_FILE]]\n");
    return 2;
  }
  const int rounds = argc > 2 ? std::max(1, std::atoi(argv[2])) : 9;
  const std::string workload = argc > 3 ? text_of(argv[3]) : many_kernels();
  try {
    const auto context_holder = kiln::runtime::Device::open("cuda:0");
    print("first", start(argv[1], workload.c_str()));
    const Driver driver(argv[1]);
    std::vector<Start> warm;
    std::vector<double> driver_times;
    for (int round = 0; round < rounds; ++round) {  // by turns: the driver's times drift
      warm.push_back(start(argv[1], workload.c_str()));
      driver_times.push_back(driver.milliseconds());
    }
    std::sort(driver_times.begin(), driver_times.end());
    std::sort(warm.begin(), warm.end(),
              [](const Start& a, const Start& b) { return a.milliseconds < b.milliseconds; });
    print("median", warm[warm.size() / 2]);
    print("worst", warm.back());
    std::printf("driver %8.1f ms (worst %.1f)   the %zu images of the store, from memory\n",
                driver_times[driver_times.size() / 2], driver_times.back(), driver.images());
  } catch (const kiln::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
