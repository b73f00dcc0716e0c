// The Device seam over the CUDA Driver API. A device is its primary context, retained while the
// Device lives, so pointers and streams of the CUDA runtime (PyTorch, a serving engine) are valid
// here and the other way round.
//
// Rules: the caller's current context is the same after every call; no device-wide synchronisation;
// whatever a stream capture forbids (loads, allocations, own copies) runs with this thread's
// capture mode relaxed, so that no capture anywhere breaks.
#pragma once

#include <memory>

#include "runtime/device.h"

namespace kiln::runtime::cuda {

// Fails with no_driver, not_found (and the devices there are), unsupported (cc below 8.0).
std::unique_ptr<Device> open_device(int ordinal);

// Makes no context.
DeviceList list_devices();

}  // namespace kiln::runtime::cuda
