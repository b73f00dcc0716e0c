#include "runtime/read_ahead.h"

#include <system_error>

#include "jit/base/signals_blocked.h"

namespace kiln::runtime {
namespace {

constexpr size_t kFewKeys = 4;    // read by whoever asks
constexpr size_t kMostRead = 32;  // and not asked for yet: a bound of memory

}  // namespace

ReadAhead::ReadAhead(cache::Store& store, std::vector<Hash128> keys)
    : store_(store), keys_(std::move(keys)) {
  if (keys_.size() <= kFewKeys) return;
  const SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { read_all(); });
  } catch (const std::system_error&) {
    // next() reads.
  }
}

ReadAhead::~ReadAhead() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ReadAhead::read_all() {
  try {
    for (const Hash128& key : keys_) {
      std::optional<jit::Binary> binary = store_.find_binary(key);
      std::unique_lock lock(mutex_);
      read_.push_back(std::move(binary));
      changed_.notify_all();
      changed_.wait(lock, [&] { return is_stopped_ || read_.size() < kMostRead; });
      if (is_stopped_) return;
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

std::optional<jit::Binary> ReadAhead::next() {
  const Hash128& key = keys_.at(next_++);
  if (!thread_.joinable()) return store_.find_binary(key);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !read_.empty() || failure_ != nullptr; });
  if (read_.empty()) std::rethrow_exception(failure_);
  std::optional<jit::Binary> binary = std::move(read_.front());
  read_.pop_front();
  changed_.notify_all();
  return binary;
}

}  // namespace kiln::runtime
