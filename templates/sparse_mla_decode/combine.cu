// Joins the splits of sparse_mla_decode (ops.md B14.1).
//   M = max_s reference_s   w_s = exp2(reference_s - M)
//   out[t, h] = sum_s w_s * output_s / (sum_s w_s * sum_s + exp(sink[h] - M))
// grid  (num_rows * head_blocks * warps * m_tiles * k_tiles / units_per_cta)
// block (32 * units_per_cta)   shared: none
//
// A warp joins one unit: one k-tile of one m-tile, as the decode kernel's lanes hold it. Splits are
// added in order.
#include "kiln_args.h"
#include "kiln_constants.h"
#include "templates/common/types.cuh"
#include "templates/sparse_mla_decode/layout.cuh"

constexpr int units_per_block = warps * m_tiles * k_tiles;  // of one row and head block
constexpr int splits_at_a_time = splits < 20 ? splits : 20;
constexpr int states_per_lane = (splits + 3) / 4;  // four lanes share the splits of a head

extern "C" __global__ void __launch_bounds__(32 * units_per_cta)
    sparse_mla_combine(const __grid_constant__ Args args) {
  const int lane = lane_id();
  const int g = lane / 4;
  const int t = lane % 4;
  const i64 unit = static_cast<i64>(blockIdx.x) * units_per_cta + warp_id();
  const int unit_in_block = static_cast<int>(unit % units_per_block);
  const int head_block = static_cast<int>(unit / units_per_block % head_blocks);
  const i64 row = unit / units_per_block / head_blocks;
  const int warp = unit_in_block / (m_tiles * k_tiles);
  const int fragment = unit_in_block % (m_tiles * k_tiles);
  const int m = fragment / k_tiles;
  const int j = fragment % k_tiles;

  const float4* from =
      partial_fragments(args, row, 0, head_block, warp) + fragment * octets * warp_lanes + lane;
  const SoftmaxState* states = partial_state(args, row, 0, head_block) + 16 * m + g;

  float sinks[2];
#pragma unroll
  for (int half = 0; half < 2; ++half)
    sinks[half] = load_sink(args, head_block * heads_per_cta + 16 * m + 8 * half + g);
  SoftmaxState mine[2][states_per_lane];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < states_per_lane; ++i) {
      const int s = 4 * i + t;
      mine[half][i] = s < splits ? states[s * head_blocks * heads_per_cta + 8 * half]
                                 : SoftmaxState{minus_infinity, 0.0f};
    }
  }
  float4 parts[splits_at_a_time][octets];
#pragma unroll
  for (int i = 0; i < splits_at_a_time; ++i) {
#pragma unroll
    for (int o = 0; o < octets; ++o) parts[i][o] = from[i * partials_per_split + o * warp_lanes];
  }

  // Weights of the lane's splits, the joined sums in all four lanes.
  SoftmaxState joined[2];
  float weights[2][states_per_lane];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float reference = minus_infinity;
#pragma unroll
    for (int i = 0; i < states_per_lane; ++i) reference = fmaxf(reference, mine[half][i].reference);
    reference = fmaxf(reference, __shfl_xor_sync(all_lanes, reference, 1));
    reference = fmaxf(reference, __shfl_xor_sync(all_lanes, reference, 2));
    const float base = reference == minus_infinity ? 0.0f : reference;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < states_per_lane; ++i) {
      weights[half][i] = exp2_approx(__fsub_rn(mine[half][i].reference, base));
      sum = __fmaf_rn(weights[half][i], mine[half][i].sum, sum);
    }
    sum = __fadd_rn(sum, __shfl_xor_sync(all_lanes, sum, 1));
    sum = __fadd_rn(sum, __shfl_xor_sync(all_lanes, sum, 2));
    joined[half] = {reference, sum};
  }

  float4 sums[octets] = {};
#pragma unroll
  for (int s = 0; s < splits; ++s) {
    const float w0 = __shfl_sync(all_lanes, weights[0][s / 4], lane / 4 * 4 + s % 4);
    const float w1 = __shfl_sync(all_lanes, weights[1][s / 4], lane / 4 * 4 + s % 4);
#pragma unroll
    for (int o = 0; o < octets; ++o) {
      const float4 part = s < splits_at_a_time ? parts[s % splits_at_a_time][o]
                                               : from[s * partials_per_split + o * warp_lanes];
      sums[o].x = __fmaf_rn(w0, part.x, sums[o].x);
      sums[o].y = __fmaf_rn(w0, part.y, sums[o].y);
      sums[o].z = __fmaf_rn(w1, part.z, sums[o].z);
      sums[o].w = __fmaf_rn(w1, part.w, sums[o].w);
    }
  }

  const int first_dim = warp * dims_per_warp + j / k_tiles_per_chunk * chunk_dims + lane_dims * t +
                        j % k_tiles_per_chunk * 4;
  const float values[2][4] = {{sums[1].x, sums[0].x, sums[1].y, sums[0].y},
                              {sums[1].z, sums[0].z, sums[1].w, sums[0].w}};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = head_block * heads_per_cta + 16 * m + 8 * half + g;
    if (head >= heads) continue;
    const float inverse = inverse_denominator(sinks[half], joined[half]);
    u32 pairs[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      pairs[e] = pack_bf16x2(__fmul_rn(values[half][2 * e], inverse),
                             __fmul_rn(values[half][2 * e + 1], inverse));
    }
    if (inverse_rope && first_dim >= head_dim - rope_dims) {
      const float* table = rope_of_row(args, row);
      if (table != nullptr) {
        const int first_pair = (first_dim - (head_dim - rope_dims)) / 2;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          pairs[e] =
              rotate_back(pairs[e], table[first_pair + e], table[rope_dims / 2 + first_pair + e]);
        }
      }
    }
    *reinterpret_cast<uint2*>(args.out + row * args.out_stride0 + head * args.out_stride1 +
                              first_dim) = {pairs[0], pairs[1]};
    if (warp == 0 && j == 0 && t == 0) store_lse(args, row, head, joined[half]);
  }
}
