// The pairs of row and expert, numbered row by row, and the part of them that a CTA has.
#pragma once

#include "kiln_args.h"
#include "kiln_constants.h"  // experts, top_k, block, threads, is_counted
#include "templates/common/types.cuh"

constexpr int no_expert = -1;
constexpr int count_vectors = (experts + 3) / 4;  // of a CTA's counts in the workspace

__device__ __forceinline__ u32 number_of_pairs(const Args& args) {
  return static_cast<u32>(args.num_rows) * static_cast<u32>(top_k);
}

// Experts of the pairs first, first + threads .. as far as they are below end; no_expert for what
// is skipped or beyond. All are asked for before the first is looked at.
template <int count>
__device__ __forceinline__ void find_experts(const Args& args, u32 first, u32 end,
                                             i32 (&of)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const u32 pair = first + i * threads;
    const u32 row = pair / static_cast<u32>(top_k);
    const u32 column = pair - row * static_cast<u32>(top_k);
    of[i] = pair < end ? args.experts[row * args.experts_stride + column] : no_expert;
  }
  if (args.expert_map != nullptr) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const bool is_in_map = of[i] >= 0 && of[i] < args.num_global_experts;
      of[i] = is_in_map ? args.expert_map[of[i]] : no_expert;
    }
  }
#pragma unroll
  for (int i = 0; i < count; ++i)
    of[i] = static_cast<u32>(of[i]) < static_cast<u32>(experts) ? of[i] : no_expert;
}

__device__ __forceinline__ i32 expert_of(const Args& args, u32 pair, u32 end) {
  i32 of[1];
  find_experts(args, pair, end, of);
  return of[0];
}

struct Part {
  u32 begin;
  u32 end;

  __device__ __forceinline__ explicit Part(u32 all) {
    const u32 of_cta = (all + gridDim.x - 1) / gridDim.x;
    begin = min(blockIdx.x * of_cta, all);
    end = min(begin + of_cta, all);
  }
};

// Calls take(pair, expert) for the pairs of [begin, end) that are not skipped, each by one thread.
template <typename Take>
__device__ __forceinline__ void for_each_pair(const Args& args, u32 begin, u32 end, Take take) {
  constexpr int batch = 4;
#pragma unroll 1
  for (u32 first = begin + threadIdx.x; first < end; first += batch * threads) {
    i32 of[batch];
    find_experts(args, first, end, of);
#pragma unroll
    for (int i = 0; i < batch; ++i)
      if (of[i] != no_expert) take(first + i * threads, of[i]);
  }
}
