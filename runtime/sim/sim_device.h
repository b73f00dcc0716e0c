// The simulator behind the Device seam. Built as libkiln_sim.so, which the runtime opens only when
// a `sim:` device is asked for.
#pragma once

#include "runtime/device.h"

namespace kiln::runtime::sim {

enum class Checking { off, on };

struct SimOptions {
  Gpu gpu;  // of the table
  Checking checking = Checking::on;
  int threads = 0;      // of the host; 0: all
  double limit_s = 60;  // of one launch
};

std::unique_ptr<Device> open_sim_device(const SimOptions& options);

}  // namespace kiln::runtime::sim

// What libkiln_sim.so exports.
extern "C" {
// The build that it belongs to; nothing else of it may be called when that is another one.
const char* kiln_sim_build();
// A Device to be owned by the caller; errors are thrown as kiln::Error.
kiln::runtime::Device* kiln_sim_open(const kiln::runtime::sim::SimOptions* options);
}
