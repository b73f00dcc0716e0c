// What a GPU can run: the one pair of checks that sessions, `kiln explain` and the tuner share, so
// that nothing is decided that nobody could launch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "jit/base/gpu.h"
#include "jit/compiler.h"
#include "templates/op.h"

namespace kiln::runtime {

struct BrokenLimit {
  std::string reason;  // "threads", "shared memory", "registers"
  std::string detail;  // a sentence without a full stop
};

// Why a launch plan cannot run on this GPU whatever its registers; nothing when it can.
std::optional<BrokenLimit> limit_broken(const templates::LaunchPlan& launches, const Gpu& gpu);
// Likewise with what its kernels use, one per kernel of `launches`.
std::optional<BrokenLimit> resources_broken(const templates::LaunchPlan& launches,
                                            const std::vector<jit::Resources>& resources,
                                            const Gpu& gpu);

}  // namespace kiln::runtime
