// Rows of the table: which one a pair names, its pieces as they are loaded and as x has them.
#pragma once

#include "templates/common/decode.cuh"
#include "templates/engram_fetch/pieces.cuh"

constexpr i32 no_row = -1;  // zeros are written

// In the table; no_row: it has none.
__device__ __forceinline__ i32 row_of(const Args& args, u32 pair) {
  const u32 t = pair / num_heads;
  const i64 row = args.rows[t * args.rows_stride + (pair - t * num_heads)] - args.first_row;
  return row >= 0 && row < args.num_table_rows ? static_cast<i32>(row) : no_row;
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
