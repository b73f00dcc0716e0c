// Ctrl-C: the first asks the work to end cleanly, the second ends the program at once.
#pragma once

#include <atomic>

namespace kiln::cli {

// Handles SIGINT and SIGTERM from construction to destruction. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  const std::atomic<bool>& flag() const;
};

}  // namespace kiln::cli
