#include "runtime/cuda/nvml.h"

#include <dlfcn.h>

#include "jit/base/environment.h"
#include "jit/base/library_file.h"

namespace kiln::runtime::cuda {
namespace {

constexpr int kNvmlSuccess = 0;
constexpr int kNvmlClockSm = 1;
constexpr unsigned long long kNvmlReasonIdle = 1;

template <typename Function>
void bind(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

// NVML is neither shut down nor unloaded: others in the process may use it, and at exit it could be
// gone already.
void NvmlCard::load() {
  tried_ = true;
  const std::string given = environment("KILN_LIBNVML");
  const std::string file = given.empty() ? "libnvidia-ml.so.1" : given;
  void* library = open_library_file(file).handle;
  if (library == nullptr) return;

  int (*init)() = nullptr;
  int (*get_handle)(const char* pci_bus_id, Handle* card) = nullptr;
  bind(library, init, "nvmlInit_v2");
  bind(library, get_handle, "nvmlDeviceGetHandleByPciBusId_v2");
  bind(library, get_clock_, "nvmlDeviceGetClockInfo");
  bind(library, get_reasons_, "nvmlDeviceGetCurrentClocksEventReasons");
  if (get_reasons_ == nullptr) {  // its name before driver 535
    bind(library, get_reasons_, "nvmlDeviceGetCurrentClocksThrottleReasons");
  }
  if (init == nullptr || get_handle == nullptr || get_clock_ == nullptr ||
      get_reasons_ == nullptr) {
    return;
  }
  if (init() != kNvmlSuccess) return;
  if (get_handle(pci_bus_id_.c_str(), &handle_) != kNvmlSuccess) handle_ = nullptr;
}

DeviceCondition NvmlCard::read() {
  if (!tried_) load();
  if (handle_ == nullptr) return {};
  unsigned mhz = 0;
  unsigned long long reasons = 0;
  if (get_clock_(handle_, kNvmlClockSm, &mhz) != kNvmlSuccess) return {};
  if (get_reasons_(handle_, &reasons) != kNvmlSuccess) return {};
  return {.reading = ClockReading::available,
          .sm_mhz = static_cast<int>(mhz),
          .throttle_reasons = reasons & ~kNvmlReasonIdle};
}

}  // namespace kiln::runtime::cuda
