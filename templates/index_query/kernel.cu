// Rotates and quantises the indexer's queries and scales its head weights (ops.md B11, bit-exact).
//   codes, scales = quantised(rope(q[t, h], positions[t]))       weights[t, h] = w[t, h] * 2^-6
// grid  (at least ceil(8 * num_rows * head_groups / threads))   block (threads)   shared: none
//
// 8 lanes to a head, each with 8 elements of its half that does not rotate and 8 of the other, so
// that all lanes do the same. A thread has heads that lie head_groups apart, so that position and
// angles are read once; while it works on one, the next is on its way. Its loop has no branch.
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
constexpr bool rows_have_warps = head_groups * lanes_per_head % warp_lanes == 0;
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

// Of the groups of both halves; in q8k they are one.
struct Largest {
  u32 of_still;
  u32 of_turning;
};

__device__ __forceinline__ Largest largest_of(const HeadPart& x) {
  if constexpr (quantiser == q8k) {
    const u32 both =
        max_or_nan_bf16x2(largest_magnitude(x.still.pairs), largest_magnitude(x.turning.pairs));
    const u32 largest =
        largest_of_lanes<lanes_per_head>(max_or_nan_bf16x2(both, swapped_halves(both)));
    return {largest, largest};
  }
  Largest result;
  largest_of_groups<group_of(q4m) / 8>(x.still, x.turning, result.of_still, result.of_turning);
  return result;
}

// Where a lane reads and writes of a head.
struct Places {
  const u16* q;
  u16* y;
  u8* codes;
  u8* scales;
};

__device__ __forceinline__ Places places_of(const Args& args, i64 row, i64 head, u32 lane) {
  Places at{};
  at.q = args.q + row * args.q_stride0 + head * args.q_stride1 + lane * 8;
  if constexpr (output == output_bf16) {
    at.y = args.y + row * args.y_stride0 + head * args.y_stride1 + lane * 8;
  } else {
    constexpr u32 bytes = output == output_q8k ? 8 : 4;
    at.codes = args.codes + row * args.codes_stride0 + head * args.codes_stride1 + lane * bytes;
  }
  if constexpr (output == output_q4m)
    at.scales = args.scales + row * args.scales_stride0 + head * args.scales_stride1 + lane / 4;
  return at;
}

__device__ __forceinline__ void store(const Places& at, u32 lane, const Quantised& still,
                                      const Quantised& turning) {
  if constexpr (output == output_bf16) {
    store_16(at.y, {still.fake[0], still.fake[1], still.fake[2], still.fake[3]});
    store_16(at.y + first_rope_column,
             {turning.fake[0], turning.fake[1], turning.fake[2], turning.fake[3]});
  } else if constexpr (output == output_q8k) {
    *reinterpret_cast<uint2*>(at.codes) = still.codes;
    *reinterpret_cast<uint2*>(at.codes + 64) = turning.codes;
  } else {
    *reinterpret_cast<u32*>(at.codes) = still.codes.x;
    *reinterpret_cast<u32*>(at.codes + 32) = turning.codes.x;
    if (lane % 4 == 0) at.scales[0] = static_cast<u8>(still.scale);
    if (lane % 4 == 0) at.scales[2] = static_cast<u8>(turning.scale);
  }
}

// 2^-6, in q8k times the scale.
__device__ __forceinline__ float weight_factor(u32 scale) {
  if constexpr (output != output_q8k) return 0x1p-6f;
  constexpr u32 fp32_nan = 0x7fc00000u;
  return 0x1p-6f * __uint_as_float(scale == 255 ? fp32_nan : scale << 23);
}

extern "C" __global__ void __launch_bounds__(threads)
    index_query(const __grid_constant__ Args args) {
  const u32 lane = threadIdx.x % lanes_per_head;
  const i64 number =
      static_cast<i64>(blockIdx.x) * (threads / lanes_per_head) + threadIdx.x / lanes_per_head;
  // Lanes of one warp shuffle together: where they belong to several rows, those beyond the last
  // row work in vain, as those beyond the last head do.
  const i64 wanted = number / head_groups;
  if (rows_have_warps && wanted >= args.num_rows) return;
  const i64 row = rows_have_warps ? wanted : min(wanted, args.num_rows - 1);
  const bool has_row = wanted == row;
  const int first_head = static_cast<int>(number % head_groups);
  i32 position = args.positions[row];
  Places at = places_of(args, row, first_head, lane);
  HeadPart next = {load_piece(at.q), load_piece(at.q + first_rope_column)};
  position = tied_to(position, next.still.pairs[0] ^ next.turning.pairs[0], args.num_rows);
  const int own_head = first_head + static_cast<int>(lane) * head_groups;
  const bool has_weight = has_row && lane < heads_per_thread && own_head < heads;
  float weight = 0.0f;
  if (has_weight) weight = low_bf16(args.head_weights[row * args.head_weights_stride + own_head]);

  const bool rotates = position >= 0 && position < args.num_positions;
  RopeAngles angles{};
  if (rotates) angles = load_rope_angles(args.rope_table + position * args.rope_table_stride, lane);
#pragma unroll 2
  for (int i = 0; i < heads_per_thread; ++i) {
    HeadPart x = next;
    const i64 step = has_head(first_head + (i + 1) * head_groups) ? head_groups : 0;
    const Places to = at;
    if (i + 1 < heads_per_thread) {
      at.q += step * args.q_stride1;
      next = {load_piece(at.q), load_piece(at.q + first_rope_column)};
      if constexpr (output == output_bf16) at.y += step * args.y_stride1;
      if constexpr (output != output_bf16) at.codes += step * args.codes_stride1;
      if constexpr (output == output_q4m) at.scales += step * args.scales_stride1;
    }
    Piece turned = x.turning;
    rotate<false>(turned.pairs, angles);
    if (rotates) x.turning = turned;
    const Largest largest = largest_of(x);
    const Quantised still = quantise<quantiser>(x.still, largest.of_still);
    const Quantised turning = quantise<quantiser>(x.turning, largest.of_turning);
    if (has_row && has_head(first_head + i * head_groups)) store(to, lane, still, turning);
    if (lane == i) weight *= weight_factor(still.scale);
  }
  if (has_weight) args.weights[row * args.weights_stride + own_head] = weight;
}
