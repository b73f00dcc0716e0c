// tune(): problems one after the other, each from candidates to one transaction in the store. With
// a device a candidate is verified before it is timed, and halving keeps the default to the end;
// without one the analytic model ranks.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "cache/leases.h"
#include "runtime/choice.h"
#include "runtime/plan_record.h"
#include "runtime/workload.h"
#include "tuner/binaries.h"
#include "tuner/candidates.h"
#include "tuner/decide.h"
#include "tuner/device_worker.h"
#include "tuner/prover.h"
#include "tuner/tuner.h"

namespace kiln::tuner {
namespace {

using cache::DecisionKind;
using templates::Case;
using templates::Kit;
using templates::Op;
using templates::Sizes;

constexpr int kFirstRounds = 3;
constexpr int kFinalRounds = 15;
constexpr int kChunkRounds = 5;  // asked of the child at once: how soon a stop is seen
constexpr int kMostExtra = 3;    // times the wanted rounds, when some are throttled
constexpr size_t kFinalists = 8;
constexpr double kVerifyShare = 0.6;  // of a problem's time
constexpr int kHarnessRetries = 1;
// Begins the reason of a decision that the budget ended early.
constexpr std::string_view kPartial = "only a part was tried within the budget: ";

struct Job {
  const Op* op = nullptr;
  const Kit* kit = nullptr;
  Sizes fixed;
  Sizes bucket;
  Target target;
  std::string gpu_label;
  cache::Problem problem;
};

bool is_same_shape(const Job& one, const Job& other) {
  return one.op == other.op && one.fixed == other.fixed &&
         one.target.gpu.slug == other.target.gpu.slug;
}

Hash128 search_key(const Job& job) {
  return HashRecord()
      .field("op", job.op->name)
      .field("op_version", static_cast<int64_t>(job.op->version))
      .field("shape", job.problem.shape)
      .field("gpu_class", gpu_class_key(job.target.gpu))
      .field("limits", job.target.limits)
      .hash();
}

// A shape that this process has for itself while this lives.
class ShapeLease {
 public:
  ShapeLease(cache::Store& store, const Hash128& key) : store_(store), key_(key) {
    constexpr int kAnyNumber = std::numeric_limits<int>::max();
    lease_ = cache::take_leases(store_, cache::LeaseOf::search, {key_}, kAnyNumber).front();
  }
  ~ShapeLease() {
    if (is_mine()) cache::release_leases(store_, cache::LeaseOf::search, {key_});
  }
  ShapeLease(const ShapeLease&) = delete;
  ShapeLease& operator=(const ShapeLease&) = delete;

  bool is_mine() const { return lease_.state == cache::Lease::State::mine; }
  const Hash128& key() const { return key_; }
  const cache::Lease& lease() const { return lease_; }
  void give_sign_of_life() { cache::renew_leases(store_, cache::LeaseOf::search, {key_}); }

 private:
  cache::Store& store_;
  Hash128 key_;
  cache::Lease lease_;
};

using State = ProblemReport::State;

// Ends work on one problem with a state for its row.
struct Abandoned {
  State state;
  std::string detail = {};
};

class Search {
 public:
  Search(cache::Store& store, const TuneOptions& options)
      : store_(store), options_(options), binaries_(store, options.log, options.stop) {}
  TuneReport run();

 private:
  // A candidate that is to be tried, with what the model says of it.
  struct Ranked {
    const Candidate* candidate = nullptr;
    double model_ns = 0;
  };
  // One on its way through verification and measuring.
  struct Entrant {
    const Candidate* candidate = nullptr;
    double model_ns = 0;
    RunVerdict proof;
    double first_ns = 0;  // median of the first stage, which all were in
  };

  void open_device();
  std::vector<Job> make_jobs();
  void add_jobs(const runtime::WorkloadItem& item, const Target& target, const std::string& label,
                std::vector<Job>& jobs);
  std::optional<cache::Decision> finished(const Job& job);
  std::optional<runtime::JudgedDecision> serving_decision(const Job& job);
  enum class Where { on_gpu, on_device };
  bool holds_current(const Job& job, const Hash128& plan, Where where);
  runtime::TodaysPlans& todays_plans(const Gpu& gpu);
  std::optional<cache::Decision> standing_decision(const Job& job, DecisionKind kind);
  void keep(const Job& job, const cache::TuningResult& result, ProblemReport& report);
  void tell_pin(const Job& job);
  void keep_compiled();
  static std::string shape_key(const Job& job);
  const CandidateSet& candidates_of(const Job& job);
  ProblemReport tune_one(const Job& job);
  ProblemReport tune_in_turn(const Job& job, TuneReport& report);
  ProblemReport kept_row(const Job& job, const cache::Decision& decision);
  std::vector<std::optional<cache::Decision>> kept_decisions(std::span<const Job> shape);
  void make_alike(std::span<const Job> shape, std::span<ProblemReport> rows);
  enum class Turn { done, taken };  // taken: another process tunes this shape
  Turn tune_shape(std::span<const Job> shape, std::span<const Job> next,
                  std::span<ProblemReport> rows, TuneReport& report);
  void compile_next_shape();
  void tell_progress(const std::string& what) const;
  void give_sign_of_life();
  static void note_time(const Candidate& candidate, double time_ns, ProblemReport& report);
  std::vector<Entrant> all_entrants(const CandidateSet& set) const;
  void rank(const Job& job, const std::vector<Entrant>& field, ProblemReport& report);
  std::vector<Entrant> simulated_entrants(const Job& job, ProblemReport& report);
  void measure_on_device(const Job& job, ProblemReport& report);
  std::vector<Ranked> candidates_to_try(const Job& job, const Sizes& sizes, ProblemReport& report);
  std::vector<Entrant> verified_entrants(const Job& job, const std::vector<Ranked>& order,
                                         const Case& typical, ProblemReport& report);
  Samples measured_samples(const Job& job, const Case& typical, std::vector<Entrant>& field,
                           int rounds, ProblemReport& report);
  static void judge_model(const std::vector<Entrant>& all, ProblemReport& report);
  void drop_impossible(const Job& job, const Case& typical, std::vector<Entrant>& field,
                       Samples& samples, ProblemReport& report);
  void reject(const Job& job, const Candidate& candidate, const std::string& stage, Outcome outcome,
              const std::string& detail, ProblemReport& report);
  void disprove(const Job& job, const Candidate& candidate, const std::string& detail);
  void store_measured(const Job& job, const std::vector<Entrant>& finalists, const Samples& samples,
                      const std::string& note, ProblemReport& report);
  Hash128 plan_that_ran(const Job& job, const Candidate& candidate);
  Hash128 plan_that_serves(const Job& job, const Candidate& candidate);
  std::vector<Hash128> disproved_elsewhere(const Job& job);
  static cache::PlanRecord run_record(const Job& job, const Candidate& candidate);
  static cache::PlanRecord served_record(const Job& job, const Candidate& candidate);
  void add_plan(const Job& job, const Candidate& candidate, cache::TuningResult& result);

  bool simulates() const {
    return worker_ != nullptr && worker_->info().timing == runtime::Timing::none;
  }
  cache::Verified level() const {
    return simulates() ? cache::Verified::simulator : cache::Verified::device;
  }
  cache::Decision::Scope scope() const {
    return cut_short_ ? cache::Decision::Scope::part : cache::Decision::Scope::all;
  }
  // The problem's candidates add in the order that was chosen for its shape.
  bool is_wanted(const Candidate& candidate) const {
    return !wanted_signature_ || candidate.plan.reduction_signature == *wanted_signature_;
  }
  bool is_invariant(const Op& op) const {
    return op.invariance == Op::Invariance::always ||
           options_.invariance == TuneOptions::Invariance::all_sizes;
  }
  bool is_over() const {
    return stopped() || (options_.budget_s > 0 && now_s() >= start_s_ + options_.budget_s);
  }
  bool stopped() const { return options_.stop != nullptr && options_.stop->load(); }
  bool out_of_time() const {
    return stopped() || (options_.budget_s > 0 && now_s() >= problem_deadline_s_);
  }
  void log(const std::string& line) const {
    if (options_.log) options_.log(line);
  }

  cache::Store& store_;
  const TuneOptions& options_;
  Binaries binaries_;
  std::unique_ptr<DeviceWorker> worker_;
  std::optional<Prover> prover_;
  double start_s_ = now_s();
  double problem_start_s_ = 0;
  double problem_deadline_s_ = 0;
  size_t job_count_ = 0;
  size_t jobs_done_ = 0;
  std::unique_ptr<ShapeLease> lease_;       // of the shape at hand
  std::unique_ptr<ShapeLease> next_lease_;  // of the shape that is compiled ahead
  std::span<const Job> next_shape_;         // to compile ahead, once the one at hand is compiled
  double sign_of_life_s_ = 0;
  std::set<Hash128> told_;  // shapes that were found taken
  int first_round_ = 0;
  bool cut_short_ = false;                    // the problem at hand, by the budget
  std::vector<cache::Rejection> rejections_;  // of the problem at hand
  std::optional<std::string> wanted_signature_;
  std::map<std::string, runtime::TodaysPlans> todays_plans_;  // by class
  std::string candidates_key_;
  std::map<std::string, std::set<std::string>> winners_;  // configs, by the key of their shape
  CandidateSet candidates_;
};

// As it will be measured: under limits for the device's SMs.
double model_ns(const Job& job, const Candidate& candidate, const Sizes& sizes) {
  return model_time_ns({.op = job.op,
                        .sizes = sizes,
                        .config = candidate.config,
                        .plan = candidate.run_plan,
                        .resources = candidate.resources()},
                       job.target.runs_as());
}

// The least time that the datasheet allows for what must come from DRAM and pass the tensor cores.
double fastest_possible_ns(const Op& op, const Sizes& sizes, const Gpu& gpu) {
  const templates::Cost cost = op.cost(sizes);
  const double memory_ns = gpu.dram_gb_per_s > 0 ? cost.cold_read_bytes / gpu.dram_gb_per_s : 0;
  const double mma_per_ns =
      static_cast<double>(gpu.bf16_mma_fma_per_clk_sm) * gpu.sm_count * gpu.boost_mhz / 1000;
  return std::max(memory_ns, mma_per_ns > 0 ? cost.mma_fma / mma_per_ns : 0);
}

// Of the call that candidates are ranked by before they are compiled.
Sizes guessed_sizes(const Job& job) {
  return templates::with_derived(*job.op, job.kit->measured_case(job.fixed, job.bucket).sizes);
}

std::vector<Hash128> keys_of(const std::vector<BinaryPtr>& binaries) {
  std::vector<Hash128> keys;
  for (const BinaryPtr& binary : binaries) keys.push_back(binary->key);
  return keys;
}

std::string problem_text(const Job& job) {
  return fmt::format("{} {} {} on {}", job.op->name, job.problem.shape, job.problem.bucket,
                     job.gpu_label);
}

bool contains(const std::vector<Hash128>& plans, const Hash128& plan) {
  return std::find(plans.begin(), plans.end(), plan) != plans.end();
}

Contender contender_of(const Candidate& candidate, std::vector<double> times_ns) {
  return {.id = candidate.id,
          .registers = candidate.registers(),
          .smem_bytes = candidate.shared_bytes(),
          .times_ns = std::move(times_ns)};
}

std::optional<size_t> default_position(const auto& field) {
  for (size_t i = 0; i < field.size(); ++i) {
    if (field[i].candidate->is_default()) return i;
  }
  return std::nullopt;
}

void Search::open_device() {
  WorkerOptions worker{.executable = find_worker(options_.worker),
                       .device = options_.device,
                       .hang_timeout_s = options_.hang_timeout_s,
                       .memory_bytes = options_.memory_bytes,
                       .log = options_.log};
  worker_ = std::make_unique<DeviceWorker>(std::move(worker));
  const runtime::DeviceInfo& info = worker_->info();
  log(fmt::format("{}: {}, {}, at most {:.1f} GiB of scratch memory", info.id, info.name,
                  runtime::driver_text(info),
                  static_cast<double>(worker_->memory_bytes()) / (1 << 30)));
  binaries_.serve_driver(info.cuda_major);
  worker_->set_tools(binaries_.tools(info.gpu.arch()));
  prover_.emplace(*worker_, binaries_);
}

void Search::add_jobs(const runtime::WorkloadItem& item, const Target& target,
                      const std::string& label, std::vector<Job>& jobs) {
  for (const Sizes& bucket : item.buckets) {
    jobs.push_back({.op = item.op,
                    .kit = &templates::require_kit(*item.op),
                    .fixed = item.fixed,
                    .bucket = bucket,
                    .target = target,
                    .gpu_label = label,
                    .problem = runtime::problem_of(*item.op, item.fixed, bucket)});
  }
}

std::vector<Job> Search::make_jobs() {
  for (const std::string& name : options_.ops) templates::require_op(name);
  std::vector<runtime::WorkloadItem> items = runtime::parse_workload(options_.workload);
  std::erase_if(items, [&](const runtime::WorkloadItem& item) {
    return !options_.ops.empty() &&
           std::find(options_.ops.begin(), options_.ops.end(), item.op->name) == options_.ops.end();
  });

  std::vector<std::pair<Target, std::string>> targets;
  if (worker_ != nullptr) {
    const runtime::DeviceInfo& info = worker_->info();
    Target target{.gpu = info.gpu, .limits = {}, .device = info.gpu};
    std::string label = info.match.empty() ? info.gpu.slug : info.match;
    if (simulates()) target.gpu = find_gpu(info.match);
    if (!options_.limits.empty()) {
      target.gpu = find_gpu(options_.limits);
      target.limits = target.gpu.slug;
      label = target.gpu.slug;
    }
    targets.emplace_back(target, label);
  } else {
    if (options_.gpus.empty()) {
      fail(Status::invalid_argument,
           "Without a device, name the GPUs to rank for (--gpu a100-sxm4-80gb).");
    }
    for (const std::string& slug : options_.gpus) {
      const Gpu& gpu = find_gpu(slug);
      targets.emplace_back(Target{.gpu = gpu, .limits = {}, .device = gpu}, gpu.slug);
    }
  }
  std::vector<Job> jobs;
  for (const auto& [target, label] : targets) {
    for (const runtime::WorkloadItem& item : items) add_jobs(item, target, label, jobs);
  }
  return jobs;
}

// The decision that leaves nothing to do for this problem.
std::optional<cache::Decision> Search::finished(const Job& job) {
  if (options_.redo == TuneOptions::Redo::again) return std::nullopt;
  const std::optional<runtime::JudgedDecision> serving = serving_decision(job);
  if (!serving) return std::nullopt;
  const cache::Decision& decision = serving->row.decision;
  // Whoever pinned it has decided, also where its plan is of another source by now.
  if (decision.kind == DecisionKind::pinned) return decision;
  if (decision.scope == cache::Decision::Scope::part || !serving->is_current) return std::nullopt;
  // A damaged binary is made anew, and with it the decision.
  const auto is_readable = [&](const cache::PlanRecord::Kernel& kernel) {
    return store_.find_binary(kernel.binary).has_value();
  };
  if (!std::all_of(serving->recorded->kernels.begin(), serving->recorded->kernels.end(),
                   is_readable))
    return std::nullopt;
  if (!job.target.limits.empty()) {
    const std::vector<cache::Timing> timings =
        store_.timings(job.problem, gpu_class_key(job.target.device));
    const bool is_measured =
        std::any_of(timings.begin(), timings.end(), [&](const cache::Timing& t) {
          return t.limits == job.target.limits && holds_current(job, t.plan, Where::on_device);
        });
    return is_measured ? std::optional(decision) : std::nullopt;
  }
  if (simulates() && serving->row.verified == cache::Verified::none) return std::nullopt;
  const DecisionKind good_enough =
      worker_ != nullptr && !simulates() ? DecisionKind::measured : DecisionKind::predicted;
  return decision.kind <= good_enough ? std::optional(decision) : std::nullopt;
}

// The decision that a session on the GPU would use.
std::optional<runtime::JudgedDecision> Search::serving_decision(const Job& job) {
  std::vector<runtime::JudgedDecision> decisions = runtime::judged_decisions(
      store_, *job.op, job.fixed, job.bucket, todays_plans(job.target.gpu));
  const bool serves =
      !decisions.empty() && decisions.back().verdict == runtime::JudgedDecision::Verdict::serves;
  return serves ? std::optional(std::move(decisions.back())) : std::nullopt;
}

// runs_on: the GPU whose binaries the plan has.
bool Search::holds_current(const Job& job, const Hash128& plan, Where where) {
  const std::optional<cache::PlanRecord> record = store_.find_plan(plan);
  if (!record) return false;
  if (where == Where::on_gpu)
    return todays_plans(job.target.gpu).has(*record, *job.op, job.fixed, job.target.gpu.arch());
  return todays_plans(job.target.runs_as())
      .has(*record, *job.op, job.fixed, job.target.device.arch());
}

runtime::TodaysPlans& Search::todays_plans(const Gpu& gpu) {
  return todays_plans_.try_emplace(gpu_class_key(gpu), gpu).first->second;
}

// The decision among all candidates that a search among some of them does not replace.
std::optional<cache::Decision> Search::standing_decision(const Job& job, DecisionKind kind) {
  if (!cut_short_) return std::nullopt;
  const std::optional<cache::DecisionRow> row =
      store_.find_decision(job.problem, gpu_class_key(job.target.gpu), kind);
  if (!row || row->decision.scope == cache::Decision::Scope::part || !row->failure.empty() ||
      !holds_current(job, row->decision.plan, Where::on_gpu))
    return std::nullopt;
  const cache::Decision& decision = row->decision;
  const bool rejected_now =
      std::any_of(rejections_.begin(), rejections_.end(),
                  [&](const cache::Rejection& r) { return r.config == decision.config; });
  // What a stand-in measured in part says more of a GPU than what the model says of all.
  const bool is_less = !job.target.limits.empty() && decision.limits.empty();
  if (rejected_now || is_less) return std::nullopt;
  return decision;
}

// Stores the result and tells what was decided.
void Search::keep(const Job& job, const cache::TuningResult& result, ProblemReport& report) {
  if (!store_.put(result)) throw Abandoned{State::not_stored, "the store did not keep the result"};
  const cache::Decision& decision = result.decision;
  report.winner = decision.config;
  report.kind = decision.kind;
  report.winner_ns = decision.time_ns;
  report.default_ns = decision.default_time_ns;
  report.tie_group = decision.tie_group;
  const std::optional<cache::PlanRecord> plan = store_.find_plan(decision.plan);
  if (plan) report.reduction_signature = plan->reduction_signature;
  if (cut_short_ && decision.scope == cache::Decision::Scope::all) {
    log(fmt::format(
        "{}: only a part was tried within the budget, so the earlier decision among all "
        "stays: {}",
        problem_text(job), decision.config));
  }
}

void Search::tell_pin(const Job& job) {
  const std::optional<cache::DecisionRow> pin =
      store_.find_decision(job.problem, gpu_class_key(job.target.gpu), DecisionKind::pinned);
  if (!pin) return;
  const std::string& config = pin->decision.config;
  if (!pin->failure.empty()) {
    log(fmt::format("{}: it is pinned to {}, which no session uses: {}", problem_text(job), config,
                    pin->failure));
  } else if (options_.redo == TuneOptions::Redo::again) {
    log(fmt::format("{}: it is pinned to {}, which serves whatever is measured", problem_text(job),
                    config));
  } else if (!holds_current(job, pin->decision.plan, Where::on_gpu)) {
    log(
        fmt::format("{}: it stays pinned to {}, but the op has changed since, so nothing proves "
                    "that config now; `kiln tune --again` measures beside the pin",
                    problem_text(job), config));
  }
}

// What was compiled for a problem that was not decided, so that the next run gets further.
void Search::keep_compiled() {
  std::vector<jit::Binary> binaries;
  std::set<Hash128> known;
  for (const Candidate& candidate : candidates_.candidates) {
    for (const std::vector<BinaryPtr>* list : {&candidate.binaries, &candidate.gpu_binaries}) {
      for (const BinaryPtr& binary : *list) {
        if (known.insert(binary->key).second && !store_.has_binary(binary->key))
          binaries.push_back(*binary);
      }
    }
  }
  if (!binaries.empty()) store_.put_kernels(binaries, {});
}

std::string Search::shape_key(const Job& job) {
  return fmt::format("{} {} {} {}", job.op->name, job.problem.shape, job.target.gpu.slug,
                     job.target.limits);
}

const CandidateSet& Search::candidates_of(const Job& job) {
  std::string key = shape_key(job);
  if (options_.shortlist > 0) key += " " + job.problem.bucket;  // each size has its own list
  if (candidates_key_ != key) {
    candidates_key_.clear();
    const Sizes sizes = guessed_sizes(job);
    candidates_ = make_candidates(*job.op, job.fixed, job.target, binaries_,
                                  {.shortlist = options_.shortlist,
                                   .out_of_time =
                                       [this] {
                                         give_sign_of_life();
                                         return out_of_time();
                                       },
                                   .sizes = &sizes});
    // A set that was cut short is not the set of the next bucket.
    if (candidates_.uncompiled == 0) candidates_key_ = key;
  }
  return candidates_;
}

void Search::reject(const Job& job, const Candidate& candidate, const std::string& stage,
                    Outcome outcome, const std::string& detail, ProblemReport& report) {
  const std::string reason = outcome_name(outcome);
  // What ran is known of the class that ran it, whichever GPU it stood for.
  rejections_.push_back({.problem = job.problem,
                         .gpu_class = gpu_class_key(job.target.device),
                         .config = candidate.text,
                         .plan = plan_that_ran(job, candidate),
                         .limits = job.target.limits,
                         .stage = stage,
                         .reason = reason,
                         .detail = detail});
  ++report.rejected[reason];
  log(fmt::format("{}: rejected {} ({}: {})", problem_text(job), candidate.text, reason, detail));
  if (disproves(outcome)) disprove(job, candidate, reason + ": " + detail);
}

// A plan that the store holds, perhaps as a decision proven with another driver, is found wrong
// now.
void Search::disprove(const Job& job, const Candidate& candidate, const std::string& detail) {
  const Hash128 plan = plan_that_ran(job, candidate);
  if (!store_.find_plan(plan)) return;
  const runtime::DeviceInfo& info = worker_->info();
  store_.put_verification({.plan = plan,
                           .problem = job.problem,
                           .by = level(),
                           .passed = false,
                           .detail = detail,
                           .tolerance = job.op->tolerance_of(job.fixed).text(),
                           .card = info.name,
                           .driver = info.driver});
}

// What ran on the device.
cache::PlanRecord Search::run_record(const Job& job, const Candidate& candidate) {
  return runtime::plan_record(*job.op, job.fixed, candidate.config, job.target.device.arch(),
                              candidate.run_plan, keys_of(candidate.binaries));
}

// What serves the GPU that is decided for.
cache::PlanRecord Search::served_record(const Job& job, const Candidate& candidate) {
  return runtime::plan_record(*job.op, job.fixed, candidate.config, job.target.gpu.arch(),
                              candidate.plan, keys_of(candidate.gpu_binaries));
}

Hash128 Search::plan_that_ran(const Job& job, const Candidate& candidate) {
  return run_record(job, candidate).id;
}

Hash128 Search::plan_that_serves(const Job& job, const Candidate& candidate) {
  return served_record(job, candidate).id;
}

// The plans that no session uses, because they failed on a card which is not at hand.
std::vector<Hash128> Search::disproved_elsewhere(const Job& job) {
  std::vector<Hash128> plans;
  for (const cache::Verification& proof : store_.verifications(job.problem)) {
    const bool is_here = worker_ != nullptr && proof.card == worker_->info().name;
    if (!proof.passed && !is_here) plans.push_back(proof.plan);
  }
  return plans;
}

void Search::add_plan(const Job& job, const Candidate& candidate, cache::TuningResult& result) {
  const auto add = [&](cache::PlanRecord record, const std::vector<BinaryPtr>& binaries) {
    result.plans.push_back(std::move(record));
    for (const BinaryPtr& binary : binaries) {
      const bool known = std::any_of(result.binaries.begin(), result.binaries.end(),
                                     [&](const jit::Binary& b) { return b.key == binary->key; });
      if (!known) result.binaries.push_back(*binary);
    }
  };
  add(served_record(job, candidate), candidate.gpu_binaries);
  // What ran serves sessions too, where it is other code: on a stand-in, and on a simulated GPU.
  if (!job.target.limits.empty() || simulates())
    add(run_record(job, candidate), candidate.binaries);
}

std::vector<Search::Entrant> Search::all_entrants(const CandidateSet& set) const {
  std::vector<Entrant> field;
  for (const Candidate& candidate : set.candidates) {
    if (is_wanted(candidate)) field.push_back({.candidate = &candidate});
  }
  return field;
}

// Every candidate that is not known to be broken is executed on the simulator, the default first.
std::vector<Search::Entrant> Search::simulated_entrants(const Job& job, ProblemReport& report) {
  const Case typical = job.kit->measured_case(job.fixed, job.bucket);
  const Sizes sizes = templates::with_derived(*job.op, typical.sizes);
  return verified_entrants(job, candidates_to_try(job, sizes, report), typical, report);
}

// Decides by the analytic model among those that were not found wrong.
void Search::rank(const Job& job, const std::vector<Entrant>& field, ProblemReport& report) {
  if (stopped()) throw Abandoned{State::stopped};
  if (field.empty()) {
    throw Abandoned{State::failed, simulates() ? "no candidate is right" : "no config is legal"};
  }
  const Sizes sizes =
      templates::with_derived(*job.op, job.kit->measured_case(job.fixed, job.bucket).sizes);
  const std::vector<Hash128> disproved = disproved_elsewhere(job);
  std::vector<const Entrant*> ranked;
  std::vector<Contender> contenders;
  std::vector<double> all_ns;
  std::optional<size_t> default_index;
  for (const Entrant& entrant : field) {
    if (contains(disproved, plan_that_serves(job, *entrant.candidate))) {
      ++report.rejected["failed verification"];
      continue;
    }
    if (entrant.candidate->is_default()) default_index = ranked.size();
    ranked.push_back(&entrant);
    all_ns.push_back(model_ns(job, *entrant.candidate, sizes));
    note_time(*entrant.candidate, all_ns.back(), report);
    contenders.push_back(contender_of(*entrant.candidate, {all_ns.back()}));
  }
  if (ranked.empty()) throw Abandoned{State::failed, "no config is right"};
  if (cut_short_ && contenders.size() == 1 && default_index) throw Abandoned{State::partial};
  const Verdict verdict = decide(contenders, default_index, kModelNoise);

  cache::TuningResult result;
  const auto add = [&](size_t i) {
    const Candidate& candidate = *ranked[i]->candidate;
    add_plan(job, candidate, result);
    const Hash128 plan = plan_that_serves(job, candidate);
    result.timings.push_back({.plan = plan,
                              .problem = job.problem,
                              .gpu_class = gpu_class_key(job.target.gpu),
                              .time_ns = all_ns[i],
                              .method = "model"});
    if (!simulates()) return;
    result.verifications.push_back({.plan = plan,
                                    .problem = job.problem,
                                    .by = cache::Verified::simulator,
                                    .passed = true,
                                    .detail = ranked[i]->proof.detail,
                                    .tolerance = job.op->tolerance_of(job.fixed).text(),
                                    .worst_error = ranked[i]->proof.worst_error,
                                    .card = worker_->info().name,
                                    .driver = worker_->info().driver});
  };
  add(verdict.winner);
  if (default_index && *default_index != verdict.winner) add(*default_index);
  std::vector<std::string> tie_group;
  for (const size_t i : verdict.tie_group) tie_group.push_back(ranked[i]->candidate->text);
  result.decision = {
      .problem = job.problem,
      .gpu_class = gpu_class_key(job.target.gpu),
      .gpu_label = job.gpu_label,
      .config = ranked[verdict.winner]->candidate->text,
      .plan = result.plans.front().id,
      .kind = DecisionKind::predicted,
      .reason = fmt::format("{}by the analytic model: {}",
                            cut_short_ ? kPartial : std::string_view(), verdict.reason),
      .scope = scope(),
      .tie_group = tie_group,
      .time_ns = all_ns[verdict.winner],
      .default_time_ns = default_index ? all_ns[*default_index] : 0};
  if (auto standing = standing_decision(job, DecisionKind::predicted))
    result.decision = std::move(*standing);
  result.rejections = std::move(rejections_);
  keep(job, result, report);

  // What proves the winner on a machine without a compiler; the store keeps it.
  binaries_.oracle(*job.kit, job.fixed, job.target.gpu.arch());
  binaries_.tools(job.target.gpu.arch());

  report.median_ns = median(all_ns);
}

std::vector<Search::Entrant> Search::verified_entrants(const Job& job,
                                                       const std::vector<Ranked>& order,
                                                       const Case& typical, ProblemReport& report) {
  const double verify_until_s =
      problem_start_s_ + kVerifyShare * (problem_deadline_s_ - problem_start_s_);
  const Sizes sizes = templates::with_derived(*job.op, typical.sizes);
  std::vector<Entrant> entrants;
  int harness_failures = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    give_sign_of_life();
    if (stopped()) throw Abandoned{State::stopped};
    if (options_.budget_s > 0 && now_s() > verify_until_s && entrants.size() >= 2) {
      cut_short_ = true;
      report.rejected["not tried within the budget"] += static_cast<int64_t>(order.size() - i);
      break;
    }
    const Candidate& candidate = *order[i].candidate;
    const RunVerdict verdict =
        prover_->prove(plan_work(*job.op, job.fixed, job.target, candidate), job.bucket);
    switch (verdict.outcome) {
      case Outcome::passed:
        entrants.push_back(
            {.candidate = &candidate, .model_ns = order[i].model_ns, .proof = verdict});
        break;
      case Outcome::no_memory:
        throw Abandoned{State::no_memory};
      case Outcome::harness:
        if (++harness_failures > kHarnessRetries) throw Abandoned{State::failed, verdict.detail};
        log(fmt::format("{}: trying again after: {}", problem_text(job), verdict.detail));
        --i;
        break;
      default:
        reject(job, candidate, "verify", verdict.outcome, verdict.detail, report);
    }
  }
  return entrants;
}

// Takes out of `field` who breaks while being measured.
Samples Search::measured_samples(const Job& job, const Case& typical, std::vector<Entrant>& field,
                                 int rounds, ProblemReport& report) {
  Samples samples;
  samples.times_ns.resize(field.size());
  int harness_failures = 0;
  const auto usable_rounds = [&] {
    return std::count_if(samples.rounds.begin(), samples.rounds.end(),
                         [](const Round& round) { return !throttled(round); });
  };
  // Under a load at which the card throttles most of the time, it will go on to.
  const auto always_throttled = [&] {
    return samples.rounds.size() >= static_cast<size_t>(rounds) && 3 * usable_rounds() < rounds;
  };
  while (!field.empty() && usable_rounds() < rounds && !always_throttled() &&
         samples.rounds.size() < static_cast<size_t>(kMostExtra * rounds)) {
    give_sign_of_life();
    if (stopped()) throw Abandoned{State::stopped};
    if (samples.rounds.size() >= kFirstRounds && out_of_time()) {
      cut_short_ = true;
      break;
    }
    std::vector<PlanWork> plans;
    for (const Entrant& entrant : field)
      plans.push_back(plan_work(*job.op, job.fixed, job.target, *entrant.candidate));
    const int chunk = std::min(kChunkRounds, rounds);
    const MeasureResult measured = worker_->measure(plans, typical, chunk, first_round_);
    if (measured.outcome == Outcome::passed) {
      first_round_ += chunk;
      samples.append(measured.samples);
      continue;
    }
    if (measured.outcome == Outcome::no_memory) throw Abandoned{State::no_memory};
    if (measured.index < 0 || measured.index >= static_cast<int64_t>(field.size())) {
      if (++harness_failures > kHarnessRetries) throw Abandoned{State::failed, measured.detail};
      log(fmt::format("{}: measuring again after: {}", problem_text(job), measured.detail));
      continue;
    }
    const auto index = static_cast<size_t>(measured.index);
    reject(job, *field[index].candidate, "measure", measured.outcome, measured.detail, report);
    samples.drop(index);
    field.erase(field.begin() + measured.index);
  }
  return samples;
}

void Search::drop_impossible(const Job& job, const Case& typical, std::vector<Entrant>& field,
                             Samples& samples, ProblemReport& report) {
  const double least_ns = fastest_possible_ns(
      *job.op, templates::with_derived(*job.op, typical.sizes), job.target.device);
  for (size_t i = field.size(); i-- > 0;) {
    const double time_ns = median(samples.times_ns[i]);
    if (time_ns >= least_ns) continue;
    reject(job, *field[i].candidate, "measure", Outcome::impossible,
           fmt::format("{:.0f} ns measured, but the datasheet allows no less than {:.0f} ns",
                       time_ns, least_ns),
           report);
    samples.drop(i);
    field.erase(field.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// The default first, then by the model; without those that are known to be broken.
std::vector<Search::Ranked> Search::candidates_to_try(const Job& job, const Sizes& sizes,
                                                      ProblemReport& report) {
  // Of other binaries, or planned for another GPU, a config is to be tried again.
  std::vector<Hash128> rejected;
  if (options_.redo == TuneOptions::Redo::keep) {
    for (const cache::Rejection& rejection :
         store_.rejections(job.problem, gpu_class_key(job.target.device))) {
      if (disproves(rejection.reason) && rejection.limits == job.target.limits)
        rejected.push_back(rejection.plan);
    }
  }
  const std::vector<Hash128> disproved = disproved_elsewhere(job);
  std::vector<Ranked> ranked;
  for (const Candidate& candidate : candidates_of(job).candidates) {
    if (!is_wanted(candidate)) continue;
    if (!candidate.is_default() && contains(rejected, plan_that_ran(job, candidate))) {
      ++report.rejected["rejected before"];
    } else if (!candidate.is_default() && contains(disproved, plan_that_serves(job, candidate))) {
      ++report.rejected["failed verification"];
    } else {
      ranked.push_back({&candidate, model_ns(job, candidate, sizes)});
    }
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) {
    if (a.candidate->is_default() != b.candidate->is_default()) return a.candidate->is_default();
    return a.model_ns < b.model_ns;
  });
  if (options_.tries <= 0 || ranked.size() <= static_cast<size_t>(options_.tries)) return ranked;
  const auto rest = ranked.begin() + options_.tries;
  const std::set<std::string>& winners = winners_[shape_key(job)];
  const auto last = std::stable_partition(rest, ranked.end(), [&](const Ranked& each) {
    return winners.contains(each.candidate->text);
  });
  report.rejected["not tried: the model puts it behind"] += ranked.end() - last;
  ranked.erase(last, ranked.end());
  return ranked;
}

// How well the model foresaw what was measured.
void Search::judge_model(const std::vector<Entrant>& all, ProblemReport& report) {
  std::vector<double> measured_ns, model_ns;
  for (const Entrant& entrant : all) {
    measured_ns.push_back(entrant.first_ns);
    model_ns.push_back(entrant.model_ns);
  }
  report.median_ns = median(measured_ns);
  report.rank_correlation = rank_correlation(model_ns, measured_ns);
  const auto models_first = std::min_element(model_ns.begin(), model_ns.end()) - model_ns.begin();
  report.model_regret = measured_ns[static_cast<size_t>(models_first)] /
                            *std::min_element(measured_ns.begin(), measured_ns.end()) -
                        1;
}

void Search::measure_on_device(const Job& job, ProblemReport& report) {
  const Case typical = job.kit->measured_case(job.fixed, job.bucket);
  const Sizes sizes = templates::with_derived(*job.op, typical.sizes);
  std::vector<Entrant> field =
      verified_entrants(job, candidates_to_try(job, sizes, report), typical, report);
  report.measured = static_cast<int64_t>(field.size());
  std::string note;
  Samples samples;
  std::vector<Entrant> all;
  bool last = field.size() <= kFinalists;
  for (bool first = true;; first = false) {
    last = last || (!first && out_of_time());
    // Who is left is measured again: beside an impossible time the others' may be mere glances.
    for (size_t before = 0; before != field.size();) {
      samples = usable(
          measured_samples(job, typical, field, last ? kFinalRounds : kFirstRounds, report), &note);
      before = field.size();
      if (!samples.rounds.empty()) drop_impossible(job, typical, field, samples, report);
    }
    if (field.empty()) throw Abandoned{State::failed, "no candidate is right"};
    if (first) {
      for (size_t i = 0; i < field.size(); ++i) {
        field[i].first_ns = median(samples.times_ns[i]);
        note_time(*field[i].candidate, field[i].first_ns, report);
      }
      all = field;
    }
    if (last) break;
    if (out_of_time()) {
      cut_short_ = true;
      break;
    }
    std::vector<Entrant> kept;
    for (const size_t i : survivors(samples.times_ns, default_position(field), kFinalists))
      kept.push_back(field[i]);
    // The default may be one too many, and who is left may be too close to tell apart.
    last = kept.size() <= kFinalists + 1 || kept.size() == field.size();
    field = std::move(kept);
  }

  const bool only_default = std::all_of(all.begin(), all.end(), [](const Entrant& entrant) {
    return entrant.candidate->is_default();
  });
  // Nothing was compared with the default, so nothing is decided.
  if (cut_short_ && only_default) throw Abandoned{State::partial};

  judge_model(all, report);
  store_measured(job, field, samples, note, report);
}

void Search::store_measured(const Job& job, const std::vector<Entrant>& finalists,
                            const Samples& samples, const std::string& note,
                            ProblemReport& report) {
  std::vector<Contender> contenders;
  for (size_t i = 0; i < finalists.size(); ++i)
    contenders.push_back(contender_of(*finalists[i].candidate, samples.times_ns[i]));
  const std::optional<size_t> default_index = default_position(finalists);
  const Verdict verdict = decide(contenders, default_index);
  const Candidate& winner = *finalists[verdict.winner].candidate;
  const bool stands_in = !job.target.limits.empty();
  const runtime::DeviceInfo& info = worker_->info();
  const int mhz = samples.rounds.back().sm_mhz;
  const std::string device =
      fmt::format("{}, driver {}, {}", info.name, info.driver,
                  mhz > 0 ? fmt::format("{} MHz", mhz) : std::string("clock unknown"));

  cache::TuningResult result;
  for (size_t i = 0; i < finalists.size(); ++i) {
    const Candidate& candidate = *finalists[i].candidate;
    add_plan(job, candidate, result);
    const Hash128 plan = plan_that_ran(job, candidate);
    result.verifications.push_back({.plan = plan,
                                    .problem = job.problem,
                                    .by = level(),
                                    .passed = true,
                                    .detail = finalists[i].proof.detail,
                                    .tolerance = job.op->tolerance_of(job.fixed).text(),
                                    .worst_error = finalists[i].proof.worst_error,
                                    .card = info.name,
                                    .driver = info.driver});
    result.timings.push_back(
        {.plan = plan,
         .problem = job.problem,
         .gpu_class = gpu_class_key(job.target.device),
         .time_ns = median(samples.times_ns[i]),
         .spread_ns = spread(samples.times_ns[i]),
         .rounds = static_cast<int>(samples.rounds.size()),
         .method = "graph replay, cold, interleaved" + (note.empty() ? "" : "; " + note),
         .limits = job.target.limits,
         .device = device});
  }
  std::vector<std::string> tie_group;
  for (const size_t i : verdict.tie_group) tie_group.push_back(finalists[i].candidate->text);
  const double winner_ns = median(samples.times_ns[verdict.winner]);
  const double default_ns = default_index ? median(samples.times_ns[*default_index]) : 0;
  // What a stand-in measures is no measurement of the GPU that it stands for.
  const DecisionKind kind = stands_in ? DecisionKind::predicted : DecisionKind::measured;
  std::string reason = verdict.reason;
  if (stands_in)
    reason = fmt::format("on {} under the limits of {}: {}", info.name, job.target.limits, reason);
  if (cut_short_) reason.insert(0, kPartial);
  result.decision = {.problem = job.problem,
                     .gpu_class = gpu_class_key(job.target.gpu),
                     .gpu_label = job.gpu_label,
                     .config = winner.text,
                     .plan = plan_that_serves(job, winner),
                     .kind = kind,
                     .reason = reason,
                     .scope = scope(),
                     .limits = job.target.limits,
                     .tie_group = tie_group,
                     .time_ns = winner_ns,
                     .default_time_ns = default_ns};
  report.spread_ns = spread(samples.times_ns[verdict.winner]);
  winners_[shape_key(job)].insert(winner.text);
  if (auto standing = standing_decision(job, kind)) {
    result.decision = std::move(*standing);
    report.spread_ns = 0;  // not of this run
  }
  result.rejections = std::move(rejections_);
  keep(job, result, report);
}

ProblemReport Search::tune_one(const Job& job) {
  ProblemReport report{.problem = job.problem, .gpu = job.gpu_label};
  rejections_.clear();
  cut_short_ = false;
  try {
    if (job.target.gpu.cc() < job.op->min_cc) throw Abandoned{State::unsupported};
    const CandidateSet& set = candidates_of(job);
    report.space_size = set.space_size;
    report.kept = set.kept;
    report.distinct_binaries = set.distinct_binaries;
    report.rejected = set.rules;
    cut_short_ = set.uncompiled > 0;
    if (cut_short_) report.rejected["not compiled within the budget"] = set.uncompiled;
    for (const Dropped& dropped : set.dropped) {
      rejections_.push_back({.problem = job.problem,
                             .gpu_class = gpu_class_key(job.target.gpu),
                             .config = dropped.config,
                             .stage = dropped.stage,
                             .reason = dropped.reason,
                             .detail = dropped.detail});
      ++report.rejected[dropped.reason];
    }
    compile_next_shape();
    if (worker_ == nullptr) {
      rank(job, all_entrants(set), report);
    } else if (simulates()) {
      rank(job, simulated_entrants(job, report), report);
    } else {
      measure_on_device(job, report);
    }
    if (cut_short_) report.state = State::partial;
  } catch (const Abandoned& abandoned) {
    report.state = abandoned.state;
    report.detail = abandoned.detail;
    if (abandoned.state == State::partial || abandoned.state == State::stopped) keep_compiled();
    log(fmt::format("{}: {}", problem_text(job), report.state_text()));
  } catch (const Error& error) {
    const bool is_stopped = error.status() == Status::interrupted && stopped();
    // Trouble of this problem alone; what would meet every problem (no compiler, no worker) goes
    // up.
    const bool local = error.status() == Status::driver_error ||
                       error.status() == Status::out_of_memory ||
                       error.status() == Status::compile_error;
    if (!local && !is_stopped) throw;
    if (is_stopped) keep_compiled();
    report.state = is_stopped ? State::stopped : State::failed;
    if (!is_stopped) report.detail = error.what();
    log(fmt::format("{}: {}", problem_text(job), report.state_text()));
  }
  // Without a decision to go with, the rejections are still worth keeping.
  if (!rejections_.empty()) store_.put_rejections(rejections_);
  report.wall_s = now_s() - problem_start_s_;
  return report;
}

void Search::note_time(const Candidate& candidate, double time_ns, ProblemReport& report) {
  const auto [known, is_new] =
      report.best_ns.try_emplace(candidate.plan.reduction_signature, time_ns);
  if (!is_new) known->second = std::min(known->second, time_ns);
}

ProblemReport Search::tune_in_turn(const Job& job, TuneReport& report) {
  const double deadline_s = start_s_ + options_.budget_s;
  problem_start_s_ = now_s();
  problem_deadline_s_ = problem_start_s_ + (deadline_s - problem_start_s_) /
                                               static_cast<double>(job_count_ - jobs_done_);
  ProblemReport row{.problem = job.problem, .gpu = job.gpu_label};
  if (stopped()) {
    row.state = State::stopped;
  } else if (options_.budget_s > 0 && now_s() >= deadline_s) {
    row.state = State::budget;
  } else {
    tell_pin(job);
    row = tune_one(job);
  }
  if (row.state == State::stopped) report.end = TuneReport::End::stopped;
  const bool is_spent = row.state == State::budget || row.state == State::partial;
  if (is_spent && report.end == TuneReport::End::finished) report.end = TuneReport::End::budget;
  return row;
}

// What is decided already; where the sizes of a shape belong together, all of it or nothing.
std::vector<std::optional<cache::Decision>> Search::kept_decisions(std::span<const Job> shape) {
  std::vector<std::optional<cache::Decision>> kept;
  for (const Job& job : shape) kept.push_back(finished(job));
  if (!is_invariant(*shape.front().op)) return kept;
  std::set<std::string> signatures;
  for (const std::optional<cache::Decision>& decision : kept) {
    if (!decision) return std::vector<std::optional<cache::Decision>>(shape.size());
    const std::optional<cache::PlanRecord> plan = store_.find_plan(decision->plan);
    signatures.insert(plan ? plan->reduction_signature : "");
  }
  if (signatures.size() != 1) kept.assign(shape.size(), std::nullopt);
  return kept;
}

// Where the winners of one fixed shape add in different orders, all get the order that loses least.
void Search::make_alike(std::span<const Job> shape, std::span<ProblemReport> rows) {
  std::vector<SignatureTimes> times;
  std::set<std::string> winners;
  for (const ProblemReport& row : rows) {
    if (row.state != State::tuned) continue;
    times.push_back(row.best_ns);
    winners.insert(row.reduction_signature);
  }
  if (winners.size() < 2) return;
  const Op& op = *shape.front().op;
  const std::string default_signature =
      op.plan(shape.front().fixed, op.default_config(shape.front().fixed), shape.front().target.gpu)
          .reduction_signature;
  wanted_signature_ = common_signature(times, default_signature);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].state != State::tuned) continue;
    if (!wanted_signature_) {
      rows[i].state = State::failed;
      rows[i].detail = "no reduction signature has a candidate for every size of this shape";
      continue;
    }
    if (rows[i].reduction_signature == *wanted_signature_) continue;
    log(fmt::format("{}: again among those that add as \"{}\"", problem_text(shape[i]),
                    *wanted_signature_));
    problem_start_s_ = now_s();
    problem_deadline_s_ = problem_start_s_ + rows[i].wall_s;
    const double before_s = rows[i].wall_s;
    rows[i] = tune_one(shape[i]);
    rows[i].wall_s += before_s;
  }
  wanted_signature_.reset();
}

ProblemReport Search::kept_row(const Job& job, const cache::Decision& decision) {
  tell_pin(job);
  return {.problem = job.problem,
          .gpu = job.gpu_label,
          .state = State::kept,
          .winner = decision.config,
          .kind = decision.kind,
          .winner_ns = decision.time_ns,
          .default_ns = decision.default_time_ns,
          .tie_group = decision.tie_group};
}

void Search::tell_progress(const std::string& what) const {
  if (!options_.progress) return;
  const double eta_s = jobs_done_ > 0 ? (now_s() - start_s_) / static_cast<double>(jobs_done_) *
                                            static_cast<double>(job_count_ - jobs_done_)
                                      : 0;
  options_.progress(static_cast<int>(jobs_done_), static_cast<int>(job_count_), what, eta_s);
}

void Search::give_sign_of_life() {
  constexpr double kInterval_s = 20;
  if (!lease_ || now_s() - sign_of_life_s_ < kInterval_s) return;
  sign_of_life_s_ = now_s();
  lease_->give_sign_of_life();
  if (next_lease_) next_lease_->give_sign_of_life();
}

// Keeps the compilers busy while candidates are timed.
void Search::compile_next_shape() {
  const std::span<const Job> shape = std::exchange(next_shape_, {});
  if (shape.empty() || worker_ == nullptr || is_over()) return;
  const Job& first = shape.front();
  if (first.target.gpu.cc() < first.op->min_cc) return;
  const auto has_decision = [](const auto& decision) { return decision.has_value(); };
  const std::vector<std::optional<cache::Decision>> kept = kept_decisions(shape);
  if (std::all_of(kept.begin(), kept.end(), has_decision)) return;
  // Who shares the shapes with others takes one at a time.
  const std::vector<cache::LeaseRow> leases = cache::list_leases(store_);
  const auto searches = std::count_if(leases.begin(), leases.end(), [](const auto& row) {
    return row.of == cache::LeaseOf::search;
  });
  if (searches > 1) return;
  // Who does not tune it compiles nothing of it.
  auto lease = std::make_unique<ShapeLease>(store_, search_key(first));
  if (!lease->is_mine()) return;
  next_lease_ = std::move(lease);
  const Sizes sizes = guessed_sizes(first);
  try {
    compile_ahead(*first.op, first.fixed, first.target, binaries_,
                  {.shortlist = options_.shortlist, .out_of_time = {}, .sizes = &sizes});
  } catch (const Error&) {
    // Told when its turn comes.
  }
}

// Several processes that tune the same into one store divide the shapes among themselves.
Search::Turn Search::tune_shape(std::span<const Job> shape, std::span<const Job> next,
                                std::span<ProblemReport> rows, TuneReport& report) {
  struct LeaseEnd {
    Search& search;
    ~LeaseEnd() { search.lease_.reset(); }
  };
  const Job& first = shape.front();
  const Hash128 key = search_key(first);
  const bool over = is_over();
  // Who comes back asks for the lease alone, which costs the one who has it little.
  std::vector<std::optional<cache::Decision>> kept;
  bool has_work = told_.contains(key);
  if (!has_work || over) {
    kept = kept_decisions(shape);
    has_work =
        std::any_of(kept.begin(), kept.end(), [](const auto& decision) { return !decision; });
  }
  const LeaseEnd at_the_end{*this};
  if (has_work && !over) {
    if (next_lease_ && next_lease_->key() == key) {
      lease_ = std::move(next_lease_);
    } else {
      lease_ = std::make_unique<ShapeLease>(store_, key);
    }
    if (!lease_->is_mine()) {
      if (told_.insert(key).second) {
        const cache::Lease& lease = lease_->lease();
        log(fmt::format(
            "{} {} on {}: {} has been tuning it for {} s; coming back to it when the "
            "rest is done",
            first.op->name, first.problem.shape, first.gpu_label, lease.holder, lease.age_s));
      }
      return Turn::taken;
    }
    sign_of_life_s_ = now_s();
    kept = kept_decisions(shape);  // somebody may have finished it just before
  }
  for (size_t i = 0; i < shape.size(); ++i) {
    tell_progress(problem_text(shape[i]));
    next_shape_ = i + 1 == shape.size() ? next : std::span<const Job>();
    rows[i] = kept[i] && !stopped() ? kept_row(shape[i], *kept[i]) : tune_in_turn(shape[i], report);
    ++jobs_done_;
  }
  if (is_invariant(*first.op)) make_alike(shape, rows);
  return Turn::done;
}

TuneReport Search::run() {
  if (!options_.device.empty()) open_device();
  const std::vector<Job> jobs = make_jobs();
  job_count_ = jobs.size();
  TuneReport report;
  report.problems.resize(jobs.size());
  struct Range {
    size_t begin = 0;
    size_t size = 0;
  };
  std::vector<Range> left;
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (i == 0 || !is_same_shape(jobs[i - 1], jobs[i])) left.push_back({i, 0});
    ++left.back().size;
  }
  const auto jobs_of = [&](const Range& range) {
    return std::span<const Job>(jobs).subspan(range.begin, range.size);
  };
  while (!left.empty()) {
    std::vector<Range> taken;
    for (size_t i = 0; i < left.size(); ++i) {
      const auto next = i + 1 < left.size() ? jobs_of(left[i + 1]) : std::span<const Job>();
      const auto rows = std::span(report.problems).subspan(left[i].begin, left[i].size);
      if (tune_shape(jobs_of(left[i]), next, rows, report) == Turn::taken) taken.push_back(left[i]);
    }
    constexpr auto kPause = std::chrono::milliseconds(200);
    if (taken.size() == left.size()) std::this_thread::sleep_for(kPause);
    left = std::move(taken);
  }
  tell_progress("done");
  report.worker_restarts = worker_ != nullptr ? worker_->restarts() : 0;
  report.compiles = binaries_.compiles();
  report.wall_s = now_s() - start_s_;
  return report;
}

const char* state_name(State state) {
  switch (state) {
    case State::tuned:
      return "tuned";
    case State::partial:
      return "partial";
    case State::kept:
      return "kept";
    case State::no_memory:
      return "no memory";
    case State::budget:
      return "budget";
    case State::stopped:
      return "stopped";
    case State::unsupported:
      return "unsupported";
    case State::failed:
    case State::not_stored:
      return "failed";
  }
  fail(Status::internal, "unknown state {} of a problem", static_cast<int>(state));
}

const char* end_name(TuneReport::End end) {
  switch (end) {
    case TuneReport::End::finished:
      return "finished";
    case TuneReport::End::budget:
      return "budget";
    case TuneReport::End::stopped:
      return "stopped";
  }
  fail(Status::internal, "unknown end {} of a tuning", static_cast<int>(end));
}

}  // namespace

std::string ProblemReport::state_text() const {
  const std::string name = state_name(state);
  return detail.empty() ? name : name + ": " + detail;
}

TuneReport tune(cache::Store& store, const TuneOptions& options) {
  return Search(store, options).run();
}

Json TuneReport::json() const {
  Json rows = Json::array();
  for (const ProblemReport& p : problems) {
    rows.push_back({{"op", p.problem.op},
                    {"shape", Json::parse(p.problem.shape, nullptr, false)},
                    {"bucket", Json::parse(p.problem.bucket, nullptr, false)},
                    {"gpu", p.gpu},
                    {"state", p.state_text()},
                    {"space", p.space_size},
                    {"kept", p.kept},
                    {"distinct_binaries", p.distinct_binaries},
                    {"measured", p.measured},
                    {"rejected", p.rejected},
                    {"winner", Json::parse(p.winner, nullptr, false)},
                    {"kind", cache::kind_name(p.kind)},
                    {"time_ns", p.winner_ns},
                    {"median_ns", p.median_ns},
                    {"default_ns", p.default_ns},
                    {"spread_ns", p.spread_ns},
                    {"reduction_signature", p.reduction_signature},
                    {"tie_group", p.tie_group},
                    {"rank_correlation", p.rank_correlation},
                    {"model_regret", p.model_regret},
                    {"wall_s", p.wall_s}});
    if (p.winner.empty()) rows.back()["winner"] = nullptr;
  }
  return {{"problems", rows},
          {"worker_restarts", worker_restarts},
          {"compiles", compiles},
          {"wall_s", wall_s},
          {"end", end_name(end)}};
}

}  // namespace kiln::tuner
