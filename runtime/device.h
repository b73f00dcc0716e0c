// The Device seam: one GPU behind the Driver API (cuda/) or the simulator (sim/).
// Nothing above knows which one it has. launch() and capture_state() are the hot path: no throw,
// and on a real GPU no lock and no allocation; the simulator does both, and runs the kernel before
// it returns. All else may be slow and fails with an Error.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jit/base/error.h"
#include "jit/base/gpu.h"
#include "jit/compiler.h"
#include "templates/op.h"

namespace kiln::runtime {

// cudaStream_t = CUstream; nullptr is the legacy default stream. The simulator takes only nullptr
// and what its create_stream() gave.
using Stream = void*;
using DevicePtr = uint64_t;

inline constexpr std::string_view kSimulatedPrefix = "sim:";  // of a device's id; a slug follows

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
};

// A kernel that is loaded, with its attributes set. Valid until the Device is destroyed: kernels
// are never unloaded before, since a captured graph may hold them.
struct LoadedKernel {
  void* function = nullptr;
  uint32_t threads = 0;
  uint32_t dynamic_smem_bytes = 0;
};

// What a kernel serves. A device that checks accesses learns from it which tensors a launch may
// touch, and names them in its reports.
struct KernelSubject {
  const templates::Op* op = nullptr;
  templates::Sizes fixed;
  std::string config;  // as JSON, for messages
};

enum class CaptureState { none, active, invalidated };
enum class ClockReading { unavailable, available };

// Result of a launch without allocation: 0 or the driver's error number, to be turned into text off
// the hot path.
struct LaunchResult {
  int driver_error = 0;
};

enum class Timing { real, none };  // none: the simulator executes, but has no clock

struct DeviceInfo {
  std::string id;      // "cuda:0"
  std::string name;    // "NVIDIA A100-SXM4-80GB"
  std::string driver;  // "12.4 (550.54)", what is known; "" for the simulator
  int cuda_major = 0;  // 12 for that driver, what jit::Compiler::load wants to know; 0: not known
  Gpu gpu;             // the table's row when one matches, with the limits the driver reports
  std::string match;   // slug of the matching row, or ""
  Timing timing = Timing::real;
};

std::string driver_text(const DeviceInfo& info);  // "driver 12.4 (550.54)", "no driver"

// What the card does right now, for throwing away throttled rounds.
struct DeviceCondition {
  ClockReading reading = ClockReading::unavailable;
  int sm_mhz = 0;
  uint64_t throttle_reasons = 0;  // NVML bits, idle and "none" removed
};

class Graph {
 public:
  virtual ~Graph() = default;
};

class Device {
 public:
  // "cuda:N" or "sim:SLUG". Fails with no_driver, not_found (and the list of devices) or
  // unsupported (cc below 8.0).
  static std::unique_ptr<Device> open(std::string_view id);
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;
  virtual DeviceCondition condition() = 0;
  virtual std::string error_text(int driver_error) const = 0;  // "CUDA_ERROR_ILLEGAL_ADDRESS: ..."

  // Loads a cubin or PTX, sets the shared-memory attribute, forces the upload now so that the first
  // launch does nothing lazily. Fails with driver_error when the image does not load here,
  // unsupported when the shared memory exceeds the opt-in limit.
  virtual LoadedKernel load(const jit::Binary& binary, int threads, int64_t dynamic_smem_bytes) = 0;

  // After load(), before the first launch. Only devices that check use it; they check no kernel
  // that was not described, and fail with driver_error for one that does not take the op's struct.
  virtual void describe(const LoadedKernel& /*kernel*/, const KernelSubject& /*subject*/) {}

  // `args` is the kernel's one parameter, copied by the driver. Any thread; another current context
  // is restored afterwards. After a kernel has failed every further launch, copy, fill and wait
  // fails with what the first one did.
  virtual LaunchResult launch(const LoadedKernel& kernel, Dim3 grid, const void* args,
                              Stream stream) noexcept = 0;
  // True of what launch() answers when an earlier kernel, of whoever, failed on the device. Where
  // launches wait for their kernels (CUDA_LAUNCH_BLOCKING) it may have been this one.
  virtual bool is_of_earlier_kernel(int /*driver_error*/) const { return false; }
  virtual CaptureState capture_state(Stream stream) noexcept = 0;

  // Memory. free() of 0 is legal. Copies to and from the host are finished on return and wait for
  // no stream: synchronize() first with the one whose work they read. All are legal during anyone's
  // capture, which stays valid.
  virtual DevicePtr allocate(int64_t bytes) = 0;
  virtual void free(DevicePtr pointer) noexcept = 0;
  virtual int64_t free_bytes() = 0;
  virtual void copy_to_device(DevicePtr to, const void* from, int64_t bytes) = 0;
  virtual void copy_to_host(void* to, DevicePtr from, int64_t bytes) = 0;
  virtual void copy_on_device(DevicePtr to, DevicePtr from, int64_t bytes, Stream stream) = 0;
  virtual void fill(DevicePtr to, uint8_t value, int64_t bytes, Stream stream) = 0;

  // Pinned memory of the host, which kernels read over the bus at the same address. Fails with
  // unsupported where a device has no bus (the simulator). free_pinned() of nullptr is legal.
  virtual void* allocate_pinned(int64_t /*bytes*/) {
    fail(Status::unsupported, "{} has no bus to pinned memory of the host.", info().id);
  }
  virtual void free_pinned(void* /*memory*/) noexcept {}

  // Streams and graphs of the library's own (tuner, bench, tests). Never a device-wide
  // synchronisation. Graphs are destroyed before their Device.
  virtual Stream create_stream() = 0;
  virtual void destroy_stream(Stream stream) noexcept = 0;
  virtual void synchronize(Stream stream) = 0;    // driver_error, and no more capture, inside one
  virtual void begin_capture(Stream stream) = 0;  // thread-local mode
  virtual std::unique_ptr<Graph> end_capture(Stream stream) = 0;
  virtual void launch_graph(Graph& graph, Stream stream) = 0;
  virtual double time_graph_ns(Graph& graph, Stream stream) = 0;  // one replay between two events
};

// Every device that Device::open would take, for `kiln devices`; empty with a reason when there is
// no driver.
struct DeviceList {
  std::vector<DeviceInfo> devices;
  std::string problem;  // "" or why there are none: "libcuda.so.1 was not found (searched: ...)"
};
DeviceList list_devices();

// RAII for one allocation.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Device& device, int64_t bytes)
      : device_(&device), pointer_(device.allocate(bytes)), bytes_(bytes) {}
  ~DeviceBuffer() { reset(); }
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    if (this != &other) {
      reset();
      device_ = std::exchange(other.device_, nullptr);
      pointer_ = std::exchange(other.pointer_, 0);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }
  void reset() {
    if (device_ != nullptr) device_->free(pointer_);
    device_ = nullptr;
    pointer_ = 0;
    bytes_ = 0;
  }
  DevicePtr get() const { return pointer_; }
  int64_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  DevicePtr pointer_ = 0;
  int64_t bytes_ = 0;
};

// The same for pinned memory of the host.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(Device& device, int64_t bytes)
      : device_(&device), memory_(device.allocate_pinned(bytes)), bytes_(bytes) {}
  ~PinnedBuffer() { reset(); }
  PinnedBuffer(PinnedBuffer&& other) noexcept { *this = std::move(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    if (this != &other) {
      reset();
      device_ = std::exchange(other.device_, nullptr);
      memory_ = std::exchange(other.memory_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }
  void reset() {
    if (device_ != nullptr) device_->free_pinned(memory_);
    device_ = nullptr;
    memory_ = nullptr;
    bytes_ = 0;
  }
  void* get() const { return memory_; }
  DevicePtr on_device() const { return reinterpret_cast<DevicePtr>(memory_); }
  int64_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  void* memory_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace kiln::runtime
