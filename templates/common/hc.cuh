// Mixing of the four residual streams (ops.md B1.3, B1.4, (f)5), the same bits wherever it is a
// step: no fused multiply-adds. A piece is 8 columns of bf16; h[i] is that of stream i.
#pragma once

#include "templates/common/decode.cuh"
#include "templates/common/memory.cuh"
#include "templates/common/types.cuh"

constexpr int streams = 4;

struct Streams {
  uint4 h[streams];

  __device__ __forceinline__ void load(const u16* row, i64 stream_stride) {
#pragma unroll
    for (int i = 0; i < streams; ++i)
      h[i] = load_16(reinterpret_cast<const u8*>(row + i * stream_stride));
  }
  __device__ __forceinline__ void store(u16* row, i64 stream_stride) const {
#pragma unroll
    for (int i = 0; i < streams; ++i) store_16(row + i * stream_stride, h[i]);
  }
};

// What a token's streams become: stream j takes post[j] of y and comb[i][j] of stream i.
struct PostGates {
  float post[streams];
  float comb[streams][streams];

  __device__ __forceinline__ void load(const float* post_row, const float* comb_row,
                                       i64 comb_stride) {
    const float4 p = load_four(post_row);
    post[0] = p.x, post[1] = p.y, post[2] = p.z, post[3] = p.w;
#pragma unroll
    for (int i = 0; i < streams; ++i) {
      const float4 c = load_four(comb_row + i * comb_stride);
      comb[i][0] = c.x, comb[i][1] = c.y, comb[i][2] = c.z, comb[i][3] = c.w;
    }
  }
  __device__ __forceinline__ float mixed(float y, const float (&h)[streams], int j) const {
    float sum = __fmul_rn(post[j], y);
#pragma unroll
    for (int i = 0; i < streams; ++i) sum = __fadd_rn(sum, __fmul_rn(comb[i][j], h[i]));
    return sum;
  }
};

__device__ __forceinline__ void unpack(const u32 (&pairs)[streams], float (&low)[streams],
                                       float (&high)[streams]) {
#pragma unroll
  for (int i = 0; i < streams; ++i) {
    low[i] = low_bf16(pairs[i]);
    high[i] = high_bf16(pairs[i]);
  }
}

__device__ __forceinline__ void mix_pair(u32 y, u32 (&h)[streams], const PostGates& gates) {
  float low[streams], high[streams];
  unpack(h, low, high);
#pragma unroll
  for (int j = 0; j < streams; ++j)
    h[j] = to_bf16x2(gates.mixed(low_bf16(y), low, j), gates.mixed(high_bf16(y), high, j));
}

// From y and the streams before to the streams after, in place.
__device__ __forceinline__ void mix(const uint4& y, Streams& x, const PostGates& gates) {
  const auto pair = [&](u32 of_y, u32 uint4::*which) {
    u32 h[streams] = {x.h[0].*which, x.h[1].*which, x.h[2].*which, x.h[3].*which};
    mix_pair(of_y, h, gates);
#pragma unroll
    for (int j = 0; j < streams; ++j) x.h[j].*which = h[j];
  };
  pair(y.x, &uint4::x);
  pair(y.y, &uint4::y);
  pair(y.z, &uint4::z);
  pair(y.w, &uint4::w);
}

// The fold with these weights is the mean of the streams.
__device__ __forceinline__ float4 quarters() { return {0.25f, 0.25f, 0.25f, 0.25f}; }

// ((pre[0] * h0 + pre[1] * h1) + pre[2] * h2) + pre[3] * h3, every operation rounded.
__device__ __forceinline__ float folded(const float (&h)[streams], const float4& pre) {
  const float two = __fadd_rn(__fmul_rn(pre.x, h[0]), __fmul_rn(pre.y, h[1]));
  const float three = __fadd_rn(two, __fmul_rn(pre.z, h[2]));
  return __fadd_rn(three, __fmul_rn(pre.w, h[3]));
}

__device__ __forceinline__ u32 fold_pair(const u32 (&h)[streams], const float4& pre) {
  float low[streams], high[streams];
  unpack(h, low, high);
  return to_bf16x2(folded(low, pre), folded(high, pre));
}

__device__ __forceinline__ uint4 fold(const Streams& x, const float4& pre) {
  const auto pair = [&](u32 uint4::*which) {
    const u32 h[streams] = {x.h[0].*which, x.h[1].*which, x.h[2].*which, x.h[3].*which};
    return fold_pair(h, pre);
  };
  return {pair(&uint4::x), pair(&uint4::y), pair(&uint4::z), pair(&uint4::w)};
}
