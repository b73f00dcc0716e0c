// Binaries of the store, read and unpacked on a thread of their own while whoever asks for them
// loads the ones before, so that a warm start takes as long as the driver does.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "cache/store.h"
#include "jit/compiler.h"

namespace kiln::runtime {

class ReadAhead {
 public:
  ReadAhead(cache::Store& store, std::vector<Hash128> keys);
  ~ReadAhead();  // reads no more than the one at hand
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Once for each key, in their order. Nothing when the store cannot give it.
  std::optional<jit::Binary> next();

 private:
  void read_all();

  cache::Store& store_;
  const std::vector<Hash128> keys_;
  size_t next_ = 0;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<std::optional<jit::Binary>> read_;
  std::exception_ptr failure_;  // after what has been read
  bool is_stopped_ = false;
  std::thread thread_;  // none for a few keys, or when none could be started
};

}  // namespace kiln::runtime
