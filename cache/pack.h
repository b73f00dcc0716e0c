// A pack of a part of a store: what some GPUs need, as a file of its own to ship.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cache/transfer.h"

namespace kiln::cache {

struct PackFilter {
  std::vector<std::string> ops;          // empty: all
  std::vector<std::string> gpu_classes;  // keys
  // Kernels that no plan launches prove or measure the others; those of these architectures go
  // along.
  std::vector<std::string> archs;
};

struct PackReport {
  int64_t decisions = 0;
  int64_t kernels = 0;  // with their images
  // Those whose images are gone or not trusted: who has the pack alone compiles them.
  int64_t missing_kernels = 0;
};

// Writes what all layers of the store have for these GPUs, the evidence too, into a new pack. Fails
// with store_error: nothing matches, the file exists, or it cannot be made.
PackReport make_pack_of(Store& store, const PackFilter& filter, const std::string& path);

}  // namespace kiln::cache
