#include "cache/merge_rules.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <tuple>

namespace kiln::cache {
namespace {

std::string date(int64_t unix_seconds) {
  const auto time = static_cast<std::time_t>(unix_seconds);
  std::tm parts = {};
  if (::gmtime_r(&time, &parts) == nullptr) return fmt::format("second {}", unix_seconds);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", parts);
}

// All that one decision may say otherwise than another of its key, without its date.
auto text_of(const Decision& decision) {
  return std::tie(decision.config, decision.plan, decision.reason, decision.gpu_label,
                  decision.limits, decision.scope, decision.tie_group, decision.time_ns,
                  decision.default_time_ns);
}

// NaN is larger than every number, and equal to itself: no order may depend on which came first.
std::pair<bool, double> in_order(double value) {
  return value == value ? std::pair(false, value) : std::pair(true, 0.0);
}

auto text_of(const Verification& verification) {
  return std::tuple(verification.passed, verification.driver, verification.tolerance,
                    in_order(verification.worst_error), verification.detail);
}

auto text_of(const Timing& timing) {
  return std::tuple(in_order(timing.time_ns), in_order(timing.spread_ns), timing.rounds);
}

auto text_of(const Rejection& rejection) {
  return std::tie(rejection.plan, rejection.limits, rejection.stage, rejection.reason,
                  rejection.detail);
}

template <typename Record>
bool is_newer(const Record& incoming, const Record& stored, int64_t Record::*at) {
  if (incoming.*at != stored.*at) return incoming.*at > stored.*at;
  return text_of(incoming) < text_of(stored);
}

}  // namespace

MergeVerdict judge_merge(const MergeSide* stored, const MergeSide& incoming, Pins pins) {
  if (stored == nullptr) return {MergeOutcome::taken, "new here"};
  const Decision& ours = stored->decision;
  const Decision& theirs = incoming.decision;
  const bool is_same = text_of(ours) == text_of(theirs);
  if (is_same && ours.decided_at == theirs.decided_at) return {MergeOutcome::kept, "the same"};
  const bool is_same_config = ours.config == theirs.config && ours.plan == theirs.plan;
  const auto against = [](int64_t mine, int64_t other) {
    return fmt::format("{} against {}", date(mine), date(other));
  };
  const auto takes = [&](const std::string& why) {
    return MergeVerdict{MergeOutcome::taken,
                        is_same_config ? why : fmt::format("{}; replaces {}", why, ours.config)};
  };
  const auto loses = [&](const std::string& why) {
    return MergeVerdict{is_same_config ? MergeOutcome::kept : MergeOutcome::dropped,
                        is_same_config ? why : fmt::format("{}; {} stays", why, ours.config)};
  };
  if (ours.kind == DecisionKind::pinned && !is_same_config && pins == Pins::keep) {
    return loses("another config is pinned here");
  }
  if (theirs.decided_at != ours.decided_at) {
    const std::string dates = against(theirs.decided_at, ours.decided_at);
    return theirs.decided_at > ours.decided_at ? takes("newer: " + dates)
                                               : loses("older: " + dates);
  }
  if (incoming.evidence_at != stored->evidence_at) {
    const bool newer = incoming.evidence_at > stored->evidence_at;
    const std::string why =
        fmt::format("of the same date, and its evidence is {}: {}", newer ? "newer" : "older",
                    against(incoming.evidence_at, stored->evidence_at));
    return newer ? takes(why) : loses(why);
  }
  const std::string why = "of the same date, and the smaller text stays";
  return text_of(theirs) < text_of(ours) ? takes(why) : loses(why);
}

bool supersedes(const Verification& incoming, const Verification& stored) {
  return is_newer(incoming, stored, &Verification::verified_at);
}

bool supersedes(const Timing& incoming, const Timing& stored) {
  return is_newer(incoming, stored, &Timing::timed_at);
}

bool supersedes(const Rejection& incoming, const Rejection& stored) {
  return is_newer(incoming, stored, &Rejection::rejected_at);
}

}  // namespace kiln::cache
