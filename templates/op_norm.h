// What the descriptions of the ops that normalise rows share (common/norm.cuh).
#pragma once

#include <bit>
#include <cstdint>

namespace kiln::templates {

constexpr int64_t kNormPiece = 8;  // elements of one load

// Of a row of so many columns.
constexpr int64_t norm_pieces_per_thread(int64_t columns, int64_t threads) {
  return (columns / kNormPiece + threads - 1) / threads;
}

constexpr int64_t power_of_two_above(int64_t value) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(value)));
}

}  // namespace kiln::templates
