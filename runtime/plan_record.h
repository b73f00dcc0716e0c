// What the store calls a plan, made from a description: one config of one fixed shape on one arch
// with the binaries it launches. The tuner and the runtime both make it here, so that their ids
// agree.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "cache/store.h"
#include "templates/op.h"

namespace kiln::runtime {

cache::Problem problem_of(const templates::Op& op, const templates::Sizes& fixed,
                          const templates::Sizes& bucket);

// binaries: one key per kernel of `launches`, in order.
cache::PlanRecord plan_record(const templates::Op& op, const templates::Sizes& fixed,
                              const templates::Config& config, std::string_view arch,
                              const templates::LaunchPlan& launches,
                              std::span<const Hash128> binaries);

// What the id of a plan has to be by its other fields.
Hash128 plan_id(const cache::PlanRecord& record);

// Plans as today's source makes them for an arch, launched as is planned for `gpu`. Each is made
// once, because its keys hash all the source of its kernels. For one thread.
class TodaysPlans {
 public:
  explicit TodaysPlans(Gpu gpu) : gpu_(std::move(gpu)) {}
  const Gpu& gpu() const { return gpu_; }

  // Fails when the config is not legal.
  const cache::PlanRecord& plan(const templates::Op& op, const templates::Sizes& fixed,
                                const templates::Config& config, const std::string& arch);
  // Is this plan still what its config means on `arch`? Whatever was found out about one that is
  // not says nothing of what would run.
  bool has(const cache::PlanRecord& record, const templates::Op& op, const templates::Sizes& fixed,
           const std::string& arch);

 private:
  const Gpu gpu_;
  std::map<std::tuple<const templates::Op*, templates::Sizes, templates::Config, std::string>,
           cache::PlanRecord>
      plans_;
};

}  // namespace kiln::runtime
