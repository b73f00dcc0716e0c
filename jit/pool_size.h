// The rule behind pool_size(), with the machine as an argument so that tests can describe others.
#pragma once

#include <filesystem>
#include <string>

#include "jit/compiler.h"

namespace kiln::jit {

struct PoolMachine {
  std::filesystem::path root = "/";  // where /proc and the mounts of cgroups are read
  int affinity_cores = 1;            // cores that this process may run on
  std::string jobs;                  // KILN_JOBS
};

PoolSize pool_size_of(const PoolMachine& machine);

}  // namespace kiln::jit
