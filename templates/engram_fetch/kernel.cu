// Rows of the Engram table, decoded or as they are (ops.md B19.3).
//   x[t, h] = table[rows[t, h] - first_row] * 2^(its scales - 127), zeros where there is no such
//   row
// grid  (ceil(num_rows * num_heads / (threads / 32 * pairs_per_warp)))   block (threads)
// shared: none
//
// With reads_once only one of the pairs that name a row reads it: the one that has claimed it
// first. Which one that is differs from run to run, what is written does not. copy.cu copies to the
// others.
#include "templates/engram_fetch/table.cuh"

// Claims the row for the pair. The pair that has it already; none: -1. Half of the claims are free
// at the end, so that a free one or the row's is soon met.
__device__ __forceinline__ i32 claimed_before(const Args& args, i32 row, u32 pair) {
  const u32 capacity = claims_of_pair * pairs_of(args);
  const u64 own = static_cast<u64>(row) << 32 | pair;
  u32 place = __umulhi(static_cast<u32>(row) * 0x9e3779b1u, capacity);
  for (u32 probes = 0; probes < capacity; ++probes) {
    const u64 other = atomicCAS(claims_of(args) + place, no_claim, own);
    if (other == no_claim) return -1;
    if (other >> 32 == row) return static_cast<i32>(other);
    place = place + 1 == capacity ? 0 : place + 1;
  }
  return -1;
}

extern "C" __global__ void __launch_bounds__(threads)
    engram_fetch(const __grid_constant__ Args args) {
  const PairsOfWarp own(args);
  if (own.count == 0) return;
  i32 row = skipped;
  if (lane_id() < own.count) {
    const u32 pair = own.first + lane_id();
    row = row_of(args, pair);
    if constexpr (reads_once) {
      const i32 original = row >= 0 ? claimed_before(args, row, pair) : -1;
      originals_of(args)[pair] = original;
      if (original >= 0) row = skipped;
    }
  }
  through_pieces<Codes>(
      own, row, [&](i32 from, int piece) { return load_codes(args, from, piece); },
      [&](u32 pair, int piece, const Codes& data) { store_piece(args, pair, piece, data); });
}
