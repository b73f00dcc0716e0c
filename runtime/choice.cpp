#include "runtime/choice.h"

#include <algorithm>
#include <utility>

#include "jit/base/error.h"
#include "jit/base/gpu.h"
#include "runtime/plan_record.h"

namespace kiln::runtime {
namespace {

using cache::DecisionKind;
using cache::DecisionRow;
using cache::Problem;
using cache::Verified;
using templates::Config;
using templates::Op;
using templates::Sizes;

// The one place that asks for decisions. Only the device's own class is asked here; what near
// siblings know (kind `borrowed`) joins here.
std::optional<DecisionRow> best_decision(cache::Store& store, const Problem& problem,
                                         const Gpu& gpu) {
  return store.find_decision(problem, gpu_class_key(gpu));
}

std::optional<DecisionRow> next_decision(cache::Store& store, const DecisionRow& refused) {
  for (const DecisionKind kind : cache::kDecisionKinds) {
    if (kind <= refused.decision.kind) continue;
    auto row = store.find_decision(refused.decision.problem, refused.decision.gpu_class, kind);
    if (row) return row;
  }
  return std::nullopt;
}

// Why the evidence of a decision is not enough to use it; "" when it is.
std::string evidence_lacking(const DecisionRow& row) {
  if (!row.failure.empty()) return row.failure;
  const DecisionKind kind = row.decision.kind;
  const bool needs_proof = kind == DecisionKind::measured || kind == DecisionKind::borrowed;
  if (needs_proof && row.verified == Verified::none) return "it was never verified";
  return "";
}

// The config of a decision, when it is fit for use; fails with the reason when it is not.
Config usable_config(const DecisionRow& row, const Op& op, const Sizes& fixed, const Gpu& gpu) {
  Config config =
      templates::parse_config(op, fixed, gpu, parse_json(row.decision.config, "config"));
  std::string why = limit_broken(op.plan(fixed, config, gpu), gpu);
  if (why.empty()) why = evidence_lacking(row);
  if (!why.empty()) fail(Status::unsupported, "{}", why);
  return config;
}

}  // namespace

std::string limit_broken(const templates::LaunchPlan& launches, const Gpu& gpu) {
  for (const templates::KernelLaunch& launch : launches.kernels) {
    if (launch.threads < 1 || launch.threads > 1024) {
      return fmt::format("{} wants {} threads; a block holds 1 to 1024", launch.entry,
                         launch.threads);
    }
    if (launch.dynamic_smem_bytes > gpu.smem_per_cta_optin_bytes) {
      return fmt::format("{} wants {} bytes of shared memory; {} gives a block at most {}",
                         launch.entry, launch.dynamic_smem_bytes, gpu.name,
                         gpu.smem_per_cta_optin_bytes);
    }
  }
  return "";
}

std::string resources_broken(const templates::LaunchPlan& launches,
                             const std::vector<jit::Resources>& resources, const Gpu& gpu) {
  for (size_t i = 0; i < resources.size(); ++i) {
    const templates::KernelLaunch& launch = launches.kernels[i];
    const int registers = resources[i].registers;
    const int64_t smem_bytes = launch.dynamic_smem_bytes + resources[i].static_smem_bytes;
    if (ctas_per_sm(gpu, launch.threads, registers, smem_bytes) < 1) {
      return fmt::format(
          "{} wants {} threads of {} registers and {} bytes of shared memory, more than an SM of "
          "{} holds",
          launch.entry, launch.threads, registers, smem_bytes, gpu.name);
    }
  }
  return "";
}

Choice default_choice(const Op& op, const Sizes& fixed) {
  Choice choice;
  choice.config = op.default_config(fixed);
  choice.kind = DecisionKind::fallback;
  choice.reason = "the default of the op";
  return choice;
}

Choice default_instead_of(const Choice& refused, const Op& op, const Sizes& fixed,
                          std::string reason) {
  Choice choice = default_choice(op, fixed);
  choice.bucket = refused.bucket;
  choice.has_decision = refused.has_decision;
  choice.layer = refused.layer;
  choice.reason = std::move(reason);
  return choice;
}

Choice choose(cache::Store& store, const Op& op, const Sizes& fixed, const Sizes& bucket,
              const Gpu& gpu) {
  Choice choice = default_choice(op, fixed);
  choice.bucket = bucket;
  std::optional<DecisionRow> row = best_decision(store, problem_of(op, fixed, bucket), gpu);
  if (!row) {
    choice.reason = "the store has no decision for this problem on this GPU class";
    return choice;
  }
  choice.has_decision = true;
  choice.layer = row->layer;
  for (; row; row = next_decision(store, *row)) {
    const cache::Decision& decision = row->decision;
    try {
      choice.config = usable_config(*row, op, fixed, gpu);
    } catch (const Error& error) {
      if (!choice.refused.empty()) choice.refused += "; ";
      choice.refused += fmt::format("the {} decision {} is not used: {}",
                                    cache::kind_name(decision.kind), decision.config, error.what());
      continue;
    }
    choice.kind = decision.kind;
    choice.reason = decision.reason;
    if (!choice.refused.empty()) choice.reason += "; " + choice.refused;
    choice.layer = row->layer;
    choice.verified = row->verified;
    choice.time_ns = decision.time_ns;
    choice.default_time_ns = decision.default_time_ns;
    choice.recorded = store.find_plan(decision.plan);
    return choice;
  }
  choice.reason = choice.refused;
  return choice;
}

}  // namespace kiln::runtime
