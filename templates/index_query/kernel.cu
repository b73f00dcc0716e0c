// Rotates and quantises the indexer's queries and scales its head weights (ops.md B11, bit-exact).
//   codes, scales = quantised(rope(q[t, h], positions[t]))       weights[t, h] = w[t, h] * 2^-6
// grid  (at least ceil(num_rows * heads / (threads / 16 * heads_per_thread)))   block (threads)
// shared: none
//
// 16 lanes of 8 elements to a head, the upper 8 rotate. Query, weight and position are loaded at
// once; only the angles wait for a load.
#include "kiln_args.h"
#include "kiln_constants.h"  // heads, output, threads, heads_per_thread
#include "templates/common/memory.cuh"
#include "templates/common/quantise_group.cuh"
#include "templates/common/rope.cuh"
#include "templates/common/types.cuh"

enum Output : int { output_q4m = 0, output_q8k = 1, output_bf16 = 2 };

constexpr int lanes_per_head = 16;
constexpr int first_rope_lane = 8;
constexpr int heads_at_once = threads / lanes_per_head;
constexpr int quantiser = output == output_q8k ? q8k : q4m;

struct HeadPiece {
  uint4 x;
  float weight;
  i64 row;
  u32 head;
  i32 position;
  bool exists;
};

__device__ __forceinline__ void store_head(const Args& args, const HeadPiece& piece,
                                           const Quantised& q, int lane) {
  float factor = 0x1p-6f;
  if constexpr (output == output_bf16) {
    store_16(args.y + piece.row * args.y_stride0 + piece.head * args.y_stride1 + lane * 8,
             {q.fake[0], q.fake[1], q.fake[2], q.fake[3]});
  } else {
    u8* codes = args.codes + piece.row * args.codes_stride0 + piece.head * args.codes_stride1;
    const uint2 packed = packed_codes<quantiser>(q);
    if constexpr (output == output_q4m) {
      reinterpret_cast<u32*>(codes)[lane] = packed.x;
      u8* scales = args.scales + piece.row * args.scales_stride0 + piece.head * args.scales_stride1;
      if (lane % 4 == 0) scales[lane / 4] = static_cast<u8>(q.scale);
    } else {
      reinterpret_cast<uint2*>(codes)[lane] = packed;
      constexpr u32 fp32_nan = 0x7fc00000u;
      factor *= __uint_as_float(q.scale == 255 ? fp32_nan : q.scale << 23);
    }
  }
  if (lane == 0) args.weights[piece.row * args.weights_stride + piece.head] = piece.weight * factor;
}

extern "C" __global__ void __launch_bounds__(threads)
    index_query(const __grid_constant__ Args args) {
  const int lane = static_cast<int>(threadIdx.x) % lanes_per_head;
  const i64 all = args.num_rows * heads;
  const i64 first_of_cta = static_cast<i64>(blockIdx.x) * (heads_at_once * heads_per_thread);
  if (first_of_cta >= all) return;
  const i64 first = first_of_cta + threadIdx.x / lanes_per_head;
  HeadPiece pieces[heads_per_thread];
#pragma unroll
  for (int i = 0; i < heads_per_thread; ++i) {
    HeadPiece& piece = pieces[i];
    const i64 number = min(first + i * heads_at_once, all - 1);
    piece.exists = first + i * heads_at_once < all;
    piece.row = number / heads;
    piece.head = static_cast<u32>(number - piece.row * heads);
    piece.position = args.positions[piece.row];
    piece.x = load_16(reinterpret_cast<const u8*>(args.q + piece.row * args.q_stride0 +
                                                  piece.head * args.q_stride1 + lane * 8));
    piece.weight = low_bf16(args.head_weights[piece.row * args.head_weights_stride + piece.head]);
  }
  RopeAngles angles[heads_per_thread];
#pragma unroll
  for (int i = 0; i < heads_per_thread; ++i) {
    const i32 position = pieces[i].position;
    const bool rotates = lane >= first_rope_lane && position >= 0 && position < args.num_positions;
    pieces[i].position = rotates ? position : -1;
    if (rotates) {
      angles[i] = load_rope_angles(args.rope_table + position * args.rope_table_stride,
                                   lane - first_rope_lane);
    }
  }
#pragma unroll
  for (int i = 0; i < heads_per_thread; ++i) {
    uint4 x = pieces[i].x;
    if (pieces[i].position >= 0) x = rotated<false>(x, angles[i]);
    const Quantised q = quantise<quantiser>({{x.x, x.y, x.z, x.w}});
    if (pieces[i].exists) store_head(args, pieces[i], q, lane);
  }
}
