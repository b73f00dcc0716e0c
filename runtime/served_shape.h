// An op with one fixed shape in a session: how its calls are checked, and the kernels that are
// ready for them. Plans of equal op and shape share it. It lives as long as the session.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/call_checks.h"
#include "runtime/call_counts.h"
#include "runtime/choice.h"
#include "runtime/dispatch.h"
#include "runtime/workshop.h"
#include "templates/op.h"

namespace kiln::runtime {

// One config with the kernels it launches.
struct ServedVariant {
  templates::Config config;
  templates::LaunchPlan launches;
  std::vector<KernelKey> keys;              // one per kernel of `launches`
  std::vector<const ReadyKernel*> kernels;  // likewise; nullptr while not ready
};

struct ServedBucket {
  Choice choice;
  uint32_t variant = 0;
};

struct ServedShape {
  ServedShape(const templates::Op& served_op, int index, templates::Sizes fixed_sizes, Device& on)
      : op(served_op),
        op_index(index),
        fixed(std::move(fixed_sizes)),
        text(canonical_json(templates::shape_json(op, fixed))),
        checks(op, fixed),
        device(&on),
        bucket_sizes(templates::all_buckets(op)),
        used(bucket_sizes.size()),
        buckets(bucket_sizes.size()) {}

  const templates::Op& op;
  const int op_index;
  const templates::Sizes fixed;
  const std::string text;  // canonical JSON
  const CallChecks checks;
  Device* const device;
  const std::vector<templates::Sizes> bucket_sizes;

  std::atomic<const Dispatch*> dispatch{nullptr};  // set once a call can be served

  StripedCounter calls;  // that reached the driver
  UsedBuckets used;      // as bucket_sizes

  // The rest belongs to the session's mutex.
  std::vector<ServedVariant> variants;               // [0] is the default config
  std::vector<std::optional<ServedBucket>> buckets;  // as bucket_sizes; empty: not asked for yet
  std::vector<std::optional<FieldExtent>> coming;    // workspaces, as Dispatch has them
  std::vector<std::unique_ptr<const Dispatch>>
      dispatches;  // older ones stay: a call may be reading one
};

}  // namespace kiln::runtime
