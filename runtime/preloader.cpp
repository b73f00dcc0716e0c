#include "runtime/preloader.h"

#include <chrono>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "jit/base/signals_blocked.h"

namespace kiln::runtime {
namespace {

// Images that wait for the loader. As many again may wait to be freed.
constexpr size_t kMostUnloaded = 32;
// Waking a thread costs whoever wakes it some microseconds, and the loader has none to spare: the
// reader goes on when half of the images are loaded, and take() looks by itself now and then.
constexpr size_t kFewUnloaded = kMostUnloaded / 2;
constexpr std::chrono::milliseconds kLook{1};

// The driver keeps some 160 KB of small blocks for an image. In another thread than the first,
// glibc's malloc asks the system for each page of them, which makes 256 loads a fifth slower (H200,
// 103 ms against 85), unless what it holds in reserve was large before. A page of each block is
// touched, where malloc notes its size: half a millisecond, not worth it for a few images.
constexpr size_t kManyImages = 8;

void reserve_for_small_blocks() {
  constexpr size_t kBlock = 120'000;  // below what malloc maps by itself
  constexpr size_t kBlocks = 400;
  try {
    std::vector<std::unique_ptr<char[]>> blocks(kBlocks);
    for (auto& block : blocks) block = std::make_unique_for_overwrite<char[]>(kBlock);
  } catch (const std::bad_alloc&) {
    // Slower then.
  }
}

}  // namespace

StoredBinary read_stored(cache::Store& store, const Hash128& key) {
  StoredBinary stored{.is_listed = store.has_binary(key), .binary = {}};
  if (stored.is_listed) stored.binary = store.find_binary(key);
  return stored;
}

Preloader::Preloader(Device& device, cache::Store& store, KernelCache& kernels)
    : device_(device), store_(store), kernels_(kernels) {
  const SignalsBlocked blocked;
  try {
    reader_ = start(&Preloader::read_all);
    loader_ = start(&Preloader::load_all);
  } catch (...) {
    stop();  // whoever takes nothing loads himself
  }
}

// Without memory it ends as if it had been stopped.
std::thread Preloader::start(void (Preloader::*work)()) {
  return std::thread([this, work] {
    try {
      (this->*work)();
    } catch (...) {
      note_stop();
    }
  });
}

Preloader::~Preloader() {
  stop();
  for (auto& [key, work] : work_) {
    Preloaded& result = work.result;
    if (!work.is_done || !result.binary || result.failure) continue;
    try {
      device_.describe(result.kernel, work.subject);
      claims_.hand_in(key, {.kernel = result.kernel,
                            .resources = result.binary->resources,
                            .arch = result.binary->arch,
                            .nvrtc_version = result.binary->nvrtc_version,
                            .origin = Origin::store});
    } catch (...) {
      // The next prepare loads it, and tells.
    }
  }
}

void Preloader::note_stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }
  for (std::condition_variable* waiting :
       {&to_read_.has_more, &to_load_.has_more, &has_room_, &all_is_done_})
    waiting->notify_all();
}

void Preloader::stop() noexcept {
  note_stop();
  if (reader_.joinable()) reader_.join();
  if (loader_.joinable()) loader_.join();
}

void Preloader::want(const KernelKey& key, KernelSubject subject) {
  if (claims_.holds(key) || claims_.claim(key) != KernelCache::Claim::mine) return;
  const std::lock_guard lock(mutex_);
  const auto place = work_.try_emplace(key).first;
  place->second.subject = std::move(subject);
  to_read_.push(&*place);
  if (++wanted_ == kManyImages) to_load_.has_more.notify_one();
}

bool Preloader::give(const KernelKey& key, Claims& to) {
  if (!claims_.holds(key)) return false;
  to.take_over(key, claims_);
  return true;
}

std::optional<Preloaded> Preloader::take(const KernelKey& key) {
  std::unique_lock lock(mutex_);
  const auto place = work_.find(key);
  if (place == work_.end()) return std::nullopt;
  Work& work = place->second;
  while (!work.is_done && !is_stopped_) all_is_done_.wait_for(lock, kLook);
  if (!work.is_done || work.is_given_up) return std::nullopt;
  std::optional<Preloaded> result = std::move(work.result);
  work_.erase(place);
  return result;
}

void Preloader::Queue::push(Entry* entry) {
  entries.push_back(entry);
  has_more.notify_one();
}

Preloader::Entry* Preloader::next_of(Queue& queue, std::unique_lock<std::mutex>& lock) {
  queue.has_more.wait(lock, [&] { return is_stopped_ || !queue.entries.empty(); });
  if (is_stopped_) return nullptr;
  Entry* const entry = queue.entries.front();
  queue.entries.pop_front();
  return entry;
}

void Preloader::read_all() {
  std::unique_lock lock(mutex_);
  while (Entry* const entry = next_of(to_read_, lock)) {
    if (to_load_.entries.size() >= kMostUnloaded)
      has_room_.wait(lock, [&] { return is_stopped_ || to_load_.entries.size() <= kFewUnloaded; });
    if (is_stopped_) return;
    std::vector<std::string> spent = std::exchange(spent_, {});
    lock.unlock();
    spent.clear();
    StoredBinary stored;
    bool is_read = false;
    try {
      stored = read_stored(store_, entry->first.binary);
      is_read = true;
    } catch (...) {
      // Whoever takes it reads it again, and tells.
    }
    lock.lock();
    entry->second.is_given_up = !is_read;
    static_cast<StoredBinary&>(entry->second.result) = std::move(stored);
    to_load_.push(entry);
  }
}

void Preloader::load_all() {
  std::unique_lock lock(mutex_);
  // While the first image is read.
  to_load_.has_more.wait(
      lock, [&] { return is_stopped_ || !to_load_.entries.empty() || wanted_ >= kManyImages; });
  bool has_reserve = false;
  const auto reserve_for_many = [&] {
    if (has_reserve || wanted_ < kManyImages) return;
    has_reserve = true;
    lock.unlock();
    reserve_for_small_blocks();
    lock.lock();
  };
  reserve_for_many();
  while (Entry* const entry = next_of(to_load_, lock)) {
    if (to_load_.entries.size() == kFewUnloaded) has_room_.notify_one();
    reserve_for_many();
    const KernelKey& key = entry->first;
    Preloaded& result = entry->second.result;
    if (result.binary) {
      lock.unlock();
      try {
        result.kernel = device_.load(*result.binary, key.threads, key.dynamic_smem_bytes);
      } catch (...) {
        result.failure = std::current_exception();
      }
      lock.lock();
      spent_.push_back(std::exchange(result.binary->image, {}));
    }
    entry->second.is_done = true;
    if (++done_ == wanted_) all_is_done_.notify_one();
  }
}

}  // namespace kiln::runtime
