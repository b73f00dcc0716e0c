// What the decode and the combine kernel agree on: how heads, dims and partial results are spread
// over warps and lanes. Lane = 4 * g + t throughout.
//
// A warp owns dims_per_warp of the 512 dims, in chunks of 64. Of a chunk, lane t owns the 16 dims
// 16t .. 16t + 15, and k-tile j of the chunk takes from it the four dims 4j + {1, 3} (its "odd"
// octet) and 4j + {0, 2} (its "even" octet): the order in which FP8 and FP4 codes unpack with the
// fewest instructions. Scores sum over dims, so any order serves as long as queries use the same;
// outputs come out in the same order, and a lane ends up with 16 neighbouring columns of its heads.
#pragma once

#include "kiln_constants.h"
#include "templates/common/decode.cuh"
#include "templates/common/types.cuh"

constexpr int head_dim = 512;
constexpr int rope_dims = 64;
constexpr int chunk_dims = 64;
constexpr int lane_dims = 16;  // of a chunk

constexpr int m_tiles = heads_per_cta / 16;
constexpr int dims_per_warp = head_dim / warps;
constexpr int chunks = dims_per_warp / chunk_dims;
constexpr int k_tiles = dims_per_warp / 16;
constexpr int k_tiles_per_chunk = 4;
constexpr int octets = 2;  // of a k-tile: odd, even
constexpr int head_blocks = (heads + heads_per_cta - 1) / heads_per_cta;

// Of the four columns that a lane holds of k-tile j of the output.
__device__ __forceinline__ int first_dim_of(int warp, int j, int lane) {
  return warp * dims_per_warp + j / k_tiles_per_chunk * chunk_dims + lane % 4 * lane_dims +
         j % k_tiles_per_chunk * 4;
}

// Softmax in base 2: exp(score) = exp2(score_scale * dot - reference).
constexpr double log2_e = 1.4426950408889634;
constexpr double ln_2 = 0.6931471805599453;
// A function, because NVRTC 12.1 has no constant expression of this value.
__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Within one unit in the last place; 0 of infinity. A denominator is at least 1.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Keeps the order, as integers.
__device__ __forceinline__ i32 ordered(i32 bits) { return bits ^ (bits >> 31 & 0x7fffffff); }

__device__ __forceinline__ float largest_of_warp(float value) {
  return __int_as_float(ordered(__reduce_max_sync(all_lanes, ordered(__float_as_int(value)))));
}

// Of the scores of a head. Partial results of a split are this and the output.
struct SoftmaxState {
  float reference;  // base 2; minus infinity: no valid slot so far
  float sum;        // of exp2(score - reference), without the sink
};

// Workspace: [row][split][head block][m-tile][piece][head][t] uint4 of eight neighbouring columns
// of the output in bf16, relative to the reference as they are, then [row][head][split]
// SoftmaxState. Piece 2c + i has the eight columns 64c + 16t + 8i and on: of two k-tiles of lane t.
constexpr int pieces = head_dim / 32;
constexpr i64 partials_per_split = static_cast<i64>(head_blocks) * m_tiles * pieces * 64;  // uint4

__device__ __forceinline__ uint4* partial_columns(const Args& args, i64 row, int splits, int split,
                                                  int head_block) {
  return reinterpret_cast<uint4*>(args.workspace) + (row * splits + split) * partials_per_split +
         head_block * (m_tiles * pieces * 64);
}

// Of split 0; the others follow.
__device__ __forceinline__ SoftmaxState* states_of_head(const Args& args, i64 row, int splits,
                                                        int head) {
  SoftmaxState* states = reinterpret_cast<SoftmaxState*>(
      reinterpret_cast<uint4*>(args.workspace) + args.num_rows * splits * partials_per_split);
  return states + (row * (head_blocks * heads_per_cta) + head) * splits;
}

// Base 2; minus infinity: none.
__device__ __forceinline__ float load_sink(const Args& args, int head) {
  if (args.sink == nullptr || head >= heads) return minus_infinity();
  return __fmul_rn(args.sink[head], static_cast<float>(log2_e));
}

// 1 / (sum + exp2(sink - reference)); 0 for a row without slots, so that its output is +0.
__device__ __forceinline__ float inverse_denominator(float sink, const SoftmaxState& state) {
  if (state.reference == minus_infinity()) return 0.0f;
  return reciprocal_approx(__fadd_rn(state.sum, exp2_approx(__fsub_rn(sink, state.reference))));
}

__device__ __forceinline__ void store_lse(const Args& args, i64 row, int head,
                                          const SoftmaxState& state) {
  if (args.lse == nullptr || head >= heads) return;
  args.lse[row * args.lse_stride + head] =
      state.reference == minus_infinity()
          ? minus_infinity()
          : __fmul_rn(__fadd_rn(state.reference, log2_approx(state.sum)), static_cast<float>(ln_2));
}

// Cosines and sines of the row's position; nullptr: it is not in the table, and nothing is rotated.
__device__ __forceinline__ const float* rope_of_row(const Args& args, i64 row) {
  const i64 position = args.positions[row];
  if (position < 0 || position >= args.num_positions) return nullptr;
  return args.rope_table + position * args.rope_table_stride;
}

// A pair of neighbouring dims, rotated back by its angle (ops.md B5, B16): bf16 before and after,
// products rounded, then one addition.
__device__ __forceinline__ u32 rotate_back(u32 pair, float cosine, float sine) {
  const float a = low_bf16(pair);
  const float b = high_bf16(pair);
  return to_bf16x2(__fadd_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine)),
                   __fsub_rn(__fmul_rn(b, cosine), __fmul_rn(a, sine)));
}
