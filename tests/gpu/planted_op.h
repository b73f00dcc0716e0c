// A test-only op with planted candidates: out[i] = in[i] + 1. The default passes over memory twice,
// one config is as fast as it should be, one computes a wrong number, one traps, one spins for 30 s
// of globaltimer.
#pragma once

#include <cstdint>

namespace kiln::testing {

enum PlantedVariant : int64_t {
  kPlantedSlow,
  kPlantedFast,
  kPlantedWrong,
  kPlantedTrap,
  kPlantedSpin
};

void register_planted();  // once

}  // namespace kiln::testing
