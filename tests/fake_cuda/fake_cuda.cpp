// The fake CUDA driver; fake_cuda.h says what for. Every function begins with ENTER (count,
// injected faults), then checks the context of the thread, then what stream capture forbids, and
// then does its work on host memory. One mutex guards the books; cuLaunchKernel, cuCtxGetCurrent
// and cuStreamIsCapturing take it only while something is recorded, captured or made to fail, since
// the cost of a call of Kiln is measured against them.
#include "tests/fake_cuda/fake_cuda.h"

#include <cuda.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/fake_cuda/fake_cubin.h"

// The header renames it to its newest version; drivers export the first one too.
#undef cuEventElapsedTime

namespace {

using kiln::fake::CubinKernel;
using kiln::fake::Image;
using kiln::fake::ImageKind;

// clang-format off
#define FAKE_CUDA_FUNCTIONS(X)                                                                    \
  X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetErrorString) X(cuDeviceGet)            \
  X(cuDeviceGetCount) X(cuDeviceGetName) X(cuDeviceGetAttribute) X(cuDeviceTotalMem_v2)           \
  X(cuDeviceGetPCIBusId) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease_v2)              \
  X(cuCtxGetCurrent) X(cuCtxSetCurrent) X(cuCtxPushCurrent_v2) X(cuCtxPopCurrent_v2)              \
  X(cuCtxGetDevice)                                                                               \
  X(cuCtxSynchronize) X(cuLibraryLoadData) X(cuLibraryUnload) X(cuLibraryGetKernel)               \
  X(cuKernelGetFunction)                                                                          \
  X(cuModuleLoadDataEx) X(cuModuleUnload) X(cuModuleGetFunction) X(cuFuncGetAttribute)            \
  X(cuFuncSetAttribute) X(cuFuncLoad) X(cuLaunchKernel) X(cuMemAlloc_v2) X(cuMemFree_v2)          \
  X(cuMemHostAlloc) X(cuMemFreeHost)                                                              \
  X(cuMemGetInfo_v2) X(cuMemcpyHtoD_v2) X(cuMemcpyDtoH_v2) X(cuMemcpyHtoDAsync_v2)                \
  X(cuMemcpyDtoHAsync_v2) X(cuMemcpyDtoDAsync_v2) X(cuMemsetD8_v2) X(cuMemsetD8Async)             \
  X(cuStreamCreate) X(cuStreamDestroy_v2) X(cuStreamSynchronize) X(cuStreamQuery)                      \
  X(cuStreamIsCapturing)                                                                          \
  X(cuStreamBeginCapture_v2) X(cuStreamEndCapture) X(cuThreadExchangeStreamCaptureMode)           \
  X(cuGraphInstantiateWithFlags) X(cuGraphLaunch) X(cuGraphDestroy) X(cuGraphExecDestroy)         \
  X(cuEventCreate) X(cuEventDestroy_v2) X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize)    \
  X(cuEventElapsedTime)
// clang-format on

enum Call : int {
#define X(name) k_##name,
  FAKE_CUDA_FUNCTIONS(X)
#undef X
      kCallCount
};

constexpr const char* kCallNames[] = {
#define X(name) #name,
    FAKE_CUDA_FUNCTIONS(X)
#undef X
};

// Handles are checked, so that one which is used too late is found out. What cuLaunchKernel reads
// without the mutex (contexts, functions, kernels, libraries) is kept until the reset.

constexpr int kDeviceCount = 2;
constexpr int kDefaultDynamicSmemBytes = 48 * 1024;
constexpr int kMaxThreadsPerCta = 1024;
constexpr unsigned kMaxGridYz = 65535;
constexpr size_t kAlignmentBytes = 512;
constexpr size_t kPoisonedBytes = 1 << 20;
constexpr unsigned char kPoison = 0xCD;
constexpr size_t kLaunchesKept = 1024;
constexpr size_t kLogKept = 65536;
constexpr int kDefaultDriverVersion = 12040;
constexpr int kFirstVersionWithLibraries = 12000;

struct Context {
  int device = 0;
  int retained = 0;
  std::atomic<bool> alive{false};
  std::atomic<int> sticky{0};
};

struct Stream {
  Context* context = nullptr;
  unsigned flags = 0;
  std::atomic<int> capture{CU_STREAM_CAPTURE_STATUS_NONE};
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  const void* owner = nullptr;  // the thread that began the capture
  struct Graph* graph = nullptr;
};

struct Library {
  Image image;
  Context* module_of = nullptr;  // set for a CUmodule, which belongs to one context
  std::atomic<bool> alive{true};
};

struct Kernel {
  Library* library = nullptr;
  CubinKernel about;
};

struct Function {
  Kernel* kernel = nullptr;
  Context* context = nullptr;
  std::atomic<int> max_dynamic_smem_bytes{0};
};

struct Event {
  bool recorded = false;
  uint64_t ns = 0;
};

enum class NodeKind { launch, set, copy_h_to_d, copy_d_to_h, copy_d_to_d };
struct Node {
  NodeKind kind = NodeKind::launch;
  fake_cuda_launch launch{};
  CUdeviceptr to = 0;
  CUdeviceptr from = 0;
  void* host_to = nullptr;
  const void* host_from = nullptr;
  unsigned char value = 0;
  size_t bytes = 0;
};

struct Graph {
  std::vector<Node> nodes;
};

struct GraphExec {
  std::vector<Node> nodes;
};

struct Device {
  std::string name;
  std::map<int, int> attributes;
  uint64_t total_bytes = 0;
  uint64_t used_bytes = 0;
};

struct Allocation {
  size_t bytes = 0;
  Context* context = nullptr;
};

// The live objects of one kind, by handle.
template <typename Object>
class Pool {
 public:
  Object& make() {
    auto object = std::make_unique<Object>();
    Object& made = *object;
    objects_[&made] = std::move(object);
    return made;
  }
  // nullptr for a handle that is not, or no longer, one of these.
  Object* find(const void* handle) const {
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second.get();
  }
  bool destroy(const void* handle) { return objects_.erase(handle) != 0; }
  template <typename Condition>
  void destroy_if(Condition condition) {
    std::erase_if(objects_, [&](const auto& entry) { return condition(*entry.second); });
  }
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const auto& [handle, object] : objects_) visit(*object);
  }
  size_t size() const { return objects_.size(); }
  void clear() { objects_.clear(); }

 private:
  std::unordered_map<const void*, std::unique_ptr<Object>> objects_;
};

// The books, guarded by `mutex`.
struct Books {
  std::mutex mutex;
  int device_count = kDeviceCount;
  int driver_version = kDefaultDriverVersion;
  uint64_t kernel_ns = 1000;
  Device devices[kDeviceCount];
  Context contexts[kDeviceCount];
  Pool<Stream> streams;
  std::deque<Library> libraries;
  std::deque<Kernel> kernels;
  std::deque<Function> functions;
  Pool<Event> events;
  Pool<Graph> graphs;
  Pool<GraphExec> execs;
  std::map<CUdeviceptr, Allocation> allocations;
  std::set<void*> pinned;  // of the host
  std::deque<fake_cuda_launch> launches;
  uint64_t launches_dropped = 0;
  std::vector<const char*> log;
};

Books& books() {
  static Books* const instance = new Books;  // never destroyed: drivers outlive static destructors
  return *instance;
}
using Lock = std::lock_guard<std::mutex>;

// What the fast paths read without the mutex.
struct Counter {
  std::atomic<uint64_t> calls{0};
  std::atomic<int> error{0};
  std::atomic<uint64_t> fail_from{0};
  std::atomic<uint64_t> fail_until{0};
};
Counter counters[kCallCount];
std::atomic<bool> any_failure{false};
std::atomic<bool> recording{true};
std::atomic<bool> started{false};
std::atomic<int> captures{0};  // streams whose capture state is not "none"
std::atomic<uint64_t> launches_run{0};

// Counts of calls while nothing is recorded and nothing fails, in stripes that threads do not
// share, so that a benchmark of several threads does not measure the fake.
struct alignas(64) QuietCounts {
  std::array<std::atomic<uint64_t>, kCallCount> calls{};
  std::atomic<uint64_t> launches{0};
};
std::array<QuietCounts, 64> quiet_counts;
std::atomic<uint32_t> threads_seen{0};
thread_local const uint32_t quiet_stripe = threads_seen.fetch_add(1) % quiet_counts.size();

uint64_t quiet_calls(size_t call) {
  uint64_t sum = 0;
  for (const QuietCounts& counts : quiet_counts) sum += counts.calls[call];
  return sum;
}

uint64_t all_launches() {
  uint64_t sum = launches_run;
  for (const QuietCounts& counts : quiet_counts) sum += counts.launches;
  return sum;
}
std::atomic<uint64_t> generation{1};

struct Thread {
  uint64_t generation = 0;
  std::array<Context*, 16> stack{};
  int depth = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
};
thread_local Thread raw_thread;

Thread& this_thread() {
  const uint64_t now = generation.load(std::memory_order_relaxed);
  if (raw_thread.generation != now) {
    raw_thread = Thread{};
    raw_thread.generation = now;
  }
  return raw_thread;
}

Context* current_context() {
  const Thread& thread = this_thread();
  return thread.depth > 0 ? thread.stack[thread.depth - 1] : nullptr;
}

bool corrupts_context(int error) {
  constexpr int kSticky[] = {CUDA_ERROR_ILLEGAL_ADDRESS,
                             CUDA_ERROR_LAUNCH_TIMEOUT,
                             CUDA_ERROR_ASSERT,
                             CUDA_ERROR_HARDWARE_STACK_ERROR,
                             CUDA_ERROR_ILLEGAL_INSTRUCTION,
                             CUDA_ERROR_MISALIGNED_ADDRESS,
                             CUDA_ERROR_INVALID_ADDRESS_SPACE,
                             CUDA_ERROR_INVALID_PC,
                             CUDA_ERROR_LAUNCH_FAILED};
  return std::find(std::begin(kSticky), std::end(kSticky), error) != std::end(kSticky);
}

CUresult enter(Call call) {
  const bool fails = any_failure.load(std::memory_order_acquire);
  const bool is_quiet = !fails && !recording.load(std::memory_order_relaxed);
  uint64_t before = 0;
  if (is_quiet) {
    quiet_counts[quiet_stripe].calls[call].fetch_add(1, std::memory_order_relaxed);
  } else {
    before = counters[call].calls.fetch_add(1, std::memory_order_relaxed) + quiet_calls(call);
  }
  if (recording.load(std::memory_order_relaxed)) {
    Books& all = books();
    const Lock lock(all.mutex);
    if (all.log.size() < kLogKept) all.log.push_back(kCallNames[call]);
  }
  if (fails) {
    const Counter& counter = counters[call];
    const int error = counter.error.load(std::memory_order_acquire);
    if (error != 0 && before >= counter.fail_from.load(std::memory_order_relaxed) &&
        before < counter.fail_until.load(std::memory_order_relaxed)) {
      Context* context = current_context();
      if (corrupts_context(error) && context != nullptr) context->sticky = error;
      return static_cast<CUresult>(error);
    }
  }
  const bool needs_start = call != k_cuInit && call != k_cuDriverGetVersion &&
                           call != k_cuGetErrorName && call != k_cuGetErrorString;
  if (needs_start && !started.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
  return CUDA_SUCCESS;
}

// Depth of this thread in functions of the driver, which may call one another.
thread_local int visits = 0;

class Visit {
 public:
  Visit() { ++visits; }
  ~Visit() { --visits; }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;
};

#define ENTER(name)  \
  const Visit visit; \
  if (const CUresult entered = enter(k_##name); entered != CUDA_SUCCESS) return entered

// The current context when it can be used.
CUresult use_context(Context*& context) {
  context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive.load(std::memory_order_relaxed)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return static_cast<CUresult>(context->sticky.load(std::memory_order_relaxed));
}

#define USE_CONTEXT(context)  \
  Context* context = nullptr; \
  if (const CUresult used = use_context(context); used != CUDA_SUCCESS) return used

int find_call(std::string_view name) {
  for (int call = 0; call < kCallCount; ++call) {
    const std::string_view whole = kCallNames[call];
    if (whole == name) return call;
    if (whole.ends_with("_v2") && whole.substr(0, whole.size() - 3) == name) return call;
  }
  return -1;
}

void set_capture(Stream& stream, int status) {
  const int before = stream.capture.exchange(status);
  captures += (status != CU_STREAM_CAPTURE_STATUS_NONE) - (before != CU_STREAM_CAPTURE_STATUS_NONE);
}

bool capturing(const Stream& stream) { return stream.capture == CU_STREAM_CAPTURE_STATUS_ACTIVE; }

// Calls that could break a capture: allocation, loading, synchronisation. A thread in relaxed mode
// may make them at any time; else they are refused, and the captures that they would have broken
// are invalid from then on. (CUDA: cuThreadExchangeStreamCaptureMode.)
CUresult forbid_while_capturing(Books& all) {
  if (captures == 0) return CUDA_SUCCESS;
  const Thread& thread = this_thread();
  if (thread.mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  all.streams.for_each([&](Stream& stream) {
    if (!capturing(stream) || stream.mode == CU_STREAM_CAPTURE_MODE_RELAXED) return;
    const bool global = thread.mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                        stream.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (stream.owner != &raw_thread && !global) return;
    set_capture(stream, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  });
  return result;
}

bool joins_legacy(const Stream& stream, const Context* context) {
  return capturing(stream) && stream.context == context &&
         (stream.flags & CU_STREAM_NON_BLOCKING) == 0;
}

// Work on the legacy stream waits for the blocking streams of its context, which it cannot while
// one of them is captured.
CUresult forbid_implicit_join(Books& all, const Context* context) {
  CUresult result = CUDA_SUCCESS;
  all.streams.for_each([&](Stream& stream) {
    if (!joins_legacy(stream, context)) return;
    set_capture(stream, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  });
  return result;
}

bool is_legacy(CUstream handle) { return handle == nullptr || handle == CU_STREAM_LEGACY; }

Library* find_library(Books& all, const void* handle) {
  for (Library& library : all.libraries) {
    if (&library == handle && library.alive) return &library;
  }
  return nullptr;
}

bool in_bounds(Books& all, CUdeviceptr pointer, size_t bytes) {
  auto next = all.allocations.upper_bound(pointer);
  if (next == all.allocations.begin()) return false;
  const auto& [start, allocation] = *std::prev(next);
  return pointer - start <= allocation.bytes && bytes <= allocation.bytes - (pointer - start);
}

void* host(CUdeviceptr pointer) { return reinterpret_cast<void*>(pointer); }

void keep_launch(Books& all, const fake_cuda_launch& launch) {
  all.launches.push_back(launch);
  if (all.launches.size() <= kLaunchesKept) return;
  all.launches.pop_front();
  ++all.launches_dropped;
}

CUresult run_node(Books& all, const Node& node) {
  switch (node.kind) {
    case NodeKind::launch: {
      launches_run.fetch_add(1, std::memory_order_relaxed);
      if (recording) keep_launch(all, node.launch);
      return CUDA_SUCCESS;
    }
    case NodeKind::set:
      if (!in_bounds(all, node.to, node.bytes)) return CUDA_ERROR_INVALID_VALUE;
      std::memset(host(node.to), node.value, node.bytes);
      return CUDA_SUCCESS;
    case NodeKind::copy_h_to_d:
      if (!in_bounds(all, node.to, node.bytes)) return CUDA_ERROR_INVALID_VALUE;
      std::memcpy(host(node.to), node.host_from, node.bytes);
      return CUDA_SUCCESS;
    case NodeKind::copy_d_to_h:
      if (!in_bounds(all, node.from, node.bytes)) return CUDA_ERROR_INVALID_VALUE;
      std::memcpy(node.host_to, host(node.from), node.bytes);
      return CUDA_SUCCESS;
    case NodeKind::copy_d_to_d:
      if (!in_bounds(all, node.to, node.bytes)) return CUDA_ERROR_INVALID_VALUE;
      if (!in_bounds(all, node.from, node.bytes)) return CUDA_ERROR_INVALID_VALUE;
      std::memmove(host(node.to), host(node.from), node.bytes);
      return CUDA_SUCCESS;
  }
  return CUDA_ERROR_UNKNOWN;
}

// Runs the node on the stream, or adds it to the graph that the stream is being captured into.
CUresult submit(Books& all, Context* context, CUstream handle, Node node) {
  if (is_legacy(handle)) {
    if (const CUresult result = forbid_implicit_join(all, context); result != CUDA_SUCCESS) {
      return result;
    }
    return run_node(all, node);
  }
  if (handle == CU_STREAM_PER_THREAD) return run_node(all, node);
  Stream* stream = all.streams.find(handle);
  if (stream == nullptr || stream->context != context) return CUDA_ERROR_INVALID_HANDLE;
  switch (stream->capture) {
    case CU_STREAM_CAPTURE_STATUS_INVALIDATED:
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    case CU_STREAM_CAPTURE_STATUS_ACTIVE:
      if (stream->graph != nullptr) stream->graph->nodes.push_back(std::move(node));
      return CUDA_SUCCESS;
    default:
      return run_node(all, node);
  }
}

// A synchronous copy is refused like an allocation, and works on the legacy stream.
CUresult submit_now(const Node& node) {
  USE_CONTEXT(context);
  Books& all = books();
  const Lock lock(all.mutex);
  if (const CUresult result = forbid_while_capturing(all); result != CUDA_SUCCESS) return result;
  return submit(all, context, nullptr, node);
}

CUresult submit_on(CUstream stream, const Node& node) {
  USE_CONTEXT(context);
  Books& all = books();
  const Lock lock(all.mutex);
  return submit(all, context, stream, node);
}

Device make_device(const char* name, uint64_t total_bytes, std::map<int, int> attributes) {
  return {.name = name, .attributes = std::move(attributes), .total_bytes = total_bytes};
}

// What the driver reports on real cards of these names.
Device a100() {
  return make_device("NVIDIA A100-SXM4-80GB", 84'987'740'160,
                     {{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 8},
                      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
                      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 108},
                      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 167'936},
                      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 166'912},
                      {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
                      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65'536},
                      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
                      {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
                      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 41'943'040},
                      {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1'593'000},
                      {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
                      {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1'410'000}});
}

Device rtx_3090() {
  return make_device("NVIDIA GeForce RTX 3090", 25'438'126'080,
                     {{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 8},
                      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 6},
                      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 82},
                      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 102'400},
                      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 101'376},
                      {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
                      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65'536},
                      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 1536},
                      {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 16},
                      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 6'291'456},
                      {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 9'751'000},
                      {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 384},
                      {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1'695'000}});
}

bool is_device(const Books& all, CUdevice device) {
  return device >= 0 && device < all.device_count;
}

int attribute(const Books& all, int device, int which) {
  const auto& attributes = all.devices[device].attributes;
  const auto found = attributes.find(which);
  return found == attributes.end() ? 0 : found->second;
}

void release_allocation(Books& all, std::map<CUdeviceptr, Allocation>::iterator allocation) {
  all.devices[allocation->second.context->device].used_bytes -= allocation->second.bytes;
  std::free(host(allocation->first));
  all.allocations.erase(allocation);
}

void destroy_context(Books& all, Context& context) {
  context.alive = false;
  context.sticky = 0;
  all.streams.for_each([&](Stream& stream) {
    if (stream.context == &context) set_capture(stream, CU_STREAM_CAPTURE_STATUS_NONE);
  });
  all.streams.destroy_if([&](const Stream& stream) { return stream.context == &context; });
  for (Library& library : all.libraries) {
    if (library.module_of == &context) library.alive = false;
  }
  for (auto next = all.allocations.begin(); next != all.allocations.end();) {
    const auto allocation = next++;
    if (allocation->second.context == &context) release_allocation(all, allocation);
  }
}

// A cubin runs on its own SM and on later ones of the same major number; PTX on every later one.
bool runs_on(const Image& image, int device_sm) {
  if (image.sm > device_sm) return false;
  return image.kind == ImageKind::ptx || image.sm / 10 == device_sm / 10;
}

int device_sm(const Books& all, int device) {
  return 10 * attribute(all, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
         attribute(all, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
}

CUresult check_image(const Books& all, const Image& image, const Context* context) {
  if (image.kind == ImageKind::garbage) return CUDA_ERROR_INVALID_IMAGE;
  // CUDA 12.0 came with PTX 8.0, CUDA 13.0 with PTX 9.0.
  const int newest_ptx_major = all.driver_version / 1000 - 4;
  if (image.kind == ImageKind::ptx && image.ptx_version_major > newest_ptx_major) {
    return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  }
  if (context != nullptr && !runs_on(image, device_sm(all, context->device))) {
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  return CUDA_SUCCESS;
}

CUresult load_image(Books& all, const void* bytes, Context* context, Library*& library) {
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = forbid_while_capturing(all); result != CUDA_SUCCESS) return result;
  Image image = kiln::fake::read_image(bytes);
  if (const CUresult result = check_image(all, image, context); result != CUDA_SUCCESS) {
    return result;
  }
  library = &all.libraries.emplace_back();
  library->image = std::move(image);
  return CUDA_SUCCESS;
}

Kernel* find_kernel(Books& all, Library* library, std::string_view name) {
  for (Kernel& kernel : all.kernels) {
    if (kernel.library == library && kernel.about.name == name) return &kernel;
  }
  for (const CubinKernel& about : library->image.kernels) {
    if (about.name != name) continue;
    Kernel& kernel = all.kernels.emplace_back();
    kernel.library = library;
    kernel.about = about;
    return &kernel;
  }
  return nullptr;
}

Function* function_of(Books& all, Kernel* kernel, Context* context) {
  for (Function& function : all.functions) {
    if (function.kernel == kernel && function.context == context) return &function;
  }
  Function& function = all.functions.emplace_back();
  function.kernel = kernel;
  function.context = context;
  function.max_dynamic_smem_bytes =
      kDefaultDynamicSmemBytes - static_cast<int>(kernel->about.static_smem_bytes);
  return &function;
}

Function* find_function(Books& all, CUfunction handle) {
  for (Function& function : all.functions) {
    if (reinterpret_cast<CUfunction>(&function) == handle) return &function;
  }
  return nullptr;
}

bool usable(const Function& function, const Context* context) {
  return function.context == context &&
         function.kernel->library->alive.load(std::memory_order_relaxed);
}

Node launch_node(const Function& function, const unsigned (&grid)[3], const unsigned (&block)[3],
                 unsigned smem_bytes, CUstream stream, const void* param) {
  Node node;
  fake_cuda_launch& launch = node.launch;
  const CubinKernel& about = function.kernel->about;
  std::snprintf(launch.kernel, sizeof(launch.kernel), "%s", about.name.c_str());
  launch.device = function.context->device;
  std::copy(std::begin(grid), std::end(grid), launch.grid);
  std::copy(std::begin(block), std::end(block), launch.block);
  launch.dynamic_smem_bytes = smem_bytes;
  launch.stream = stream;
  launch.param = param;
  if (param == nullptr) return node;
  if (about.param_bytes >= 0) {
    launch.param_bytes = static_cast<uint64_t>(about.param_bytes);
  } else {
    std::memcpy(&launch.param_bytes, param, sizeof(launch.param_bytes));
  }
  std::memcpy(launch.params, param, std::min<uint64_t>(launch.param_bytes, FAKE_CUDA_PARAM_BYTES));
  return node;
}

int set_failure(const char* function, int error, uint64_t after_n_calls, uint64_t times) {
  const int call = find_call(function);
  if (call < 0) return 0;
  Counter& counter = counters[call];
  counter.error = 0;
  const uint64_t from = counter.calls + quiet_calls(static_cast<size_t>(call)) + after_n_calls;
  counter.fail_from = from;
  counter.fail_until = times > UINT64_MAX - from ? UINT64_MAX : from + times;
  counter.error.store(error, std::memory_order_release);
  any_failure.store(true, std::memory_order_release);
  return 1;
}

void read_failures(std::string text) {
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string one = text.substr(0, comma);
    text = comma == std::string::npos ? "" : text.substr(comma + 1);
    char name[64] = {};
    int error = 0;
    int after = 0;
    int times = -1;
    const int read = std::sscanf(one.c_str(), "%63[^:]:%d:%d:%d", name, &error, &after, &times);
    const bool set =
        read >= 2 && set_failure(name, error, static_cast<uint64_t>(std::max(after, 0)),
                                 times < 0 ? UINT64_MAX : static_cast<uint64_t>(times));
    if (!set) {
      std::fprintf(stderr,
                   "fake CUDA driver: KILN_FAKE_CUDA_FAIL has \"%s\"; expected "
                   "function:error[:after[:times]]\n",
                   one.c_str());
      std::abort();
    }
  }
}

void read_environment(Books& all) {
  if (const char* text = std::getenv("KILN_FAKE_CUDA_DEVICES")) {
    all.device_count = std::clamp(std::atoi(text), 0, kDeviceCount);
  }
  if (const char* text = std::getenv("KILN_FAKE_CUDA_DRIVER")) all.driver_version = std::atoi(text);
  if (const char* text = std::getenv("KILN_FAKE_CUDA_RECORD")) recording = std::atoi(text) != 0;
  if (const char* text = std::getenv("KILN_FAKE_CUDA_FAIL")) read_failures(text);
}

}  // namespace

extern "C" {

void fake_cuda_reset() {
  Books& all = books();
  const Lock lock(all.mutex);
  while (!all.allocations.empty()) release_allocation(all, all.allocations.begin());
  for (void* const memory : all.pinned) std::free(memory);
  all.pinned.clear();
  all.device_count = kDeviceCount;
  all.driver_version = kDefaultDriverVersion;
  all.kernel_ns = 1000;
  all.devices[0] = a100();
  all.devices[1] = rtx_3090();
  for (int i = 0; i < kDeviceCount; ++i) {
    all.contexts[i].device = i;
    all.contexts[i].retained = 0;
    all.contexts[i].alive = false;
    all.contexts[i].sticky = 0;
  }
  all.functions.clear();
  all.kernels.clear();
  all.libraries.clear();
  all.streams.clear();
  all.events.clear();
  all.graphs.clear();
  all.execs.clear();
  all.launches.clear();
  all.launches_dropped = 0;
  all.log.clear();
  for (Counter& counter : counters) {
    counter.calls = 0;
    counter.error = 0;
  }
  any_failure = false;
  recording = true;
  started = false;
  captures = 0;
  launches_run = 0;
  for (QuietCounts& counts : quiet_counts) {
    for (std::atomic<uint64_t>& calls : counts.calls) calls = 0;
    counts.launches = 0;
  }
  ++generation;
  fake_cuda_set_clocks(1410, 0);
  read_environment(all);
}

int fake_cuda_fail(const char* function, int error, int after_n_calls) {
  return set_failure(function, error, static_cast<uint64_t>(after_n_calls), UINT64_MAX);
}

int fake_cuda_fail_times(const char* function, int error, int after_n_calls, int times) {
  return set_failure(function, error, static_cast<uint64_t>(after_n_calls),
                     static_cast<uint64_t>(times));
}

void fake_cuda_sticky_error(int device, int error) { books().contexts[device].sticky = error; }

void fake_cuda_set_device_count(int count) {
  Books& all = books();
  const Lock lock(all.mutex);
  all.device_count = std::clamp(count, 0, kDeviceCount);
}

void fake_cuda_set_driver_version(int version) {
  Books& all = books();
  const Lock lock(all.mutex);
  all.driver_version = version;
}

void fake_cuda_set_attribute(int device, int which, int value) {
  Books& all = books();
  const Lock lock(all.mutex);
  all.devices[device].attributes[which] = value;
}

void fake_cuda_set_name(int device, const char* name) {
  Books& all = books();
  const Lock lock(all.mutex);
  all.devices[device].name = name;
}

void fake_cuda_set_memory(int device, uint64_t total_bytes) {
  Books& all = books();
  const Lock lock(all.mutex);
  all.devices[device].total_bytes = total_bytes;
}

void fake_cuda_set_kernel_ns(uint64_t ns) {
  Books& all = books();
  const Lock lock(all.mutex);
  all.kernel_ns = ns;
}

int fake_cuda_set_stream_capturing(void* handle, int status) {
  Books& all = books();
  const Lock lock(all.mutex);
  Stream* stream = all.streams.find(handle);
  if (stream == nullptr) return 0;
  stream->mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  stream->owner = nullptr;
  stream->graph = nullptr;
  set_capture(*stream, status);
  return 1;
}

uint64_t fake_cuda_calls(const char* function) {
  const int call = find_call(function);
  return call < 0 ? 0 : counters[call].calls.load() + quiet_calls(static_cast<size_t>(call));
}

uint64_t fake_cuda_launches() { return all_launches(); }

void fake_cuda_set_recording(int on) { recording = on != 0; }

int fake_cuda_get_launch(uint64_t number, fake_cuda_launch* launch) {
  Books& all = books();
  const Lock lock(all.mutex);
  if (number < all.launches_dropped) return 0;
  number -= all.launches_dropped;
  if (number >= all.launches.size()) return 0;
  *launch = all.launches[number];
  return 1;
}

int fake_cuda_last_launch(fake_cuda_launch* launch) {
  Books& all = books();
  const Lock lock(all.mutex);
  if (all.launches.empty()) return 0;
  *launch = all.launches.back();
  return 1;
}

size_t fake_cuda_log_size() {
  Books& all = books();
  const Lock lock(all.mutex);
  return all.log.size();
}

const char* fake_cuda_log_entry(size_t index) {
  Books& all = books();
  const Lock lock(all.mutex);
  return index < all.log.size() ? all.log[index] : nullptr;
}

uint64_t fake_cuda_live(const char* what) {
  Books& all = books();
  const Lock lock(all.mutex);
  const std::string_view kind = what;
  if (kind == "contexts") {
    return static_cast<uint64_t>(
        std::count_if(std::begin(all.contexts), std::end(all.contexts),
                      [](const Context& context) { return context.alive.load(); }));
  }
  if (kind == "allocations") return all.allocations.size();
  if (kind == "pinned") return all.pinned.size();
  if (kind == "bytes") {
    uint64_t bytes = 0;
    for (const Device& device : all.devices) bytes += device.used_bytes;
    return bytes;
  }
  if (kind == "streams") return all.streams.size();
  if (kind == "events") return all.events.size();
  if (kind == "images") {
    return static_cast<uint64_t>(
        std::count_if(all.libraries.begin(), all.libraries.end(),
                      [](const Library& library) { return library.alive.load(); }));
  }
  if (kind == "graphs") return all.graphs.size();
  if (kind == "graph_execs") return all.execs.size();
  return UINT64_MAX;
}

int fake_cuda_is_inside() { return visits > 0 ? 1 : 0; }

int fake_cuda_current_device() {
  const Context* context = current_context();
  return context != nullptr ? context->device : -1;
}

int fake_cuda_context_depth() { return this_thread().depth; }

CUresult cuInit(unsigned flags) {
  ENTER(cuInit);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Books& all = books();
  const Lock lock(all.mutex);
  if (all.device_count == 0) return CUDA_ERROR_NO_DEVICE;
  started = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  ENTER(cuDriverGetVersion);
  Books& all = books();
  const Lock lock(all.mutex);
  *version = all.driver_version;
  return CUDA_SUCCESS;
}

// NVRTC looks for this in a driver that is loaded, for its compile cache, and crashes when it finds
// cuInit without it.
CUresult cuGetExportTable(const void** table, const CUuuid*) {
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

struct ErrorText {
  int error;
  const char* name;
  const char* text;
};
#define ERROR_TEXT(name, text) \
  { name, #name, text }
static const ErrorText kErrorTexts[] = {
    ERROR_TEXT(CUDA_SUCCESS, "no error"),
    ERROR_TEXT(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    ERROR_TEXT(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    ERROR_TEXT(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    ERROR_TEXT(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    ERROR_TEXT(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library"),
    ERROR_TEXT(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    ERROR_TEXT(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    ERROR_TEXT(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    ERROR_TEXT(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    ERROR_TEXT(CUDA_ERROR_NO_BINARY_FOR_GPU,
               "no kernel image is available for execution on the device"),
    ERROR_TEXT(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    ERROR_TEXT(CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
               "the provided PTX was compiled with an unsupported toolchain."),
    ERROR_TEXT(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    ERROR_TEXT(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    ERROR_TEXT(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    ERROR_TEXT(CUDA_ERROR_NOT_READY, "device not ready"),
    ERROR_TEXT(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    ERROR_TEXT(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    ERROR_TEXT(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
    ERROR_TEXT(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    ERROR_TEXT(CUDA_ERROR_ASSERT, "device-side assert triggered"),
    ERROR_TEXT(CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered"),
    ERROR_TEXT(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    ERROR_TEXT(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    ERROR_TEXT(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
               "operation not permitted when stream is capturing"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
               "operation failed due to a previous error during capture"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
               "operation would make the legacy stream depend on a capturing blocking stream"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
               "attempt to terminate a thread-local capture sequence from another thread"),
    ERROR_TEXT(CUDA_ERROR_UNKNOWN, "unknown error"),
};

static const ErrorText* find_error(CUresult error) {
  const auto* found = std::find_if(std::begin(kErrorTexts), std::end(kErrorTexts),
                                   [&](const ErrorText& row) { return row.error == error; });
  return found == std::end(kErrorTexts) ? nullptr : found;
}

CUresult cuGetErrorName(CUresult error, const char** text) {
  ENTER(cuGetErrorName);
  const ErrorText* row = find_error(error);
  *text = row != nullptr ? row->name : nullptr;
  return row != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  ENTER(cuGetErrorString);
  const ErrorText* row = find_error(error);
  *text = row != nullptr ? row->text : nullptr;
  return row != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  ENTER(cuDeviceGet);
  Books& all = books();
  const Lock lock(all.mutex);
  if (!is_device(all, ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  ENTER(cuDeviceGetCount);
  Books& all = books();
  const Lock lock(all.mutex);
  *count = all.device_count;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  ENTER(cuDeviceGetName);
  Books& all = books();
  const Lock lock(all.mutex);
  if (!is_device(all, device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<size_t>(length), "%s", all.devices[device].name.c_str());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice device) {
  ENTER(cuDeviceGetAttribute);
  Books& all = books();
  const Lock lock(all.mutex);
  if (!is_device(all, device)) return CUDA_ERROR_INVALID_DEVICE;
  *value = attribute(all, device, which);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  ENTER(cuDeviceTotalMem_v2);
  Books& all = books();
  const Lock lock(all.mutex);
  if (!is_device(all, device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = all.devices[device].total_bytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  ENTER(cuDeviceGetPCIBusId);
  Books& all = books();
  const Lock lock(all.mutex);
  if (!is_device(all, device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(id, static_cast<size_t>(length), "0000:f%d:00.0", device);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  ENTER(cuDevicePrimaryCtxRetain);
  Books& all = books();
  const Lock lock(all.mutex);
  if (!is_device(all, device)) return CUDA_ERROR_INVALID_DEVICE;
  Context& primary = all.contexts[device];
  ++primary.retained;
  primary.alive = true;
  *context = reinterpret_cast<CUcontext>(&primary);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  ENTER(cuDevicePrimaryCtxRelease_v2);
  Books& all = books();
  const Lock lock(all.mutex);
  if (!is_device(all, device)) return CUDA_ERROR_INVALID_DEVICE;
  Context& primary = all.contexts[device];
  if (primary.retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--primary.retained == 0) destroy_context(all, primary);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  ENTER(cuCtxGetCurrent);
  *context = reinterpret_cast<CUcontext>(current_context());
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  ENTER(cuCtxSetCurrent);
  Thread& thread = this_thread();
  if (thread.depth > 0) --thread.depth;
  if (context != nullptr) thread.stack[thread.depth++] = reinterpret_cast<Context*>(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  ENTER(cuCtxPushCurrent_v2);
  Thread& thread = this_thread();
  auto* pushed = reinterpret_cast<Context*>(context);
  if (pushed == nullptr || !pushed->alive) return CUDA_ERROR_INVALID_CONTEXT;
  if (thread.depth == static_cast<int>(thread.stack.size())) return CUDA_ERROR_OUT_OF_MEMORY;
  thread.stack[thread.depth++] = pushed;
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  ENTER(cuCtxPopCurrent_v2);
  Thread& thread = this_thread();
  if (thread.depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --thread.depth;
  if (context != nullptr) *context = reinterpret_cast<CUcontext>(thread.stack[thread.depth]);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  ENTER(cuCtxGetDevice);
  USE_CONTEXT(context);
  *device = context->device;
  return CUDA_SUCCESS;
}

// Waits for every stream of the context, so it breaks every capture there, whatever the thread's
// mode.
CUresult cuCtxSynchronize() {
  ENTER(cuCtxSynchronize);
  USE_CONTEXT(context);
  Books& all = books();
  const Lock lock(all.mutex);
  CUresult result = forbid_while_capturing(all);
  all.streams.for_each([&](Stream& stream) {
    if (!capturing(stream) || stream.context != context) return;
    set_capture(stream, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  });
  return result;
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option*, void**, unsigned,
                           CUlibraryOption*, void**, unsigned) {
  ENTER(cuLibraryLoadData);
  Books& all = books();
  const Lock lock(all.mutex);
  if (all.driver_version < kFirstVersionWithLibraries) return CUDA_ERROR_NOT_SUPPORTED;
  Context* context = current_context();
  if (context != nullptr && context->sticky != 0)
    return static_cast<CUresult>(context->sticky.load());
  Library* loaded = nullptr;
  const CUresult result = load_image(all, image, context, loaded);
  if (result == CUDA_SUCCESS) *library = reinterpret_cast<CUlibrary>(loaded);
  return result;
}

CUresult cuLibraryUnload(CUlibrary handle) {
  ENTER(cuLibraryUnload);
  Books& all = books();
  const Lock lock(all.mutex);
  Library* library = find_library(all, handle);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = forbid_while_capturing(all); result != CUDA_SUCCESS) return result;
  library->alive = false;
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary handle, const char* name) {
  ENTER(cuLibraryGetKernel);
  Books& all = books();
  const Lock lock(all.mutex);
  Library* library = find_library(all, handle);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Kernel* found = find_kernel(all, library, name);
  if (found == nullptr) return CUDA_ERROR_NOT_FOUND;
  *kernel = reinterpret_cast<CUkernel>(found);
  return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel handle) {
  ENTER(cuKernelGetFunction);
  USE_CONTEXT(context);
  Books& all = books();
  const Lock lock(all.mutex);
  auto* kernel = reinterpret_cast<Kernel*>(handle);
  if (kernel == nullptr || !kernel->library->alive) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = forbid_while_capturing(all); result != CUDA_SUCCESS) return result;
  if (const CUresult result = check_image(all, kernel->library->image, context);
      result != CUDA_SUCCESS) {
    return result;
  }
  *function = reinterpret_cast<CUfunction>(function_of(all, kernel, context));
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
  ENTER(cuModuleLoadDataEx);
  USE_CONTEXT(context);
  Books& all = books();
  const Lock lock(all.mutex);
  Library* loaded = nullptr;
  const CUresult result = load_image(all, image, context, loaded);
  if (result != CUDA_SUCCESS) return result;
  loaded->module_of = context;
  *module = reinterpret_cast<CUmodule>(loaded);
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule handle) {
  ENTER(cuModuleUnload);
  Books& all = books();
  const Lock lock(all.mutex);
  Library* library = find_library(all, handle);
  if (library == nullptr || library->module_of == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = forbid_while_capturing(all); result != CUDA_SUCCESS) return result;
  library->alive = false;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  ENTER(cuModuleGetFunction);
  USE_CONTEXT(context);
  Books& all = books();
  const Lock lock(all.mutex);
  Library* library = find_library(all, handle);
  if (library == nullptr || library->module_of != context) return CUDA_ERROR_INVALID_HANDLE;
  Kernel* kernel = find_kernel(all, library, name);
  if (kernel == nullptr) return CUDA_ERROR_NOT_FOUND;
  *function = reinterpret_cast<CUfunction>(function_of(all, kernel, context));
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute which, CUfunction handle) {
  ENTER(cuFuncGetAttribute);
  Books& all = books();
  const Lock lock(all.mutex);
  const Function* function = find_function(all, handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const CubinKernel& about = function->kernel->about;
  switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = std::min(about.max_threads, kMaxThreadsPerCta);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = static_cast<int>(about.static_smem_bytes);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = about.registers;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = function->kernel->library->image.sm;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = function->max_dynamic_smem_bytes;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      *value = 0;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute which, int value) {
  ENTER(cuFuncSetAttribute);
  USE_CONTEXT(context);
  Books& all = books();
  const Lock lock(all.mutex);
  Function* function = find_function(all, handle);
  if (function == nullptr || !usable(*function, context)) return CUDA_ERROR_INVALID_HANDLE;
  if (which == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) return CUDA_SUCCESS;
  if (which != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
  const int limit =
      attribute(all, context->device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  if (value < 0 || value + function->kernel->about.static_smem_bytes > limit) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  function->max_dynamic_smem_bytes = value;
  return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction handle) {
  ENTER(cuFuncLoad);
  USE_CONTEXT(context);
  Books& all = books();
  const Lock lock(all.mutex);
  const Function* function = find_function(all, handle);
  if (function == nullptr || !usable(*function, context)) return CUDA_ERROR_INVALID_HANDLE;
  return forbid_while_capturing(all);
}

CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned smem_bytes,
                        CUstream stream, void** parameters, void** extra) {
  ENTER(cuLaunchKernel);
  USE_CONTEXT(context);
  if (handle == nullptr || extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto& function = *reinterpret_cast<Function*>(handle);
  if (!usable(function, context)) return CUDA_ERROR_INVALID_HANDLE;
  if (grid_x == 0 || grid_y == 0 || grid_z == 0 || grid_x > INT32_MAX || grid_y > kMaxGridYz ||
      grid_z > kMaxGridYz) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t threads = uint64_t{block_x} * block_y * block_z;
  if (threads == 0 || threads > kMaxThreadsPerCta) return CUDA_ERROR_INVALID_VALUE;
  if (threads > static_cast<uint64_t>(function.kernel->about.max_threads)) {
    return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  }
  const int dynamic_limit = function.max_dynamic_smem_bytes.load(std::memory_order_relaxed);
  if (smem_bytes > static_cast<unsigned>(dynamic_limit)) return CUDA_ERROR_INVALID_VALUE;

  if (!recording.load(std::memory_order_relaxed) && captures.load(std::memory_order_relaxed) == 0) {
    quiet_counts[quiet_stripe].launches.fetch_add(1, std::memory_order_relaxed);
    return CUDA_SUCCESS;
  }
  const unsigned grid[3] = {grid_x, grid_y, grid_z};
  const unsigned block[3] = {block_x, block_y, block_z};
  const void* param = parameters != nullptr ? parameters[0] : nullptr;
  Books& all = books();
  const Lock lock(all.mutex);
  return submit(all, context, stream,
                launch_node(function, grid, block, smem_bytes, stream, param));
}

CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
  ENTER(cuMemAlloc_v2);
  USE_CONTEXT(context);
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  Books& all = books();
  const Lock lock(all.mutex);
  if (const CUresult result = forbid_while_capturing(all); result != CUDA_SUCCESS) return result;
  Device& device = all.devices[context->device];
  if (bytes > device.total_bytes - device.used_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const size_t rounded = (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  void* memory = std::aligned_alloc(kAlignmentBytes, rounded);
  if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(memory, kPoison, std::min(bytes, kPoisonedBytes));
  device.used_bytes += bytes;
  *pointer = reinterpret_cast<CUdeviceptr>(memory);
  all.allocations[*pointer] = {bytes, context};
  return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
  ENTER(cuMemFree_v2);
  USE_CONTEXT(context);
  if (pointer == 0) return CUDA_SUCCESS;
  Books& all = books();
  const Lock lock(all.mutex);
  if (const CUresult result = forbid_while_capturing(all); result != CUDA_SUCCESS) return result;
  const auto allocation = all.allocations.find(pointer);
  if (allocation == all.allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  release_allocation(all, allocation);
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  ENTER(cuMemHostAlloc);
  USE_CONTEXT(context);
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  Books& all = books();
  const Lock lock(all.mutex);
  if (const CUresult result = forbid_while_capturing(all); result != CUDA_SUCCESS) return result;
  *memory = std::malloc(bytes);
  if (*memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(*memory, kPoison, std::min(bytes, kPoisonedBytes));
  all.pinned.insert(*memory);
  return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void* memory) {
  ENTER(cuMemFreeHost);
  USE_CONTEXT(context);
  Books& all = books();
  const Lock lock(all.mutex);
  if (const CUresult result = forbid_while_capturing(all); result != CUDA_SUCCESS) return result;
  if (all.pinned.erase(memory) == 0) return CUDA_ERROR_INVALID_VALUE;
  std::free(memory);
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  ENTER(cuMemGetInfo_v2);
  USE_CONTEXT(context);
  Books& all = books();
  const Lock lock(all.mutex);
  const Device& device = all.devices[context->device];
  *free_bytes = device.total_bytes - device.used_bytes;
  *total_bytes = device.total_bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  ENTER(cuMemcpyHtoD_v2);
  return submit_now({.kind = NodeKind::copy_h_to_d, .to = to, .host_from = from, .bytes = bytes});
}

CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  ENTER(cuMemcpyDtoH_v2);
  return submit_now({.kind = NodeKind::copy_d_to_h, .from = from, .host_to = to, .bytes = bytes});
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  ENTER(cuMemcpyHtoDAsync_v2);
  return submit_on(stream,
                   {.kind = NodeKind::copy_h_to_d, .to = to, .host_from = from, .bytes = bytes});
}

CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  ENTER(cuMemcpyDtoHAsync_v2);
  return submit_on(stream,
                   {.kind = NodeKind::copy_d_to_h, .from = from, .host_to = to, .bytes = bytes});
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  ENTER(cuMemcpyDtoDAsync_v2);
  return submit_on(stream, {.kind = NodeKind::copy_d_to_d, .to = to, .from = from, .bytes = bytes});
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t bytes) {
  ENTER(cuMemsetD8_v2);
  return submit_now({.kind = NodeKind::set, .to = to, .value = value, .bytes = bytes});
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
  ENTER(cuMemsetD8Async);
  return submit_on(stream, {.kind = NodeKind::set, .to = to, .value = value, .bytes = bytes});
}

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  ENTER(cuStreamCreate);
  USE_CONTEXT(context);
  Books& all = books();
  const Lock lock(all.mutex);
  Stream& made = all.streams.make();
  made.context = context;
  made.flags = flags;
  *stream = reinterpret_cast<CUstream>(&made);
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  ENTER(cuStreamDestroy_v2);
  Books& all = books();
  const Lock lock(all.mutex);
  Stream* stream = all.streams.find(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  set_capture(*stream, CU_STREAM_CAPTURE_STATUS_NONE);
  all.streams.destroy(handle);
  return CUDA_SUCCESS;
}

static CUresult finish_stream(CUstream handle) {
  USE_CONTEXT(context);
  Books& all = books();
  const Lock lock(all.mutex);
  if (const CUresult result = forbid_while_capturing(all); result != CUDA_SUCCESS) return result;
  if (is_legacy(handle)) return forbid_implicit_join(all, context);
  if (handle == CU_STREAM_PER_THREAD) return CUDA_SUCCESS;
  Stream* stream = all.streams.find(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture == CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_SUCCESS;
  set_capture(*stream, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult cuStreamSynchronize(CUstream stream) {
  ENTER(cuStreamSynchronize);
  return finish_stream(stream);
}

CUresult cuStreamQuery(CUstream stream) {
  ENTER(cuStreamQuery);
  return finish_stream(stream);
}

// Breaks nothing, not even where the answer is an error.
CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  ENTER(cuStreamIsCapturing);
  USE_CONTEXT(context);
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (captures.load(std::memory_order_relaxed) == 0) return CUDA_SUCCESS;
  Books& all = books();
  const Lock lock(all.mutex);
  if (is_legacy(handle)) {
    bool blocked = false;
    all.streams.for_each([&](const Stream& stream) { blocked |= joins_legacy(stream, context); });
    return blocked ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
  }
  if (handle == CU_STREAM_PER_THREAD) return CUDA_SUCCESS;
  const Stream* stream = all.streams.find(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *status = static_cast<CUstreamCaptureStatus>(stream->capture.load());
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  ENTER(cuStreamBeginCapture_v2);
  USE_CONTEXT(context);
  Books& all = books();
  const Lock lock(all.mutex);
  if (is_legacy(handle)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  Stream* stream = all.streams.find(handle);
  if (stream == nullptr || stream->context != context) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture != CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_ERROR_ILLEGAL_STATE;
  stream->mode = mode;
  stream->owner = &raw_thread;
  stream->graph = &all.graphs.make();
  set_capture(*stream, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  ENTER(cuStreamEndCapture);
  Books& all = books();
  const Lock lock(all.mutex);
  *graph = nullptr;
  Stream* stream = all.streams.find(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture == CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_ERROR_ILLEGAL_STATE;
  if (stream->mode != CU_STREAM_CAPTURE_MODE_RELAXED && stream->owner != nullptr &&
      stream->owner != &raw_thread) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  const bool valid = stream->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  Graph* captured = std::exchange(stream->graph, nullptr);
  set_capture(*stream, CU_STREAM_CAPTURE_STATUS_NONE);
  if (!valid || captured == nullptr) {
    all.graphs.destroy(captured);
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  *graph = reinterpret_cast<CUgraph>(captured);
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  ENTER(cuThreadExchangeStreamCaptureMode);
  std::swap(*mode, this_thread().mode);
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph handle, unsigned long long) {
  ENTER(cuGraphInstantiateWithFlags);
  USE_CONTEXT(context);
  Books& all = books();
  const Lock lock(all.mutex);
  const Graph* graph = all.graphs.find(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GraphExec& made = all.execs.make();
  made.nodes = graph->nodes;
  for (Node& node : made.nodes) {
    node.launch.from_graph = 1;
    node.launch.param = nullptr;
  }
  *exec = reinterpret_cast<CUgraphExec>(&made);
  return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream) {
  ENTER(cuGraphLaunch);
  USE_CONTEXT(context);
  Books& all = books();
  const Lock lock(all.mutex);
  const GraphExec* exec = all.execs.find(handle);
  if (exec == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  for (Node node : exec->nodes) {
    node.launch.stream = stream;
    if (const CUresult result = submit(all, context, stream, std::move(node));
        result != CUDA_SUCCESS) {
      return result;
    }
  }
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph handle) {
  ENTER(cuGraphDestroy);
  Books& all = books();
  const Lock lock(all.mutex);
  return all.graphs.destroy(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecDestroy(CUgraphExec handle) {
  ENTER(cuGraphExecDestroy);
  Books& all = books();
  const Lock lock(all.mutex);
  return all.execs.destroy(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuEventCreate(CUevent* event, unsigned) {
  ENTER(cuEventCreate);
  USE_CONTEXT(context);
  Books& all = books();
  const Lock lock(all.mutex);
  *event = reinterpret_cast<CUevent>(&all.events.make());
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent handle) {
  ENTER(cuEventDestroy_v2);
  Books& all = books();
  const Lock lock(all.mutex);
  return all.events.destroy(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// In a capture an event only orders nodes, and these graphs run in order anyway.
CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
  ENTER(cuEventRecord);
  USE_CONTEXT(context);
  Books& all = books();
  const Lock lock(all.mutex);
  Event* event = all.events.find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (is_legacy(stream_handle)) {
    if (const CUresult result = forbid_implicit_join(all, context); result != CUDA_SUCCESS) {
      return result;
    }
  } else if (stream_handle != CU_STREAM_PER_THREAD) {
    const Stream* stream = all.streams.find(stream_handle);
    if (stream == nullptr || stream->context != context) return CUDA_ERROR_INVALID_HANDLE;
    if (capturing(*stream)) return CUDA_SUCCESS;
  }
  event->recorded = true;
  event->ns = all_launches() * all.kernel_ns;
  return CUDA_SUCCESS;
}

static CUresult finish_event(CUevent handle) {
  USE_CONTEXT(context);
  Books& all = books();
  const Lock lock(all.mutex);
  if (all.events.find(handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return forbid_while_capturing(all);
}

CUresult cuEventQuery(CUevent event) {
  ENTER(cuEventQuery);
  return finish_event(event);
}

CUresult cuEventSynchronize(CUevent event) {
  ENTER(cuEventSynchronize);
  return finish_event(event);
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start_handle, CUevent end_handle) {
  ENTER(cuEventElapsedTime);
  Books& all = books();
  const Lock lock(all.mutex);
  const Event* start = all.events.find(start_handle);
  const Event* end = all.events.find(end_handle);
  if (start == nullptr || end == nullptr || !start->recorded || !end->recorded) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  *milliseconds = static_cast<float>(static_cast<double>(end->ns - start->ns) / 1e6);
  return CUDA_SUCCESS;
}

}  // extern "C"

namespace {

// The first reset, before any call.
struct Start {
  Start() { fake_cuda_reset(); }
} start;

}  // namespace
