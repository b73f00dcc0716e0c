// Copies x of the pairs that have read a row of the table to the other pairs that name it.
// grid  (ceil(num_rows * num_heads / (threads / 32 * pairs_per_warp)))   block (threads)
// shared: none
#include "templates/engram_fetch/pieces.cuh"

struct Bytes {
  uint4 data;
  u32 scale;
};

__device__ __forceinline__ Bytes load_bytes(const Args& args, u32 pair, int piece) {
  const PlaceOfX from(pair, piece);
  if constexpr (x_format == x_codes) {
    return {load_16(args.x_codes + from.row * args.x_codes_stride + from.column),
            args.x_scales[from.row * args.x_scales_stride + from.group]};
  } else {
    return {load_16(reinterpret_cast<const u8*>(args.x + from.row * args.x_stride + from.column)),
            0};
  }
}

__device__ __forceinline__ void store_bytes(const Args& args, u32 pair, int piece,
                                            const Bytes& bytes) {
  const PlaceOfX to(pair, piece);
  if constexpr (x_format == x_codes) {
    store_16(args.x_codes + to.row * args.x_codes_stride + to.column, bytes.data);
    if (piece % pieces_per_group == 0)
      args.x_scales[to.row * args.x_scales_stride + to.group] = static_cast<u8>(bytes.scale);
  } else {
    store_16(args.x + to.row * args.x_stride + to.column, bytes.data);
  }
}

extern "C" __global__ void __launch_bounds__(threads)
    engram_fetch_copy(const __grid_constant__ Args args) {
  const PairsOfWarp own(args);
  i32 original = skipped;
  if (lane_id() < own.count) {
    original = originals_of(args)[own.first + lane_id()];
    if (original < 0) original = skipped;
  }
  if (!__any_sync(all_lanes, original != skipped)) return;
  through_pieces<Bytes>(
      own, original, [&](i32 from, int piece) { return load_bytes(args, from, piece); },
      [&](u32 pair, int piece, const Bytes& bytes) { store_bytes(args, pair, piece, bytes); });
}
