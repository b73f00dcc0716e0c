#include "tuner/device_worker.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <thread>

#include "tuner/protocol.h"
#include "tuner/tensors.h"
#include "tuner/worker.h"

extern char** environ;

namespace kiln::tuner {
namespace {

namespace fs = std::filesystem;

constexpr double kKillPatienceS = 10;  // a driver may need a while to take a running kernel down
constexpr double kFarewellS = 5;
constexpr off_t kLastWordsBytes = 2000;
constexpr double kLaunchHangFactor = 10;  // ceilings are long runs of the tuner's own kernels

void close_fd(int& fd) {
  if (fd >= 0) ::close(fd);
  fd = -1;
}

class SpawnSetup {
 public:
  SpawnSetup() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  ~SpawnSetup() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

std::string ending(int status) {
  if (WIFEXITED(status)) return fmt::format("exit code {}", WEXITSTATUS(status));
  if (WIFSIGNALED(status))
    return fmt::format("signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  return fmt::format("status {}", status);
}

}  // namespace

std::string find_worker(const std::string& given) {
  if (!given.empty()) {
    if (::access(given.c_str(), X_OK) == 0) return given;
    fail(Status::not_found, "The tuner's worker {} is not an executable file.", given);
  }
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  std::string searched;
  for (const fs::path& place :
       {program / "kiln-worker", program / "../libexec/kiln/kiln-worker",
        program / "../tuner/kiln-worker", program / "../../tuner/kiln-worker"}) {
    const std::string path = place.lexically_normal();
    if (::access(path.c_str(), X_OK) == 0) return path;
    searched += (searched.empty() ? "" : ", ") + path;
  }
  fail(Status::not_found, "The tuner's worker process kiln-worker was not found. Searched: {}.",
       searched);
}

ChildProcess::ChildProcess(const std::string& executable) {
  int sockets[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
    fail(Status::internal, "A socket pair for the tuner's worker could not be made: {}.",
         std::strerror(errno));
  }
  socket_ = sockets[0];
  output_ = ::memfd_create("kiln-worker-output", MFD_CLOEXEC);

  SpawnSetup setup;
  // A group of its own: Ctrl-C in a terminal reaches the tuner alone, which then ends the child in
  // order.
  posix_spawnattr_setpgroup(&setup.attributes, 0);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&setup.attributes, &none);
  posix_spawnattr_setflags(&setup.attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  posix_spawn_file_actions_addopen(&setup.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (output_ >= 0) {
    posix_spawn_file_actions_adddup2(&setup.actions, output_, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&setup.actions, output_, STDERR_FILENO);
  }
  posix_spawn_file_actions_adddup2(&setup.actions, sockets[1], kWorkerFd);
  std::string name = executable;
  char* const arguments[] = {name.data(), nullptr};
  const int error = ::posix_spawn(&pid_, executable.c_str(), &setup.actions, &setup.attributes,
                                  arguments, environ);
  close_fd(sockets[1]);
  if (error != 0) {
    close_fd(socket_);
    close_fd(output_);
    fail(Status::not_found, "The tuner's worker {} could not be started: {}.", executable,
         std::strerror(error));
  }
  channel_ = Channel(socket_, socket_);
}

ChildProcess::~ChildProcess() {
  end(kFarewellS);
  close_fd(output_);
}

std::string ChildProcess::end(double patience_s) {
  close_fd(socket_);  // the child ends when it sees this
  if (pid_ < 0) return "gone";
  const double kill_at_s = now_s() + patience_s;
  const double give_up_at_s = kill_at_s + kKillPatienceS;
  bool killed = false;
  for (;;) {
    int status = 0;
    const pid_t reaped = ::waitpid(pid_, &status, WNOHANG);
    if (reaped == pid_ || (reaped < 0 && errno != EINTR)) {
      pid_ = -1;
      return reaped < 0 ? "gone" : ending(status);
    }
    if (!killed && now_s() >= kill_at_s) {
      ::kill(pid_, SIGKILL);
      killed = true;
    }
    if (now_s() >= give_up_at_s) {
      // The driver still takes it down. It holds nothing of ours any more; the kernel reaps it when
      // this process ends.
      pid_ = -1;
      return "signal 9 (Killed), not gone yet";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

std::string ChildProcess::last_words() const {
  if (output_ < 0) return "";
  const off_t size = ::lseek(output_, 0, SEEK_END);
  const off_t begin = std::max<off_t>(size - kLastWordsBytes, 0);
  std::string text(static_cast<size_t>(std::max<off_t>(size - begin, 0)), '\0');
  const ssize_t got = ::pread(output_, text.data(), text.size(), begin);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

DeviceWorker::DeviceWorker(WorkerOptions options) : options_(std::move(options)) { start(); }

void DeviceWorker::start() {
  child_ = std::make_unique<ChildProcess>(options_.executable);
  sent_.clear();
  tools_sent_ = false;
  require_reply({{"do", "hello"}, {"protocol", kProtocol}, {"parent", getpid()}});
  const Json opened = require_reply(
      {{"do", "open"}, {"device", options_.device}, {"memory_bytes", options_.memory_bytes}});
  info_ = device_from_json(opened.at("device"));
  // Software is slower than a card; its own watchdog ends what hangs.
  if (info_.timing == runtime::Timing::none)
    options_.hang_timeout_s = std::max(options_.hang_timeout_s, options_.prepare_timeout_s);
  memory_bytes_ = opened.at("memory_bytes");
}

void DeviceWorker::ensure_started() {
  if (child_ == nullptr) {
    ++restarts_;
    start();
  }
  if (tools_sent_ || tools_.empty()) return;
  tools_sent_ = true;
  Json entries = Json::object();
  for (const auto& [entry, binary] : tools_) {
    send_binary(binary);
    entries[entry] = binary->key.hex();
  }
  require_reply({{"do", "tools"}, {"entries", entries}});
}

double DeviceWorker::timeout_s(Phase phase) const {
  return phase == Phase::running ? options_.hang_timeout_s : options_.prepare_timeout_s;
}

DeviceWorker::Lost DeviceWorker::lose(Received how, Phase phase, int64_t index) {
  const bool late = how == Received::late;
  const std::string end = child_->end(late ? 0 : kFarewellS);
  const std::string words = child_->last_words();
  child_.reset();
  Lost lost{.outcome = late ? Outcome::timeout : Outcome::crash,
            .detail = {},
            .phase = phase,
            .index = index};
  lost.detail = late ? fmt::format("killed after {:g} s without an answer", timeout_s(phase))
                     : fmt::format("the worker process ended with {}", end);
  if (!words.empty()) lost.detail += fmt::format("; it said: {}", words);
  if (options_.log) options_.log(fmt::format("worker lost: {}", lost.detail));
  return lost;
}

void DeviceWorker::after_reply(const Json& reply) {
  if (!reply.value("fatal", false)) return;
  child_->end(kFarewellS);
  child_.reset();
}

Json DeviceWorker::exchange(const Json& request, Lost& lost, std::string_view payload) {
  lost = Lost{};
  Phase phase = Phase::preparing;
  int64_t index = -1;
  if (!child_->channel().send(request, payload)) {
    lost = lose(Received::closed, phase, index);
    return {};
  }
  for (;;) {
    Frame frame;
    const Received received = child_->channel().receive(frame, timeout_s(phase));
    if (received != Received::frame) {
      lost = lose(received, phase, index);
      return {};
    }
    if (!frame.header.contains("event")) return frame.header;
    const bool runs = frame.header.at("event") == "run";
    phase = runs ? Phase::running : Phase::preparing;
    index = runs ? frame.header.at("index").get<int64_t>() : -1;
  }
}

Json DeviceWorker::require_reply(const Json& request, std::string_view payload) {
  Lost lost;
  const std::string what = request.at("do");
  const Json reply = exchange(request, lost, payload);
  if (lost.outcome != Outcome::passed) {
    fail(Status::driver_error, "The tuner's worker process was lost at \"{}\" on {}: {}.", what,
         options_.device, lost.detail);
  }
  if (!reply.value("ok", false)) {
    child_.reset();
    fail(static_cast<Status>(reply.value("status", static_cast<int>(Status::internal))), "{}",
         reply.value("error", std::string("unknown error")));
  }
  return reply;
}

void DeviceWorker::set_tools(std::map<std::string, BinaryPtr> tools) {
  tools_ = std::move(tools);
  tools_sent_ = false;
}

void DeviceWorker::send_binary(const BinaryPtr& binary) {
  if (!sent_.insert(binary->key.hex()).second) return;
  require_reply({{"do", "binary"}, {"binary", binary_json(*binary)}}, binary->image);
}

Json DeviceWorker::plan_json(const PlanWork& plan) {
  Json keys = Json::array();
  std::string id = plan.op->name + canonical_json(ints_json(plan.fixed)) +
                   canonical_json(ints_json(plan.config));
  for (const BinaryPtr& binary : plan.binaries) {
    send_binary(binary);
    keys.push_back(binary->key.hex());
    id += binary->key.hex();
  }
  for (const int64_t bytes : plan.smem_bytes) id += fmt::format(" {}", bytes);
  return {{"id", id},
          {"op", plan.op->name},
          {"fixed", ints_json(plan.fixed)},
          {"config", ints_json(plan.config)},
          {"limits", plan.limits},
          {"binaries", keys},
          {"smem_bytes", plan.smem_bytes}};
}

RunVerdict DeviceWorker::verify(const PlanWork& plan, const BinaryPtr& oracle,
                                std::span<const templates::Case> cases) {
  ensure_started();
  send_binary(oracle);
  Json case_list = Json::array();
  for (const templates::Case& c : cases) case_list.push_back(case_json(c));
  const Json request = {{"do", "verify"},
                        {"plan", plan_json(plan)},
                        {"oracle", oracle->key.hex()},
                        {"cases", case_list}};
  Lost lost;
  const Json reply = exchange(request, lost);
  if (lost.outcome != Outcome::passed) {
    return {lost.phase == Phase::running ? lost.outcome : Outcome::harness, lost.detail};
  }
  if (!reply.value("ok", false)) return {Outcome::harness, reply.value("error", std::string())};
  RunVerdict verdict{outcome_of(reply.at("outcome")), reply.at("detail"), reply.at("worst_error")};
  if (verdict.outcome == Outcome::passed)
    verdict.detail = fmt::format("{} cases", reply.at("cases").get<int64_t>());
  after_reply(reply);
  return verdict;
}

MeasureResult DeviceWorker::measure(std::span<const PlanWork> plans, const templates::Case& c,
                                    int rounds, int first_round) {
  ensure_started();
  Json plan_list = Json::array();
  for (const PlanWork& plan : plans) plan_list.push_back(plan_json(plan));
  const Json request = {{"do", "measure"},
                        {"plans", plan_list},
                        {"case", case_json(c)},
                        {"rounds", rounds},
                        {"first_round", first_round}};
  Lost lost;
  const Json reply = exchange(request, lost);
  MeasureResult result;
  if (lost.outcome != Outcome::passed) {
    result.outcome = lost.phase == Phase::running ? lost.outcome : Outcome::harness;
    result.detail = lost.detail;
    result.index = lost.index;
    return result;
  }
  if (!reply.value("ok", false)) {
    result.outcome = Outcome::harness;
    result.detail = reply.value("error", std::string());
    return result;
  }
  result.outcome = outcome_of(reply.at("outcome"));
  result.detail = reply.at("detail");
  result.index = reply.at("index");
  if (result.outcome == Outcome::passed) {
    result.samples.times_ns.resize(plans.size());
    for (const Json& round : reply.at("rounds")) {
      const Json& reasons = round.at("throttle_reasons");
      result.samples.rounds.push_back(
          {reasons.is_null() ? std::nullopt : std::optional(reasons.get<uint64_t>()),
           round.at("sm_mhz")});
    }
    for (const Json& round : reply.at("times_ns")) {
      for (size_t i = 0; i < plans.size(); ++i) result.samples.times_ns[i].push_back(round.at(i));
    }
    result.calls = reply.at("calls");
    result.copies = reply.at("copies");
    result.flushed = reply.at("flushed");
  }
  after_reply(reply);
  return result;
}

double DeviceWorker::empty_launch_ns() {
  ensure_started();
  return require_reply({{"do", "launch"}}).at("time_ns");
}

double DeviceWorker::ceiling_bus_gb_per_s() {
  ensure_started();
  return require_reply({{"do", "bus_ceiling"}}).at("gb_per_s");
}

double DeviceWorker::ceiling_tflop_per_s() {
  ensure_started();
  return require_reply({{"do", "mma_ceiling"}}).at("tflop_per_s");
}

double DeviceWorker::ceiling_gb_per_s(double read_share, int64_t bytes) {
  ensure_started();
  const double kept = options_.hang_timeout_s;
  options_.hang_timeout_s *= kLaunchHangFactor;
  const Json reply =
      require_reply({{"do", "ceiling"}, {"read_share", read_share}, {"bytes", bytes}});
  options_.hang_timeout_s = kept;
  return reply.at("gb_per_s");
}

}  // namespace kiln::tuner
