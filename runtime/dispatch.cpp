#include "runtime/dispatch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "jit/base/error.h"

namespace kiln::runtime {
namespace {

__extension__ using Int128 = __int128;

// The largest v with v * v <= low * high: sizes up to it are nearer to `low` by ratio.
int64_t last_nearer_to_low(int64_t low, int64_t high) {
  const Int128 product = static_cast<Int128>(low) * high;
  auto root = static_cast<int64_t>(std::sqrt(static_cast<double>(product)));
  while (static_cast<Int128>(root) * root > product) --root;
  while (static_cast<Int128>(root + 1) * (root + 1) <= product) ++root;
  return root;
}

}  // namespace

BucketAxis::BucketAxis(int field, const std::vector<int64_t>& edges) : field_(field) {
  for (size_t i = 0; i + 1 < edges.size(); ++i) {
    last_of_.push_back(last_nearer_to_low(edges[i], edges[i + 1]));
  }
}

int64_t BucketAxis::last_of(size_t i) const {
  return i < last_of_.size() ? last_of_[i] : std::numeric_limits<int64_t>::max();
}

Dispatch::Dispatch(const CallChecks& checks, std::vector<DispatchVariant> variants,
                   std::vector<uint32_t> pick, std::vector<std::optional<FieldExtent>> coming)
    : pick_(std::move(pick)), variants_(std::move(variants)), coming_(std::move(coming)) {
  size_t combinations = 1;
  for (const templates::Bucket& bucket : checks.op().buckets) {
    const FieldResolver::Place place = checks.resolver().find(bucket.symbol);
    if (place.kind != FieldResolver::Place::Kind::field || bucket.edges.empty()) {
      fail(Status::internal, "{}: the bucket symbol '{}' is not a dynamic size with edges",
           checks.op().name, bucket.symbol);
    }
    axes_.emplace_back(place.field, bucket.edges);
    combinations *= axes_.back().count();
  }
  const bool complete = pick_.size() == combinations &&
                        (coming_.empty() || coming_.size() == combinations) &&
                        std::all_of(pick_.begin(), pick_.end(),
                                    [&](uint32_t index) { return index < variants_.size(); });
  if (!complete) fail(Status::internal, "{}: the dispatch table is not complete", checks.op().name);
  for (const DispatchVariant& variant : variants_) {
    if (variant.kernels.size() > kMaxKernels) {
      fail(Status::internal, "{}: a plan of {} kernels; the runtime launches up to {}",
           checks.op().name, variant.kernels.size(), kMaxKernels);
    }
  }
}

int64_t Dispatch::workspace_bytes(const int64_t* fields, int field_count) const {
  std::array<int64_t, kMaxFields> smaller{};
  int64_t most = 0;
  for (size_t combination = 0; combination < pick_.size(); ++combination) {
    std::copy_n(fields, field_count, smaller.begin());
    bool reachable = true;
    size_t rest = combination;
    for (size_t a = axes_.size(); a-- > 0;) {
      const BucketAxis& axis = axes_[a];
      const size_t bucket = rest % axis.count();
      rest /= axis.count();
      const int64_t size = fields[axis.field()];
      reachable = reachable && bucket <= axis.index(size);
      smaller[static_cast<size_t>(axis.field())] = std::min(size, axis.last_of(bucket));
    }
    if (!reachable) continue;
    most = std::max(most, variants_[pick_[combination]].workspace_bytes.value(smaller.data()));
    if (!coming_.empty() && coming_[combination]) {
      most = std::max(most, coming_[combination]->value(smaller.data()));
    }
  }
  return most;
}

}  // namespace kiln::runtime
