// RMSNorm of bf16 rows (ops.md B3), the same bits wherever it is a step:
//   r = 1 / sqrt(sum(x^2) / columns + 1e-20)      y = bf16((x * r) * w)
// A row is cut into pieces of 8. The squares of a piece are added as two chains, even and odd
// elements; then piece j and piece j + half, for half = the largest power of two below the number
// of pieces, down to 1. Threads hold pieces `threads` apart, so that the upper halves are added in
// registers, the next across warps and the last across lanes: the sum does not depend on how many
// threads share a row.
#pragma once

#include "templates/common/decode.cuh"
#include "templates/common/memory.cuh"
#include "templates/common/shared.cuh"
#include "templates/common/types.cuh"

constexpr int piece_elements = 8;

// The part of a row that one of `threads` threads holds; beyond the row it is zero.
template <int columns, int threads>
struct RowPart {
  static constexpr int pieces = columns / piece_elements;
  static constexpr int count = (pieces + threads - 1) / threads;
  static_assert(columns % piece_elements == 0 && (threads & (threads - 1)) == 0);

  uint4 data[count];

  static __device__ __forceinline__ bool holds(int thread, int i) {
    return pieces % threads == 0 || thread + i * threads < pieces;
  }
  // Where piece i of the thread starts: one address and constants.
  template <typename Element>
  static __device__ __forceinline__ Element* place(Element* row, int thread, int i) {
    return row + thread * piece_elements + i * (threads * piece_elements);
  }
  static __device__ __forceinline__ uint4 piece(const u16* row, int thread, int i) {
    return holds(thread, i) ? load_16(reinterpret_cast<const u8*>(place(row, thread, i)))
                            : uint4{0, 0, 0, 0};
  }
  __device__ __forceinline__ void load(const u16* row, int thread) {
#pragma unroll
    for (int i = 0; i < count; ++i) data[i] = piece(row, thread, i);
  }
  // The compiler then keeps pairs, not the floats that it made of them: half of the registers.
  __device__ __forceinline__ void keep_packed() {
#pragma unroll
    for (int i = 0; i < count; ++i)
      asm("" : "+r"(data[i].x), "+r"(data[i].y), "+r"(data[i].z), "+r"(data[i].w));
  }
};

__device__ __forceinline__ float sum_of_squares(const uint4& piece) {
  const u32 pairs[4] = {piece.x, piece.y, piece.z, piece.w};
  float even = 0.0f;
  float odd = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    even = __fmaf_rn(low_bf16(pairs[i]), low_bf16(pairs[i]), even);
    odd = __fmaf_rn(high_bf16(pairs[i]), high_bf16(pairs[i]), odd);
  }
  return __fadd_rn(even, odd);
}

// Adds values[j] and values[j + half], for half from the largest power of two below `count` on,
// which is at most 2^11.
template <int count>
__device__ __forceinline__ float sum_by_halves(float (&values)[count]) {
#pragma unroll
  for (int half = 1 << 10; half >= 1; half /= 2) {
#pragma unroll
    for (int j = 0; j + half < count; ++j) {
      if (j < half) values[j] = __fadd_rn(values[j], values[j + half]);
    }
  }
  return values[0];
}

// From the sums of the pieces that a thread holds to those of the row, of several things at once,
// for all threads of the row, which are whole warps or lie in one. `shared` has a place for each
// thread and thing and `barrier_id` is the row's own, where they are several warps.
template <int threads, int things, int count>
__device__ __forceinline__ void sums_of_row(float (&of_pieces)[things][count],
                                            float (&sums)[things], float* shared, int thread,
                                            int barrier_id) {
#pragma unroll
  for (int n = 0; n < things; ++n) sums[n] = sum_by_halves(of_pieces[n]);
  if constexpr (threads > warp_lanes) {
#pragma unroll
    for (int n = 0; n < things; ++n) shared[n * threads + thread] = sums[n];
    barrier(barrier_id, threads);
#pragma unroll
    for (int n = 0; n < things; ++n) {
      float of_warps[threads / warp_lanes];
#pragma unroll
      for (int warp = 0; warp < threads / warp_lanes; ++warp)
        of_warps[warp] = shared[n * threads + warp * warp_lanes + thread % warp_lanes];
      sums[n] = sum_by_halves(of_warps);
    }
  }
#pragma unroll
  for (int half = min(threads, warp_lanes) / 2; half >= 1; half /= 2) {
#pragma unroll
    for (int n = 0; n < things; ++n)
      sums[n] = __fadd_rn(sums[n], __shfl_xor_sync(all_lanes, sums[n], half));
  }
}

// The same of one thing.
template <int threads, int count>
__device__ __forceinline__ float sum_of_row(float (&of_pieces)[count], float* shared, int thread,
                                            int barrier_id) {
  float one[1][count];
#pragma unroll
  for (int i = 0; i < count; ++i) one[0][i] = of_pieces[i];
  float sum[1];
  sums_of_row<threads>(one, sum, shared, thread, barrier_id);
  return sum[0];
}

template <int columns, int threads>
__device__ __forceinline__ float sum_of_squares(const RowPart<columns, threads>& x, float* shared,
                                                int thread, int barrier_id) {
  constexpr int count = RowPart<columns, threads>::count;
  float of_pieces[count];
#pragma unroll
  for (int i = 0; i < count; ++i) of_pieces[i] = sum_of_squares(x.data[i]);
  return sum_of_row<threads>(of_pieces, shared, thread, barrier_id);
}

// 1 / x as __frcp_rn gives it, for x in [2^-126, 2^126) and NaN: the compiler's steps without
// the branch for other numbers, which keeps neighbouring steps apart.
__device__ __forceinline__ float reciprocal_rn(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return __fmaf_rn(r, -__fmaf_rn(r, x, -1.0f), r);
}

// As __fsqrt_rn gives it, for finite numbers from 2^-100 on and NaN, likewise.
__device__ __forceinline__ float sqrt_rn(float x) {
  float r;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  const float root = __fmul_rn(x, r);
  return __fmaf_rn(__fmaf_rn(-root, root, x), __fmul_rn(r, 0.5f), root);
}

template <int columns>
__device__ __forceinline__ float norm_factor(float sum) {
  constexpr float reciprocal = 1.0f / static_cast<float>(columns);
  const float mean = __fmaf_rn(sum, reciprocal, 1e-20f);
  return mean == __int_as_float(0x7f800000) ? 0.0f : reciprocal_rn(sqrt_rn(mean));
}

__device__ __forceinline__ u32 normalised(u32 pair, u32 weights, float factor) {
  return to_bf16x2(__fmul_rn(__fmul_rn(low_bf16(pair), factor), low_bf16(weights)),
                   __fmul_rn(__fmul_rn(high_bf16(pair), factor), high_bf16(weights)));
}

__device__ __forceinline__ uint4 normalised(const uint4& piece, const uint4& weights,
                                            float factor) {
  return {normalised(piece.x, weights.x, factor), normalised(piece.y, weights.y, factor),
          normalised(piece.z, weights.z, factor), normalised(piece.w, weights.w, factor)};
}
