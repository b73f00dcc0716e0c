// The simulator, loaded on demand: a server that never asks for a `sim:` device never opens it.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "runtime/device.h"

namespace kiln::runtime {

namespace sim {
struct SimOptions;
}

// A device "sim:<slug>". Fails with not_found for a slug that the GPU table does not have, and with
// unsupported for a libkiln_sim.so that is missing, with the places searched, or of another build.
// KILN_SIM_CHECK=0 turns its checker off.
std::unique_ptr<Device> open_simulator(std::string_view slug);

// What such a file exports, once it is known to be of this build. The file stays loaded.
using OpenSimulator = Device* (*)(const sim::SimOptions*);
OpenSimulator load_simulator(const std::filesystem::path& path);

}  // namespace kiln::runtime
