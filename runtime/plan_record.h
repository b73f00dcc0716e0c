// What the store calls a plan, made from a description: one config of one fixed shape on one arch
// with the binaries it launches. The tuner and the runtime both make it here, so that their ids
// agree.
#pragma once

#include <span>
#include <string_view>

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

// Is this plan what its config means today: the binaries that today's source gives on `arch`,
// launched as it is planned for `gpu`? Whatever was found out about a plan that is not current says
// nothing of what would run.
bool is_current(const cache::PlanRecord& record, const templates::Op& op,
                const templates::Sizes& fixed, const Gpu& gpu, std::string_view arch);

}  // namespace kiln::runtime
