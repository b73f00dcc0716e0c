// Kernels that a prepare will need, read from the store and loaded by threads of their own while
// the prepare still chooses among decisions: one reads and unpacks, one loads. The driver takes
// locks: 256 images took two threads 101 ms and one 85 (H200, nothing else around).
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cache/store.h"
#include "jit/compiler.h"
#include "runtime/device.h"
#include "runtime/kernel_cache.h"

namespace kiln::runtime {

struct StoredBinary {
  bool is_listed = false;             // in the store, damaged or not
  std::optional<jit::Binary> binary;  // nothing when the store cannot give it
};
StoredBinary read_stored(cache::Store& store, const Hash128& key);

struct Preloaded : StoredBinary {  // without the binary's image
  LoadedKernel kernel;             // of the binary, when there is no failure
  std::exception_ptr failure;      // why the device refused it
};

class Preloader {
 public:
  Preloader(Device& device, cache::Store& store, KernelCache& kernels);
  // Ends after what is at hand; what was loaded and not taken goes to the kernels, for the next
  // prepare.
  ~Preloader();
  Preloader(const Preloader&) = delete;
  Preloader& operator=(const Preloader&) = delete;

  // These three for one thread. Claims it; nothing happens for one that is ready, or claimed.
  void want(const KernelKey& key, KernelSubject subject);
  // Gives the claim away; false when there is none.
  bool give(const KernelKey& key, Claims& to);
  // Waits for it. Nothing when it was not wanted, or its turn did not come.
  std::optional<Preloaded> take(const KernelKey& key);

 private:
  struct Work {
    KernelSubject subject;
    bool is_done = false;
    bool is_given_up = false;  // not read for want of memory or the like: whoever takes it reads it
    Preloaded result;
  };
  using Entry = std::map<KernelKey, Work>::value_type;

  struct Queue {
    std::deque<Entry*> entries;
    std::condition_variable has_more;

    void push(Entry* entry);
  };

  std::thread start(void (Preloader::*work)());
  void read_all();
  void load_all();
  // Waits for the next of a queue; nullptr at the end.
  Entry* next_of(Queue& queue, std::unique_lock<std::mutex>& lock);
  void note_stop() noexcept;
  void stop() noexcept;

  Device& device_;
  cache::Store& store_;
  KernelCache& kernels_;
  Claims claims_{kernels_};  // not given away
  std::mutex mutex_;         // of what follows
  std::map<KernelKey, Work> work_;
  Queue to_read_;
  Queue to_load_;
  std::condition_variable has_room_;  // to_load_, for the reader
  std::condition_variable all_is_done_;
  // Images to be freed by the reader, who allocated them: the loader would wait for its malloc
  // arena.
  std::vector<std::string> spent_;
  size_t wanted_ = 0;
  size_t done_ = 0;
  bool is_stopped_ = false;
  std::thread reader_;
  std::thread loader_;
};

}  // namespace kiln::runtime
