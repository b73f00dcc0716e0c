#include "runtime/choice.h"

#include <algorithm>
#include <utility>

#include "jit/base/error.h"
#include "jit/base/gpu.h"
#include "runtime/limits.h"
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

// Kinds that rest on a verification of exact binaries.
bool rests_on_binaries(DecisionKind kind) {
  return kind == DecisionKind::measured || kind == DecisionKind::borrowed;
}

// Why the evidence of a decision is not enough to use it; "" when it is.
std::string evidence_lacking(const DecisionRow& row) {
  if (!row.failure.empty()) return row.failure;
  if (rests_on_binaries(row.decision.kind) && row.verified == Verified::none) {
    return "it was never verified";
  }
  return "";
}

JudgedDecision judged(cache::Store& store, DecisionRow row, const Op& op, const Sizes& fixed,
                      TodaysPlans& plans) {
  using Verdict = JudgedDecision::Verdict;
  const Gpu& gpu = plans.gpu();
  JudgedDecision result{.row = std::move(row)};
  cache::Decision& decision = result.row.decision;
  const auto refuse = [&](Verdict verdict, std::string why) {
    result.verdict = verdict;
    result.why = std::move(why);
    return result;
  };
  result.recorded = store.find_plan(decision.plan);
  try {
    result.config = templates::parse_config(op, fixed, gpu, parse_json(decision.config, "config"));
  } catch (const Error& error) {
    return refuse(Verdict::illegal, error.what());
  }
  if (auto broken = limit_broken(op.plan(fixed, result.config, gpu), gpu)) {
    return refuse(Verdict::illegal, std::move(broken->detail));
  }
  std::string lacking = evidence_lacking(result.row);
  if (!lacking.empty()) return refuse(Verdict::unproven, std::move(lacking));

  result.is_current = result.recorded && plans.has(*result.recorded, op, fixed, gpu.sm());
  if (result.is_current) return result;
  const char* changed = result.recorded ? "the kernel's source has changed since it was decided"
                                        : "the store lacks the plan that it was decided with";
  if (rests_on_binaries(decision.kind)) {
    return refuse(Verdict::stale, fmt::format("it is stale: {}; tune again", changed));
  }
  result.row.verified = Verified::none;
  decision.time_ns = 0;
  decision.default_time_ns = 0;
  result.why = fmt::format("{}, so its evidence and times do not count", changed);
  return result;
}

}  // namespace

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

// The one place that asks for decisions. Only the device's own class is asked here; what near
// siblings know (kind `borrowed`) joins here.
std::vector<JudgedDecision> judged_decisions(cache::Store& store, const Op& op, const Sizes& fixed,
                                             const Sizes& bucket, TodaysPlans& plans) {
  const Problem problem = problem_of(op, fixed, bucket);
  std::vector<JudgedDecision> decisions;
  for (DecisionRow& row : store.decisions(problem, gpu_class_key(plans.gpu()))) {
    decisions.push_back(judged(store, std::move(row), op, fixed, plans));
    if (decisions.back().verdict == JudgedDecision::Verdict::serves) break;
  }
  return decisions;
}

Choice choose(cache::Store& store, const Op& op, const Sizes& fixed, const Sizes& bucket,
              TodaysPlans& plans) {
  Choice choice = default_choice(op, fixed);
  choice.bucket = bucket;
  const std::vector<JudgedDecision> decisions = judged_decisions(store, op, fixed, bucket, plans);
  if (decisions.empty()) {
    choice.reason = "the store has no decision for this problem on this GPU class";
    return choice;
  }
  choice.has_decision = true;
  choice.layer = decisions.front().row.layer;
  for (const JudgedDecision& judged : decisions) {
    const cache::Decision& decision = judged.row.decision;
    if (judged.verdict != JudgedDecision::Verdict::serves) {
      if (!choice.refused.empty()) choice.refused += "; ";
      choice.refused += fmt::format("the {} decision {} is not used: {}",
                                    cache::kind_name(decision.kind), decision.config, judged.why);
      continue;
    }
    choice.config = judged.config;
    choice.kind = decision.kind;
    choice.reason = decision.reason;
    if (!judged.why.empty()) choice.reason += "; " + judged.why;
    if (!choice.refused.empty()) choice.reason += "; " + choice.refused;
    choice.layer = judged.row.layer;
    choice.verified = judged.row.verified;
    choice.time_ns = decision.time_ns;
    choice.default_time_ns = decision.default_time_ns;
    choice.recorded = judged.recorded;
    return choice;
  }
  choice.reason = choice.refused;
  return choice;
}

}  // namespace kiln::runtime
