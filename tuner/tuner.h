// The tuner: candidates -> verified -> measured -> decided -> stored, one problem at a time, with
// every candidate proven before it is timed. Without a device the same pipeline ends after ranking
// by the analytic model and stores `predicted` decisions with their cubins.
//
// All device work runs in a child process (worker.h) reached by a pipe. The child never opens the
// store; the parent never touches the driver.
//
// Several processes may tune into one store: they divide the shapes among themselves, and each has
// all of the problems in its report.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cache/store.h"
#include "jit/base/json.h"
#include "templates/kit.h"
#include "templates/op.h"

namespace kiln::tuner {

struct TuneOptions {
  std::string device;             // "cuda:0"; "": no device, rank for `gpus`
  std::vector<std::string> gpus;  // slugs to rank for without a device
  std::vector<std::string> ops;   // names; empty: all
  // JSON text as for kiln_prepare; "": the model's shapes at tensor_parallel 2.
  std::string workload;
  double budget_s = 0;  // of measuring, all problems together; 0: no limit
  std::string limits;   // measure as this GPU would have to run ("rtx-3090"); "": the device itself
  // all_sizes: the decisions of one fixed shape share a reduction signature. Ops that feed a
  // selection are always tuned so.
  enum class Invariance { per_size, all_sizes } invariance = Invariance::per_size;
  // keep: problems already measured for this class are skipped (resume).
  enum class Redo { keep, again } redo = Redo::keep;
  // Executable of the child; "": kiln-worker beside this program or in libexec.
  std::string worker;
  double hang_timeout_s = 3;  // a launch that takes longer kills the child, and is rejected
  uint64_t seed = 1;
  // Compile only so many configs a problem: the default and the model's first by their launch; 0:
  // all.
  int shortlist = 0;
  // Verify and time only so many configs a problem: the default, the model's first, and what won at
  // other sizes of the shape; 0: all. Wide spaces cost more at their ends than they bring.
  int tries = 32;
  int64_t memory_bytes = 0;  // of the device, at most; 0: 80 % of what is free, at most 24 GiB
  std::function<void(const std::string& line)> log;  // one line per event worth a line
  std::function<void(int done, int total, const std::string& what, double eta_s)> progress;
  // Set by Ctrl-C: the problem at hand is put in order, then tune() returns.
  const std::atomic<bool>* stop = nullptr;
};

// What happened to one problem: everything the closing table needs.
struct ProblemReport {
  cache::Problem problem;
  std::string gpu;  // slug
  enum class State {
    tuned,
    partial,  // decided among what the budget allowed, or not at all
    kept,     // decided before
    no_memory,
    budget,  // spent before its turn
    stopped,
    unsupported,
    failed,
    not_stored,  // decided, but the store did not keep it: a failure too
  };
  State state = State::tuned;
  std::string detail;              // why it failed
  std::string state_text() const;  // "tuned", "no memory", "failed: no config is legal", ...
  int64_t space_size = 0;          // product of the axes
  int64_t kept = 0;                // after the rules and static limits
  int64_t distinct_binaries = 0;
  std::map<std::string, int64_t> rejected;  // "wrong": 1, "trap": 1, ...
  std::string winner;                       // config
  std::string reduction_signature;          // of the winner
  std::map<std::string, double> best_ns;    // the first stage's best, by reduction signature
  cache::DecisionKind kind = cache::DecisionKind::fallback;
  double winner_ns = 0, median_ns = 0, default_ns = 0, spread_ns = 0;
  std::vector<std::string> tie_group;
  double rank_correlation = 0;  // Spearman, model against measured
  double model_regret = 0;      // time of the model's first choice / best - 1
  int64_t measured = 0;         // candidates that were verified and timed
  double wall_s = 0;
};
struct TuneReport {
  std::vector<ProblemReport> problems;
  int64_t worker_restarts = 0;
  int64_t compiles = 0;  // by this process, whatever became of them
  double wall_s = 0;
  enum class End { finished, budget, stopped } end = End::finished;
  Json json() const;
};
TuneReport tune(cache::Store& store, const TuneOptions& options);

// Runs the decisions that serve the device's class, and those of better kinds that failed before,
// against their oracles there and records the evidence.
struct VerifyOptions {
  std::string device = "cuda:0";
  std::vector<std::string> ops;
  std::string worker;
  double hang_timeout_s = 3;  // a launch that takes longer kills the child, and is unproven
  std::function<void(const std::string& line)> log;
};
// unproven: it could not be run to its end, which says nothing of the config.
enum class VerifyOutcome { passed, failed, unproven };
struct VerifyRow {
  cache::Problem problem;
  std::string config;
  cache::DecisionKind kind = cache::DecisionKind::fallback;
  bool passed = false;
  VerifyOutcome outcome = VerifyOutcome::unproven;
  std::string detail;
};
std::vector<VerifyRow> verify(cache::Store& store, const VerifyOptions& options);

// Times chosen configs beside the ceilings of the same run: launch, copy and the op's own mix of
// reads and writes.
struct BenchOptions {
  std::string device = "cuda:0";
  std::vector<std::string> ops;
  std::string workload;  // as for tune(); "": the model's shapes
  std::string shape;     // JSON of the one op, in place of a workload; "": none
  std::string sizes;     // JSON of dynamic sizes; "": the measured case of every bucket
  std::string limits;    // the decisions of this GPU, run as it would have to run them; "": none
  std::string worker;
  std::function<void(const std::string& line)> log;
};
struct BenchRow {
  std::string op, shape, sizes, config, kind;
  double time_ns = 0, default_ns = 0;
  double bytes = 0;             // cold reads, reads too large for the L2, and writes: the fewest
  double ceiling_gb_per_s = 0;  // measured for this mix in this run
  double bus_bytes = 0;         // read from pinned memory of the host
  double ceiling_bus_gb_per_s = 0;  // of copies from there, in this run; 0: the op reads none
  double mma_operations = 0;        // two an fma
  double ceiling_tflop_per_s = 0;   // mma.sync, measured in this run; 0: the op has none
  double floor_ns = 0;              // the longest of bytes and mma operations at their ceilings
  double launch_ns = 0;             // an empty kernel, same method
  std::string problem;              // why nothing was measured; "": it was
};
std::vector<BenchRow> bench(cache::Store& store, const BenchOptions& options);

// The analytic model: time of one call on a GPU from resources, cost and hints.
struct ModelInput {
  const templates::Op* op = nullptr;
  templates::Sizes sizes;  // fixed and dynamic
  templates::Config config;
  templates::LaunchPlan plan;
  std::vector<jit::Resources> resources;  // one per kernel of the plan
};
double model_time_ns(const ModelInput& input, const Gpu& gpu);

}  // namespace kiln::tuner
