// Runs a launch: CTAs over host threads, warps of a CTA in turn, lanes of a warp that have come
// apart in the order of their program counters, so that they meet again.
#pragma once

#include <chrono>
#include <string>

#include "runtime/sim/checker.h"
#include "runtime/sim/warp.h"

namespace kiln::runtime::sim {

struct ExecuteOptions {
  int threads = 0;                // of the host; 0: as many as it has
  uint64_t resident_ctas = 1024;  // at most this many are under way at once
  std::chrono::milliseconds limit{60'000};
  SourceLine source_line{};  // for the text of a fault
};

struct ExecuteResult {
  std::string fault;          // "" when all CTAs ended
  uint64_t instructions = 0;  // of warps
  uint64_t mmas = 0;
};

ExecuteResult execute(Launch& launch, const ExecuteOptions& options);

}  // namespace kiln::runtime::sim
