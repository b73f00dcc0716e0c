// What is written of a row that was normalised (common/norm.cuh): bf16, its Q8a codes and scales
// (common/quantise_group.cuh), or both.
#pragma once

#include "templates/common/norm.cuh"
#include "templates/common/quantise_group.cuh"
#include "templates/common/types.cuh"

enum NormFormat : int { norm_bf16 = 0, norm_codes = 1, norm_both = 2 };

// Pointers to the row; those that `format` does not write are not used.
struct NormedRow {
  u16* y;
  u8* codes;
  u8* scales;
};

// piece_of(i): piece i of the thread, normalised. Threads of a row are whole warps.
template <int format, int columns, int threads, typename PieceOf>
__device__ __forceinline__ void store_normed(const NormedRow& row, int thread,
                                             const PieceOf& piece_of) {
  using Part = RowPart<columns, threads>;
  constexpr int lanes_per_group = group_of(q8a) / piece_elements;
  u8* scales = row.scales + thread / lanes_per_group;
  const int lane = thread % lanes_per_group;
  u32 scale = 0;
#pragma unroll
  for (int i = 0; i < Part::count; ++i) {
    const uint4 y = piece_of(i);
    const bool holds = Part::holds(thread, i);
    if constexpr (format != norm_codes) {
      if (holds) store_16(Part::place(row.y, thread, i), y);
    }
    if constexpr (format != norm_bf16) {
      const Quantised q = quantise<q8a>(Piece{{y.x, y.y, y.z, y.w}});
      if (holds) *reinterpret_cast<uint2*>(Part::place(row.codes, thread, i)) = q.codes;
      // Each lane of a group stores the scale of another piece.
      scale = lane == i % lanes_per_group ? q.scale : scale;
      if (i % lanes_per_group == lanes_per_group - 1 || i == Part::count - 1) {
        const int group =
            (i / lanes_per_group * lanes_per_group + lane) * (threads / lanes_per_group);
        if (thread / lanes_per_group + group < columns / group_of(q8a))
          scales[group] = static_cast<u8>(scale);
      }
    }
  }
}
