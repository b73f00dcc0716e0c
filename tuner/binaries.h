// Where the tuner gets binaries: memory, then the store, then NVRTC in parallel ahead of whoever
// waits. NVRTC is looked for only when something is missing, so a store that holds all that is
// needed serves a machine without it. What every tuning needs, tools and oracles, one process makes
// for all that start on the store at once; candidates are compiled by whoever tunes their shape.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/store.h"
#include "jit/compiler.h"
#include "runtime/shared_compiles.h"
#include "tuner/device_worker.h"

namespace kiln::tuner {

class Binaries {
 public:
  // log: takes a line when others are waited for. Once `stop` is true nobody is waited for any
  // more: oracle() and tools() fail with interrupted.
  explicit Binaries(cache::Store& store, std::function<void(const std::string&)> log = {},
                    const std::atomic<bool>* stop = nullptr)
      : store_(store), log_(std::move(log)), stop_(stop) {}
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

  int64_t compiles() const { return compiles_; }  // so many were made here and are done

 private:
  struct Need {
    jit::KernelSource source;
    std::string arch;
    jit::CompileOptions options;
  };

  const std::shared_ptr<jit::CompilePool>& pool();
  bool find(const Hash128& key);
  // Makes them ready, together with other processes, and keeps them at once.
  void share(const std::vector<Need>& needs);

  cache::Store& store_;
  std::function<void(const std::string&)> log_;
  const std::atomic<bool>* stop_;
  int64_t compiles_ = 0;
  int cuda_major_ = 0;
  std::shared_ptr<jit::CompilePool> pool_;
  std::map<Hash128, BinaryPtr> ready_;
  std::map<Hash128, jit::CompilePool::Request> coming_;
  std::vector<Hash128> used_;  // those that the store had
};

}  // namespace kiln::tuner
