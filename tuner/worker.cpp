#include "tuner/worker.h"
#include "tuner/candidates.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <list>
#include <optional>

#include "tuner/device_tools.h"
#include "tuner/outcome.h"
#include "tuner/protocol.h"
#include "tuner/stopwatch.h"
#include "tuner/tensors.h"
#include "tuner/trial.h"
#include "tuner/wire.h"

namespace kiln::tuner {
namespace {

using templates::Case;
using templates::Kit;
using templates::Op;
using templates::Sizes;

constexpr double kMemoryShare = 0.8;  // of what is free
constexpr int64_t kMaxMemoryBytes = int64_t{24} << 30;

struct Reply {
  Json header = Json::object();
  bool fatal = false;
};

class Worker {
 public:
  Worker(Channel& channel, const OpenDevice& open_device)
      : channel_(channel), open_device_(open_device) {}

  Reply answer(const Frame& frame);

 private:
  Reply hello(const Json& request);
  Reply open(const Json& request);
  Reply keep_tools(const Json& request);
  Reply verify(const Json& request);
  Reply measure(const Json& request);

  void announce(std::string_view what) {
    channel_.send({{"event", "prepare"}, {"what", std::string(what)}});
  }
  void announce_run(size_t index) { channel_.send({{"event", "run"}, {"index", index}}); }

  const jit::Binary& binary(const std::string& key) const;
  runtime::LoadedKernel load(const std::string& key, int threads, int64_t dynamic_smem_bytes,
                             const runtime::KernelSubject& subject);
  RunnablePlan load_plan(const Json& plan);
  RunnablePlan load_oracle(const Kit& kit, const Sizes& fixed, const std::string& key);
  PreparedCase& prepared_case(const Kit& kit, const Case& c, PreparedCase::Alignment alignment,
                              const RunnablePlan& oracle);
  void measure_plans(const Json& request, Json& reply);
  runtime::DeviceCondition clocks();
  bool context_broken() noexcept;

  Channel& channel_;
  const OpenDevice& open_device_;
  std::unique_ptr<runtime::Device> device_;
  int64_t memory_bytes_ = 0;
  std::map<std::string, jit::Binary> binaries_;
  std::map<std::tuple<std::string, int, int64_t>, runtime::LoadedKernel> kernels_;
  std::unique_ptr<DeviceTools> tools_;
  struct KeptCase {
    std::string key;
    std::unique_ptr<PreparedCase> prepared;
  };
  std::list<KeptCase> cases_;  // most recently used first
  std::string stopwatch_key_;
  std::unique_ptr<Stopwatch> stopwatch_;
};

const Kit& kit_of(const Json& plan) {
  return templates::require_kit(templates::require_op(plan.at("op").get<std::string>()));
}

Reply Worker::hello(const Json& request) {
  if (request.at("protocol") != kProtocol) {
    fail(Status::bad_state,
         "The tuner speaks version {} of its worker protocol, this worker version {}. Use the "
         "kiln-worker of the same build.",
         request.at("protocol").dump(), kProtocol);
  }
  // The parent may have died before PR_SET_PDEATHSIG was set.
  if (getppid() != request.at("parent").get<pid_t>()) fail(Status::closed, "the tuner is gone");
  return {{{"protocol", kProtocol}, {"pid", getpid()}}};
}

Reply Worker::open(const Json& request) {
  device_ = open_device_(request.at("device").get<std::string>());
  const auto free_share =
      static_cast<int64_t>(static_cast<double>(device_->free_bytes()) * kMemoryShare);
  const auto wanted = request.at("memory_bytes").get<int64_t>();
  memory_bytes_ = std::min(free_share, wanted > 0 ? wanted : kMaxMemoryBytes);
  return {{{"device", device_json(device_->info())}, {"memory_bytes", memory_bytes_}}};
}

Reply Worker::keep_tools(const Json& request) {
  std::map<std::string, jit::Binary> by_entry;
  for (const auto& [entry, key] : request.at("entries").items())
    by_entry.emplace(entry, binary(key.get<std::string>()));
  tools_ = std::make_unique<DeviceTools>(*device_, by_entry, memory_bytes_);
  return {};
}

const jit::Binary& Worker::binary(const std::string& key) const {
  const auto found = binaries_.find(key);
  if (found == binaries_.end())
    fail(Status::internal, "the binary {} was not sent to the tuner's child", key);
  return found->second;
}

runtime::LoadedKernel Worker::load(const std::string& key, int threads, int64_t dynamic_smem_bytes,
                                   const runtime::KernelSubject& subject) {
  const auto id = std::tuple(key, threads, dynamic_smem_bytes);
  if (const auto found = kernels_.find(id); found != kernels_.end()) return found->second;
  const runtime::LoadedKernel kernel = device_->load(binary(key), threads, dynamic_smem_bytes);
  device_->describe(kernel, subject);
  return kernels_.emplace(id, kernel).first->second;
}

RunnablePlan Worker::load_plan(const Json& plan) {
  const Op& op = templates::require_op(plan.at("op").get<std::string>());
  const std::string limits = plan.at("limits");
  const templates::LaunchPlan launches = op.plan(
      ints_from_json(plan.at("fixed")), ints_from_json(plan.at("config")),
      limits.empty() ? device_->info().gpu : stand_in(find_gpu(limits), device_->info().gpu));
  const Json& binaries = plan.at("binaries");
  if (binaries.size() != launches.kernels.size()) {
    fail(Status::internal, "{}: {} binaries came for a plan of {} kernels", op.name,
         binaries.size(), launches.kernels.size());
  }
  const runtime::KernelSubject subject{
      .op = &op, .fixed = ints_from_json(plan.at("fixed")), .config = plan.at("config").dump()};
  RunnablePlan runnable{.kernels = {}, .workspace_bytes = launches.workspace_bytes};
  for (size_t i = 0; i < launches.kernels.size(); ++i) {
    const templates::KernelLaunch& launch = launches.kernels[i];
    runnable.kernels.push_back(
        {launch.entry,
         load(binaries[i], launch.threads, plan.at("smem_bytes")[i].get<int64_t>(), subject),
         launch.grid_x, launch.grid_y, launch.grid_z});
  }
  return runnable;
}

RunnablePlan Worker::load_oracle(const Kit& kit, const Sizes& fixed, const std::string& key) {
  const templates::KernelLaunch launch = kit.oracle(fixed);
  RunnablePlan runnable;
  const runtime::KernelSubject subject{.op = kit.op, .fixed = fixed, .config = "the oracle"};
  runnable.kernels.push_back({launch.entry,
                              load(key, launch.threads, launch.dynamic_smem_bytes, subject),
                              launch.grid_x, launch.grid_y, launch.grid_z});
  return runnable;
}

PreparedCase& Worker::prepared_case(const Kit& kit, const Case& c,
                                    PreparedCase::Alignment alignment, const RunnablePlan& oracle) {
  const std::string key =
      fmt::format("{} {} {}", kit.op->name, static_cast<int>(alignment), case_json(c).dump());
  const auto found = std::find_if(cases_.begin(), cases_.end(),
                                  [&](const KeptCase& kept) { return kept.key == key; });
  // An earlier candidate may have written here while it was tried on another case.
  if (found != cases_.end() && !found->prepared->intact()) {
    cases_.erase(found);
  } else if (found != cases_.end()) {
    cases_.splice(cases_.begin(), cases_, found);
    return *cases_.front().prepared;
  }
  announce(fmt::format("{} {}", kit.op->name, c.name));
  for (;;) {
    try {
      auto prepared = std::make_unique<PreparedCase>(*tools_, kit, c, alignment);
      prepared->prove_oracle(oracle);
      cases_.push_front({key, std::move(prepared)});
      return *cases_.front().prepared;
    } catch (const Error& error) {
      if (error.status() != Status::out_of_memory || cases_.empty()) throw;
      cases_.pop_back();
    }
  }
}

// The first reading loads NVML, which may take long: no candidate is to blame for that.
runtime::DeviceCondition Worker::clocks() {
  announce("clocks");
  return device_->condition();
}

bool Worker::context_broken() noexcept {
  try {
    device_->synchronize(tools_->stream());
    device_->free_bytes();
    return false;
  } catch (...) {
    return true;
  }
}

Reply Worker::verify(const Json& request) {
  stopwatch_.reset();
  stopwatch_key_.clear();
  const Json& plan_json = request.at("plan");
  const Kit& kit = kit_of(plan_json);
  RunVerdict verdict;
  bool damaged = false;
  int64_t passed = 0;
  std::optional<RunnablePlan> plan;
  try {
    const RunnablePlan oracle =
        load_oracle(kit, ints_from_json(plan_json.at("fixed")), request.at("oracle"));
    for (size_t i = 0; i < request.at("cases").size() && verdict.outcome == Outcome::passed; ++i) {
      const Case c = case_from_json(request.at("cases")[i]);
      const auto alignment =
          i % 2 == 0 ? PreparedCase::Alignment::natural : PreparedCase::Alignment::least;
      PreparedCase& prepared = prepared_case(kit, c, alignment, oracle);
      announce_run(0);
      if (!plan) {
        try {
          plan = load_plan(plan_json);
        } catch (const Error& error) {
          verdict = {Outcome::launch, error.what()};
          break;
        }
      }
      const double worst_error = verdict.worst_error;
      verdict = prepared.check(*plan);
      verdict.worst_error = std::max(verdict.worst_error, worst_error);
      damaged = prepared.damaged();
      if (verdict.outcome == Outcome::passed) {
        ++passed;
      } else {
        verdict.detail = fmt::format("case \"{}\": {}", c.name, verdict.detail);
      }
    }
  } catch (const Error& error) {
    verdict = {error.status() == Status::out_of_memory ? Outcome::no_memory : Outcome::harness,
               error.what()};
  }
  if (damaged) cases_.clear();
  const bool fatal =
      verdict.outcome != Outcome::passed && verdict.outcome != Outcome::wrong && context_broken();
  return {{{"outcome", outcome_name(verdict.outcome)},
           {"detail", verdict.detail},
           {"worst_error", verdict.worst_error},
           {"cases", passed}},
          fatal};
}

void Worker::measure_plans(const Json& request, Json& reply) {
  const Json& plans = request.at("plans");
  std::vector<std::string> keys;
  for (size_t i = 0; i < plans.size(); ++i) {
    reply["index"] = i;
    announce_run(i);
    keys.push_back(plans[i].at("id"));
    stopwatch_->glance(keys.back(), load_plan(plans[i]));
  }
  stopwatch_->forget_all_but(keys);

  Json times_ns = Json::array();
  Json rounds = Json::array();
  const auto first_round = request.at("first_round").get<size_t>();
  runtime::DeviceCondition before = clocks();  // of a round: what the one before it ended with
  for (size_t r = 0; r < request.at("rounds").get<size_t>(); ++r) {
    const size_t first = keys.empty() ? 0 : (first_round + r) % keys.size();
    times_ns.push_back(stopwatch_->round(keys, first, [&](size_t i) {
      reply["index"] = i;
      announce_run(i);
    }));
    const runtime::DeviceCondition after = clocks();
    const bool known = before.reading == runtime::ClockReading::available &&
                       after.reading == runtime::ClockReading::available;
    rounds.push_back({{"throttle_reasons",
                       known ? Json(before.throttle_reasons | after.throttle_reasons) : Json()},
                      {"sm_mhz", after.sm_mhz}});
    before = after;
  }
  reply["index"] = -1;
  reply["times_ns"] = std::move(times_ns);  // [round][plan]
  reply["rounds"] = std::move(rounds);
  reply["calls"] = stopwatch_->shape().calls;
  reply["copies"] = stopwatch_->shape().copies;
  reply["flushed"] = stopwatch_->shape().flushed;
}

Reply Worker::measure(const Json& request) {
  cases_.clear();
  Reply reply{{{"outcome", outcome_name(Outcome::passed)}, {"detail", ""}, {"index", -1}}};
  const auto failed = [&](Outcome outcome, const Error& error) {
    reply.header["outcome"] = outcome_name(outcome);
    reply.header["detail"] = error.what();
    stopwatch_.reset();
    reply.fatal = context_broken();
    if (reply.fatal && outcome == Outcome::launch)
      reply.header["outcome"] = outcome_name(Outcome::trap);
  };
  const Case c = case_from_json(request.at("case"));
  const Kit& kit = kit_of(request.at("plans").at(0));
  const std::string key = fmt::format("{} {}", kit.op->name, request.at("case").dump());
  try {
    if (stopwatch_ == nullptr || stopwatch_key_ != key) {
      announce(fmt::format("{} {}", kit.op->name, c.name));
      stopwatch_.reset();
      stopwatch_ = std::make_unique<Stopwatch>(*tools_, kit, c);
      stopwatch_key_ = key;
    }
  } catch (const Error& error) {
    failed(error.status() == Status::out_of_memory ? Outcome::no_memory : Outcome::harness, error);
    return reply;
  }
  try {
    measure_plans(request, reply.header);
  } catch (const Error& error) {
    failed(error.status() == Status::out_of_memory ? Outcome::no_memory : Outcome::launch, error);
  }
  return reply;
}

Reply Worker::answer(const Frame& frame) {
  const std::string what = frame.header.at("do");
  if (what == "hello") return hello(frame.header);
  if (what == "open") return open(frame.header);
  if (what == "binary") {
    const std::string key = frame.header.at("binary").at("key");
    binaries_[key] = binary_from_json(frame.header.at("binary"), frame.payload);
    return {};
  }
  if (device_ == nullptr) fail(Status::bad_state, "\"{}\" came before \"open\"", what);
  if (what == "tools") return keep_tools(frame.header);
  if (tools_ == nullptr) fail(Status::bad_state, "\"{}\" came before \"tools\"", what);
  if (what == "verify") return verify(frame.header);
  if (what == "measure") return measure(frame.header);
  if (what == "launch") {
    announce_run(0);
    return {{{"time_ns", empty_launch_ns(*tools_)}}};
  }
  if (what == "mma_ceiling") {
    announce_run(0);
    return {{{"tflop_per_s", mma_tflop_per_s(*tools_)}}};
  }
  if (what == "bus_ceiling") {
    cases_.clear();
    stopwatch_.reset();
    return {{{"gb_per_s", bus_gb_per_s(*tools_, [&] { announce_run(0); })}}};
  }
  if (what == "ceiling") {
    cases_.clear();
    stopwatch_.reset();
    return {{{"gb_per_s", mix_gb_per_s(*tools_, frame.header.at("read_share"),
                                       frame.header.at("bytes"), [&] { announce_run(0); })}}};
  }
  fail(Status::bad_state, "the tuner's child does not know the request \"{}\"", what);
}

}  // namespace

int worker_main(int in_fd, int out_fd) {
  // Evidence is worth the same whatever the environment says.
  unsetenv("KILN_SIM_CHECK");
  return worker_main(in_fd, out_fd, &runtime::Device::open);
}

int worker_main(int in_fd, int out_fd, const OpenDevice& open_device) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGINT, SIG_IGN);  // Ctrl-C is the parent's to handle
  Channel channel(in_fd, out_fd);
  Worker worker(channel, open_device);
  Frame frame;
  try {
    while (channel.receive(frame) == Received::frame) {
      Reply reply;
      try {
        reply = worker.answer(frame);
        reply.header["ok"] = true;
        reply.header["fatal"] = reply.fatal;
      } catch (const Error& error) {
        reply.header = {
            {"ok", false}, {"status", static_cast<int>(error.status())}, {"error", error.what()}};
      } catch (const std::exception& error) {
        reply.header = {
            {"ok", false}, {"status", static_cast<int>(Status::internal)}, {"error", error.what()}};
      }
      const bool sent = channel.send(reply.header);
      // A broken context cannot be torn down in order; the driver cleans up after the process.
      if (!sent || reply.fatal) _exit(sent ? 0 : 1);
    }
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace kiln::tuner
