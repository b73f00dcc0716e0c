#include "runtime/sim/sim_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <sstream>
#include <utility>
#include <variant>

#include "jit/base/error.h"
#include "kiln_build_id.h"
#include "runtime/sim/arena.h"
#include "runtime/sim/checker.h"
#include "runtime/sim/decode.h"
#include "runtime/sim/execute.h"
#include "runtime/sim/views.h"
#include "templates/abi.h"

namespace kiln::runtime::sim {
namespace {

// What the driver would answer; the text says more.
constexpr int kInvalidValue = 1;          // CUDA_ERROR_INVALID_VALUE
constexpr int kInvalidHandle = 400;       // CUDA_ERROR_INVALID_HANDLE
constexpr int kOutOfResources = 701;      // CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
constexpr int kLaunchFailed = 719;        // CUDA_ERROR_LAUNCH_FAILED
constexpr int kEarlierFailed = 700;       // CUDA_ERROR_ILLEGAL_ADDRESS, as later launches get it
constexpr int kCaptureInvalidated = 901;  // CUDA_ERROR_STREAM_CAPTURE_INVALIDATED

constexpr int kMostThreads = 1024;                       // of a block
constexpr int64_t kMostLocalBytes = int64_t{512} << 10;  // of a thread

// A module's variables; its memory lives as long as what was loaded from it.
struct Variables {
  SymbolAddresses addresses;
  std::vector<DeviceBuffer> memory;
  std::vector<View> views;
};

// Every load has an image of its own with its own variables, as with cuLibraryLoadData.
struct SimKernel {
  std::shared_ptr<const Program> program;
  Variables variables;
  const Function* function = nullptr;  // of the program's module
  int registers = 0;                   // of a thread, as far as is known
  KernelSubject subject;
};

struct KernelNode {
  const SimKernel* kernel = nullptr;
  Dim3 grid;
  uint32_t threads = 0;
  uint32_t dynamic_smem_bytes = 0;
  std::vector<std::byte> params;
};
struct CopyNode {
  DevicePtr to = 0, from = 0;
  int64_t bytes = 0;
};
struct FillNode {
  DevicePtr to = 0;
  uint8_t value = 0;
  int64_t bytes = 0;
};
using Node = std::variant<KernelNode, CopyNode, FillNode>;

class SimGraph : public Graph {
 public:
  std::vector<Node> nodes;
};

// Work runs at once, in the thread that asks for it; only a capture is remembered.
struct SimStream {
  CaptureState capture = CaptureState::none;
  std::vector<Node> captured;
};

class SimDevice : public Device {
 public:
  explicit SimDevice(const SimOptions& options);

  const DeviceInfo& info() const override { return info_; }
  DeviceCondition condition() override { return {}; }
  std::string error_text(int driver_error) const override;
  bool is_of_earlier_kernel(int driver_error) const override {
    return driver_error == kEarlierFailed;
  }

  LoadedKernel load(const jit::Binary& binary, int threads, int64_t dynamic_smem_bytes) override;
  void describe(const LoadedKernel& kernel, const KernelSubject& subject) override;
  LaunchResult launch(const LoadedKernel& kernel, Dim3 grid, const void* args,
                      Stream stream) noexcept override;
  CaptureState capture_state(Stream stream) noexcept override;

  DevicePtr allocate(int64_t bytes) override { return arena_.allocate(bytes); }
  void free(DevicePtr pointer) noexcept override { arena_.free(pointer); }
  int64_t free_bytes() override { return arena_.free_bytes(); }
  void copy_to_device(DevicePtr to, const void* from, int64_t bytes) override {
    require_alive();
    arena_.copy_in(to, from, bytes);
  }
  void copy_to_host(void* to, DevicePtr from, int64_t bytes) override {
    require_alive();
    arena_.copy_out(to, from, bytes);
  }
  void copy_on_device(DevicePtr to, DevicePtr from, int64_t bytes, Stream stream) override {
    require_alive();
    submit(CopyNode{to, from, bytes}, stream);
  }
  void fill(DevicePtr to, uint8_t value, int64_t bytes, Stream stream) override {
    require_alive();
    submit(FillNode{to, value, bytes}, stream);
  }

  Stream create_stream() override;
  void destroy_stream(Stream stream) noexcept override;
  void synchronize(Stream stream) override;
  void begin_capture(Stream stream) override;
  std::unique_ptr<Graph> end_capture(Stream stream) override;
  void launch_graph(Graph& graph, Stream stream) override;
  double time_graph_ns(Graph& graph, Stream stream) override;

 private:
  Variables place_variables(const Module& module);
  void require_fitting_block(const SimKernel& kernel, const jit::Binary& binary, int threads) const;
  uint64_t resident_ctas(const SimKernel& kernel, int threads, int64_t dynamic_smem_bytes) const;
  uint8_t call_mark(const KernelNode& node);
  SimStream* find_stream(Stream stream) const;  // under mutex_; fails for one that is not its own
  void submit(Node node, Stream stream);
  void perform(const Node& node);
  void perform(const KernelNode& node);
  void perform(const CopyNode& node) { arena_.copy(node.to, node.from, node.bytes); }
  void perform(const FillNode& node) { arena_.fill(node.to, node.value, node.bytes); }
  bool has_failed() const;
  void require_alive() const;

  // The launches of one call have the same arguments and come one after another.
  struct LastCall {
    const templates::Op* op = nullptr;  // nullptr: the last launch was of no op
    std::vector<std::byte> params;
    uint8_t mark = kFirstCallMark;
  };

  const SimOptions options_;
  DeviceInfo info_;
  Arena arena_;

  std::mutex work_mutex_;  // held while work runs: one after another, as on one stream
  LastCall last_call_;     // under work_mutex_

  mutable std::mutex mutex_;  // guards what follows; never held while work runs
  std::string failure_;       // the first; like a context, the device is of no use after it
  std::map<const void*, std::unique_ptr<SimStream>> streams_;
  std::vector<std::unique_ptr<SimKernel>> kernels_;
};

// A line of a template, which the library has embedded. The compiler puts a folder before its path.
std::string template_line(const std::string& file, int number) {
  const jit::SourceFile* source = templates::find_source(file);
  for (size_t slash = file.find('/'); source == nullptr && slash != std::string::npos;
       slash = file.find('/', slash + 1))
    source = templates::find_source(std::string_view(file).substr(slash + 1));
  if (source == nullptr) return "";
  std::istringstream lines(source->text);
  std::string line;
  for (int i = 0; i < number; ++i) std::getline(lines, line);
  return line;
}

SimDevice::SimDevice(const SimOptions& options)
    : options_(options),
      arena_(options.gpu.dram_bytes, options.checking == Checking::on ? Marks::on : Marks::off) {
  info_.id = std::string(kSimulatedPrefix) + options.gpu.slug;
  info_.name = fmt::format("simulated {}", options.gpu.name);
  info_.gpu = options.gpu;
  info_.gpu.isa = "compute_80";
  info_.match = options.gpu.slug;
  info_.timing = Timing::none;
}

std::string SimDevice::error_text(int driver_error) const {
  switch (driver_error) {
    case 0:
      return "no error";
    case kInvalidHandle:
      return fmt::format(
          "the stream is none of {}: NULL is the only one that it takes from outside", info_.id);
    case kInvalidValue:
      return "the grid or the block is none that the kernel can be launched with, or it has no "
             "arguments";
    case kOutOfResources:
      return "the launch asks for more threads or shared memory than a block may have";
    case kCaptureInvalidated:
      return "the capture of the stream was broken before";
    default:
      break;
  }
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return failure_;
  return fmt::format("the simulator refused the launch (error {})", driver_error);
}

// --- loading

Variables SimDevice::place_variables(const Module& module) {
  Variables placed;
  for (const Variable& variable : module.variables) {
    if (variable.space != Space::global && variable.space != Space::constant) continue;
    const int64_t bytes = std::max<int64_t>(variable.bytes, 1);
    const DevicePtr address = placed.memory.emplace_back(*this, bytes).get();
    arena_.fill(address, 0, bytes);
    arena_.copy_in(address, variable.content.data(), static_cast<int64_t>(variable.content.size()));
    placed.addresses[variable.name] = address;
    placed.views.push_back({.name = variable.name,
                            .begin = address,
                            .dims = {bytes},
                            .strides_bytes = {1},
                            .may_write = variable.space == Space::global});
  }
  for (const Variable& variable : module.variables) {
    for (const Variable::Relocation& relocation : variable.relocations) {
      const auto own = placed.addresses.find(variable.name);
      const auto target = placed.addresses.find(relocation.symbol);
      if (own == placed.addresses.end() || target == placed.addresses.end()) {
        fail(Status::unsupported,
             "The variable {} holds the address of {}, which the simulator cannot give",
             variable.name, relocation.symbol);
      }
      const uint64_t value = target->second + static_cast<uint64_t>(relocation.addend);
      arena_.copy_in(own->second + static_cast<uint64_t>(relocation.offset), &value, sizeof value);
    }
  }
  return placed;
}

bool fits_block(const Function& function, int64_t threads) {
  if (function.most_threads != 0 && threads > function.most_threads) return false;
  return function.exact_threads[0] == 0 ||
         function.exact_threads == std::array<int64_t, 3>{threads, 1, 1};
}

void SimDevice::require_fitting_block(const SimKernel& kernel, const jit::Binary& binary,
                                      int threads) const {
  const Function& function = *kernel.function;
  if (fits_block(function, threads)) return;
  const std::array<int64_t, 3>& exact = function.exact_threads;
  const std::string compiled_for =
      exact[0] != 0 ? fmt::format("exactly {} x {} x {}", exact[0], exact[1], exact[2])
                    : fmt::format("at most {}", function.most_threads);
  fail(Status::unsupported, "{} was compiled for blocks of {} threads; {} cannot be launched",
       binary.entry, compiled_for, threads);
}

LoadedKernel SimDevice::load(const jit::Binary& binary, int threads, int64_t dynamic_smem_bytes) {
  if (binary.kind != jit::BinaryKind::ptx) {
    fail(Status::driver_error, "{} is machine code for {}; the simulator runs PTX for compute_80",
         binary.entry, binary.arch);
  }
  const int64_t most_smem_bytes = options_.gpu.smem_per_cta_optin_bytes;
  if (dynamic_smem_bytes < 0 || dynamic_smem_bytes > most_smem_bytes) {
    fail(Status::unsupported, "{} asks for {} bytes of shared memory, {} gives a block at most {}",
         binary.entry, dynamic_smem_bytes, options_.gpu.name, most_smem_bytes);
  }
  auto kernel = std::make_unique<SimKernel>();
  const auto module = std::make_shared<const Module>(parse_ptx(binary.image));
  kernel->variables = place_variables(*module);
  kernel->program = decode(module, binary.entry, kernel->variables.addresses);
  kernel->function = module->find(binary.entry);
  kernel->registers = binary.resources.registers;
  const Program& program = *kernel->program;
  const int64_t smem_bytes = program.dynamic_shared_offset + dynamic_smem_bytes;
  if (smem_bytes > most_smem_bytes) {
    fail(Status::unsupported, "{} needs {} bytes of shared memory, {} gives a block at most {}",
         binary.entry, smem_bytes, options_.gpu.name, most_smem_bytes);
  }
  if (program.local_bytes > kMostLocalBytes) {
    fail(Status::unsupported, "{} needs {} bytes of local memory, a thread has at most {}",
         binary.entry, program.local_bytes, kMostLocalBytes);
  }
  require_fitting_block(*kernel, binary, threads);
  const std::lock_guard lock(mutex_);
  kernels_.push_back(std::move(kernel));
  return {.function = kernels_.back().get(),
          .threads = static_cast<uint32_t>(threads),
          .dynamic_smem_bytes = static_cast<uint32_t>(dynamic_smem_bytes)};
}

void SimDevice::describe(const LoadedKernel& kernel, const KernelSubject& subject) {
  auto& own = *static_cast<SimKernel*>(kernel.function);
  if (subject.op != nullptr) {
    const auto struct_bytes =
        static_cast<int64_t>(templates::abi_fields(*subject.op).size()) * templates::kFieldBytes;
    if (own.program->param_bytes != struct_bytes) {
      fail(Status::driver_error, "{} takes {} bytes of arguments, the struct of {} has {}",
           own.program->entry, own.program->param_bytes, subject.op->name, struct_bytes);
    }
  }
  own.subject = subject;
}

// --- launching

LaunchResult SimDevice::launch(const LoadedKernel& kernel, Dim3 grid, const void* args,
                               Stream stream) noexcept {
  const auto* const sim_kernel = static_cast<const SimKernel*>(kernel.function);
  const Program& program = *sim_kernel->program;
  if (kernel.threads == 0 || kernel.threads > kMostThreads ||
      program.dynamic_shared_offset + kernel.dynamic_smem_bytes >
          options_.gpu.smem_per_cta_optin_bytes)
    return {.driver_error = kOutOfResources};
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535 ||
      grid.x > 0x7fffffff || !fits_block(*sim_kernel->function, kernel.threads) ||
      (args == nullptr && program.param_bytes != 0))
    return {.driver_error = kInvalidValue};
  try {
    {
      const std::lock_guard lock(mutex_);
      if (stream != nullptr && !streams_.contains(stream)) return {.driver_error = kInvalidHandle};
    }
    if (capture_state(stream) == CaptureState::invalidated)
      return {.driver_error = kCaptureInvalidated};
    if (has_failed()) return {.driver_error = kEarlierFailed};
    KernelNode node{.kernel = sim_kernel,
                    .grid = grid,
                    .threads = kernel.threads,
                    .dynamic_smem_bytes = kernel.dynamic_smem_bytes};
    const auto* const bytes = static_cast<const std::byte*>(args);
    node.params.assign(bytes, bytes + program.param_bytes);
    submit(std::move(node), stream);
    return {.driver_error = has_failed() ? kLaunchFailed : 0};
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = error.what();
    return {.driver_error = kLaunchFailed};
  }
}

// CTAs that a GPU would have under way at once: with more of them, those that wait for others may
// wait forever. The registers of PTX are the driver's choice; where the compiler said nothing, what
// is alive at once here stands for them, up to what a thread may have.
uint64_t SimDevice::resident_ctas(const SimKernel& kernel, int threads,
                                  int64_t dynamic_smem_bytes) const {
  const Gpu& gpu = options_.gpu;
  int64_t registers = kernel.registers;
  if (registers == 0) registers = kernel.program->register_bytes / kRowBytes;
  if (kernel.function->most_registers != 0)
    registers = std::min(registers, kernel.function->most_registers);
  registers = std::min<int64_t>(registers, gpu.max_registers_per_thread);
  const int64_t per_sm = ctas_per_sm(gpu, threads, static_cast<int>(registers),
                                     kernel.program->dynamic_shared_offset + dynamic_smem_bytes);
  // The driver spills registers until as many fit as the kernel was compiled for, and one at least.
  const int64_t promised = std::max<int64_t>(kernel.function->least_ctas_per_sm, 1);
  return static_cast<uint64_t>(std::max(gpu.sm_count, 1)) *
         static_cast<uint64_t>(std::max(per_sm, promised));
}

// --- streams

SimStream* SimDevice::find_stream(Stream stream) const {
  if (stream == nullptr) return nullptr;
  const auto found = streams_.find(stream);
  if (found == streams_.end()) {
    fail(Status::invalid_argument,
         "{} is not a stream of {}: a simulated GPU takes no streams of CUDA, only NULL", stream,
         info_.id);
  }
  return found->second.get();
}

Stream SimDevice::create_stream() {
  auto stream = std::make_unique<SimStream>();
  void* const handle = stream.get();
  const std::lock_guard lock(mutex_);
  streams_[handle] = std::move(stream);
  return handle;
}

void SimDevice::destroy_stream(Stream stream) noexcept {
  const std::lock_guard lock(mutex_);
  streams_.erase(stream);
}

CaptureState SimDevice::capture_state(Stream stream) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(stream);
  return found != streams_.end() ? found->second->capture : CaptureState::none;
}

void SimDevice::submit(Node node, Stream stream) {
  {
    const std::lock_guard lock(mutex_);
    SimStream* const own = find_stream(stream);
    if (own != nullptr && own->capture == CaptureState::invalidated)
      fail(Status::driver_error, "The capture of the stream was broken before");
    if (own != nullptr && own->capture == CaptureState::active) {
      own->captured.push_back(std::move(node));
      return;
    }
  }
  perform(node);
}

void SimDevice::perform(const Node& node) {
  const std::lock_guard lock(work_mutex_);
  if (has_failed()) return;
  std::visit([this](const auto& one) { perform(one); }, node);
}

// Which bytes of outputs a kernel may read: those that the launches of its call wrote. What came
// between, a call of something else or other arguments, begins a new call; a call that is repeated
// as it was cannot be told from its own next kernel.
uint8_t SimDevice::call_mark(const KernelNode& node) {
  const templates::Op* const op = node.kernel->subject.op;
  if (op == nullptr || op != last_call_.op || node.params != last_call_.params) {
    constexpr uint8_t kLast = 255;
    last_call_.mark =
        last_call_.mark == kLast ? kFirstCallMark : static_cast<uint8_t>(last_call_.mark + 2);
    last_call_.op = op;
    last_call_.params = node.params;
  }
  return last_call_.mark;
}

void SimDevice::perform(const KernelNode& node) {
  const SimKernel& kernel = *node.kernel;
  Launch launch;
  launch.program = kernel.program.get();
  launch.grid = {node.grid.x, node.grid.y, node.grid.z};
  launch.block = {node.threads, 1, 1};
  launch.params = node.params;
  launch.dynamic_shared_bytes = node.dynamic_smem_bytes;
  launch.arena = &arena_;
  launch.sm_count = static_cast<uint32_t>(std::max(options_.gpu.sm_count, 1));
  const uint8_t mark = call_mark(node);
  std::unique_ptr<Checker> checker;
  // Kernels of no op, as the tuner's own, are not what is looked into.
  if (options_.checking == Checking::on && kernel.subject.op != nullptr) {
    Subject subject = checker_subject(kernel.subject, kernel.program->entry, node.params);
    subject.views.insert(subject.views.end(), kernel.variables.views.begin(),
                         kernel.variables.views.end());
    subject.call_mark = mark;
    checker = std::make_unique<Checker>(arena_, launch, std::move(subject));
    launch.checker = checker.get();
  }
  const ExecuteOptions options{
      .threads = options_.threads,
      .resident_ctas =
          resident_ctas(kernel, static_cast<int>(node.threads), node.dynamic_smem_bytes),
      .limit = std::chrono::milliseconds(static_cast<int64_t>(options_.limit_s * 1000)),
      .source_line = template_line};
  ExecuteResult result = execute(launch, options);
  std::string failure = std::move(result.fault);
  if (!failure.empty() && kernel.subject.op != nullptr) {
    failure += fmt::format("\n  op        {}\n  config    {}", kernel.subject.op->name,
                           kernel.subject.config);
  }
  if (checker != nullptr) {
    const std::string findings = checker->summary(template_line);
    if (!findings.empty()) failure = failure.empty() ? findings : failure + "\n" + findings;
  }
  if (failure.empty()) return;
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = std::move(failure);
}

bool SimDevice::has_failed() const {
  const std::lock_guard lock(mutex_);
  return !failure_.empty();
}

void SimDevice::require_alive() const {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty())
    fail(Status::driver_error, "The simulator could not finish the work on {}: {}", info_.id,
         failure_);
}

// As with the driver, to wait for a stream that is being captured breaks the capture.
void SimDevice::synchronize(Stream stream) {
  {
    const std::lock_guard lock(mutex_);
    SimStream* const own = find_stream(stream);
    if (own != nullptr && own->capture != CaptureState::none) {
      own->capture = CaptureState::invalidated;
      fail(Status::driver_error,
           "The stream is being captured on {}: nothing may wait for it, and the capture is no "
           "longer valid",
           info_.id);
    }
  }
  require_alive();
}

void SimDevice::begin_capture(Stream stream) {
  const std::lock_guard lock(mutex_);
  SimStream* const own = find_stream(stream);
  if (own == nullptr || own->capture != CaptureState::none)
    fail(Status::bad_state, "A capture needs a stream of its own that is not being captured");
  own->capture = CaptureState::active;
}

std::unique_ptr<Graph> SimDevice::end_capture(Stream stream) {
  const std::lock_guard lock(mutex_);
  SimStream* const own = find_stream(stream);
  if (own == nullptr || own->capture == CaptureState::none)
    fail(Status::bad_state, "The stream is not being captured");
  auto graph = std::make_unique<SimGraph>();
  graph->nodes = std::exchange(own->captured, {});
  if (std::exchange(own->capture, CaptureState::none) == CaptureState::invalidated)
    fail(Status::driver_error, "The capture of the stream was broken before it ended");
  return graph;
}

void SimDevice::launch_graph(Graph& graph, Stream stream) {
  require_alive();
  for (const Node& node : static_cast<SimGraph&>(graph).nodes) submit(node, stream);
}

double SimDevice::time_graph_ns(Graph&, Stream) {
  fail(Status::unsupported, "{} executes kernels but has no clock: times need a real GPU",
       info_.id);
}

}  // namespace

std::unique_ptr<Device> open_sim_device(const SimOptions& options) {
  return std::make_unique<SimDevice>(options);
}

}  // namespace kiln::runtime::sim

extern "C" {

__attribute__((visibility("default"))) const char* kiln_sim_build() { return kiln::kBuildId; }

__attribute__((visibility("default"))) kiln::runtime::Device* kiln_sim_open(
    const kiln::runtime::sim::SimOptions* options) {
  return kiln::runtime::sim::open_sim_device(*options).release();
}

}  // extern "C"
