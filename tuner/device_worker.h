// The parent's side of the child process: starts it, asks it, watches the clock, and starts another
// when it is gone. What a request was about when the child was lost is known exactly: one candidate
// runs at a time, and the child names it before.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "templates/kit.h"
#include "tuner/decide.h"
#include "tuner/outcome.h"
#include "tuner/wire.h"

namespace kiln::tuner {

// kiln-worker beside this program, in its libexec folder, or in the build tree. Fails with
// not_found and the places searched.
std::string find_worker(const std::string& given);

struct WorkerOptions {
  std::string executable;
  std::string device;
  double hang_timeout_s = 3;  // of a candidate's run
  double prepare_timeout_s =
      300;  // of the child's own work: opening, filling tensors, running the oracle
  int64_t memory_bytes = 0;  // of the device; 0: 80 % of what is free, at most 24 GiB
  std::function<void(const std::string& line)> log;
};

// A child that was started and not yet reaped. Killed when destroyed.
class ChildProcess {
 public:
  explicit ChildProcess(const std::string& executable);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  Channel& channel() { return channel_; }
  // Waits at most this long for it to end by itself, then kills it. Returns how it ended: "exit
  // code 1", "signal 9 (Killed)".
  std::string end(double patience_s);
  std::string last_words() const;  // end of what it wrote to stderr

 private:
  int socket_ = -1;
  int output_ = -1;
  pid_t pid_ = -1;
  Channel channel_{-1, -1};
};

using BinaryPtr = std::shared_ptr<const jit::Binary>;

// A config, ready to be run by the child.
struct PlanWork {
  const templates::Op* op = nullptr;
  templates::Sizes fixed;
  templates::Config config;
  std::string limits;  // slug of the GPU that the plan is made for; "": the device itself
  std::vector<BinaryPtr> binaries;  // one per kernel
  std::vector<int64_t> smem_bytes;  // dynamic, one per kernel
};

struct MeasureResult {
  Outcome outcome = Outcome::passed;
  std::string detail;
  int64_t index = -1;  // of the plan that is to blame; -1: none
  Samples samples;
  int64_t calls = 0, copies = 0;
  bool flushed = false;
};

class DeviceWorker {
 public:
  explicit DeviceWorker(WorkerOptions options);  // opens the device; fails as Device::open does

  const runtime::DeviceInfo& info() const { return info_; }
  int64_t memory_bytes() const { return memory_bytes_; }
  int64_t restarts() const { return restarts_; }
  pid_t child_pid() const { return child_ != nullptr ? child_->pid() : -1; }

  // The tuner's own kernels for this device, by entry. Before anything below.
  void set_tools(std::map<std::string, BinaryPtr> tools);

  RunVerdict verify(const PlanWork& plan, const BinaryPtr& oracle,
                    std::span<const templates::Case> cases);
  MeasureResult measure(std::span<const PlanWork> plans, const templates::Case& c, int rounds,
                        int first_round);
  double empty_launch_ns();
  double ceiling_gb_per_s(double read_share, int64_t bytes);
  double ceiling_bus_gb_per_s();  // from pinned memory of the host
  double ceiling_tflop_per_s();   // of mma.sync, bf16 with fp32 sums

 private:
  // What the child said last that it does: its own work, or a candidate's.
  enum class Phase { preparing, running };

  // How a request ended without a reply.
  struct Lost {
    Outcome outcome = Outcome::passed;  // timeout or crash
    std::string detail;
    Phase phase = Phase::preparing;
    int64_t index = -1;
  };

  void start();
  void ensure_started();
  Json exchange(const Json& request, Lost& lost, std::string_view payload = {});
  Json require_reply(const Json& request, std::string_view payload = {});
  void send_binary(const BinaryPtr& binary);
  Json plan_json(const PlanWork& plan);
  double timeout_s(Phase phase) const;
  Lost lose(Received how, Phase phase, int64_t index);
  void after_reply(const Json& reply);

  WorkerOptions options_;
  std::unique_ptr<ChildProcess> child_;
  std::set<std::string> sent_;  // keys of binaries that this child has
  std::map<std::string, BinaryPtr> tools_;
  bool tools_sent_ = false;
  runtime::DeviceInfo info_;
  int64_t memory_bytes_ = 0;
  int64_t restarts_ = 0;
};

}  // namespace kiln::tuner
