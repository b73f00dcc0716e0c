#include "tuner/stopwatch.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "jit/base/error.h"
#include "jit/base/rounding.h"

namespace kiln::tuner {
namespace {

using templates::Arg;
using templates::ArgKind;
using templates::Memory;

constexpr int64_t kFewestCalls = 4;
constexpr int64_t kMostCalls = 200;
constexpr int64_t kTrialCalls = 20;     // on one copy
constexpr int64_t kCopiesAtLeast = 20;  // may be had, also where fewer calls would do
constexpr double kGraphNs = 300'000;    // a replay that long hides the ends of a graph
constexpr double kLeadNs = 100'000;     // a call that long covers the host's way to the next launch
// Out of the running: so many times the fastest, and slow enough for one call to show it.
constexpr double kOutpaced = 3;
constexpr double kOutpacedNs = 100'000;
constexpr int kReplays = 3;            // of a candidate in a round; their median counts
constexpr double kSteadyNs = 500'000;  // calls that long differ less from replay to replay
constexpr int64_t kEmptyCalls = 200;
constexpr int kMixCalls = 4;

// Time of a replay that was submitted while the device was busy with another one: on an idle device
// the time between the events would hold the host's way to the launch too.
double busy_replay_ns(runtime::Device& device, runtime::Graph& lead, runtime::Graph& graph,
                      runtime::Stream stream) {
  device.launch_graph(lead, stream);
  return device.time_graph_ns(graph, stream);
}

double busy_replay_ns(runtime::Device& device, runtime::Graph& graph, runtime::Stream stream) {
  return busy_replay_ns(device, graph, graph, stream);
}

}  // namespace

Stopwatch::Stopwatch(DeviceTools& tools, const templates::Kit& kit, templates::Case c)
    : tools_(tools),
      kit_(kit),
      op_(*kit.op),
      case_(std::move(c)),
      symbols_(extent_symbols(op_, case_)),
      plans_(tensor_plans(op_, case_)) {
  for (const TensorPlan& plan : plans_) {
    if (plan.arg->kind != ArgKind::output)
      contents_[plan.arg->name] = host_contents(kit_, case_, plan);
  }
  allocate(1);
}

bool Stopwatch::rotates(const Arg& arg) const {
  return arg.kind != ArgKind::input || arg.memory == Memory::cold;
}

void Stopwatch::allocate(int64_t copies) {
  runtime::Device& device = tools_.device();
  for (const TensorPlan& plan : plans_) {
    std::vector<Arena::Buffer>& buffers = memory_[plan.arg->name];
    const int64_t wanted = rotates(*plan.arg) ? copies + 1 : 1;  // the first is the spare
    while (static_cast<int64_t>(buffers.size()) < wanted) {
      const int64_t bytes = round_up(std::max<int64_t>(plan.bytes(), 1), 256);
      Arena::Buffer buffer = plan.arg->is_pinned(case_.sizes)
                                 ? tools_.arena().allocate_pinned(bytes)
                                 : tools_.arena().allocate(bytes);
      const auto contents = contents_.find(plan.arg->name);
      if (buffer.is_pinned()) {  // only inputs are
        std::memcpy(buffer.on_host(), contents->second.data(), contents->second.size());
      } else if (!buffers.empty()) {
        device.copy_on_device(buffer.get(), buffers.front().get(), buffer.bytes(), tools_.stream());
      } else if (contents != contents_.end()) {
        device.copy_to_device(buffer.get(), contents->second.data(),
                              static_cast<int64_t>(contents->second.size()));
      } else {
        device.fill(buffer.get(), 0x5A, buffer.bytes(), tools_.stream());
      }
      buffers.push_back(std::move(buffer));
    }
  }
  device.synchronize(tools_.stream());
}

std::vector<uint64_t> Stopwatch::arguments(int64_t copy, const Workspace& workspace) const {
  std::map<std::string, runtime::DevicePtr> pointers;
  for (const auto& [name, buffers] : memory_) {
    pointers[name] = buffers[buffers.size() > 1 ? static_cast<size_t>(copy) : 0].get();
  }
  return pack_arguments(op_, case_, plans_, pointers, workspace);
}

std::unique_ptr<runtime::Graph> Stopwatch::capture(const Prepared& prepared, const Turn& turn) {
  runtime::Device& device = tools_.device();
  std::string failure;
  device.begin_capture(tools_.stream());
  for (int64_t call = 0; call < turn.calls && failure.empty(); ++call) {
    const std::vector<uint64_t> args =
        arguments(turn.first_copy + call % turn.copies, prepared.workspace);
    failure = launch_plan(device, prepared.plan, symbols_, args.data(), tools_.stream());
  }
  std::unique_ptr<runtime::Graph> graph = device.end_capture(tools_.stream());
  if (!failure.empty()) fail(Status::driver_error, "{}", failure);
  return graph;
}

void Stopwatch::choose_shape(const Prepared& fastest) {
  // A guess from calls on one copy: warm where it should be cold, so rather too short.
  const std::unique_ptr<runtime::Graph> trial = capture(fastest, {.calls = kTrialCalls});
  call_ns_ = std::max(busy_replay_ns(tools_.device(), *fastest.warm_up, *trial, tools_.stream()) /
                          static_cast<double>(kTrialCalls),
                      1.0);
  const auto calls =
      std::clamp(static_cast<int64_t>(kGraphNs / call_ns_), kFewestCalls, kMostCalls);

  int64_t rotating_bytes = 0;
  for (const TensorPlan& tensor : plans_) {
    if (rotates(*tensor.arg)) rotating_bytes += round_up(std::max<int64_t>(tensor.bytes(), 1), 256);
  }
  const templates::Sizes sizes = templates::with_derived(op_, case_.sizes);
  const templates::Cost cost = op_.cost(sizes);
  const int64_t touched_bytes =
      std::clamp<int64_t>(static_cast<int64_t>(cost.cold_read_bytes + cost.write_bytes), 1,
                          std::max<int64_t>(rotating_bytes, 1));
  const int64_t needed_bytes = 2 * tools_.device().info().gpu.l2_bytes;
  const int64_t wanted = needed_bytes / touched_bytes + 1;
  // One copy and a spare are there already; half of what is left may go to further ones.
  const int64_t affordable =
      1 + tools_.arena().left_bytes() / 2 / std::max<int64_t>(rotating_bytes, 1);
  const int64_t most = std::max(calls, kCopiesAtLeast);
  shape_.copies = std::max<int64_t>(std::min({wanted, most, affordable}), 1);
  shape_.calls = round_up(calls, shape_.copies);
  shape_.flushed = shape_.copies < wanted;
  allocate(shape_.copies);
  if (shape_.flushed) {
    flush_ = tools_.arena().allocate(round_up(needed_bytes, 256));
    tools_.device().fill(flush_.get(), 0x3C, flush_.bytes(), tools_.stream());
  }
}

void Stopwatch::glance(const std::string& key, const RunnablePlan& plan) {
  if (prepared_.contains(key)) return;
  Prepared prepared{.plan = plan};
  if (op_.has_workspace) {
    prepared.workspace.bytes = std::max<int64_t>(plan.workspace_bytes.value(symbols_), 0);
    if (prepared.workspace.bytes > 0)
      prepared.workspace_memory = tools_.arena().allocate(round_up(prepared.workspace.bytes, 256));
    prepared.workspace.pointer = prepared.workspace_memory.get();
  }
  prepared.warm_up = capture(prepared, {.calls = 1, .first_copy = kSpareCopy});
  prepared.glance_ns = busy_replay_ns(tools_.device(), *prepared.warm_up, tools_.stream());
  prepared_.emplace(key, std::move(prepared));
}

void Stopwatch::forget_all_but(const std::vector<std::string>& keys) {
  std::erase_if(prepared_, [&](const auto& entry) {
    return std::find(keys.begin(), keys.end(), entry.first) == keys.end();
  });
}

double Stopwatch::replay_ns(Prepared& prepared) {
  runtime::Device& device = tools_.device();
  if (!shape_.flushed) {
    runtime::Graph& lead = call_ns_ >= kLeadNs ? *prepared.warm_up : *prepared.graph;
    return busy_replay_ns(device, lead, *prepared.graph, tools_.stream());
  }
  tools_.mix(flush_.get(), flush_.bytes(), 0, 0, 4, 0);
  return busy_replay_ns(device, *prepared.warm_up, *prepared.graph, tools_.stream());
}

double Stopwatch::round_ns(Prepared& prepared) {
  if (prepared.graph == nullptr) {
    prepared.graph = capture(prepared, {.calls = shape_.calls, .copies = shape_.copies});
    tools_.device().launch_graph(*prepared.graph, tools_.stream());
    tools_.device().synchronize(tools_.stream());
  }
  std::vector<double> replays;
  const int count = call_ns_ >= kSteadyNs ? 1 : kReplays;
  for (int r = 0; r < count; ++r) replays.push_back(replay_ns(prepared));
  return median(std::move(replays)) / static_cast<double>(shape_.calls);
}

std::vector<double> Stopwatch::round(const std::vector<std::string>& keys, size_t first,
                                     const std::function<void(size_t)>& begin) {
  if (keys.empty()) return {};
  size_t fastest = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (prepared_.at(keys[i]).glance_ns < prepared_.at(keys[fastest]).glance_ns) fastest = i;
  }
  const double least_ns = prepared_.at(keys[fastest]).glance_ns;
  if (shape_.calls == 0) {
    begin(fastest);
    choose_shape(prepared_.at(keys[fastest]));
  }

  std::vector<double> times_ns(keys.size());
  for (size_t n = 0; n < keys.size(); ++n) {
    const size_t i = (first + n) % keys.size();
    Prepared& prepared = prepared_.at(keys[i]);
    const bool is_outpaced =
        prepared.glance_ns > kOutpacedNs && prepared.glance_ns > kOutpaced * least_ns;
    if (!is_outpaced) begin(i);
    times_ns[i] = is_outpaced ? prepared.glance_ns : round_ns(prepared);
  }
  return times_ns;
}

double empty_launch_ns(DeviceTools& tools) {
  runtime::Device& device = tools.device();
  device.begin_capture(tools.stream());
  for (int64_t i = 0; i < kEmptyCalls; ++i) tools.empty();
  const std::unique_ptr<runtime::Graph> graph = device.end_capture(tools.stream());
  device.launch_graph(*graph, tools.stream());
  std::vector<double> times_ns;
  for (int r = 0; r < 15; ++r) times_ns.push_back(busy_replay_ns(device, *graph, tools.stream()));
  return median(std::move(times_ns)) / static_cast<double>(kEmptyCalls);
}

double mix_gb_per_s(DeviceTools& tools, double read_share, int64_t bytes,
                    const std::function<void()>& begin) {
  runtime::Device& device = tools.device();
  const int64_t affordable = tools.arena().left_bytes() / kMixCalls / 2;
  const int64_t total = std::min(bytes, affordable);
  const int64_t read_bytes =
      round_up(static_cast<int64_t>(static_cast<double>(total) * read_share), 256);
  const int64_t write_bytes = round_up(total - std::min(read_bytes, total), 256);
  // Calls of a graph take one region after the other, so that nothing is touched twice within a
  // replay.
  const Arena::Buffer source =
      tools.arena().allocate(std::max<int64_t>(kMixCalls * read_bytes, 256));
  const Arena::Buffer target =
      tools.arena().allocate(std::max<int64_t>(kMixCalls * write_bytes, 256));
  device.fill(source.get(), 0x11, source.bytes(), tools.stream());
  device.fill(target.get(), 0x22, target.bytes(), tools.stream());

  double best = 0;
  const int64_t sms = device.info().gpu.sm_count;
  for (const int unroll : {1, 2, 4, 8}) {
    for (const int64_t ctas : {int64_t{0}, 2 * sms, 4 * sms, 8 * sms}) {
      begin();
      device.begin_capture(tools.stream());
      for (int call = 0; call < kMixCalls; ++call) {
        tools.mix(source.get() + static_cast<uint64_t>(call * read_bytes), read_bytes,
                  target.get() + static_cast<uint64_t>(call * write_bytes), write_bytes, unroll,
                  ctas);
      }
      const std::unique_ptr<runtime::Graph> graph = device.end_capture(tools.stream());
      device.launch_graph(*graph, tools.stream());
      std::vector<double> times_ns;
      for (int r = 0; r < 7; ++r)
        times_ns.push_back(busy_replay_ns(device, *graph, tools.stream()));
      const double call_ns = std::max(median(std::move(times_ns)) / kMixCalls, 1.0);
      best = std::max(best, static_cast<double>(read_bytes + write_bytes) / call_ns);
    }
  }
  return best;
}

double bus_gb_per_s(DeviceTools& tools, const std::function<void()>& begin) {
  constexpr int64_t kBytes = int64_t{256} << 20;  // the host's way to the copy is nothing beside it
  const int64_t bytes = std::min(kBytes, round_up(tools.arena().left_bytes() / 4, 256));
  const Arena::Buffer from = tools.arena().allocate_pinned(bytes);
  const Arena::Buffer to = tools.arena().allocate(bytes);
  std::memset(from.on_host(), 0x33, static_cast<size_t>(bytes));
  double best = 0;
  for (int r = 0; r < 7; ++r) {
    begin();
    const auto start = std::chrono::steady_clock::now();
    tools.device().copy_to_device(to.get(), from.on_host(), bytes);
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(bytes) / std::max(time.count(), 1.0));
  }
  return best;
}

double mma_tflop_per_s(DeviceTools& tools) {
  runtime::Device& device = tools.device();
  constexpr int64_t kSteps = 2000;
  constexpr int64_t kCtasPerSm = 2;
  double best = 0;
  for (int r = 0; r < 7; ++r) {
    device.begin_capture(tools.stream());
    const int64_t fma = tools.multiply(kSteps, kCtasPerSm * device.info().gpu.sm_count);
    const std::unique_ptr<runtime::Graph> graph = device.end_capture(tools.stream());
    device.launch_graph(*graph, tools.stream());
    const double time_ns = std::max(busy_replay_ns(device, *graph, tools.stream()), 1.0);
    best = std::max(best, 2 * static_cast<double>(fma) / time_ns / 1000);
  }
  return best;
}

}  // namespace kiln::tuner
