#include "runtime/kernel_cache.h"

#include <algorithm>
#include <utility>

namespace kiln::runtime {

KernelCache::Claim KernelCache::claim(const KernelKey& key) {
  const std::lock_guard lock(mutex_);
  const auto [place, is_new] = slots_.try_emplace(key);
  if (is_new) return Claim::mine;
  return place->second.state == Slot::State::ready ? Claim::ready : Claim::busy;
}

void KernelCache::hand_in(const KernelKey& key, ReadyKernel kernel) {
  {
    const std::lock_guard lock(mutex_);
    Slot& slot = slots_[key];
    if (slot.state == Slot::State::ready) return;
    slot.kernel = std::move(kernel);
    slot.state = Slot::State::ready;
  }
  changed_.notify_all();
}

void KernelCache::abandon(const KernelKey& key) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const auto place = slots_.find(key);
    if (place != slots_.end() && place->second.state == Slot::State::busy) slots_.erase(place);
  }
  changed_.notify_all();
}

bool KernelCache::wait_while_busy(const KernelKey& key, std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, at_most, [&] {
    const auto place = slots_.find(key);
    return place == slots_.end() || place->second.state == Slot::State::ready;
  });
}

const ReadyKernel* KernelCache::find(const KernelKey& key) const {
  const std::lock_guard lock(mutex_);
  const auto place = slots_.find(key);
  const bool is_ready = place != slots_.end() && place->second.state == Slot::State::ready;
  return is_ready ? &place->second.kernel : nullptr;
}

uint64_t KernelCache::size() const {
  const std::lock_guard lock(mutex_);
  return static_cast<uint64_t>(std::count_if(slots_.begin(), slots_.end(), [](const auto& slot) {
    return slot.second.state == Slot::State::ready;
  }));
}

}  // namespace kiln::runtime
