#include "runtime/background.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "jit/base/error.h"
#include "jit/base/signals_blocked.h"

namespace kiln::runtime {
void Background::start(std::function<void()> work) {
  const SignalsBlocked blocked;
  try {
    thread_ = std::thread([this, work = std::move(work)] {
      {
        const std::lock_guard lock(mutex_);
        thread_id_ = std::this_thread::get_id();
      }
      std::exception_ptr error;
      try {
        work();
      } catch (...) {
        error = std::current_exception();
      }
      finish(error);
    });
  } catch (const std::system_error& error) {
    fail(Status::out_of_memory,
         "kiln_prepare_start: no thread can be started ({}); use kiln_prepare, which needs none",
         error.what());
  }
}

void Background::note_progress(int done, int total) {
  const std::lock_guard lock(mutex_);
  progress_.done = done;
  progress_.total = total;
}

bool Background::is_finished() const {
  const std::lock_guard lock(mutex_);
  return progress_.finished;
}

std::thread::id Background::thread_id() const {
  const std::lock_guard lock(mutex_);
  return thread_id_;
}

Background::Progress Background::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto finished = [this] { return progress_.finished; };
  if (timeout.count() < 0) {
    changed_.wait(lock, finished);
  } else {
    // A deadline past the end of the clock's numbers would lie in the past.
    constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
    changed_.wait_for(lock, std::min(timeout, kLongest), finished);
  }
  return progress_;
}

void Background::stop() {
  stopping_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
}

void Background::finish(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  progress_.finished = true;
  progress_.error = std::move(error);
  changed_.notify_all();
}

}  // namespace kiln::runtime
