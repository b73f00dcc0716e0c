// What the kernels of engram_fetch share. A pair is a row and a head, numbered row after row; a
// warp has some neighbouring ones, and lane i knows about the one at place i.
//
// The workspace of a table on the host, 20 bytes a pair:
//   u64[2 * pairs]  claims, a hash table of the rows that are read: row << 32 | pair that reads it
//   i32[pairs]      for each pair the one that it is a copy of; -1: of none
#pragma once

#include "kiln_args.h"
#include "kiln_constants.h"  // num_heads
#include "templates/common/types.cuh"

constexpr u64 no_claim = ~0ull;  // its row is no row
constexpr int claims_of_pair = 2;

__device__ __forceinline__ u32 pairs_of(const Args& args) {
  return static_cast<u32>(args.num_rows) * num_heads;
}
__device__ __forceinline__ u64* claims_of(const Args& args) {
  return static_cast<u64*>(args.workspace);
}
__device__ __forceinline__ i32* originals_of(const Args& args) {
  return reinterpret_cast<i32*>(claims_of(args) +
                                static_cast<i64>(claims_of_pair) * pairs_of(args));
}
