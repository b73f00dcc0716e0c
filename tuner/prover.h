// Proves that a plan computes what the oracle computes, on the kit's cases for a bucket. A GPU runs
// the cases of the bucket itself. The simulator is a million times slower, so a large bucket is
// proven there at the largest one of the same fixed shape that is small enough, the verdict says
// so, and what was proven once is not run again for the next large bucket.
#pragma once

#include <map>
#include <string>
#include <tuple>

#include "jit/base/hash.h"
#include "tuner/binaries.h"
#include "tuner/device_worker.h"

namespace kiln::tuner {

// The bucket whose cases the simulator runs in place of those of `bucket`.
templates::Sizes simulated_bucket(const templates::Kit& kit, const templates::Sizes& fixed,
                                  const templates::Sizes& bucket);

class Prover {
 public:
  Prover(DeviceWorker& worker, Binaries& binaries) : worker_(worker), binaries_(binaries) {}

  RunVerdict prove(const PlanWork& work, const templates::Sizes& bucket);

 private:
  RunVerdict run(const PlanWork& work, const templates::Sizes& bucket);

  DeviceWorker& worker_;
  Binaries& binaries_;
  std::map<Hash128, RunVerdict> known_;  // of the simulator
};

}  // namespace kiln::tuner
