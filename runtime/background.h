// A preparation that goes on in a thread of the library while calls are served: how far it is, how
// it ended, how it is stopped. What it prepares is the session's matter.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace kiln::runtime {

class Background {
 public:
  Background() = default;
  ~Background() { stop(); }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // Runs `work` on a thread that takes no signals of the host. What it throws is kept for wait().
  // Fails with out_of_memory when there can be no thread.
  void start(std::function<void()> work);
  // Without a thread: how the beginning failed, for those who wait already.
  void fail_at_start(std::exception_ptr error) { finish(error); }

  void note_progress(int done, int total);
  bool is_stopping() const { return stopping_.load(std::memory_order_relaxed); }
  bool is_finished() const;
  std::thread::id thread_id() const;  // of no thread before it runs

  struct Progress {
    bool finished = false;
    std::exception_ptr error;  // of a finished one
    int done = 0;
    int total = 0;
  };
  // Until it has finished, or this long; negative: as long as it takes.
  Progress wait(std::chrono::milliseconds timeout);
  // Asks it to stop and waits for its thread. Not on that thread.
  void stop();

 private:
  void finish(std::exception_ptr error);

  std::atomic<bool> stopping_{false};
  std::thread thread_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Progress progress_;          // under the mutex
  std::thread::id thread_id_;  // likewise
};

}  // namespace kiln::runtime
