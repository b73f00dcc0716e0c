// Ctrl-C: the first asks the work to end cleanly, the second ends the program at once.
//
// SIGINT and SIGTERM are blocked and read from a descriptor instead of handled, because NVRTC puts
// a SIGINT handler of its own in place while it compiles, which would end the program in the middle
// of a write.
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
