// For which GPU, and for which buckets, a command that runs nothing answers or decides.
#pragma once

#include <string>

#include "cache/store.h"
#include "jit/base/gpu.h"
#include "templates/op.h"

namespace kiln::cli {

struct Target {
  Gpu gpu;
  std::string label;
};
// The one of --gpu or --device, else the device here, else the one GPU that the store knows.
Target choose_target(const std::string& gpu, const std::string& device, cache::Store& store);

// The value of --sizes; it must have every size that decides the bucket.
templates::Sizes bucket_sizes(const templates::Op& op, const std::string& sizes);

}  // namespace kiln::cli
