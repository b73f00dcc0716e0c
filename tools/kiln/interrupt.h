// Ctrl-C: the first asks the work to end cleanly, the second ends the program at once.
//
// SIGINT and SIGTERM are blocked and read from a descriptor instead of handled: an ordinary thread
// may print and take locks, a handler may not. It also holds where NVRTC's own handlers, which end
// the process, cannot be kept out (jit/nvrtc_signals.h).
#pragma once

#include <atomic>
#include <thread>

namespace kiln::cli {

// Made before the program starts any other thread, so that all of them inherit the blocked signals.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  const std::atomic<bool>& flag() const { return stop_requested_; }

 private:
  void watch();

  int signals_ = -1;  // signalfd
  int end_ = -1;      // eventfd that ends the watching thread
  std::atomic<bool> stop_requested_{false};
  std::thread thread_;
};

}  // namespace kiln::cli
