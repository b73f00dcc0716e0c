// Compiles that other processes need at the same time: one process makes each kernel, under a lease
// in the store, and the others take it from there. A process holds no more leases than the machine
// may compile at once, so those that start together share the work, and the machine does not
// compile more at a time than it has room for. Nobody waits without end: what a process that died
// or fell silent was to make, the next one makes.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/leases.h"
#include "jit/compiler.h"

namespace kiln::runtime {

struct SharingTime {
  std::chrono::milliseconds look{100};         // between two looks at what others have made
  std::chrono::milliseconds renew{5000};       // between two signs of life
  std::chrono::milliseconds told{5000};        // of waiting for others, then it is logged once
  std::chrono::milliseconds patience{60'000};  // with others of whom nothing is heard
};

class SharedCompiles {
 public:
  // publish: puts what next() gave into the store, which gives the leases back; called before this
  // one waits for others, who may wait for it. log: takes the one line about waiting.
  SharedCompiles(cache::Store& store, std::shared_ptr<jit::CompilePool> pool,
                 std::function<void()> publish, std::function<void(const std::string&)> log,
                 SharingTime time = {});
  ~SharedCompiles();  // takes back what has not begun, and gives back the leases
  SharedCompiles(const SharedCompiles&) = delete;
  SharedCompiles& operator=(const SharedCompiles&) = delete;

  // A kernel that the store lacks; distinct keys only.
  void add(const Hash128& key, jit::KernelSource source, std::string arch,
           jit::CompileOptions options);
  void begin() { share(); }  // so that compiles run while the caller has other work
  bool done() const { return waiting_.empty() && running_.empty() && stored_.empty(); }

  // One of the two.
  struct Finished {
    Hash128 key;
    std::optional<jit::Binary> stored;                  // another process has made it
    std::optional<jit::CompilePool::Request> compiled;  // here; its result, or its error, is there
  };
  // The next that is finished; nothing when there is none within this time.
  std::optional<Finished> next(std::chrono::milliseconds at_most);

  // The compile failed, so that others may try.
  void give_back(const Hash128& key);

  // Ends it: what has begun and was not given by next(), whose results come; the rest is taken
  // back.
  std::vector<jit::CompilePool::Request> stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Work {
    Hash128 key;
    jit::KernelSource source;
    std::string arch;
    jit::CompileOptions options;
  };

  void share();
  void publish();
  void start(const Work& work);
  void note_waiting(const std::vector<cache::Lease>& leases);
  void give_signs_of_life();

  cache::Store& store_;
  const std::shared_ptr<jit::CompilePool> pool_;
  const std::function<void()> publish_;
  const std::function<void(const std::string&)> log_;
  const SharingTime time_;
  std::vector<Work> waiting_;  // nobody here makes them
  std::deque<jit::CompilePool::Request> running_;
  std::deque<Finished> stored_;
  std::vector<Hash128> leased_;  // they run, or next() gave them since the last publish
  bool has_room_ = true;         // something ended here since the last look
  Clock::time_point looked_at_;
  Clock::time_point renewed_at_ = Clock::now();
  std::optional<Clock::time_point> idle_since_;  // with nothing to do but wait
  bool is_told_ = false;
  std::vector<cache::Lease> last_heard_;
  Clock::time_point heard_at_ = Clock::now();
};

}  // namespace kiln::runtime
