// Which config serves a bucket on this GPU, and why: the best usable decision of the store, else
// the op's default.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cache/store.h"
#include "runtime/plan_record.h"
#include "templates/op.h"

namespace kiln::runtime {

struct Choice {
  templates::Sizes bucket;
  templates::Config config;
  cache::DecisionKind kind = cache::DecisionKind::fallback;
  std::string reason;   // why this config and no better one
  std::string refused;  // decisions of better kinds that are not used, and why; in `reason` too
  bool has_decision = false;  // the store holds one, used or not
  cache::Verified verified = cache::Verified::none;
  double time_ns = 0;
  double default_time_ns = 0;
  std::string layer;                          // file that the decision came from
  std::optional<cache::PlanRecord> recorded;  // what the decision was verified and measured with
};

// A decision of the store beside what it may be used for. Sessions, `kiln explain`, `kiln bench`
// and the tuner all take it from here.
struct JudgedDecision {
  enum class Verdict {
    serves,
    illegal,   // its config is none of this GPU or of this build
    unproven,  // it failed verification, or lacks the one it needs
    stale,     // it was proven with other kernels than this source makes
  };
  cache::DecisionRow row;  // of one that serves and is not current: without evidence and times
  Verdict verdict = Verdict::serves;
  // Why it does not serve; or, of one that serves and is not current, why its evidence and times do
  // not count.
  std::string why;
  templates::Config config;                   // unless it is illegal
  std::optional<cache::PlanRecord> recorded;  // what it was verified and measured with
  bool is_current = false;                    // this source still makes that
};

// The decisions of a problem, best kind first, down to the one that serves; all of them when none
// does.
std::vector<JudgedDecision> judged_decisions(cache::Store& store, const templates::Op& op,
                                             const templates::Sizes& fixed,
                                             const templates::Sizes& bucket, TodaysPlans& plans);

Choice default_choice(const templates::Op& op, const templates::Sizes& fixed);
Choice choose(cache::Store& store, const templates::Op& op, const templates::Sizes& fixed,
              const templates::Sizes& bucket, TodaysPlans& plans);

// The default config in place of `refused`, with the reason.
Choice default_instead_of(const Choice& refused, const templates::Op& op,
                          const templates::Sizes& fixed, std::string reason);

}  // namespace kiln::runtime
