// Sums and products of sizes that end at the limits of 64 bits instead of overflowing.
#pragma once

#include <cstdint>
#include <limits>

namespace kiln {

inline int64_t saturating_multiply(int64_t a, int64_t b) noexcept {
  using Limits = std::numeric_limits<int64_t>;
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product))
    return (a < 0) == (b < 0) ? Limits::max() : Limits::min();
  return product;
}

inline int64_t saturating_add(int64_t a, int64_t b) noexcept {
  using Limits = std::numeric_limits<int64_t>;
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return a > 0 ? Limits::max() : Limits::min();
  return sum;
}

}  // namespace kiln
