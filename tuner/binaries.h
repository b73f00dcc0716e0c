// Where the tuner gets binaries: memory, then the store, then NVRTC in parallel ahead of whoever
// waits. NVRTC is looked for only when something is missing, so a store that holds all that is
// needed serves a machine without it.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cache/store.h"
#include "jit/compiler.h"
#include "tuner/device_worker.h"

namespace kiln::tuner {

class Binaries {
 public:
  explicit Binaries(cache::Store& store) : store_(store) {}
  ~Binaries();  // takes back what has not begun, and notes what was used
  Binaries(const Binaries&) = delete;
  Binaries& operator=(const Binaries&) = delete;

  // The binaries are for the driver of a device, of this CUDA major version; without, for no
  // driver. Before the first of the others.
  void serve_driver(int cuda_major) { cuda_major_ = cuda_major; }

  // Starts a compile when the binary is nowhere yet. Never fails; what goes wrong is told by get().
  void ahead(const jit::KernelSource& source, const std::string& arch,
             const jit::CompileOptions& options);
  // Fails with compile_error, no_compiler or unsupported.
  BinaryPtr get(const jit::KernelSource& source, const std::string& arch,
                const jit::CompileOptions& options);

  BinaryPtr oracle(const templates::Kit& kit, const templates::Sizes& fixed,
                   const std::string& arch);
  std::map<std::string, BinaryPtr> tools(const std::string& arch);  // by entry
  // The store keeps them, so that `kiln verify` needs no compiler.
  void keep(const BinaryPtr& binary) { store_.put_binary(*binary); }

 private:
  jit::CompilePool& pool();

  cache::Store& store_;
  int cuda_major_ = 0;
  std::shared_ptr<jit::CompilePool> pool_;
  std::map<Hash128, BinaryPtr> ready_;
  std::map<Hash128, jit::CompilePool::Request> coming_;
  std::vector<Hash128> used_;  // those that the store had
};

}  // namespace kiln::tuner
