#include "runtime/cuda/driver.h"

#include <dlfcn.h>

#include <vector>

#include "jit/base/environment.h"
#include "jit/base/error.h"
#include "jit/base/library_file.h"

namespace kiln::runtime::cuda {
namespace {

constexpr int kFirstVersionWithLibraries = 12000;

// Looks up names in one loaded file. Versions in the names are those whose signature driver.h
// declares.
class Symbols {
 public:
  explicit Symbols(void* handle) : handle_(handle) {}

  template <typename Function>
  void require(Function& function, const char* name) {
    optional(function, name);
    if (function == nullptr) missing_.emplace_back(name);
  }
  template <typename Function>
  void optional(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
  }
  const std::vector<std::string>& missing() const { return missing_; }

 private:
  void* handle_;
  std::vector<std::string> missing_;
};

void bind_all(Symbols& symbols, Driver& driver) {
  symbols.require(driver.init, "cuInit");
  symbols.require(driver.driver_get_version, "cuDriverGetVersion");
  symbols.require(driver.get_error_name, "cuGetErrorName");
  symbols.require(driver.get_error_string, "cuGetErrorString");

  symbols.require(driver.device_get, "cuDeviceGet");
  symbols.require(driver.device_get_count, "cuDeviceGetCount");
  symbols.require(driver.device_get_name, "cuDeviceGetName");
  symbols.require(driver.device_get_attribute, "cuDeviceGetAttribute");
  symbols.require(driver.device_total_mem, "cuDeviceTotalMem_v2");
  symbols.require(driver.device_get_pci_bus_id, "cuDeviceGetPCIBusId");

  symbols.require(driver.primary_ctx_retain, "cuDevicePrimaryCtxRetain");
  symbols.require(driver.primary_ctx_release, "cuDevicePrimaryCtxRelease_v2");
  symbols.require(driver.ctx_get_current, "cuCtxGetCurrent");
  symbols.require(driver.ctx_push_current, "cuCtxPushCurrent_v2");
  symbols.require(driver.ctx_pop_current, "cuCtxPopCurrent_v2");

  symbols.optional(driver.library_load_data, "cuLibraryLoadData");
  symbols.optional(driver.library_unload, "cuLibraryUnload");
  symbols.optional(driver.library_get_kernel, "cuLibraryGetKernel");
  symbols.optional(driver.kernel_get_function, "cuKernelGetFunction");
  symbols.optional(driver.func_load, "cuFuncLoad");

  symbols.require(driver.module_load_data_ex, "cuModuleLoadDataEx");
  symbols.require(driver.module_unload, "cuModuleUnload");
  symbols.require(driver.module_get_function, "cuModuleGetFunction");
  symbols.require(driver.func_get_attribute, "cuFuncGetAttribute");
  symbols.require(driver.func_set_attribute, "cuFuncSetAttribute");
  symbols.require(driver.launch_kernel, "cuLaunchKernel");

  symbols.require(driver.mem_alloc, "cuMemAlloc_v2");
  symbols.require(driver.mem_free, "cuMemFree_v2");
  symbols.require(driver.mem_host_alloc, "cuMemHostAlloc");
  symbols.require(driver.mem_free_host, "cuMemFreeHost");
  symbols.require(driver.mem_get_info, "cuMemGetInfo_v2");
  symbols.require(driver.memcpy_h_to_d_async, "cuMemcpyHtoDAsync_v2");
  symbols.require(driver.memcpy_d_to_h_async, "cuMemcpyDtoHAsync_v2");
  symbols.require(driver.memcpy_d_to_d_async, "cuMemcpyDtoDAsync_v2");
  symbols.require(driver.memset_d8_async, "cuMemsetD8Async");

  symbols.require(driver.stream_create, "cuStreamCreate");
  symbols.require(driver.stream_destroy, "cuStreamDestroy_v2");
  symbols.require(driver.stream_synchronize, "cuStreamSynchronize");
  symbols.require(driver.stream_is_capturing, "cuStreamIsCapturing");
  symbols.require(driver.stream_begin_capture, "cuStreamBeginCapture_v2");
  symbols.require(driver.stream_end_capture, "cuStreamEndCapture");
  symbols.require(driver.thread_exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");

  symbols.require(driver.graph_instantiate, "cuGraphInstantiateWithFlags");
  symbols.require(driver.graph_launch, "cuGraphLaunch");
  symbols.require(driver.graph_destroy, "cuGraphDestroy");
  symbols.require(driver.graph_exec_destroy, "cuGraphExecDestroy");

  symbols.require(driver.event_create, "cuEventCreate");
  symbols.require(driver.event_destroy, "cuEventDestroy_v2");
  symbols.require(driver.event_record, "cuEventRecord");
  symbols.require(driver.event_synchronize, "cuEventSynchronize");
  symbols.require(driver.event_elapsed_time, "cuEventElapsedTime");
}

void* open_file(const std::string& given, const std::string& file) {
  const auto [handle, why] = open_library_file(file);
  if (handle != nullptr) return handle;
  if (!given.empty()) {
    fail(
        Status::no_driver,
        "The CUDA driver was not found (searched: {}, named by KILN_LIBCUDA): {}. Correct or unset "
        "KILN_LIBCUDA.",
        file, why);
  }
  const std::string path = environment("LD_LIBRARY_PATH");
  fail(Status::no_driver,
       "The CUDA driver was not found (searched: {} in LD_LIBRARY_PATH ({}), the loader's cache "
       "and the "
       "system's folders): {}. Install the NVIDIA driver, or set KILN_LIBCUDA to its {}.",
       file, path.empty() ? "not set" : path, why, file);
}

}  // namespace

std::string Driver::version_text() const {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string Driver::error_text(int error) const {
  const char* name = nullptr;
  const char* text = nullptr;
  const auto code = static_cast<CUresult>(error);
  if (get_error_name(code, &name) != CUDA_SUCCESS || name == nullptr) {
    return fmt::format("error {}, which this driver does not know", error);
  }
  if (get_error_string(code, &text) != CUDA_SUCCESS || text == nullptr) return name;
  return fmt::format("{}: {}", name, text);
}

Driver Driver::load() {
  const std::string given = environment("KILN_LIBCUDA");

  Driver driver;
  driver.file = given.empty() ? "libcuda.so.1" : given;
  Symbols symbols(open_file(given, driver.file));
  bind_all(symbols, driver);
  if (driver.init == nullptr) {
    fail(Status::no_driver, "{} is not a CUDA driver: it has no cuInit.", driver.file);
  }
  if (driver.driver_get_version != nullptr &&
      driver.driver_get_version(&driver.version) != CUDA_SUCCESS) {
    fail(Status::no_driver, "The CUDA driver {} does not say its version.", driver.file);
  }
  if (!symbols.missing().empty()) {
    fail(Status::unsupported,
         "The CUDA driver {} (CUDA {}) lacks {}. Kiln needs a driver for CUDA 11.4 or newer.",
         driver.file, driver.version_text(), fmt::join(symbols.missing(), ", "));
  }
  if (driver.version < kFirstVersionWithLibraries || driver.library_load_data == nullptr ||
      driver.library_unload == nullptr || driver.library_get_kernel == nullptr ||
      driver.kernel_get_function == nullptr) {
    driver.library_load_data = nullptr;
  }
  if (const CUresult result = driver.init(0); result != CUDA_SUCCESS) {
    fail(Status::no_driver, "The CUDA driver {} (CUDA {}) does not start: cuInit returned {}.{}",
         driver.file, driver.version_text(), driver.error_text(result),
         result == CUDA_ERROR_NO_DEVICE
             ? " There is no NVIDIA GPU here, or CUDA_VISIBLE_DEVICES hides it."
             : " Run nvidia-smi to see whether the kernel module is loaded and fits this driver.");
  }
  return driver;
}

}  // namespace kiln::runtime::cuda
