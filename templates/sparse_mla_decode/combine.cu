// Joins the splits of sparse_mla_decode (ops.md B14.1).
//   M = max_s reference_s   w_s = exp2(reference_s - M)
//   out[t, h] = sum_s w_s * output_s / (sum_s w_s * sum_s + exp(sink[h] - M))
// grid  (num_rows * heads * warps_per_head / block_warps)   block (32 * block_warps)   shared: none
//
// Lane 4 * (pieces_of_warp * r + p) + t has the columns of lane t in piece p of the warp's pieces
// of a head, and sums over the splits r, r + split_lanes, ...; then, of eight lanes r, every second
// one writes two of the eight columns; a lone one writes all. Each load depends on the arguments
// alone, so that all are under way at once.
#include "kiln_args.h"
#include "kiln_constants.h"
#include "templates/common/memory.cuh"
#include "templates/common/types.cuh"
#include "templates/sparse_mla_decode/layout.cuh"

constexpr int pieces_of_warp = 8 / split_lanes;
constexpr int warps_per_head = pieces / pieces_of_warp;
constexpr int rounds = (splits + split_lanes - 1) / split_lanes;  // splits of a lane
constexpr int columns = split_lanes == 1 ? 8 : 2;                 // that a lane writes
static_assert(split_lanes == 1 || split_lanes == 8);
// A lane has the states of all splits, or the warp deals them out, one or two to a lane.
constexpr int states_per_lane = split_lanes == 1 ? splits : (splits + warp_lanes - 1) / warp_lanes;

extern "C" __global__ void __launch_bounds__(32 * block_warps)
    sparse_mla_combine(const __grid_constant__ Args args) {
  const int lane = static_cast<int>(threadIdx.x % warp_lanes);
  const u32 unit = blockIdx.x * block_warps + threadIdx.x / warp_lanes;
  const int head = static_cast<int>(unit / warps_per_head % heads);
  const i64 row = unit / (warps_per_head * heads);
  const int split_lane = lane / (4 * pieces_of_warp);
  const int piece =
      static_cast<int>(unit % warps_per_head) * pieces_of_warp + lane / 4 % pieces_of_warp;

  // States before parts, as loads return in order.
  const SoftmaxState* states = states_of_head(args, row, splits, head);
  SoftmaxState of_split[states_per_lane];
#pragma unroll
  for (int i = 0; i < states_per_lane; ++i) {
    const int s = split_lanes == 1 ? i : i * warp_lanes + lane;
    of_split[i] = {minus_infinity(), 0.0f};
    if (s < splits) of_split[i] = states[s];
  }
  const PartialColumns from = partial_columns(args, row, splits, split_lane, 0) +
                              ((head / 16 * pieces + piece) * 64 + head % 16 * 4 + lane % 4);
  uint4 upper[rounds];
  uint2 lower[rounds];
#pragma unroll
  for (int i = 0; i < rounds; ++i) {
    upper[i] = {0, 0, 0, 0};
    lower[i] = {0, 0};
    if (splits % split_lanes == 0 || i * split_lanes + split_lane < splits) {
      const PartialColumns part = from + i * split_lanes * partials_per_split;
      upper[i] = load_16(reinterpret_cast<const u8*>(part.upper));
      lower[i] = *part.lower;
    }
  }
  const float sink = load_sink(args, head);
  const int first_column = piece / 2 * chunk_dims + lane % 4 * lane_dims + piece % 2 * 8 +
                           (split_lanes == 1 ? 0 : lane / 16 * 4 + lane / 8 % 2 * 2);
  const float* table = nullptr;
  float cosines[columns / 2];
  float sines[columns / 2];
  if (inverse_rope && piece / 2 == head_dim / chunk_dims - 1) {
    table = rope_of_row(args, row);
    if (table != nullptr) {
#pragma unroll
      for (int i = 0; i < columns / 2; ++i) {
        cosines[i] = table[(first_column - (head_dim - rope_dims)) / 2 + i];
        sines[i] = table[(first_column - (head_dim - rope_dims)) / 2 + rope_dims / 2 + i];
      }
    }
  }

  float reference = of_split[0].reference;
#pragma unroll
  for (int i = 1; i < states_per_lane; ++i) reference = fmaxf(reference, of_split[i].reference);
  if constexpr (split_lanes > 1) reference = largest_of_warp(reference);
  const float base = reference == minus_infinity() ? 0.0f : reference;
  float weights[states_per_lane];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < states_per_lane; ++i) {
    weights[i] = exp2_approx(__fsub_rn(of_split[i].reference, base));
    sum = __fmaf_rn(weights[i], of_split[i].sum, sum);
  }

  // Nothing is summed before everything is there, or the assembler would move the loads down to
  // their uses: one after the other. The grid has no depth, so that this adds nothing.
  u32 gate = __float_as_uint(sink);
#pragma unroll
  for (int i = 0; i < rounds; ++i) gate |= upper[i].w | lower[i].y;
  gate &= gridDim.z - 1;

  float sums[8] = {};
#pragma unroll
  for (int i = 0; i < rounds; ++i) {
    float weight = split_lanes == 1 ? weights[i]
                                    : __shfl_sync(all_lanes, weights[i * split_lanes / warp_lanes],
                                                  (i * split_lanes + split_lane) % warp_lanes);
    if (i == 0) weight = __uint_as_float(__float_as_uint(weight) | gate);
    const u32 halves[4] = {upper[i].x, upper[i].y, upper[i].z, upper[i].w};
    const u32 bytes[2] = {lower[i].x, lower[i].y};
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      // The third byte stands for the last one too, which 24 bits do not have.
      const u32 third = 4 + e % 4;
      const u32 value = __byte_perm(halves[e / 2], bytes[e / 4],
                                    (e % 2 == 0 ? 0x1000 : 0x3200) | third << 4 | third);
      sums[e] = __fmaf_rn(weight, __uint_as_float(value), sums[e]);
    }
  }
  if constexpr (split_lanes > 1) {
#pragma unroll
    for (int step_lanes = 16; step_lanes >= 8; step_lanes /= 2) {
      const bool keeps_upper = (lane & step_lanes) != 0;
      const int kept = step_lanes / 4;
#pragma unroll
      for (int e = 0; e < kept; ++e) {
        const float given = keeps_upper ? sums[e] : sums[e + kept];
        const float own = keeps_upper ? sums[e + kept] : sums[e];
        sums[e] = __fadd_rn(own, __shfl_xor_sync(all_lanes, given, step_lanes));
      }
    }
#pragma unroll
    for (int e = 0; e < columns; ++e)
      sums[e] = __fadd_rn(sums[e], __shfl_xor_sync(all_lanes, sums[e], 4));
#pragma unroll
    for (int step_lanes = 1; step_lanes < warp_lanes; step_lanes *= 2)
      sum = __fadd_rn(sum, __shfl_xor_sync(all_lanes, sum, step_lanes));
  }

  const SoftmaxState joined = {reference, sum};
  const float inverse = inverse_denominator(sink, joined);
  u32 pairs[columns / 2];
#pragma unroll
  for (int i = 0; i < columns / 2; ++i) {
    pairs[i] = to_bf16x2(__fmul_rn(sums[2 * i], inverse), __fmul_rn(sums[2 * i + 1], inverse));
    if (table != nullptr) pairs[i] = rotate_back(pairs[i], cosines[i], sines[i]);
  }
  u16* to = args.out + row * args.out_stride0 + head * args.out_stride1 + first_column;
  if constexpr (columns == 2) {
    if (lane / 4 % 2 == 0) *reinterpret_cast<u32*>(to) = pairs[0];
  } else {
    *reinterpret_cast<uint4*>(to) = {pairs[0], pairs[1], pairs[2], pairs[3]};
  }
  if (piece == 0 && lane == 0) store_lse(args, row, head, joined);
}
