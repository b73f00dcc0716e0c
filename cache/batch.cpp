#include "cache/batch.h"

#include <cmath>

#include "jit/base/error.h"
#include "jit/base/json.h"

namespace kiln::cache {
namespace {

void require_json(std::string_view what, const std::string& op, const std::string& text) {
  if (Json::accept(text)) return;
  fail(Status::invalid_argument, "{} of a record of op {} must be JSON, but it is '{}'", what, op,
       text);
}

void require_time(std::string_view what, const std::string& op, double time_ns) {
  if (std::isfinite(time_ns) && time_ns >= 0) return;
  fail(Status::invalid_argument, "{} of op {} must be a time, but it is {} ns", what, op, time_ns);
}

void require_record(const Decision& decision) {
  require_problem(decision.problem);
  require_json("the GPU class", decision.problem.op, decision.gpu_class);
  require_json("the config", decision.problem.op, decision.config);
  require_time("the decided time", decision.problem.op, decision.time_ns);
  require_time("the default's time", decision.problem.op, decision.default_time_ns);
}

void require_record(const PlanRecord& plan) {
  require_json("the shape", plan.op, plan.shape);
  require_json("the config", plan.op, plan.config);
}

void require_record(const Verification& verification) { require_problem(verification.problem); }

void require_record(const Timing& timing) {
  require_problem(timing.problem);
  require_json("the GPU class", timing.problem.op, timing.gpu_class);
  require_time("the measured time", timing.problem.op, timing.time_ns);
  require_time("the spread", timing.problem.op, timing.spread_ns);
}

void require_record(const Rejection& rejection) {
  require_problem(rejection.problem);
  require_json("the GPU class", rejection.problem.op, rejection.gpu_class);
  require_json("the config", rejection.problem.op, rejection.config);
}

}  // namespace

void require_problem(const Problem& problem) {
  if (problem.op.empty()) fail(Status::invalid_argument, "a problem must name its op");
  require_json("the shape", problem.op, problem.shape);
  require_json("the bucket", problem.op, problem.bucket);
}

void Batch::require_records() const {
  for (const auto* plan : plans) require_record(*plan);
  for (const auto* verification : verifications) require_record(*verification);
  for (const auto* timing : timings) require_record(*timing);
  for (const auto* rejection : rejections) require_record(*rejection);
  if (decision != nullptr) require_record(*decision);
}

std::map<Hash128, std::string> Batch::needed_binaries() const {
  std::map<Hash128, std::string> needed;
  for (const auto* plan : plans) {
    for (const auto& kernel : plan->kernels) needed[kernel.binary] = "plan " + plan->id.hex();
  }
  for (const auto* binary : binaries) needed.erase(binary->key);
  return needed;
}

std::map<Hash128, std::string> Batch::needed_plans() const {
  std::map<Hash128, std::string> needed;
  for (const auto* verification : verifications) needed[verification->plan] = "a verification";
  for (const auto* timing : timings) needed[timing->plan] = "a timing";
  // A default that was never compiled has no plan.
  if (decision != nullptr && decision->plan != Hash128{}) needed[decision->plan] = "a decision";
  for (const auto* plan : plans) needed.erase(plan->id);
  return needed;
}

}  // namespace kiln::cache
