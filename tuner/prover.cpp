#include "tuner/prover.h"

#include <fmt/format.h>

#include <algorithm>

#include "templates/kit.h"

namespace kiln::tuner {
namespace {

using templates::Kit;
using templates::Op;
using templates::Sizes;

// Host time of one call on one core of the simulator, roughly: what decides is the order of
// magnitude.
double simulated_ms(const Kit& kit, const Sizes& fixed, const Sizes& bucket) {
  constexpr double kNsPerByte = 3;
  constexpr double kNsPerOperation = 1;
  constexpr double kNsPerMmaFma = 0.15;
  const Sizes sizes = templates::with_derived(*kit.op, kit.measured_case(fixed, bucket).sizes);
  const templates::Cost cost = kit.op->cost(sizes);
  return 1e-6 * (kNsPerByte * (cost.cold_read_bytes + cost.bus_read_bytes + cost.warm_read_bytes +
                               cost.in_place_read_bytes + cost.write_bytes) +
                 kNsPerOperation * cost.integer_operations + kNsPerMmaFma * cost.mma_fma);
}

bool is_within(const Op& op, const Sizes& inner, const Sizes& outer) {
  return std::all_of(op.buckets.begin(), op.buckets.end(), [&](const templates::Bucket& bucket) {
    return inner[bucket.symbol] <= outer[bucket.symbol];
  });
}

Hash128 key_of(const PlanWork& work, const std::string& bucket) {
  HashRecord record;
  record.field("op", work.op->name);
  record.field("fixed", templates::shape_json(*work.op, work.fixed).dump());
  record.field("config", templates::config_json(work.config).dump());
  record.field("limits", work.limits);
  for (const BinaryPtr& binary : work.binaries) record.field("binary", binary->key.hex());
  for (const int64_t bytes : work.smem_bytes) record.field("smem", bytes);
  record.field("bucket", bucket);
  return record.hash();
}

}  // namespace

Sizes simulated_bucket(const Kit& kit, const Sizes& fixed, const Sizes& bucket) {
  constexpr double kMostMs = 2;
  if (simulated_ms(kit, fixed, bucket) <= kMostMs) return bucket;
  // The largest that is quick enough, else the quickest.
  Sizes best = bucket;
  double best_ms = simulated_ms(kit, fixed, bucket);
  for (const Sizes& candidate : templates::all_buckets(*kit.op)) {
    if (!is_within(*kit.op, candidate, bucket)) continue;
    const double ms = simulated_ms(kit, fixed, candidate);
    const bool is_better = best_ms > kMostMs ? ms < best_ms : ms <= kMostMs && ms > best_ms;
    if (is_better) {
      best = candidate;
      best_ms = ms;
    }
  }
  return best;
}

RunVerdict Prover::run(const PlanWork& work, const Sizes& bucket) {
  const Kit& kit = templates::require_kit(*work.op);
  return worker_.verify(work, binaries_.oracle(kit, work.fixed, worker_.info().gpu.arch()),
                        kit.verify_cases(work.fixed, bucket));
}

RunVerdict Prover::prove(const PlanWork& work, const Sizes& bucket) {
  if (worker_.info().timing == runtime::Timing::real) return run(work, bucket);
  const Kit& kit = templates::require_kit(*work.op);
  const Sizes smaller = simulated_bucket(kit, work.fixed, bucket);
  const std::string wanted = templates::bucket_key(*work.op, bucket);
  const std::string used = templates::bucket_key(*work.op, smaller);
  const Hash128 key = key_of(work, used);
  auto found = known_.find(key);
  if (found == known_.end()) {
    RunVerdict verdict = run(work, smaller);
    // What says nothing of the plan is tried again.
    if (verdict.outcome == Outcome::harness || verdict.outcome == Outcome::no_memory)
      return verdict;
    found = known_.emplace(key, std::move(verdict)).first;
  }
  RunVerdict verdict = found->second;
  if (used != wanted)
    verdict.detail += fmt::format("; executed at {} in place of {}", used, wanted);
  return verdict;
}

}  // namespace kiln::tuner
