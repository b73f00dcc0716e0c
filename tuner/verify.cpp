// verify(): what serves the device's class, and what a new proof could let serve, runs against its
// oracle on the device, with the binaries that the store holds or that today's source makes.
#include <algorithm>

#include "runtime/choice.h"
#include "runtime/plan_record.h"
#include "tuner/binaries.h"
#include "tuner/device_worker.h"
#include "tuner/prover.h"
#include "tuner/tuner.h"

namespace kiln::tuner {
namespace {

using templates::Kit;
using templates::Op;
using templates::Sizes;

struct Proof {
  Sizes fixed;
  Sizes bucket;
  const Op* op = nullptr;
  PlanWork work;
  cache::PlanRecord record;
  std::vector<BinaryPtr> served;  // what a session on the card runs
};

// What the store knows of a decision, ready to run. Fails with a sentence when it is not enough.
Proof proof_of(cache::Store& store, Binaries& binaries, const cache::Decision& decision,
               runtime::TodaysPlans& plans) {
  const Gpu& gpu = plans.gpu();
  Proof proof;
  proof.op = &templates::require_op(decision.problem.op);
  const Op& op = *proof.op;
  if (op.version != decision.problem.op_version) {
    fail(Status::unsupported, "the decision is for version {} of {}, this build has version {}",
         decision.problem.op_version, op.name, op.version);
  }
  proof.fixed = templates::parse_shape(op, parse_json(decision.problem.shape, "shape"));
  proof.bucket = templates::parse_dynamic(op, parse_json(decision.problem.bucket, "bucket"));
  const templates::Config config =
      templates::parse_config(op, proof.fixed, gpu, parse_json(decision.config, "config"));
  std::optional<cache::PlanRecord> record = store.find_plan(decision.plan);
  // Who pins a config by hand need not have a plan of it.
  if (decision.plan == Hash128{}) record = plans.plan(op, proof.fixed, config, gpu.sm());
  if (!record) fail(Status::not_found, "the store does not hold the plan of this decision");
  proof.record = *record;
  if (!plans.has(*record, op, proof.fixed, gpu.sm())) {
    fail(
        Status::unsupported,
        "the decision is stale: the kernel's source has changed since, so the binaries that it was "
        "decided with serve nobody; tune again");
  }
  const templates::LaunchPlan launches = op.plan(proof.fixed, config, gpu);
  proof.work = {.op = &op,
                .fixed = proof.fixed,
                .config = config,
                .limits = {},
                .binaries = {},
                .smem_bytes = {}};
  // Today's source makes the binaries of the decision, so one that the store lacks (because it came
  // without, or from where nobody vouches for it) is compiled.
  for (size_t i = 0; i < launches.kernels.size(); ++i) {
    const templates::KernelLaunch& launch = launches.kernels[i];
    const jit::KernelSource source = templates::kernel_source(op, launch);
    const jit::CompileOptions options = templates::compile_options(launch);
    const bool is_served = gpu.arch() == record->arch;
    try {
      proof.served.push_back(binaries.get(source, record->arch, options));
    } catch (const Error& error) {
      // Without a compiler the image that came from elsewhere is what is to be proven: it runs in
      // the worker, and is kept as trusted when it passes.
      std::optional<jit::Binary> foreign;
      if (error.status() == Status::no_compiler && is_served) {
        foreign = store.find_binary(record->kernels[i].binary, cache::Trust::any);
      }
      if (!foreign) {
        fail(error.status(),
             "the store does not hold the binary {} of this decision in a form that may run, and "
             "it cannot be compiled: {}",
             record->kernels[i].binary.hex(), error.what());
      }
      proof.served.push_back(std::make_shared<const jit::Binary>(std::move(*foreign)));
    }
    // The simulator runs PTX of the same source instead of the card's machine code.
    proof.work.binaries.push_back(is_served ? proof.served.back()
                                            : binaries.get(source, gpu.arch(), options));
    proof.work.smem_bytes.push_back(launch.dynamic_smem_bytes);
  }
  return proof;
}

// A proof is of a plan, so a decision that was made without one gets it.
void keep_plan(cache::Store& store, cache::Decision decision, const Proof& proof) {
  if (decision.plan == proof.record.id) return;
  const auto now = store.find_decision(decision.problem, decision.gpu_class, decision.kind);
  if (!now || now->decision.config != decision.config || now->decision.plan != decision.plan)
    return;  // replaced or removed meanwhile
  cache::TuningResult result;
  for (const BinaryPtr& binary : proof.served) result.binaries.push_back(*binary);
  result.plans = {proof.record};
  decision.plan = proof.record.id;
  result.decision = std::move(decision);
  store.put(result);
}

// What was compiled for the proof, or came from elsewhere and passed it, serves sessions from now
// on.
void keep_proven(cache::Store& store, Binaries& binaries, const Proof& proof) {
  for (const BinaryPtr& binary : proof.served) {
    if (!store.has_binary(binary->key)) binaries.keep(binary);
  }
}

// Of the problem of a listed decision: the one that serves, and the better ones that only want for
// a proof. Without either the listed one, whose proof tells what is wrong with it.
std::vector<cache::DecisionRow> decisions_to_run(cache::Store& store,
                                                 const cache::DecisionRow& listed,
                                                 runtime::TodaysPlans& plans) {
  using Verdict = runtime::JudgedDecision::Verdict;
  const cache::Problem& problem = listed.decision.problem;
  std::vector<cache::DecisionRow> rows;
  try {
    const Op& op = templates::require_op(problem.op);
    const Sizes fixed = templates::parse_shape(op, parse_json(problem.shape, "shape"));
    const Sizes bucket = templates::parse_dynamic(op, parse_json(problem.bucket, "bucket"));
    if (runtime::problem_of(op, fixed, bucket) != problem) return {listed};
    for (runtime::JudgedDecision& judged :
         runtime::judged_decisions(store, op, fixed, bucket, plans)) {
      if (judged.verdict == Verdict::serves || judged.verdict == Verdict::unproven)
        rows.push_back(std::move(judged.row));
    }
  } catch (const Error&) {
    return {listed};
  }
  return rows.empty() ? std::vector{listed} : rows;
}

const char* outcome_text(VerifyOutcome outcome) {
  if (outcome == VerifyOutcome::unproven) return "not proven";
  return outcome == VerifyOutcome::passed ? "passed" : "FAILED";
}

}  // namespace

std::vector<VerifyRow> verify(cache::Store& store, const VerifyOptions& options) {
  for (const std::string& name : options.ops) templates::require_op(name);
  DeviceWorker worker({.executable = find_worker(options.worker),
                       .device = options.device,
                       .hang_timeout_s = options.hang_timeout_s,
                       .log = options.log});
  Binaries binaries(store);
  binaries.serve_driver(worker.info().cuda_major);
  const Gpu& gpu = worker.info().gpu;
  const std::string gpu_class = gpu_class_key(gpu);
  worker.set_tools(binaries.tools(gpu.arch()));

  const cache::Verified level = worker.info().timing == runtime::Timing::none
                                    ? cache::Verified::simulator
                                    : cache::Verified::device;

  Prover prover(worker, binaries);
  runtime::TodaysPlans plans(gpu);
  std::vector<cache::Decision> decisions;
  for (const cache::DecisionRow& listed : store.list_decisions()) {
    const std::string& op = listed.decision.problem.op;
    const bool wanted = options.ops.empty() ||
                        std::find(options.ops.begin(), options.ops.end(), op) != options.ops.end();
    if (listed.decision.gpu_class != gpu_class || !wanted) continue;
    for (cache::DecisionRow& row : decisions_to_run(store, listed, plans))
      decisions.push_back(std::move(row.decision));
  }
  std::vector<VerifyRow> rows;
  for (const cache::Decision& decision : decisions) {
    VerifyRow row{.problem = decision.problem, .config = decision.config, .kind = decision.kind};
    try {
      const Proof proof = proof_of(store, binaries, decision, plans);
      const RunVerdict verdict = prover.prove(proof.work, proof.bucket);
      row.passed = verdict.outcome == Outcome::passed;
      row.detail = row.passed
                       ? verdict.detail
                       : fmt::format("{}: {}", outcome_name(verdict.outcome), verdict.detail);
      if (row.passed || disproves(verdict.outcome)) {
        row.outcome = row.passed ? VerifyOutcome::passed : VerifyOutcome::failed;
        keep_plan(store, decision, proof);
        if (row.passed) keep_proven(store, binaries, proof);
        store.put_verification({.plan = proof.record.id,
                                .problem = decision.problem,
                                .by = level,
                                .passed = row.passed,
                                .detail = row.detail,
                                .tolerance = proof.op->tolerance_of(proof.work.fixed).text(),
                                .worst_error = verdict.worst_error,
                                .card = worker.info().name,
                                .driver = worker.info().driver});
      }
    } catch (const Error& error) {
      row.detail = error.what();
    }
    if (options.log) {
      options.log(fmt::format("{} {} {}, {}: {} ({})", row.problem.op, row.problem.shape,
                              row.problem.bucket, cache::kind_name(row.kind),
                              outcome_text(row.outcome), row.detail));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace kiln::tuner
