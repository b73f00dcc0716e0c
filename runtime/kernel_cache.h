// The kernels that a session has loaded. Each is made once: a thread claims it, makes it without
// holding a lock, and hands it in; others that want it wait for that. Kernels stay until the
// session ends, since a captured graph may hold them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "jit/compiler.h"
#include "runtime/device.h"

namespace kiln::runtime {

// The same binary with another block or more shared memory is another loaded kernel.
struct KernelKey {
  Hash128 binary;
  int threads = 0;
  int64_t dynamic_smem_bytes = 0;
  auto operator<=>(const KernelKey&) const = default;
};

enum class Origin { store, compiled };

struct ReadyKernel {
  LoadedKernel kernel;
  jit::Resources resources;
  std::string arch;
  std::string nvrtc_version;
  Origin origin = Origin::store;
};

class KernelCache {
 public:
  enum class Claim { ready, mine, busy };

  // mine: the caller must end it with hand_in() or abandon().
  Claim claim(const KernelKey& key);
  // Also legal without a claim, for one who has waited long enough: the first kernel stays.
  void hand_in(const KernelKey& key, ReadyKernel kernel);
  void abandon(const KernelKey& key) noexcept;

  // False: still being made by another thread after this long.
  bool wait_while_busy(const KernelKey& key, std::chrono::milliseconds at_most);

  // Pointers stay valid; nullptr when it is not ready.
  const ReadyKernel* find(const KernelKey& key) const;
  uint64_t size() const;

 private:
  struct Slot {
    enum class State { busy, ready } state = State::busy;
    ReadyKernel kernel;
  };
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<KernelKey, Slot> slots_;
};

// Claims of one thread; those not handed in are given up when it goes out of scope.
class Claims {
 public:
  explicit Claims(KernelCache& cache) : cache_(cache) {}
  ~Claims() {
    for (const KernelKey& key : held_) cache_.abandon(key);
  }
  Claims(const Claims&) = delete;
  Claims& operator=(const Claims&) = delete;

  KernelCache::Claim claim(const KernelKey& key) {
    const auto place = held_.insert(key).first;  // before the claim, so that no failure loses it
    const KernelCache::Claim claim = cache_.claim(key);
    if (claim != KernelCache::Claim::mine) held_.erase(place);
    return claim;
  }
  // Of another's claim, which that one gives away.
  void take_over(const KernelKey& key, Claims& other) {
    held_.insert(key);
    other.held_.erase(key);
  }
  bool holds(const KernelKey& key) const { return held_.contains(key); }
  void hand_in(const KernelKey& key, ReadyKernel kernel) {
    cache_.hand_in(key, std::move(kernel));
    held_.erase(key);
  }
  void abandon(const KernelKey& key) {
    if (held_.erase(key) != 0) cache_.abandon(key);
  }

 private:
  KernelCache& cache_;
  std::set<KernelKey> held_;
};

}  // namespace kiln::runtime
