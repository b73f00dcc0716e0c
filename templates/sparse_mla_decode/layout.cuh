// What the decode kernels and the combine agree on: how heads are cut into blocks, and where
// partial results lie.
#pragma once

#include "kiln_constants.h"
#include "templates/common/decode.cuh"
#include "templates/common/rope.cuh"
#include "templates/common/types.cuh"

constexpr int head_dim = 512;
constexpr int rope_dims = 64;
constexpr int chunk_dims = 64;
constexpr int lane_dims = 16;  // of a chunk

constexpr int m_tiles = heads_per_cta / 16;
constexpr int head_blocks = (heads + heads_per_cta - 1) / heads_per_cta;

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
struct __align__(8) SoftmaxState {
  float reference;  // base 2; minus infinity: no valid slot so far
  float sum;        // of exp2(score - reference), without the sink
};

// Workspace: outputs of splits, relative to the reference as they are, then [row][head][split]
// SoftmaxState. An output is fp32 without its last byte: bf16 would double the error of a row whose
// splits cancel. Eight neighbouring columns are a uint4 of their upper halves and a uint2 of their
// third bytes; first all of those, then all of these, both as
// [row][split][16 heads][piece][head][t]. Piece 2c + i has the eight columns 64c + 16t + 8i and on:
// of two k-tiles of lane t.
constexpr int pieces = head_dim / 32;
constexpr i64 partials_per_split = static_cast<i64>(head_blocks) * m_tiles * pieces * 64;

struct PartialColumns {
  uint4* upper;
  uint2* lower;

  __device__ __forceinline__ PartialColumns operator+(i64 parts) const {
    return {upper + parts, lower + parts};
  }
};

__device__ __forceinline__ PartialColumns partial_columns(const Args& args, i64 row, int splits,
                                                          int split, int head_block) {
  uint4* const upper = reinterpret_cast<uint4*>(args.workspace);
  const PartialColumns all = {
      upper, reinterpret_cast<uint2*>(upper + args.num_rows * splits * partials_per_split)};
  return all + ((row * splits + split) * partials_per_split + head_block * (m_tiles * pieces * 64));
}

// Of split 0; the others follow.
__device__ __forceinline__ SoftmaxState* states_of_head(const Args& args, i64 row, int splits,
                                                        int head) {
  const i64 parts = args.num_rows * splits * partials_per_split;
  SoftmaxState* const states =
      reinterpret_cast<SoftmaxState*>(partial_columns(args, 0, splits, 0, 0).lower + parts);
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
