// Where kernels come from: already loaded, else the store, else NVRTC, here or in another process
// that needs the same; then loaded on the device and kept in the store. NVRTC is loaded on the
// first miss only, so that a machine without it works from a complete store.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cache/store.h"
#include "jit/base/error.h"
#include "jit/compiler.h"
#include "runtime/device.h"
#include "runtime/kernel_cache.h"
#include "runtime/log.h"
#include "runtime/preloader.h"
#include "runtime/shared_compiles.h"

namespace kiln::runtime {

// done of total kernels are ready, `what` is being made. False stops.
using Progress = std::function<bool(int done, int total, const std::string& what)>;

struct Counters {
  std::atomic<uint64_t> compiles{0};
  std::atomic<uint64_t> binary_hits{0};
  std::atomic<uint64_t> miss_absent{0};
  std::atomic<uint64_t> miss_damaged{0};
  std::atomic<uint64_t> miss_unloadable{0};
  std::atomic<uint64_t> decision_hits{0};
  std::atomic<uint64_t> decision_defaults{0};
};

enum class Necessity { required, dispensable };  // dispensable: a default kernel can stand in

enum class Compiles { allowed, refused };  // refused: what the store lacks is an error

struct KernelNeed {
  KernelKey key;
  templates::KernelLaunch launch;  // of the subject's op; its source is made when it is compiled
  Necessity necessity = Necessity::required;
  KernelSubject subject;
  std::string what;  // "gather_dequant_kv {"format":"f1"} {"threads":128}"

  const ReadyKernel* ready = nullptr;  // filled in
  std::optional<Error> error;          // of a dispensable one that could not be made
};

class Workshop {
 public:
  Workshop(Device& device, cache::Store& store, const Log& log, Counters& counters,
           Compiles compiles = Compiles::allowed);

  std::shared_ptr<jit::Compiler> compiler();  // fails with no_compiler
  Compiles compiles() const { return compiles_; }
  const KernelCache& kernels() const { return kernels_; }
  const std::string& arch() const { return arch_; }
  Device& device() { return device_; }
  cache::Store& store() { return store_; }

  std::unique_ptr<Preloader> make_preloader() {
    return std::make_unique<Preloader>(device_, store_, kernels_);
  }

  // Sends what the store has warned of since the last time.
  void log_store_warnings();

 private:
  friend class KernelRun;
  Device& device_;
  cache::Store& store_;
  const Log& log_;
  Counters& counters_;
  const Compiles compiles_;
  const std::string arch_;
  KernelCache kernels_;
  std::mutex mutex_;
  std::shared_ptr<jit::Compiler> compiler_;
  size_t warnings_logged_ = 0;
};

struct RunTiming {
  // How long another thread may take for a kernel before this one makes it too: that thread may
  // be waiting in a callback for this one.
  std::chrono::milliseconds patience{60'000};
  // How much work of a long run a kill may cost: what is compiled is written so often.
  std::chrono::milliseconds write_interval{2000};
  SharingTime sharing;  // with other processes
};

// Makes a set of kernels ready: loads what the store has and compiles what it lacks, in parallel
// and together with other processes, from when that is known. Distinct keys only. What it compiled
// goes to the store in as few writes as a long run and those who wait for it allow.
class KernelRun {
 public:
  // preloader: may have some of them; outlives this.
  KernelRun(Workshop& workshop, std::vector<KernelNeed>& needs, RunTiming timing = {},
            Preloader* preloader = nullptr);

  struct Summary {
    int total = 0;
    int loaded = 0;  // by an earlier prepare, or being loaded by another thread
    int stored = 0;
    int absent = 0;
    int damaged = 0;
  };

  // Fails with the error of the first required kernel that cannot be made, or with interrupted;
  // what is ready by then stays ready, and what is compiled by then is kept. `tell_summary` is
  // called once, when all that the store has was read or that ended early; `made_one` after each
  // kernel that the store had, while the preloader goes on with the next.
  void finish(const Progress& progress,
              const std::function<void(const Summary&)>& tell_summary = {},
              const std::function<void()>& made_one = {});

  // Notes in the store which of its kernels were used.
  void note_use() { workshop_.store_.touch(used_); }

  // Writes what was compiled and not written yet, with these plans of it, in one transaction. A
  // store that refuses once is not asked again: each time it may wait for another process.
  void store(const std::vector<cache::PlanRecord>& plans);

 private:
  void note_read(size_t index, const StoredBinary& stored);
  void start_compiles(const std::vector<size_t>& missing);
  void make_stored(const std::vector<size_t>& stored, const Progress& progress,
                   const std::function<void()>& made_one);
  void make_missing(const Progress& progress);
  void make(size_t index, const jit::Binary& binary, Origin origin,
            const Preloaded* preloaded = nullptr);
  void make_here(size_t index, const Progress& progress);
  void make_compiled(const Progress& progress);
  void make_alone(size_t index, const Progress& progress);
  void make_each(const SharedCompiles::Finished& finished, const Progress& progress);
  void wait_for_other(size_t index, const Progress& progress);
  void take_the_rest();
  jit::Binary compile_now(const KernelNeed& need);
  void keep(const jit::Binary& binary, const jit::CompilePool::Request& request);
  void add_unwritten(const jit::Binary& binary);
  ReadyKernel load(const KernelNeed& need, const jit::Binary& binary, Origin origin,
                   const Preloaded* preloaded);
  void give_up(size_t index, const Error& error);
  void tell(const Progress& progress, const KernelNeed& need) const;

  Workshop& workshop_;
  std::vector<KernelNeed>& needs_;
  Claims claims_;
  Summary summary_;
  int done_ = 0;
  RunTiming timing_;
  Preloader* preloader_;
  std::vector<size_t> mine_;
  std::set<size_t> coming_;  // of mine_, what the preloader has or will have
  std::vector<size_t> others_;
  std::vector<size_t> missing_;             // of mine_, what the store lacks
  std::vector<size_t> pending_;             // of missing_, what compiles_ is to bring
  std::set<Hash128> wanted_;                // binaries that compiles_ was asked for
  std::vector<Hash128> used_;               // binaries that the store had
  std::optional<SharedCompiles> compiles_;  // of what was not found; nothing without a compiler
  std::vector<jit::Binary> unwritten_;
  std::chrono::steady_clock::time_point written_at_ = std::chrono::steady_clock::now();
  enum class StoreState { answers, refused } store_state_ = StoreState::answers;
};

}  // namespace kiln::runtime
