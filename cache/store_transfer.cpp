// Takes over the records of another store: first all is judged against what the layers hold, then
// what is taken is written in one transaction.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "cache/blob.h"
#include "cache/layered_store.h"
#include "cache/merge_rules.h"
#include "cache/rows.h"
#include "jit/base/error.h"

namespace kiln::cache {
namespace {

using VerificationKey = std::tuple<Problem, Hash128, Verified, std::string>;
using TimingKey = std::tuple<Problem, std::string, Hash128, std::string, std::string, std::string>;
using RejectionKey = std::tuple<Problem, std::string, std::string>;
using DecisionKey = std::tuple<Problem, std::string, DecisionKind>;

VerificationKey key_of(const Verification& v) { return {v.problem, v.plan, v.by, v.card}; }
TimingKey key_of(const Timing& t) {
  return {t.problem, t.gpu_class, t.plan, t.method, t.limits, t.device};
}
RejectionKey key_of(const Rejection& r) { return {r.problem, r.gpu_class, r.config}; }
DecisionKey key_of(const Decision& d) { return {d.problem, d.gpu_class, d.kind}; }

// Records of one kind as they stand after the merge, and which of them come from elsewhere.
template <typename Key, typename Record>
struct Standing {
  struct Entry {
    Record record;
    bool is_new = false;
  };
  std::map<Key, Entry> entries;

  void has(Record record) {
    const Key key = key_of(record);  // before the record is moved
    entries.try_emplace(key, Entry{std::move(record)});
  }
  void offer(const Record& record, MergeCount& count) {
    const auto [known, is_new] = entries.try_emplace(key_of(record), Entry{record, true});
    if (!is_new && !supersedes(record, known->second.record)) {
      ++count.older;
      return;
    }
    known->second = {record, true};
    ++count.taken;
  }
};

}  // namespace

class Merge {
 public:
  Merge(LayeredStore& store, const StoreContents& contents, const MergeOptions& options)
      : store_(store), contents_(contents), options_(options) {}

  // All that is decided before anything is written.
  MergeReport judge() {
    judge_binaries();
    judge_plans();
    judge_verifications();
    for (const Timing& timing : contents_.timings) {
      if (!knows_plan_of(timing.plan, timing.problem)) {
        refuse(timing, timing.plan);
        continue;
      }
      know(timing.problem, timing.gpu_class);
      timings_.offer(timing, report_.timings);
    }
    for (const Decision& decision : contents_.decisions) judge_decision(decision);
    for (const Rejection& rejection : contents_.rejections) judge_rejection(rejection);
    return std::move(report_);
  }

  void write(Database& database) const {
    for (const auto& [key, taken] : binaries_) {
      if (taken.has_image) {
        write_binary(database, *taken.binary, taken.image,
                     options_.trust == Trust::any ? ImageOrigin::compiled : ImageOrigin::elsewhere);
      } else {
        write_description(database, *taken.binary);
      }
    }
    for (const PlanRecord* plan : plans_to_write_) write_plan(database, *plan);
    for (const auto& [key, entry] : verifications_.entries) {
      if (entry.is_new) write_verification(database, entry.record);
    }
    for (const auto& [key, entry] : timings_.entries) {
      if (entry.is_new) write_timing(database, entry.record);
    }
    for (const auto& [key, standing] : decisions_) {
      if (standing.is_new) write_decision(database, standing.decision, 0);
    }
    // After the decisions, which take away what was rejected before them.
    for (const auto& [key, entry] : rejections_.entries) {
      if (entry.is_new) write_rejection(database, entry.record);
    }
  }

 private:
  struct TakenBinary {
    const jit::Binary* binary = nullptr;
    bool has_image = false;
    PackedImage image;
  };
  struct StandingDecision {
    Decision decision;
    bool is_new = false;
  };

  template <typename Record>
  void refuse(const Record& record, std::string reason) {
    report_.rows.push_back(refusal(record, std::move(reason)));
  }
  template <typename Record>
  void refuse(const Record& record, const Hash128& plan) {
    refuse(record, fmt::format("it names plan {}, which neither the store nor what comes in "
                               "describes for that problem",
                               plan.hex()));
  }

  template <typename Look>
  bool any_layer(Look look) {
    bool found = false;
    store_.read_down([&](Database& database, Layer&) { return found = look(database); });
    return found;
  }

  void judge_binaries() {
    for (const jit::Binary& binary : contents_.binaries) {
      described_.insert(binary.key);
      const bool has_image = !binary.image.empty();
      // What the store has was compiled from the source that the key names, or is as foreign.
      const auto is_enough = [&](Database& database) {
        const Trust trust = options_.trust == Trust::any ? Trust::needed : Trust::any;
        return cache::has_image(database, binary.key, trust);
      };
      if (any_layer(is_enough)) {
        if (has_image) ++report_.images.older;
        continue;
      }
      const auto is_known = [&](Database& database) {
        return has_description(database, binary.key);
      };
      if (!has_image && any_layer(is_known)) continue;
      TakenBinary taken{.binary = &binary, .has_image = has_image, .image = {}};
      if (has_image) {
        taken.image = pack_image(binary.image);
        ++report_.images.taken;
        if (options_.trust == Trust::needed) ++report_.images_untrusted;
      }
      binaries_.try_emplace(binary.key, std::move(taken));
    }
  }

  void judge_plans() {
    for (const PlanRecord& plan : contents_.plans) {
      const auto is_unknown = [&](const PlanRecord::Kernel& kernel) {
        return !described_.contains(kernel.binary) && !any_layer([&](Database& database) {
          return has_description(database, kernel.binary);
        });
      };
      const auto unknown = std::find_if(plan.kernels.begin(), plan.kernels.end(), is_unknown);
      if (unknown != plan.kernels.end()) {
        refuse(plan, fmt::format("it launches binary {}, which neither the store nor what comes in "
                                 "describes",
                                 unknown->binary.hex()));
        continue;
      }
      if (!plans_.try_emplace(plan.id, plan).second) continue;
      if (any_layer([&](Database& database) { return has_plan(database, plan.id); })) {
        ++report_.plans.older;
      } else {
        ++report_.plans.taken;
        plans_to_write_.push_back(&plan);
      }
    }
  }

  const PlanRecord* plan(const Hash128& id) {
    const auto known = plans_.find(id);
    if (known != plans_.end()) return &known->second;
    std::optional<PlanRecord> stored;
    store_.read_down([&](Database& database, Layer&) {
      stored = read_plan(database, id).record;
      return stored.has_value();
    });
    return stored ? &plans_.emplace(id, std::move(*stored)).first->second : nullptr;
  }

  bool knows_plan_of(const Hash128& id, const Problem& problem) {
    const PlanRecord* known = plan(id);
    return known != nullptr && known->op == problem.op && known->op_version == problem.op_version &&
           known->shape == problem.shape;
  }

  // Reads what the layers have of a problem, once.
  void know(const Problem& problem) {
    if (!known_.insert({problem, ""}).second) return;
    for (Verification& one : store_.newest_verifications(problem)) {
      verifications_.has(std::move(one));
    }
  }
  void know(const Problem& problem, const std::string& gpu_class) {
    know(problem);
    if (!known_.insert({problem, gpu_class}).second) return;
    for (Timing& one : store_.newest_timings(problem, gpu_class)) timings_.has(std::move(one));
    for (Rejection& one : store_.newest_rejections(problem, gpu_class)) {
      rejections_.has(std::move(one));
    }
    for (auto& [kind, row] : store_.newest_decisions(problem, gpu_class)) {
      decisions_.try_emplace(key_of(row.decision), StandingDecision{row.decision});
    }
  }

  void judge_verifications() {
    for (const Verification& verification : contents_.verifications) {
      if (options_.trust == Trust::needed) {
        ++report_.verifications_left_out;
        continue;
      }
      if (!knows_plan_of(verification.plan, verification.problem)) {
        refuse(verification, verification.plan);
        continue;
      }
      know(verification.problem);
      verifications_.offer(verification, report_.verifications);
    }
  }

  // Of the newest verification or timing of the plan of a decision, after the merge.
  int64_t evidence_at(const Decision& decision) const {
    int64_t newest = 0;
    const auto is_of = [&](const Hash128& plan) { return plan == decision.plan; };
    for (auto it = verifications_.entries.lower_bound({decision.problem, decision.plan, {}, ""});
         it != verifications_.entries.end() && it->second.record.problem == decision.problem &&
         is_of(it->second.record.plan);
         ++it) {
      newest = std::max(newest, it->second.record.verified_at);
    }
    for (auto it = timings_.entries.lower_bound(
             {decision.problem, decision.gpu_class, decision.plan, "", "", ""});
         it != timings_.entries.end() && it->second.record.problem == decision.problem &&
         it->second.record.gpu_class == decision.gpu_class && is_of(it->second.record.plan);
         ++it) {
      newest = std::max(newest, it->second.record.timed_at);
    }
    return newest;
  }

  void judge_decision(const Decision& decision) {
    if (decision.plan != Hash128{}) {
      if (!knows_plan_of(decision.plan, decision.problem)) {
        refuse(decision, decision.plan);
        return;
      }
      if (const PlanRecord* named = plan(decision.plan); named->config != decision.config) {
        refuse(decision,
               fmt::format("its plan {} is of another config: {}", named->id.hex(), named->config));
        return;
      }
    }
    know(decision.problem, decision.gpu_class);
    const auto found = decisions_.find(key_of(decision));
    std::optional<MergeSide> stored;
    if (found != decisions_.end()) {
      stored = {found->second.decision, evidence_at(found->second.decision)};
    }
    MergeVerdict verdict =
        judge_merge(stored ? &*stored : nullptr, {decision, evidence_at(decision)}, options_.pins);
    if (verdict.outcome == MergeOutcome::taken) {
      decisions_[key_of(decision)] = {decision, true};
      // Those of a later date stay.
      const auto rejected = rejections_.entries.find(
          RejectionKey{decision.problem, decision.gpu_class, decision.config});
      if (rejected != rejections_.entries.end()) {
        if (rejected->second.record.rejected_at > decision.decided_at) {
          rejected->second.is_new = true;
        } else {
          rejections_.entries.erase(rejected);
        }
      }
    }
    MergeRow row = refusal(decision, std::move(verdict.reason));
    row.outcome = verdict.outcome;
    report_.rows.push_back(std::move(row));
  }

  void judge_rejection(const Rejection& rejection) {
    know(rejection.problem, rejection.gpu_class);
    for (const DecisionKind kind : kDecisionKinds) {
      const auto decided =
          decisions_.find(DecisionKey{rejection.problem, rejection.gpu_class, kind});
      if (decided != decisions_.end() && decided->second.decision.config == rejection.config &&
          decided->second.decision.decided_at >= rejection.rejected_at) {
        ++report_.rejections.older;
        return;
      }
    }
    rejections_.offer(rejection, report_.rejections);
  }

  LayeredStore& store_;
  const StoreContents& contents_;
  const MergeOptions& options_;
  MergeReport report_;

  std::set<Hash128> described_;
  std::map<Hash128, TakenBinary> binaries_;
  std::map<Hash128, PlanRecord> plans_;  // known ones: of the store, or accepted
  std::vector<const PlanRecord*> plans_to_write_;
  std::set<std::pair<Problem, std::string>> known_;
  std::map<DecisionKey, StandingDecision> decisions_;
  Standing<VerificationKey, Verification> verifications_;
  Standing<TimingKey, Timing> timings_;
  Standing<RejectionKey, Rejection> rejections_;
};

MergeReport LayeredStore::absorb(const StoreContents& contents, const MergeOptions& options) {
  const std::lock_guard lock(mutex_);
  Merge merge(*this, contents, options);
  MergeReport report = merge.judge();
  if (options.mode == MergeOptions::Mode::dry_run || report.took_nothing()) return report;
  report.written = write([&](Database& database) { merge.write(database); });
  if (report.written) {
    for (const jit::Binary& binary : contents.binaries) {
      damaged_binaries_.erase({top_.get(), binary.key});
    }
  }
  return report;
}

}  // namespace kiln::cache
