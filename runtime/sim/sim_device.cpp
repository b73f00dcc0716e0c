#include "runtime/sim/sim_device.h"

#include <fmt/format.h>

#include <atomic>
#include <mutex>
#include <sstream>
#include <utility>
#include <variant>

#include "jit/base/error.h"
#include "runtime/sim/arena.h"
#include "runtime/sim/checker.h"
#include "runtime/sim/decode.h"
#include "runtime/sim/execute.h"
#include "runtime/sim/views.h"

namespace kiln::runtime::sim {
namespace {

// What the driver would answer; the text says more.
constexpr int kLaunchFailed = 719;    // CUDA_ERROR_LAUNCH_FAILED
constexpr int kOutOfResources = 701;  // CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
constexpr int kInvalidValue = 1;      // CUDA_ERROR_INVALID_VALUE

// One image; its variables live in the arena.
struct LoadedModule {
  std::shared_ptr<const Module> module;
  SymbolAddresses addresses;
  std::vector<View> variables;
};

struct SimKernel {
  std::shared_ptr<const Program> program;
  KernelSubject subject;
  std::vector<View> variables;  // of its module
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
  bool is_capturing = false;
  std::vector<Node> captured;
};

class SimDevice : public Device {
 public:
  explicit SimDevice(const SimOptions& options);

  const DeviceInfo& info() const override { return info_; }
  DeviceCondition condition() override { return {}; }
  std::string error_text(int driver_error) const override;

  LoadedKernel load(const jit::Binary& binary, int threads, int64_t dynamic_smem_bytes) override;
  void describe(const LoadedKernel& kernel, const KernelSubject& subject) override;
  LaunchResult launch(const LoadedKernel& kernel, Dim3 grid, const void* args,
                      Stream stream) noexcept override;
  CaptureState capture_state(Stream stream) noexcept override;

  DevicePtr allocate(int64_t bytes) override { return arena_.allocate(bytes); }
  void free(DevicePtr pointer) noexcept override { arena_.free(pointer); }
  int64_t free_bytes() override { return arena_.free_bytes(); }
  void copy_to_device(DevicePtr to, const void* from, int64_t bytes) override {
    arena_.copy_in(to, from, bytes);
  }
  void copy_to_host(void* to, DevicePtr from, int64_t bytes) override {
    arena_.copy_out(to, from, bytes);
  }
  void copy_on_device(DevicePtr to, DevicePtr from, int64_t bytes, Stream stream) override {
    submit(CopyNode{to, from, bytes}, stream);
  }
  void fill(DevicePtr to, uint8_t value, int64_t bytes, Stream stream) override {
    submit(FillNode{to, value, bytes}, stream);
  }

  Stream create_stream() override { return new SimStream; }
  void destroy_stream(Stream stream) noexcept override { delete static_cast<SimStream*>(stream); }
  void synchronize(Stream stream) override;
  void begin_capture(Stream stream) override;
  std::unique_ptr<Graph> end_capture(Stream stream) override;
  void launch_graph(Graph& graph, Stream stream) override;
  double time_graph_ns(Graph& graph, Stream stream) override;

 private:
  void place_variables(LoadedModule& loaded);
  void submit(Node node, Stream stream);
  void perform(const Node& node);
  void perform(const KernelNode& node);
  void perform(const CopyNode& node) { arena_.copy(node.to, node.from, node.bytes); }
  void perform(const FillNode& node) { arena_.fill(node.to, node.value, node.bytes); }
  void require_alive() const;

  const SimOptions options_;
  DeviceInfo info_;
  Arena arena_;
  mutable std::mutex mutex_;  // guards what follows
  std::string failure_;       // the first; like a context, the device is of no use after it
  std::map<std::string, LoadedModule, std::less<>> modules_;
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
  info_.id = "sim:" + options.gpu.slug;
  info_.name = fmt::format("simulated {}", options.gpu.name);
  info_.gpu = options.gpu;
  info_.gpu.isa = "compute_80";
  info_.match = options.gpu.slug;
  info_.timing = Timing::none;
}

std::string SimDevice::error_text(int driver_error) const {
  if (driver_error == 0) return "no error";
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return failure_;
  if (driver_error == kOutOfResources)
    return "the launch asks for more threads or shared memory than a block may have";
  return fmt::format("the simulator refused the launch (error {})", driver_error);
}

void SimDevice::place_variables(LoadedModule& loaded) {
  for (const Variable& variable : loaded.module->variables) {
    if (variable.space != Space::global && variable.space != Space::constant) continue;
    const DevicePtr address = arena_.allocate(std::max<int64_t>(variable.bytes, 1));
    arena_.fill(address, 0, std::max<int64_t>(variable.bytes, 1));
    if (!variable.content.empty())
      arena_.copy_in(address, variable.content.data(),
                     static_cast<int64_t>(variable.content.size()));
    loaded.addresses[variable.name] = address;
    loaded.variables.push_back({.name = variable.name,
                                .begin = address,
                                .dims = {std::max<int64_t>(variable.bytes, 1)},
                                .strides_bytes = {1},
                                .may_write = variable.space == Space::global});
  }
  for (const Variable& variable : loaded.module->variables) {
    for (const Variable::Relocation& relocation : variable.relocations) {
      const auto target = loaded.addresses.find(relocation.symbol);
      if (target == loaded.addresses.end()) {
        fail(Status::unsupported,
             "The variable {} holds the address of {}, which the simulator "
             "cannot give",
             variable.name, relocation.symbol);
      }
      const uint64_t value = target->second + static_cast<uint64_t>(relocation.addend);
      arena_.copy_in(loaded.addresses[variable.name] + static_cast<uint64_t>(relocation.offset),
                     &value, sizeof value);
    }
  }
}

LoadedKernel SimDevice::load(const jit::Binary& binary, int threads, int64_t dynamic_smem_bytes) {
  if (binary.kind != jit::BinaryKind::ptx) {
    fail(Status::driver_error, "{} is machine code for {}; the simulator runs PTX for compute_80",
         binary.entry, binary.arch);
  }
  if (dynamic_smem_bytes > options_.gpu.smem_per_cta_optin_bytes) {
    fail(Status::unsupported, "{} asks for {} bytes of shared memory, {} gives a block at most {}",
         binary.entry, dynamic_smem_bytes, options_.gpu.name,
         options_.gpu.smem_per_cta_optin_bytes);
  }
  const std::lock_guard lock(mutex_);
  LoadedModule& loaded = modules_[binary.image];
  if (loaded.module == nullptr) {
    loaded.module = std::make_shared<const Module>(parse_ptx(binary.image));
    place_variables(loaded);
  }
  auto kernel = std::make_unique<SimKernel>();
  kernel->program = decode(loaded.module, binary.entry, loaded.addresses);
  kernel->variables = loaded.variables;
  const int64_t shared = kernel->program->dynamic_shared_offset + dynamic_smem_bytes;
  if (shared > options_.gpu.smem_per_cta_optin_bytes) {
    fail(Status::unsupported, "{} needs {} bytes of shared memory, {} gives a block at most {}",
         binary.entry, shared, options_.gpu.name, options_.gpu.smem_per_cta_optin_bytes);
  }
  kernels_.push_back(std::move(kernel));
  return {.function = kernels_.back().get(),
          .threads = static_cast<uint32_t>(threads),
          .dynamic_smem_bytes = static_cast<uint32_t>(dynamic_smem_bytes)};
}

void SimDevice::describe(const LoadedKernel& kernel, const KernelSubject& subject) {
  static_cast<SimKernel*>(kernel.function)->subject = subject;
}

LaunchResult SimDevice::launch(const LoadedKernel& kernel, Dim3 grid, const void* args,
                               Stream stream) noexcept {
  if (kernel.threads == 0 || kernel.threads > 1024) return {.driver_error = kOutOfResources};
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535 ||
      grid.x > 0x7fffffff)
    return {.driver_error = kInvalidValue};
  try {
    const auto* const sim_kernel = static_cast<const SimKernel*>(kernel.function);
    KernelNode node{.kernel = sim_kernel,
                    .grid = grid,
                    .threads = kernel.threads,
                    .dynamic_smem_bytes = kernel.dynamic_smem_bytes};
    const auto* const bytes = static_cast<const std::byte*>(args);
    node.params.assign(bytes, bytes + sim_kernel->program->param_bytes);
    submit(std::move(node), stream);
    const std::lock_guard lock(mutex_);
    return {.driver_error = failure_.empty() ? 0 : kLaunchFailed};
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = error.what();
    return {.driver_error = kLaunchFailed};
  }
}

CaptureState SimDevice::capture_state(Stream stream) noexcept {
  const auto* const own = static_cast<const SimStream*>(stream);
  return own != nullptr && own->is_capturing ? CaptureState::active : CaptureState::none;
}

void SimDevice::submit(Node node, Stream stream) {
  auto* const own = static_cast<SimStream*>(stream);
  if (own != nullptr && own->is_capturing) {
    own->captured.push_back(std::move(node));
    return;
  }
  perform(node);
}

void SimDevice::perform(const Node& node) {
  std::visit([this](const auto& one) { perform(one); }, node);
}

void SimDevice::perform(const KernelNode& node) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
  }
  const SimKernel& kernel = *node.kernel;
  Launch launch;
  launch.program = kernel.program.get();
  launch.grid = {node.grid.x, node.grid.y, node.grid.z};
  launch.block = {node.threads, 1, 1};
  launch.params = node.params;
  launch.dynamic_shared_bytes = node.dynamic_smem_bytes;
  launch.arena = &arena_;
  launch.sm_count = static_cast<uint32_t>(std::max(options_.gpu.sm_count, 1));
  std::unique_ptr<Checker> checker;
  // Kernels of no op, as the tuner's own, are not what is looked into.
  if (options_.checking == Checking::on && kernel.subject.op != nullptr) {
    Subject subject = checker_subject(kernel.subject, kernel.program->entry, node.params);
    if (!subject.views.empty()) {
      subject.views.insert(subject.views.end(), kernel.variables.begin(), kernel.variables.end());
    }
    checker = std::make_unique<Checker>(arena_, launch, std::move(subject));
    launch.checker = checker.get();
  }
  const ExecuteOptions options{
      .threads = options_.threads,
      .resident_ctas = uint64_t{launch.sm_count} *
                       static_cast<uint64_t>(std::max(options_.gpu.max_ctas_per_sm, 1)),
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

void SimDevice::require_alive() const {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty())
    fail(Status::driver_error, "The simulator could not finish the work on {}: {}", info_.id,
         failure_);
}

void SimDevice::synchronize(Stream) { require_alive(); }

void SimDevice::begin_capture(Stream stream) {
  auto* const own = static_cast<SimStream*>(stream);
  if (own == nullptr || own->is_capturing)
    fail(Status::bad_state, "A capture needs a stream of its own that is not being captured");
  own->is_capturing = true;
}

std::unique_ptr<Graph> SimDevice::end_capture(Stream stream) {
  auto* const own = static_cast<SimStream*>(stream);
  if (own == nullptr || !own->is_capturing)
    fail(Status::bad_state, "The stream is not being captured");
  auto graph = std::make_unique<SimGraph>();
  graph->nodes = std::exchange(own->captured, {});
  own->is_capturing = false;
  return graph;
}

void SimDevice::launch_graph(Graph& graph, Stream stream) {
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

extern "C" __attribute__((visibility("default"))) kiln::runtime::Device* kiln_sim_open(
    const kiln::runtime::sim::SimOptions* options) {
  return kiln::runtime::sim::open_sim_device(*options).release();
}
