// A Device whose kernels are functions of this process, so that the tuner's child is tested whole
// without a GPU. An image is JSON that names the function; the tuner's own kernels are the real
// sources, compiled for the host.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "jit/base/json.h"
#include "runtime/device.h"
#include "tuner/tensors.h"

namespace kiln::testing {

class HostDevice : public runtime::Device {
 public:
  // A small L2 leaves little memory to rotate through.
  explicit HostDevice(int64_t memory_bytes = int64_t{1} << 30, int64_t l2_bytes = 64 << 10);
  ~HostDevice() override;

  const runtime::DeviceInfo& info() const override { return info_; }
  runtime::DeviceCondition condition() override { return {}; }
  std::string error_text(int driver_error) const override;
  runtime::LoadedKernel load(const jit::Binary& binary, int threads,
                             int64_t dynamic_smem_bytes) override;
  runtime::LaunchResult launch(const runtime::LoadedKernel& kernel, runtime::Dim3 grid,
                               const void* args, runtime::Stream stream) noexcept override;
  runtime::CaptureState capture_state(runtime::Stream) noexcept override {
    return runtime::CaptureState::none;
  }
  runtime::DevicePtr allocate(int64_t bytes) override;
  void free(runtime::DevicePtr pointer) noexcept override;
  void* allocate_pinned(int64_t bytes) override;
  void free_pinned(void* memory) noexcept override;
  int64_t free_bytes() override;
  void copy_to_device(runtime::DevicePtr to, const void* from, int64_t bytes) override;
  void copy_to_host(void* to, runtime::DevicePtr from, int64_t bytes) override;
  void copy_on_device(runtime::DevicePtr to, runtime::DevicePtr from, int64_t bytes,
                      runtime::Stream stream) override;
  void fill(runtime::DevicePtr to, uint8_t value, int64_t bytes, runtime::Stream stream) override;
  runtime::Stream create_stream() override { return this; }
  void destroy_stream(runtime::Stream) noexcept override {}
  void synchronize(runtime::Stream stream) override;
  void begin_capture(runtime::Stream stream) override;
  std::unique_ptr<runtime::Graph> end_capture(runtime::Stream stream) override;
  void launch_graph(runtime::Graph& graph, runtime::Stream stream) override;
  double time_graph_ns(runtime::Graph& graph, runtime::Stream stream) override;

  // Of toy kernels of this behaviour.
  int64_t launches(int64_t behaviour) const;
  int64_t allocations() const { return static_cast<int64_t>(live_.size()); }
  int64_t pinned_allocations() const { return pinned_; }

 private:
  struct Function {
    Json image;
  };
  struct Launch {
    const Function* function = nullptr;
    std::vector<uint64_t> args;
  };
  struct HostGraph;

  void require_healthy() const;
  enum class Purpose { result, timing };  // nobody looks at what a timed call wrote

  void run(const Launch& launch, Purpose purpose);
  void run_toy(const Json& image, const std::vector<uint64_t>& args, Purpose purpose);

  runtime::DeviceInfo info_;
  int64_t memory_bytes_;
  int64_t used_bytes_ = 0;
  std::vector<std::unique_ptr<Function>> functions_;
  std::map<runtime::DevicePtr, int64_t> live_;
  int64_t pinned_ = 0;
  std::map<int64_t, int64_t> launches_;  // by behaviour
  bool broken_ = false;
  bool capturing_ = false;
  bool busy_ = false;  // work was submitted that nobody has waited for
  int32_t* current_input_ = nullptr;
  int32_t* earlier_input_ = nullptr;  // of the call before, when that was another one
  std::vector<Launch> captured_;
};

// The tuner's own kernels, and a plan of the toy op, for a HostDevice of this process.
std::map<std::string, jit::Binary> host_tools();
tuner::RunnablePlan toy_plan(HostDevice& device, int64_t behaviour, int64_t scale = 3);

}  // namespace kiln::testing
