// Rotates and quantises the indexer's queries and scales its head weights (ops.md B11, bit-exact).
//   codes, scales = quantised(rope(q[t, h], positions[t]))       weights[t, h] = w[t, h] * 2^-6
// grid  (at least ceil(8 * num_rows * head_groups / threads))   block (threads)   shared: none
//
// 8 lanes to a head, each with 8 elements of its half that does not rotate and 8 of the other, so
// that all lanes do the same. A thread has heads that lie head_groups apart, so that position and
// angles are read once. Queries, weights and position are loaded at once; only the angles wait for
// a load.
#include "kiln_args.h"
#include "kiln_constants.h"  // heads, output, threads, heads_per_thread
#include "templates/common/memory.cuh"
#include "templates/common/quantise_group.cuh"
#include "templates/common/rope.cuh"
#include "templates/common/types.cuh"

enum Output : int { output_q4m = 0, output_q8k = 1, output_bf16 = 2 };

constexpr int lanes_per_head = 8;
constexpr int first_rope_column = 64;
constexpr int head_groups = (heads + heads_per_thread - 1) / heads_per_thread;
constexpr int quantiser = output == output_q8k ? q8k : q4m;
static_assert(heads_per_thread <= lanes_per_head);  // lane i has the weight of the i-th head

__device__ __forceinline__ bool has_head(int head) {
  return heads % heads_per_thread == 0 || head < heads;
}

// A lane's part of a head: elements 8 * lane .. of each half.
struct HeadPart {
  Piece still;
  Piece turning;
};

struct QuantisedPart {
  Quantised still;
  Quantised turning;
};

__device__ __forceinline__ QuantisedPart quantise(const HeadPart& x) {
  u32 of_still, of_turning;
  if constexpr (quantiser == q8k) {
    const u32 largest =
        max_or_nan_bf16x2(largest_magnitude(x.still.pairs), largest_magnitude(x.turning.pairs));
    of_still = of_turning =
        largest_of_lanes<lanes_per_head>(max_or_nan_bf16x2(largest, swapped_halves(largest)));
  } else {
    largest_of_groups<group_of(q4m) / 8>(x.still, x.turning, of_still, of_turning);
  }
  return {quantise<quantiser>(x.still, of_still), quantise<quantiser>(x.turning, of_turning)};
}

__device__ __forceinline__ void store(const Args& args, i64 row, int head, int lane,
                                      const QuantisedPart& part) {
  const auto [still, turning] = part;
  if constexpr (output == output_bf16) {
    u16* y = args.y + row * args.y_stride0 + head * args.y_stride1 + lane * 8;
    store_16(y, {still.fake[0], still.fake[1], still.fake[2], still.fake[3]});
    store_16(y + first_rope_column,
             {turning.fake[0], turning.fake[1], turning.fake[2], turning.fake[3]});
    return;
  }
  u8* codes = args.codes + row * args.codes_stride0 + head * args.codes_stride1;
  if constexpr (output == output_q8k) {
    reinterpret_cast<uint2*>(codes)[lane] = still.codes;
    reinterpret_cast<uint2*>(codes)[lanes_per_head + lane] = turning.codes;
    return;
  }
  if constexpr (output == output_q4m) {
    reinterpret_cast<u32*>(codes)[lane] = still.codes.x;
    reinterpret_cast<u32*>(codes)[lanes_per_head + lane] = turning.codes.x;
    if (lane % 4 != 0) return;
    u8* scales = args.scales + row * args.scales_stride0 + head * args.scales_stride1;
    scales[lane / 4] = static_cast<u8>(still.scale);
    scales[2 + lane / 4] = static_cast<u8>(turning.scale);
  }
}

// 2^-6, in q8k times the scale.
__device__ __forceinline__ float weight_factor(const QuantisedPart& part) {
  if constexpr (output != output_q8k) return 0x1p-6f;
  constexpr u32 fp32_nan = 0x7fc00000u;
  const u32 scale = part.still.scale;
  return 0x1p-6f * __uint_as_float(scale == 255 ? fp32_nan : scale << 23);
}

extern "C" __global__ void __launch_bounds__(threads)
    index_query(const __grid_constant__ Args args) {
  const int lane = static_cast<int>(threadIdx.x) % lanes_per_head;
  const i64 number = static_cast<i64>(blockIdx.x) * (threads / lanes_per_head) +
                     static_cast<int>(threadIdx.x) / lanes_per_head;
  const i64 wanted = number / head_groups;
  const int first_head = static_cast<int>(number - wanted * head_groups);
  // Lanes of one warp shuffle together: beyond the last row they work in vain.
  const i64 row = min(wanted, args.num_rows - 1);
  i32 position = args.positions[row];
  const u16* of_first = args.q + row * args.q_stride0 + first_head * args.q_stride1 + lane * 8;
  const i64 step = head_groups * args.q_stride1;
  HeadPart x[heads_per_thread];
#pragma unroll
  for (int i = 0; i < heads_per_thread; ++i) {
    const u16* q = of_first + (has_head(first_head + i * head_groups) ? i * step : 0);
    x[i] = {load_piece(q), load_piece(q + first_rope_column)};
  }
#pragma unroll
  for (const HeadPart& part : x)
    position = tied_to(position, part.still.pairs[0] ^ part.turning.pairs[0], args.num_rows);
  const int own_head = first_head + lane * head_groups;
  const bool has_weight = lane < heads_per_thread && has_head(own_head) && wanted == row;
  float weight = 0.0f;
  if (has_weight) weight = low_bf16(args.head_weights[row * args.head_weights_stride + own_head]);

  const bool rotates = position >= 0 && position < args.num_positions;
  RopeAngles angles;
  if (rotates) angles = load_rope_angles(args.rope_table + position * args.rope_table_stride, lane);
#pragma unroll
  for (int i = 0; i < heads_per_thread; ++i) {
    if (rotates) rotate<false>(x[i].turning.pairs, angles);
    const QuantisedPart part = quantise(x[i]);
    const int head = first_head + i * head_groups;
    if (wanted == row && has_head(head)) store(args, row, head, lane, part);
    if (lane == i) weight *= weight_factor(part);
  }
  if (has_weight) args.weights[row * args.weights_stride + own_head] = weight;
}
