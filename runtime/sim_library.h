// The simulator, loaded on demand: a server that never asks for a `sim:` device never opens it.
#pragma once

#include <memory>
#include <string_view>

#include "runtime/device.h"

namespace kiln::runtime {

// A device "sim:<slug>". Fails with not_found for a slug that the GPU table does not have, and for a
// missing libkiln_sim.so with the places searched. KILN_SIM_CHECK=0 turns its checker off.
std::unique_ptr<Device> open_simulator(std::string_view slug);

}  // namespace kiln::runtime
