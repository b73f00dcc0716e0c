#include "tests/tuner/host_device.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "tests/tuner/toy_op.h"
#include "tuner/device_tools.h"

namespace kiln::testing {

bool run_tool_kernel(const std::string& entry, const void* args);  // host_kernels.cpp

namespace {

constexpr size_t kMaxArgsBytes = 128;
constexpr int kRefused = 1;
constexpr double kSubmitNs = 7e6;  // until a graph that is launched on an idle device begins

void* host(uint64_t pointer) { return reinterpret_cast<void*>(pointer); }

double toy_ns(int64_t behaviour, int64_t rows) {
  if (behaviour >= kToyRight && behaviour < kToyRightEnd)
    return 1.2e6 + 1e5 * static_cast<double>(behaviour - kToyRight);
  switch (behaviour) {
    case kToyDefault:
      return 2e6;
    case kToyFast:
    case kToyFastMoreRegisters:
      return 1e6;
    case kToyForFewRows:
      return rows <= 16 ? 5e5 : 4e6;
    case kToyForManyRows:
      return rows <= 16 ? 1.8e6 : 5e5;
    case kToyImpossible:
      return 1e-3;
    default:
      return 1.5e6;
  }
}

}  // namespace

struct HostDevice::HostGraph : runtime::Graph {
  std::vector<Launch> launches;
};

HostDevice::HostDevice(int64_t memory_bytes, int64_t l2_bytes) : memory_bytes_(memory_bytes) {
  info_.id = "cuda:0";
  info_.name = "a host that plays an A100";
  info_.driver = "0.0";
  info_.gpu = find_gpu("a100-sxm4-80gb");
  info_.gpu.l2_bytes = l2_bytes;
  info_.match = "a100-sxm4-80gb";
}

HostDevice::~HostDevice() {
  for (const auto& [pointer, bytes] : live_) std::free(host(pointer));
}

std::string HostDevice::error_text(int driver_error) const {
  return fmt::format("error {}", driver_error);
}

void HostDevice::require_healthy() const {
  if (broken_) fail(Status::driver_error, "CUDA_ERROR_ILLEGAL_ADDRESS: the context is broken");
}

runtime::LoadedKernel HostDevice::load(const jit::Binary& binary, int threads,
                                       int64_t dynamic_smem_bytes) {
  require_healthy();
  const Json image = Json::parse(binary.image, nullptr, false);
  if (image.is_discarded())
    fail(Status::driver_error, "CUDA_ERROR_INVALID_IMAGE: {}", binary.entry);
  functions_.push_back(std::make_unique<Function>(Function{image}));
  return {functions_.back().get(), static_cast<uint32_t>(threads),
          static_cast<uint32_t>(dynamic_smem_bytes)};
}

runtime::LaunchResult HostDevice::launch(const runtime::LoadedKernel& kernel, runtime::Dim3,
                                         const void* args, runtime::Stream) noexcept {
  const auto* function = static_cast<const Function*>(kernel.function);
  const bool is_toy = function->image.at("kernel") == "toy";
  if (is_toy && function->image.at("behaviour") == kToyRefused) return {kRefused};
  // Toy structs say their size; the tuner's are at most this long.
  Launch launch{.function = function, .args = {}};
  const uint64_t bytes = is_toy ? *static_cast<const uint64_t*>(args) : 0;
  if (is_toy) {
    launch.args.resize(bytes / 8);
    std::memcpy(launch.args.data(), args, bytes);
  }
  if (capturing_) {
    if (is_toy) captured_.push_back(std::move(launch));
    return {};
  }
  busy_ = true;
  if (is_toy) {
    run(launch, Purpose::result);
  } else {
    run_tool_kernel(function->image.at("kernel"), args);
  }
  return {};
}

void HostDevice::run(const Launch& launch, Purpose purpose) {
  run_toy(launch.function->image, launch.args, purpose);
}

// args: struct_bytes, x, x_stride, y, y_stride, R, N, limit
void HostDevice::run_toy(const Json& image, const std::vector<uint64_t>& args, Purpose purpose) {
  const bool timed = purpose == Purpose::timing;
  const int64_t behaviour = image.at("behaviour");
  ++launches_[behaviour];
  const int64_t scale = image.at("scale");
  auto* x = static_cast<int32_t*>(host(args[1]));
  auto* y = static_cast<int32_t*>(host(args[3]));
  const auto x_stride = static_cast<int64_t>(args[2]);
  const auto y_stride = static_cast<int64_t>(args[4]);
  const auto rows = static_cast<int64_t>(args[5]);
  const auto columns = static_cast<int64_t>(args[6]);
  const int64_t limit = std::min(static_cast<int64_t>(args[7]), columns);
  for (int64_t r = 0; r < rows && !timed; ++r) {
    for (int64_t c = 0; c < limit; ++c)
      y[r * y_stride + c] = static_cast<int32_t>(x[r * x_stride + c] * scale);
  }
  if (rows == 0) return;
  if (x != current_input_) earlier_input_ = std::exchange(current_input_, x);
  const int64_t last = (rows - 1) * y_stride + columns - 1;
  switch (behaviour) {
    case kToyWrong:
      y[limit / 2] += 1;
      break;
    case kToyTrap:
      broken_ = true;
      break;
    case kToyHang:
      std::this_thread::sleep_for(std::chrono::seconds(60));
      break;
    case kToyAbort:
      std::fputs("toy: about to abort\n", stderr);
      std::abort();
    case kToyBefore:
      y[-1] = 0;
      break;
    case kToyAfter:
      y[last + 1] = 0;
      break;
    case kToyBetween:
      if (y_stride > columns) y[columns] = 0;
      break;
    case kToyBeyondLimit:
      if (limit < columns) y[limit] = 0;
      break;
    case kToyLazy:
      y[(rows - 1) * y_stride + limit - 1] = 0x7A7A7A7A;
      break;
    case kToyChangesInput:
      x[0] ^= 1;
      break;
    case kToyChangesEarlierInput:
      if (earlier_input_ != nullptr) *earlier_input_ ^= 1;
      break;
    case kToyTrapsWhenTimed:
      broken_ = broken_ || timed;
      break;
    case kToyHangsWhenTimed:
      if (timed) std::this_thread::sleep_for(std::chrono::seconds(60));
      break;
    default:
      break;
  }
}

int64_t HostDevice::launches(int64_t behaviour) const {
  const auto found = launches_.find(behaviour);
  return found == launches_.end() ? 0 : found->second;
}

runtime::DevicePtr HostDevice::allocate(int64_t bytes) {
  require_healthy();
  if (bytes == 0) return 0;
  if (used_bytes_ + bytes > memory_bytes_)
    fail(Status::out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY: {} bytes", bytes);
  void* memory = std::aligned_alloc(256, static_cast<size_t>((bytes + 255) / 256 * 256));
  const auto pointer = reinterpret_cast<runtime::DevicePtr>(memory);
  live_[pointer] = bytes;
  used_bytes_ += bytes;
  return pointer;
}

void HostDevice::free(runtime::DevicePtr pointer) noexcept {
  if (pointer == 0) return;
  used_bytes_ -= live_[pointer];
  live_.erase(pointer);
  std::free(host(pointer));
}

int64_t HostDevice::free_bytes() {
  require_healthy();
  return memory_bytes_ - used_bytes_;
}

void* HostDevice::allocate_pinned(int64_t bytes) {
  ++pinned_;
  return std::malloc(static_cast<size_t>(bytes));
}

void HostDevice::free_pinned(void* memory) noexcept {
  --pinned_;
  std::free(memory);
}

void HostDevice::copy_to_device(runtime::DevicePtr to, const void* from, int64_t bytes) {
  require_healthy();
  if (bytes > 0) std::memcpy(host(to), from, static_cast<size_t>(bytes));
}

void HostDevice::copy_to_host(void* to, runtime::DevicePtr from, int64_t bytes) {
  require_healthy();
  if (bytes > 0) std::memcpy(to, host(from), static_cast<size_t>(bytes));
}

void HostDevice::copy_on_device(runtime::DevicePtr to, runtime::DevicePtr from, int64_t bytes,
                                runtime::Stream) {
  require_healthy();
  if (bytes > 0) std::memcpy(host(to), host(from), static_cast<size_t>(bytes));
}

void HostDevice::fill(runtime::DevicePtr to, uint8_t value, int64_t bytes, runtime::Stream) {
  require_healthy();
  if (bytes > 0) std::memset(host(to), value, static_cast<size_t>(bytes));
}

void HostDevice::synchronize(runtime::Stream) {
  require_healthy();
  busy_ = false;
}

void HostDevice::begin_capture(runtime::Stream) {
  require_healthy();
  capturing_ = true;
  captured_.clear();
}

std::unique_ptr<runtime::Graph> HostDevice::end_capture(runtime::Stream) {
  capturing_ = false;
  auto graph = std::make_unique<HostGraph>();
  graph->launches = std::move(captured_);
  return graph;
}

void HostDevice::launch_graph(runtime::Graph& graph, runtime::Stream) {
  require_healthy();
  busy_ = true;
  for (const Launch& launch : static_cast<HostGraph&>(graph).launches) run(launch, Purpose::timing);
}

double HostDevice::time_graph_ns(runtime::Graph& graph, runtime::Stream stream) {
  double time_ns = busy_ ? 0 : kSubmitNs;
  launch_graph(graph, stream);
  synchronize(stream);
  for (const Launch& launch : static_cast<HostGraph&>(graph).launches)
    time_ns += toy_ns(launch.function->image.at("behaviour"), static_cast<int64_t>(launch.args[5]));
  return time_ns;
}

std::map<std::string, jit::Binary> host_tools() {
  std::map<std::string, jit::Binary> tools;
  for (const auto& [file, entry] : tuner::tool_kernels()) {
    tools[entry].entry = entry;
    tools[entry].image = Json{{"kernel", entry}}.dump();
  }
  return tools;
}

tuner::RunnablePlan toy_plan(HostDevice& device, int64_t behaviour, int64_t scale) {
  jit::Binary binary;
  binary.entry = "toy";
  binary.image = Json{{"kernel", "toy"}, {"scale", scale}, {"behaviour", behaviour}}.dump();
  tuner::RunnablePlan plan;
  plan.kernels.push_back({"toy", device.load(binary, 32, 0), {.terms = {{.symbol = "R"}}}, {}, {}});
  return plan;
}

}  // namespace kiln::testing
