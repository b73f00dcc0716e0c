// Rows of the Engram table, decoded or as they are (ops.md B19.3).
//   x[t, h] = table[rows[t, h] - first_row] * 2^(its scales - 127), zeros where there is no such
//   row
// grid  (ceil(num_rows * num_heads / (threads / 32 * pairs_per_warp)))   block (threads)
// shared: none
//
// With reads_once only one of the pairs that name a row reads it: the one that has claimed it
// first. Which one that is differs from run to run, what is written does not. copy.cu copies to the
// others.
#include "templates/common/decode.cuh"
#include "templates/engram_fetch/pieces.cuh"

constexpr i32 no_row = -1;  // zeros are written

// In the table; no_row: it has none.
__device__ __forceinline__ i32 row_of(const Args& args, u32 pair) {
  const u32 t = pair / num_heads;
  const i64 row = args.rows[t * args.rows_stride + (pair - t * num_heads)] - args.first_row;
  return row >= 0 && row < args.num_table_rows ? static_cast<i32>(row) : no_row;
}

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

struct Codes {
  uint4 codes;  // of bf16 the first half
  u32 scale;
};

__device__ __forceinline__ Codes load_codes(const Args& args, i32 row, int piece) {
  if (row < 0) return {{0, 0, 0, 0}, 0};
  const u8* from = args.table + row * args.table_stride + piece * piece_columns;
  const u32 scale =
      load_stream_1(args.table_scales + row * args.table_scales_stride + piece / pieces_per_group);
  if constexpr (x_format == x_codes) {
    return {load_16(from), scale};
  } else {
    const uint2 codes = load_stream_8(from);
    return {{codes.x, codes.y, 0, 0}, scale};
  }
}

__device__ __forceinline__ void store_piece(const Args& args, u32 pair, int piece,
                                            const Codes& data) {
  const PlaceOfX place(pair, piece);
  if constexpr (x_format == x_codes) {
    store_16(args.x_codes + place.row * args.x_codes_stride + place.column, data.codes);
    if (piece % pieces_per_group == 0)
      args.x_scales[place.row * args.x_scales_stride + place.group] = static_cast<u8>(data.scale);
  } else {
    const u32 scale = both_halves(ue8m0_to_bf16(data.scale));
    const uint2 low = decode_e4m3x4(data.codes.x, scale);
    const uint2 high = decode_e4m3x4(data.codes.y, scale);
    store_16(args.x + place.row * args.x_stride + place.column, {low.x, low.y, high.x, high.y});
  }
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
