// What the calls of one shape leave behind: how many reached the driver, and which buckets they
// took. A call writes no line of memory that the calls of other threads write or read.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace kiln::runtime {

// A sum that many threads add to. Each adds to the stripe that its stack leads to: a thread-local
// variable would be allocated by its first use in a library that was loaded later.
class StripedCounter {
 public:
  void add_one() noexcept {
    stripes_[stripe_of(__builtin_frame_address(0))].count.fetch_add(1, std::memory_order_relaxed);
  }
  uint64_t sum() const noexcept {
    uint64_t sum = 0;
    for (const Stripe& stripe : stripes_) sum += stripe.count.load(std::memory_order_relaxed);
    return sum;
  }

  static constexpr int kStripeBits = 5;
  // Stacks lie at equal distances: multiples of the golden ratio spread these. Frames of one thread
  // mostly lie within 64 KiB.
  static size_t stripe_of(const void* frame) noexcept {
    const uint64_t place = reinterpret_cast<uintptr_t>(frame) >> 16;
    return static_cast<size_t>(place * 0x9E3779B97F4A7C15u >> (64 - kStripeBits));
  }

 private:
  static constexpr size_t kLineBytes = 64;
  struct alignas(kLineBytes) Stripe {
    std::atomic<uint64_t> count{0};
  };
  std::array<Stripe, size_t{1} << kStripeBits> stripes_;
};

// The buckets that were called. Only the first call of each writes.
class UsedBuckets {
 public:
  explicit UsedBuckets(size_t count)
      : used_(std::make_unique<std::atomic<uint8_t>[]>(count)), count_(count) {}
  void note(size_t bucket) noexcept {
    std::atomic<uint8_t>& used = used_[bucket];
    if (used.load(std::memory_order_relaxed) == 0) [[unlikely]] {
      used.store(1, std::memory_order_relaxed);
    }
  }
  bool has(size_t bucket) const noexcept {
    return used_[bucket].load(std::memory_order_relaxed) != 0;
  }
  size_t count() const noexcept { return count_; }

 private:
  std::unique_ptr<std::atomic<uint8_t>[]> used_;
  size_t count_;
};

}  // namespace kiln::runtime
