#include "runtime/cuda/cuda_device.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <mutex>

#include "jit/base/environment.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/nvml.h"

namespace kiln::runtime::cuda {
namespace {

constexpr int kFirstComputeCapability = 80;
constexpr int kWarpSize = 32;
constexpr int kMaxThreadsPerCta = 1024;
constexpr size_t kJitLogBytes = 8192;

CUstream as_stream(Stream stream) { return static_cast<CUstream>(stream); }

// A GPU that is half described would be taken for one of another class, so nothing is made up here.
void require_described(const Driver& driver, CUresult result, std::string_view what) {
  if (result == CUDA_SUCCESS) return;
  fail(Status::driver_error, "The CUDA driver could not say {}: {}.", what,
       driver.error_text(result));
}

int attribute(const Driver& driver, CUdevice device, CUdevice_attribute which) {
  int value = 0;
  require_described(driver, driver.device_get_attribute(&value, which, device),
                    fmt::format("attribute {} of device {}", static_cast<int>(which), device));
  return value;
}

// For what is not part of the class and not reported everywhere; 0 when it is not.
int optional_attribute(const Driver& driver, CUdevice device, CUdevice_attribute which) {
  int value = 0;
  return driver.device_get_attribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

// "NVIDIA GeForce RTX 3090" -> "rtx-3090": how the table's slugs are made.
std::string slug_of(std::string_view driver_name) {
  std::string slug;
  for (const char c : driver_name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (c >= 'A' && c <= 'Z') {
      slug += static_cast<char>(c - 'A' + 'a');
    } else if (letter || c == '.') {
      slug += c;
    } else if (!slug.empty() && slug.back() != '-') {
      slug += '-';
    }
  }
  while (!slug.empty() && slug.back() == '-') slug.pop_back();
  for (const std::string_view maker : {"nvidia-", "geforce-"}) {
    if (slug.starts_with(maker)) slug.erase(0, maker.size());
  }
  return slug;
}

const Gpu* row_called(std::string_view name) {
  try {
    return &find_gpu(name);
  } catch (const Error&) {
    return nullptr;
  }
}

// Rates that no driver reports, for a card that is not in the table: those of its nearest family.
void assume_rates(Gpu& gpu) {
  gpu.fp32_fma_per_clk_sm = gpu.cc() == 80 ? 64 : 128;
  gpu.bf16_mma_fma_per_clk_sm = gpu.cc() == 80 || gpu.cc_major >= 9 ? 1024 : 512;
}

Gpu reported_gpu(const Driver& driver, CUdevice device, const std::string& name) {
  const auto get = [&](CUdevice_attribute which) { return attribute(driver, device, which); };
  Gpu gpu;
  gpu.slug = slug_of(name);
  gpu.name = name;
  gpu.cc_major = get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  gpu.cc_minor = get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  gpu.sm_count = get(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  gpu.smem_per_sm_bytes = get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  gpu.smem_per_cta_optin_bytes = get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  gpu.smem_reserved_per_cta_bytes = get(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
  gpu.registers_per_sm = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  gpu.max_warps_per_sm = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR) / kWarpSize;
  gpu.max_ctas_per_sm = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
  gpu.l2_bytes = get(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  gpu.boost_mhz = optional_attribute(driver, device, CU_DEVICE_ATTRIBUTE_CLOCK_RATE) / 1000;
  // Two transfers per clock on a bus counted in bits; the clock comes in kHz.
  const double memory_khz =
      optional_attribute(driver, device, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
  const double bus_bits = get(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
  gpu.dram_gb_per_s = memory_khz * 2 * bus_bits / 8 / 1e6;
  size_t dram_bytes = 0;
  require_described(driver, driver.device_total_mem(&dram_bytes, device),
                    fmt::format("the memory size of device {}", device));
  gpu.dram_bytes = static_cast<int64_t>(dram_bytes);
  // Some drivers report no memory clock; then the name tells the bandwidth, and the limits still
  // have to agree.
  if (gpu.dram_gb_per_s == 0) {
    if (const Gpu* row = row_called(name)) gpu.dram_gb_per_s = row->dram_gb_per_s;
  }
  return gpu;
}

// "12.4 (550.54.15)". The kernel module is only known to belong to the system's own driver.
std::string driver_text(const Driver& driver) {
  std::string kernel_module;
  if (environment("KILN_LIBCUDA").empty()) {
    std::ifstream("/sys/module/nvidia/version") >> kernel_module;
  }
  if (kernel_module.empty()) return driver.version_text();
  return fmt::format("{} ({})", driver.version_text(), kernel_module);
}

DeviceInfo describe(const Driver& driver, int ordinal, CUdevice device) {
  DeviceInfo info;
  info.id = fmt::format("cuda:{}", ordinal);
  std::array<char, 256> name{};
  require_described(driver,
                    driver.device_get_name(name.data(), static_cast<int>(name.size()) - 1, device),
                    fmt::format("the name of {}", info.id));
  info.name = name.data();
  info.driver = driver_text(driver);
  info.cuda_major = driver.version / 1000;

  const Gpu reported = reported_gpu(driver, device, info.name);
  const Gpu* row = match_gpu(reported);
  if (row == nullptr) {
    info.gpu = reported;
    assume_rates(info.gpu);
    return info;
  }
  // The limits of a matching row are those reported; its bandwidth is the one of the class.
  info.gpu = *row;
  info.match = row->slug;
  if (reported.dram_bytes > 0) info.gpu.dram_bytes = reported.dram_bytes;
  if (reported.boost_mhz > 0) info.gpu.boost_mhz = reported.boost_mhz;
  return info;
}

struct Found {
  CUdevice device = 0;
  DeviceInfo info;      // its id only when there is a problem
  std::string problem;  // "" or why the driver could not describe it
};

std::vector<Found> find_devices(const Driver& driver) {
  int count = 0;
  if (const CUresult result = driver.device_get_count(&count); result != CUDA_SUCCESS) {
    fail(Status::driver_error, "The CUDA driver could not count its devices: {}.",
         driver.error_text(result));
  }
  std::vector<Found> found;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    Found one;
    one.info.id = fmt::format("cuda:{}", ordinal);
    try {  // a card that fails must not hide the others
      require_described(driver, driver.device_get(&one.device, ordinal),
                        fmt::format("which device {} is", one.info.id));
      one.info = describe(driver, ordinal, one.device);
    } catch (const Error& error) {
      one.problem = error.what();
    }
    found.push_back(std::move(one));
  }
  return found;
}

std::string name_all(const std::vector<Found>& found) {
  std::string text;
  for (const Found& one : found) {
    if (!one.problem.empty()) {
      text += fmt::format("{}{} (not readable)", text.empty() ? "" : ", ", one.info.id);
      continue;
    }
    text += fmt::format("{}{} ({}, compute capability {}.{})", text.empty() ? "" : ", ",
                        one.info.id, one.info.name, one.info.gpu.cc_major, one.info.gpu.cc_minor);
  }
  return text.empty() ? "none" : text;
}

bool serves(const Found& found) {
  return found.problem.empty() && found.info.gpu.cc() >= kFirstComputeCapability;
}

// Makes a context current and this thread's capture mode what the work needs, and puts both back.
class Scope {
 public:
  // relaxed: the work is one that stream capture forbids by default. kept: it belongs to a capture,
  // or is harmless.
  enum class Capture { kept, relaxed };

  Scope(const Driver& driver, CUcontext context, Capture capture) noexcept : driver_(driver) {
    CUcontext current = nullptr;
    result_ = driver_.ctx_get_current(&current);
    if (result_ == CUDA_SUCCESS && current != context) {
      result_ = driver_.ctx_push_current(context);
      pushed_ = result_ == CUDA_SUCCESS;
    }
    if (result_ == CUDA_SUCCESS && capture == Capture::relaxed) {
      result_ = driver_.thread_exchange_capture_mode(&mode_);
      exchanged_ = result_ == CUDA_SUCCESS;
    }
  }
  ~Scope() {
    if (exchanged_ && !restore_mode()) restore_mode();
    CUcontext ours = nullptr;
    if (pushed_) driver_.ctx_pop_current(&ours);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  // When not CUDA_SUCCESS the work must not be done: the context is not current, or captures would
  // break.
  CUresult result() const { return result_; }

 private:
  // The exchange may also report an earlier launch's error, so a second attempt is worth it; a copy
  // is passed, because the driver writes to it.
  bool restore_mode() const noexcept {
    CUstreamCaptureMode mode = mode_;
    return driver_.thread_exchange_capture_mode(&mode) == CUDA_SUCCESS;
  }

  const Driver& driver_;
  CUresult result_ = CUDA_SUCCESS;
  bool pushed_ = false;
  bool exchanged_ = false;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // the caller's, once exchanged
};

// A loaded cubin or PTX: a CUlibrary where the driver has them, else a CUmodule. Unloaded in the
// scope of its device.
class Image {
 public:
  Image(const Driver& driver, CUlibrary library) : driver_(&driver), library_(library) {}
  Image(const Driver& driver, CUmodule module) : driver_(&driver), module_(module) {}
  Image(Image&& other) noexcept
      : driver_(other.driver_),
        library_(std::exchange(other.library_, nullptr)),
        module_(std::exchange(other.module_, nullptr)) {}
  Image& operator=(Image&&) = delete;
  ~Image() {
    if (library_ != nullptr) driver_->library_unload(library_);
    if (module_ != nullptr) driver_->module_unload(module_);
  }
  // Forgets the handle: after a fork it is the parent's.
  void abandon() {
    library_ = nullptr;
    module_ = nullptr;
  }

  CUresult find(const std::string& entry, CUfunction& function) const {
    if (library_ == nullptr) return driver_->module_get_function(&function, module_, entry.c_str());
    CUkernel kernel = nullptr;
    const CUresult result = driver_->library_get_kernel(&kernel, library_, entry.c_str());
    return result != CUDA_SUCCESS ? result : driver_->kernel_get_function(&function, kernel);
  }

 private:
  const Driver* driver_;
  CUlibrary library_ = nullptr;
  CUmodule module_ = nullptr;
};

class Event {
 public:
  Event(const Driver& driver, CUevent event) : driver_(driver), event_(event) {}
  ~Event() { driver_.event_destroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  CUevent get() const { return event_; }

 private:
  const Driver& driver_;
  CUevent event_;
};

class CudaGraph : public Graph {
 public:
  CudaGraph(const Driver& driver, CUcontext context, CUgraphExec exec)
      : driver_(driver), context_(context), exec_(exec) {}
  ~CudaGraph() override {
    const Scope scope(driver_, context_, Scope::Capture::relaxed);
    driver_.graph_exec_destroy(exec_);
  }
  CUgraphExec exec() const { return exec_; }

 private:
  const Driver& driver_;
  CUcontext context_;
  CUgraphExec exec_;
};

class CudaDevice : public Device {
 public:
  CudaDevice(Driver driver, CUdevice device, DeviceInfo info);
  ~CudaDevice() override;

  const DeviceInfo& info() const override { return info_; }
  DeviceCondition condition() override;
  std::string error_text(int driver_error) const override {
    return driver_.error_text(driver_error);
  }
  // A launch returns before its kernel runs: what a kernel does wrong, later launches are told.
  bool is_of_earlier_kernel(int driver_error) const override {
    constexpr int kSticky[] = {CUDA_ERROR_ECC_UNCORRECTABLE,
                               CUDA_ERROR_NVLINK_UNCORRECTABLE,
                               CUDA_ERROR_ILLEGAL_ADDRESS,
                               CUDA_ERROR_LAUNCH_TIMEOUT,
                               CUDA_ERROR_ASSERT,
                               CUDA_ERROR_HARDWARE_STACK_ERROR,
                               CUDA_ERROR_ILLEGAL_INSTRUCTION,
                               CUDA_ERROR_MISALIGNED_ADDRESS,
                               CUDA_ERROR_INVALID_ADDRESS_SPACE,
                               CUDA_ERROR_INVALID_PC,
                               CUDA_ERROR_LAUNCH_FAILED};
    return std::find(std::begin(kSticky), std::end(kSticky), driver_error) != std::end(kSticky);
  }

  LoadedKernel load(const jit::Binary& binary, int threads, int64_t dynamic_smem_bytes) override;
  LaunchResult launch(const LoadedKernel& kernel, Dim3 grid, const void* args,
                      Stream stream) noexcept override;
  CaptureState capture_state(Stream stream) noexcept override;

  DevicePtr allocate(int64_t bytes) override;
  void* allocate_pinned(int64_t bytes) override;
  void free_pinned(void* memory) noexcept override;
  void free(DevicePtr pointer) noexcept override;
  int64_t free_bytes() override;
  void copy_to_device(DevicePtr to, const void* from, int64_t bytes) override;
  void copy_to_host(void* to, DevicePtr from, int64_t bytes) override;
  void copy_on_device(DevicePtr to, DevicePtr from, int64_t bytes, Stream stream) override;
  void fill(DevicePtr to, uint8_t value, int64_t bytes, Stream stream) override;

  Stream create_stream() override;
  void destroy_stream(Stream stream) noexcept override;
  void synchronize(Stream stream) override;
  void begin_capture(Stream stream) override;
  std::unique_ptr<Graph> end_capture(Stream stream) override;
  void launch_graph(Graph& graph, Stream stream) override;
  double time_graph_ns(Graph& graph, Stream stream) override;

 private:
  using Capture = Scope::Capture;

  // What fails reads "The CUDA driver could not <operation> on cuda:0 (NVIDIA A30): <name and
  // text>."
  void require(CUresult result, std::string_view operation) const {
    if (result != CUDA_SUCCESS) [[unlikely]]
      fail_driver(result, operation);
  }
  [[noreturn]] void fail_driver(CUresult result, std::string_view operation) const;
  Image load_image(const jit::Binary& binary) const;
  CUevent create_event() const;

  const Driver driver_;
  const CUdevice device_;
  const DeviceInfo info_;
  const pid_t process_;  // that opened it: a forked child must not touch the driver
  CUcontext context_ = nullptr;
  CUstream copy_stream_ =
      nullptr;  // non-blocking: the legacy stream would join captures of blocking streams

  std::mutex mutex_;  // guards what follows; never taken by launch and capture_state
  std::vector<Image> images_;
  NvmlCard nvml_;
};

std::string pci_bus_id(const Driver& driver, CUdevice device) {
  std::array<char, 32> id{};
  require_described(
      driver, driver.device_get_pci_bus_id(id.data(), static_cast<int>(id.size()) - 1, device),
      fmt::format("the PCI address of device {}", device));
  return id.data();
}

CudaDevice::CudaDevice(Driver driver, CUdevice device, DeviceInfo info)
    : driver_(std::move(driver)),
      device_(device),
      info_(std::move(info)),
      process_(getpid()),
      nvml_(pci_bus_id(driver_, device_)) {
  require(driver_.primary_ctx_retain(&context_, device_), "retain the primary context");
  const Scope scope(driver_, context_, Capture::relaxed);
  CUresult result = scope.result();
  if (result == CUDA_SUCCESS) {
    result = driver_.stream_create(&copy_stream_, CU_STREAM_NON_BLOCKING);
  }
  if (result != CUDA_SUCCESS) {
    driver_.primary_ctx_release(device_);
    fail_driver(result, "create a stream");
  }
}

// Errors are ignored: there is nobody to tell, and at the end of the process the driver may be gone
// already.
CudaDevice::~CudaDevice() {
  if (getpid() != process_) {
    for (Image& image : images_) image.abandon();
    return;
  }
  {
    const Scope scope(driver_, context_, Capture::relaxed);
    images_.clear();
    driver_.stream_destroy(copy_stream_);
  }
  driver_.primary_ctx_release(device_);
}

void CudaDevice::fail_driver(CUresult result, std::string_view operation) const {
  const Status status =
      result == CUDA_ERROR_OUT_OF_MEMORY ? Status::out_of_memory : Status::driver_error;
  fail(status, "The CUDA driver could not {} on {} ({}): {}.", operation, info_.id, info_.name,
       driver_.error_text(result));
}

DeviceCondition CudaDevice::condition() {
  const std::lock_guard lock(mutex_);
  return nvml_.read();
}

Image CudaDevice::load_image(const jit::Binary& binary) const {
  std::array<char, kJitLogBytes> log{};
  std::array<CUjit_option, 2> options = {CU_JIT_ERROR_LOG_BUFFER,
                                         CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  std::array<void*, 2> values = {log.data(), reinterpret_cast<void*>(log.size() - 1)};
  const unsigned count = options.size();

  CUlibrary library = nullptr;
  CUmodule module = nullptr;
  const bool has_libraries = driver_.library_load_data != nullptr;
  const CUresult result =
      has_libraries ? driver_.library_load_data(&library, binary.image.c_str(), options.data(),
                                                values.data(), count, nullptr, nullptr, 0)
                    : driver_.module_load_data_ex(&module, binary.image.c_str(), count,
                                                  options.data(), values.data());
  if (result != CUDA_SUCCESS) {
    log.back() = '\0';
    fail_driver(result,
                fmt::format("load {} ({} for {}, made by NVRTC {}; the driver is for CUDA "
                            "{}{}{})",
                            binary.entry, binary.kind == jit::BinaryKind::cubin ? "a cubin" : "PTX",
                            binary.arch, binary.nvrtc_version, driver_.version_text(),
                            log[0] != '\0' ? "; its log: " : "", log.data()));
  }
  return has_libraries ? Image(driver_, library) : Image(driver_, module);
}

LoadedKernel CudaDevice::load(const jit::Binary& binary, int threads, int64_t dynamic_smem_bytes) {
  const auto fail_smem = [&](int64_t static_smem_bytes) {
    fail(
        Status::unsupported,
        "Kernel {} asks for {} bytes of shared memory ({} of them static); a CTA on {} ({}) has at "
        "most {}. Use a config with smaller tiles.",
        binary.entry, static_smem_bytes + dynamic_smem_bytes, static_smem_bytes, info_.id,
        info_.name, info_.gpu.smem_per_cta_optin_bytes);
  };
  const auto require_threads = [&](int limit) {
    if (threads >= 1 && threads <= limit) return;
    fail(Status::unsupported,
         "Kernel {} is to be launched with {} threads; on {} ({}) this binary allows 1 to {}.",
         binary.entry, threads, info_.id, info_.name, limit);
  };
  require_threads(kMaxThreadsPerCta);
  if (dynamic_smem_bytes < 0 || dynamic_smem_bytes > info_.gpu.smem_per_cta_optin_bytes) {
    fail_smem(0);
  }

  const Scope scope(driver_, context_, Capture::relaxed);
  require(scope.result(), "enter its context");
  Image image = load_image(binary);

  CUfunction function = nullptr;
  require(image.find(binary.entry, function), fmt::format("find kernel {}", binary.entry));
  const auto get = [&](CUfunction_attribute which) {
    int value = 0;
    require(driver_.func_get_attribute(&value, which, function),
            fmt::format("read an attribute of {}", binary.entry));
    return value;
  };
  require_threads(get(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
  // The driver is the judge of the sum: on some cards the static size includes what the system
  // reserves.
  const CUresult result =
      driver_.func_set_attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                 static_cast<int>(dynamic_smem_bytes));
  if (result == CUDA_ERROR_INVALID_VALUE) fail_smem(get(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
  require(result,
          fmt::format("set the shared memory of {} to {} bytes", binary.entry, dynamic_smem_bytes));
  if (driver_.func_load != nullptr) {
    require(driver_.func_load(function), fmt::format("upload kernel {}", binary.entry));
  }

  const std::lock_guard lock(mutex_);
  images_.push_back(std::move(image));
  return {.function = function,
          .threads = static_cast<uint32_t>(threads),
          .dynamic_smem_bytes = static_cast<uint32_t>(dynamic_smem_bytes)};
}

LaunchResult CudaDevice::launch(const LoadedKernel& kernel, Dim3 grid, const void* args,
                                Stream stream) noexcept {
  const auto function = static_cast<CUfunction>(kernel.function);
  void* parameters[] = {const_cast<void*>(args)};

  CUcontext current = nullptr;
  CUresult result = driver_.ctx_get_current(&current);
  if (result != CUDA_SUCCESS) return {result};
  if (current == context_) [[likely]] {
    return {driver_.launch_kernel(function, grid.x, grid.y, grid.z, kernel.threads, 1, 1,
                                  kernel.dynamic_smem_bytes, as_stream(stream), parameters,
                                  nullptr)};
  }
  result = driver_.ctx_push_current(context_);
  if (result != CUDA_SUCCESS) return {result};
  result = driver_.launch_kernel(function, grid.x, grid.y, grid.z, kernel.threads, 1, 1,
                                 kernel.dynamic_smem_bytes, as_stream(stream), parameters, nullptr);
  driver_.ctx_pop_current(&current);
  return {result};
}

CaptureState CudaDevice::capture_state(Stream stream) noexcept {
  const Scope scope(driver_, context_, Capture::kept);
  if (scope.result() != CUDA_SUCCESS) return CaptureState::none;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver_.stream_is_capturing(as_stream(stream), &status);
  // The legacy stream while a blocking stream captures: work on it would join, and break, that
  // capture.
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return CaptureState::active;
  if (result != CUDA_SUCCESS) return CaptureState::none;
  switch (status) {
    case CU_STREAM_CAPTURE_STATUS_ACTIVE:
      return CaptureState::active;
    case CU_STREAM_CAPTURE_STATUS_INVALIDATED:
      return CaptureState::invalidated;
    default:
      return CaptureState::none;
  }
}

DevicePtr CudaDevice::allocate(int64_t bytes) {
  if (bytes < 0)
    fail(Status::invalid_argument, "An allocation of {} bytes is not possible.", bytes);
  if (bytes == 0) return 0;
  const Scope scope(driver_, context_, Capture::relaxed);
  require(scope.result(), "enter its context");
  CUdeviceptr pointer = 0;
  require(driver_.mem_alloc(&pointer, static_cast<size_t>(bytes)),
          fmt::format("allocate {} bytes", bytes));
  return pointer;
}

void CudaDevice::free(DevicePtr pointer) noexcept {
  if (pointer == 0) return;
  const Scope scope(driver_, context_, Capture::relaxed);
  if (scope.result() == CUDA_SUCCESS) driver_.mem_free(pointer);
}

// With unified addresses, which every GPU from cc 2.0 up has, the pointer serves kernels as it is.
void* CudaDevice::allocate_pinned(int64_t bytes) {
  if (bytes < 0)
    fail(Status::invalid_argument, "An allocation of {} bytes is not possible.", bytes);
  if (bytes == 0) return nullptr;
  const Scope scope(driver_, context_, Capture::relaxed);
  require(scope.result(), "enter its context");
  void* memory = nullptr;
  require(driver_.mem_host_alloc(&memory, static_cast<size_t>(bytes), CU_MEMHOSTALLOC_DEVICEMAP),
          fmt::format("pin {} bytes of the host", bytes));
  return memory;
}

void CudaDevice::free_pinned(void* memory) noexcept {
  if (memory == nullptr) return;
  const Scope scope(driver_, context_, Capture::relaxed);
  if (scope.result() == CUDA_SUCCESS) driver_.mem_free_host(memory);
}

int64_t CudaDevice::free_bytes() {
  const Scope scope(driver_, context_, Capture::relaxed);
  require(scope.result(), "enter its context");
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  require(driver_.mem_get_info(&free_bytes, &total_bytes), "read the free memory");
  return static_cast<int64_t>(free_bytes);
}

void CudaDevice::copy_to_device(DevicePtr to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  const Scope scope(driver_, context_, Capture::relaxed);
  require(scope.result(), "enter its context");
  require(driver_.memcpy_h_to_d_async(to, from, static_cast<size_t>(bytes), copy_stream_),
          "copy to the device");
  require(driver_.stream_synchronize(copy_stream_), "finish a copy to the device");
}

void CudaDevice::copy_to_host(void* to, DevicePtr from, int64_t bytes) {
  if (bytes == 0) return;
  const Scope scope(driver_, context_, Capture::relaxed);
  require(scope.result(), "enter its context");
  require(driver_.memcpy_d_to_h_async(to, from, static_cast<size_t>(bytes), copy_stream_),
          "copy to the host");
  require(driver_.stream_synchronize(copy_stream_), "finish a copy to the host");
}

void CudaDevice::copy_on_device(DevicePtr to, DevicePtr from, int64_t bytes, Stream stream) {
  if (bytes == 0) return;
  const Scope scope(driver_, context_, Capture::kept);
  require(scope.result(), "enter its context");
  require(driver_.memcpy_d_to_d_async(to, from, static_cast<size_t>(bytes), as_stream(stream)),
          "copy on the device");
}

void CudaDevice::fill(DevicePtr to, uint8_t value, int64_t bytes, Stream stream) {
  if (bytes == 0) return;
  const Scope scope(driver_, context_, Capture::kept);
  require(scope.result(), "enter its context");
  require(driver_.memset_d8_async(to, value, static_cast<size_t>(bytes), as_stream(stream)),
          "fill memory");
}

Stream CudaDevice::create_stream() {
  const Scope scope(driver_, context_, Capture::relaxed);
  require(scope.result(), "enter its context");
  CUstream stream = nullptr;
  require(driver_.stream_create(&stream, CU_STREAM_NON_BLOCKING), "create a stream");
  return stream;
}

void CudaDevice::destroy_stream(Stream stream) noexcept {
  if (stream == nullptr) return;
  const Scope scope(driver_, context_, Capture::relaxed);
  if (scope.result() == CUDA_SUCCESS) driver_.stream_destroy(as_stream(stream));
}

void CudaDevice::synchronize(Stream stream) {
  const Scope scope(driver_, context_, Capture::relaxed);
  require(scope.result(), "enter its context");
  require(driver_.stream_synchronize(as_stream(stream)), "finish the work of a stream");
}

void CudaDevice::begin_capture(Stream stream) {
  const Scope scope(driver_, context_, Capture::kept);
  require(scope.result(), "enter its context");
  require(driver_.stream_begin_capture(as_stream(stream), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
          "begin a capture");
}

std::unique_ptr<Graph> CudaDevice::end_capture(Stream stream) {
  CUgraph graph = nullptr;
  {
    const Scope scope(driver_, context_, Capture::kept);
    require(scope.result(), "enter its context");
    require(driver_.stream_end_capture(as_stream(stream), &graph), "end a capture");
  }
  const Scope scope(driver_, context_, Capture::relaxed);
  CUgraphExec exec = nullptr;
  CUresult result = scope.result();
  if (result == CUDA_SUCCESS) result = driver_.graph_instantiate(&exec, graph, 0);
  driver_.graph_destroy(graph);
  require(result, "instantiate a graph");
  return std::make_unique<CudaGraph>(driver_, context_, exec);
}

void CudaDevice::launch_graph(Graph& graph, Stream stream) {
  const Scope scope(driver_, context_, Capture::kept);
  require(scope.result(), "enter its context");
  require(driver_.graph_launch(static_cast<CudaGraph&>(graph).exec(), as_stream(stream)),
          "launch a graph");
}

CUevent CudaDevice::create_event() const {
  CUevent event = nullptr;
  require(driver_.event_create(&event, CU_EVENT_DEFAULT), "create an event");
  return event;
}

double CudaDevice::time_graph_ns(Graph& graph, Stream stream) {
  const Scope scope(driver_, context_, Capture::relaxed);
  require(scope.result(), "enter its context");
  const Event start(driver_, create_event());
  const Event end(driver_, create_event());
  require(driver_.event_record(start.get(), as_stream(stream)), "record an event");
  require(driver_.graph_launch(static_cast<CudaGraph&>(graph).exec(), as_stream(stream)),
          "launch a graph");
  require(driver_.event_record(end.get(), as_stream(stream)), "record an event");
  require(driver_.event_synchronize(end.get()), "finish a timed graph");
  float milliseconds = 0;
  require(driver_.event_elapsed_time(&milliseconds, start.get(), end.get()),
          "read the time of a graph");
  return static_cast<double>(milliseconds) * 1e6;
}

}  // namespace

std::unique_ptr<Device> open_device(int ordinal) {
  Driver driver = Driver::load();
  std::vector<Found> found = find_devices(driver);
  const std::string id = fmt::format("cuda:{}", ordinal);
  const auto one = std::find_if(found.begin(), found.end(),
                                [&](const Found& device) { return device.info.id == id; });
  if (one == found.end()) {
    fail(Status::not_found, "There is no device {}. The CUDA driver has: {}.", id, name_all(found));
  }
  if (!one->problem.empty()) throw Error(Status::driver_error, one->problem);
  if (!serves(*one)) {
    fail(Status::unsupported,
         "Device {} ({}) has compute capability {}.{}; Kiln needs 8.0 or newer. The CUDA driver "
         "has: {}.",
         id, one->info.name, one->info.gpu.cc_major, one->info.gpu.cc_minor, name_all(found));
  }
  return std::make_unique<CudaDevice>(std::move(driver), one->device, std::move(one->info));
}

DeviceList list_devices() {
  DeviceList list;
  try {
    const std::vector<Found> found = find_devices(Driver::load());
    for (const Found& one : found) {
      if (serves(one)) list.devices.push_back(one.info);
    }
    if (list.devices.empty()) {
      list.problem =
          fmt::format("No device has compute capability 8.0 or newer. The CUDA driver has: {}.",
                      name_all(found));
      for (const Found& one : found) {
        if (!one.problem.empty()) list.problem += " " + one.problem;
      }
    }
  } catch (const Error& error) {
    list.problem = error.what();
  }
  return list;
}

}  // namespace kiln::runtime::cuda
