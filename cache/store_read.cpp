// What several layers say about one record: the newest of a kind counts, judged by the newest
// verifications.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "cache/layered_store.h"
#include "cache/rows.h"

namespace kiln::cache {
namespace {

// Of one key the newer decision stays, and of two of one date that of the upper layer.
template <typename Key>
void keep_newer(std::map<Key, DecisionRow>& newest, const Key& key, DecisionRow row) {
  const auto [known, is_new] = newest.try_emplace(key, std::move(row));  // moved when it is new
  if (!is_new && row.decision.decided_at > known->second.decision.decided_at) {
    known->second = std::move(row);
  }
}

// Evidence of several layers: of one key the newest stays, and of two of one date that of the upper
// layer.
template <typename Key, typename Record>
class Newest {
 public:
  void add(const Key& key, Record&& record, int64_t Record::*date) {
    const auto [known, is_new] = place_.try_emplace(key, records_.size());
    if (is_new) {
      records_.push_back(std::move(record));
    } else if (record.*date > records_[known->second].*date) {
      records_[known->second] = std::move(record);
    }
  }
  std::vector<Record> take() { return std::move(records_); }  // in the order in which they came

 private:
  std::vector<Record> records_;
  std::map<Key, size_t> place_;
};

// Whether a decision of a worse kind goes before one of a better kind.
bool is_sounder(const DecisionRow& worse, const DecisionRow& better) {
  return worse.failure.empty() && !better.failure.empty();
}

}  // namespace

void LayeredStore::judge(DecisionRow& row, const std::vector<Verification>& newest) const {
  for (const Verification& verification : newest) {
    if (verification.plan != row.decision.plan) continue;
    if (!verification.passed) {
      row.verified = Verified::none;
      row.failure = fmt::format("it failed verification on {}: {}", device_text(verification),
                                verification.detail);
      return;
    }
    row.verified = std::max(row.verified, verification.by);
  }
}

std::optional<DecisionRow> LayeredStore::find_decision(const Problem& problem,
                                                       std::string_view gpu_class) {
  const std::lock_guard lock(mutex_);
  std::optional<DecisionRow> best;
  for (DecisionRow& row : judged_decisions(problem, gpu_class)) {
    if (!best || is_sounder(row, *best)) best = std::move(row);
  }
  return best;
}

std::optional<DecisionRow> LayeredStore::find_decision(const Problem& problem,
                                                       std::string_view gpu_class,
                                                       DecisionKind kind) {
  const std::lock_guard lock(mutex_);
  std::map<DecisionKind, DecisionRow> newest = newest_decisions(problem, gpu_class);
  const auto found = newest.find(kind);
  if (found == newest.end()) return std::nullopt;
  judge(found->second, newest_verifications(problem));
  return std::move(found->second);
}

std::vector<DecisionRow> LayeredStore::decisions(const Problem& problem,
                                                 std::string_view gpu_class) {
  const std::lock_guard lock(mutex_);
  return judged_decisions(problem, gpu_class);
}

std::map<DecisionKind, DecisionRow> LayeredStore::newest_decisions(const Problem& problem,
                                                                   std::string_view gpu_class) {
  std::map<DecisionKind, DecisionRow> newest;
  read_down([&](Database& database, Layer& layer) {
    for (Found<Decision>& found : read_decisions(database, problem, gpu_class)) {
      if (found.damaged) {
        warn_damaged(layer, "the decision for", problem.op + " " + problem.shape + problem.bucket,
                     "tune the problem again");
        continue;
      }
      const DecisionKind kind = found.record->kind;
      keep_newer(newest, kind, {.decision = std::move(*found.record), .layer = layer.path()});
    }
    return hides_decision(database, problem, gpu_class);
  });
  return newest;
}

std::vector<DecisionRow> LayeredStore::judged_decisions(const Problem& problem,
                                                        std::string_view gpu_class) {
  std::map<DecisionKind, DecisionRow> newest = newest_decisions(problem, gpu_class);
  std::vector<DecisionRow> rows;
  if (newest.empty()) return rows;
  const std::vector<Verification> evidence = newest_verifications(problem);
  for (auto& [kind, row] : newest) {
    judge(row, evidence);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<DecisionRow> LayeredStore::list_decisions() {
  const std::lock_guard lock(mutex_);
  std::map<std::tuple<Problem, std::string, DecisionKind>, DecisionRow> newest;
  std::set<std::pair<Problem, std::string>> hidden;
  read_down([&](Database& database, Layer& layer) {
    for (Found<Decision>& found : read_all_decisions(database)) {
      const Decision& decision = *found.record;
      if (found.damaged) {
        warn_damaged(layer, "the decision for",
                     decision.problem.op + " " + decision.problem.shape + decision.problem.bucket,
                     "tune the problem again");
        continue;
      }
      if (hidden.contains({decision.problem, decision.gpu_class})) continue;
      keep_newer(newest, std::tuple(decision.problem, decision.gpu_class, decision.kind),
                 {.decision = decision, .layer = layer.path()});
    }
    for (auto& key : hidden_decisions(database)) hidden.insert(std::move(key));
    return false;
  });

  std::vector<DecisionRow> rows;
  std::optional<Problem> known;  // rows of one problem follow each other
  std::vector<Verification> evidence;
  for (auto& [key, row] : newest) {
    const Decision& decision = row.decision;
    if (known != decision.problem) {
      known = decision.problem;
      evidence = newest_verifications(decision.problem);
    }
    judge(row, evidence);
    const bool is_next = rows.empty() || rows.back().decision.problem != decision.problem ||
                         rows.back().decision.gpu_class != decision.gpu_class;
    if (is_next) {
      rows.push_back(std::move(row));
    } else if (is_sounder(row, rows.back())) {
      rows.back() = std::move(row);
    }
  }
  return rows;
}

std::vector<Problem> LayeredStore::problems() {
  const std::lock_guard lock(mutex_);
  std::set<Problem> problems;
  read_down([&](Database& database, Layer&) {
    for (Problem& problem : read_problems(database)) problems.insert(std::move(problem));
    return false;
  });
  return {problems.begin(), problems.end()};
}

std::vector<std::string> LayeredStore::gpu_classes(const Problem& problem) {
  const std::lock_guard lock(mutex_);
  std::set<std::string> keys;
  read_down([&](Database& database, Layer&) {
    for (std::string& key : read_gpu_classes(database, problem)) keys.insert(std::move(key));
    return false;
  });
  return {keys.begin(), keys.end()};
}

std::optional<PlanRecord> LayeredStore::find_plan(const Hash128& id) {
  const std::lock_guard lock(mutex_);
  std::optional<PlanRecord> plan;
  read_down([&](Database& database, Layer& layer) {
    Found<PlanRecord> found = read_plan(database, id);
    if (found.damaged) warn_damaged(layer, "plan", id.hex(), "it is made again when it is needed");
    plan = std::move(found.record);
    return plan.has_value();
  });
  return plan;
}

std::optional<jit::Binary> LayeredStore::find_binary(const Hash128& key, Trust trust) {
  const std::lock_guard lock(mutex_);
  std::optional<jit::Binary> binary;
  read_down([&](Database& database, Layer& layer) {
    Found<jit::Binary> found = read_binary(database, key, trust);
    if (found.damaged) {
      damaged_binaries_.emplace(&layer, key);
      warn_damaged(layer, "binary", key.hex(), "it is compiled again when it is needed");
    }
    binary = std::move(found.record);
    return binary.has_value() || hides_binary(database, key);
  });
  return binary;
}

bool LayeredStore::has_binary(const Hash128& key) {
  const std::lock_guard lock(mutex_);
  bool has = false;
  read_down([&](Database& database, Layer& layer) {
    has = has_image(database, key, Trust::needed) && !damaged_binaries_.contains({&layer, key});
    return has || hides_binary(database, key);
  });
  return has;
}

std::optional<jit::Binary> LayeredStore::describe_binary(const Hash128& key) {
  const std::lock_guard lock(mutex_);
  std::optional<jit::Binary> binary;
  read_down([&](Database& database, Layer&) {
    binary = read_description(database, key).record;
    return binary.has_value() || hides_binary(database, key);
  });
  return binary;
}

std::vector<BinaryRow> LayeredStore::list_binaries() {
  const std::lock_guard lock(mutex_);
  std::map<Hash128, BinaryRow> binaries;
  read_down([&](Database& database, Layer& layer) {
    for (BinaryRow& row : read_binary_rows(database)) {
      row.layer = layer.path();
      const auto [known, is_new] = binaries.try_emplace(row.key, row);
      if (is_new) continue;
      // The one that is loaded.
      if (row.trusted && !known->second.trusted) std::swap(known->second, row);
      if (known->second.op.empty()) known->second.op = row.op;
    }
    return false;
  });
  std::vector<BinaryRow> rows;
  for (auto& [key, row] : binaries) rows.push_back(std::move(row));
  return rows;
}

std::vector<Verification> LayeredStore::newest_verifications(const Problem& problem) {
  Newest<std::tuple<Hash128, Verified, std::string>, Verification> newest;
  read_down([&](Database& database, Layer&) {
    for (Verification& one : read_verifications(database, problem)) {
      newest.add({one.plan, one.by, one.card}, std::move(one), &Verification::verified_at);
    }
    return false;
  });
  return newest.take();
}

std::vector<Verification> LayeredStore::verifications(const Problem& problem) {
  const std::lock_guard lock(mutex_);
  return newest_verifications(problem);
}

std::vector<Timing> LayeredStore::newest_timings(const Problem& problem,
                                                 std::string_view gpu_class) {
  Newest<std::tuple<Hash128, std::string, std::string, std::string>, Timing> newest;
  read_down([&](Database& database, Layer&) {
    for (Timing& one : read_timings(database, problem, gpu_class)) {
      newest.add({one.plan, one.method, one.limits, one.device}, std::move(one), &Timing::timed_at);
    }
    return false;
  });
  std::vector<Timing> all = newest.take();
  std::stable_sort(all.begin(), all.end(),
                   [](const Timing& a, const Timing& b) { return a.time_ns < b.time_ns; });
  return all;
}

std::vector<Timing> LayeredStore::timings(const Problem& problem, std::string_view gpu_class) {
  const std::lock_guard lock(mutex_);
  return newest_timings(problem, gpu_class);
}

std::vector<Rejection> LayeredStore::newest_rejections(const Problem& problem,
                                                       std::string_view gpu_class) {
  Newest<std::string, Rejection> newest;
  read_down([&](Database& database, Layer&) {
    for (Rejection& one : read_rejections(database, problem, gpu_class)) {
      newest.add(one.config, std::move(one), &Rejection::rejected_at);
    }
    return false;
  });
  return newest.take();
}

std::vector<Rejection> LayeredStore::rejections(const Problem& problem,
                                                std::string_view gpu_class) {
  const std::lock_guard lock(mutex_);
  return newest_rejections(problem, gpu_class);
}

}  // namespace kiln::cache
