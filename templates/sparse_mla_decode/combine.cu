// Joins the splits of sparse_mla_decode (ops.md B14.1).
//   M = max_s reference_s   w_s = sum_s * exp2(reference_s - M)
//   out[t, h] = sum_s w_s * output_s / (sum_s w_s + exp(sink[h] - M))
// grid  (num_rows * head_blocks * warps * m_tiles * k_tiles / units_per_cta)   block (128)
// shared  of each warp: its parts, as they are; the weights of each split and 8 heads; its sums
//
// Four warps, or one, join a unit: one k-tile of one m-tile, as the decode kernel's lanes hold it.
// Each adds its splits in order, then the first adds the sums of the others in order. All parts are
// requested at once, by cp.async: it leaves the order of requests to the program, where loads to
// registers are moved to their uses.
#include "kiln_args.h"
#include "kiln_constants.h"
#include "templates/common/shared.cuh"
#include "templates/common/types.cuh"
#include "templates/sparse_mla_decode/layout.cuh"

constexpr int units_per_block = warps * m_tiles * k_tiles;  // of one row and head block
constexpr int block_warps = 4;
constexpr int warps_per_unit = block_warps / units_per_cta;
constexpr int most_splits = (splits + warps_per_unit - 1) / warps_per_unit;  // of a warp
constexpr int splits_at_a_time = most_splits < 8 ? most_splits : 8;
constexpr int states_per_lane = (splits + 3) / 4;  // four lanes share the splits of a head
constexpr int part_bytes = warp_lanes * 16;

struct Room {
  uint4 parts[splits_at_a_time > 2 ? splits_at_a_time : 2][warp_lanes];
  float2 weights[splits][8];  // of the upper and the lower head
};

__device__ __forceinline__ void request_parts(u32 parts, const uint4* from, int first, int end,
                                              int lane) {
#pragma unroll
  for (int i = 0; i < splits_at_a_time; ++i) {
    if (first + i >= end) break;
    copy_async_16(parts + i * part_bytes + lane * 16, from + (first + i) * partials_per_split);
  }
  copy_async_commit();
}

extern "C" __global__ void __launch_bounds__(32 * block_warps)
    sparse_mla_combine(const __grid_constant__ Args args) {
  __shared__ Room rooms[block_warps];
  const int lane = lane_id();
  const int g = lane / 4;
  const int t = lane % 4;
  const int part_of_unit = warp_id() % warps_per_unit;
  const u32 unit = blockIdx.x * units_per_cta + warp_id() / warps_per_unit;
  const int unit_in_block = static_cast<int>(unit % units_per_block);
  const int head_block = static_cast<int>(unit / units_per_block % head_blocks);
  const i64 row = unit / (units_per_block * head_blocks);
  const int warp = unit_in_block / (m_tiles * k_tiles);
  const int fragment = unit_in_block % (m_tiles * k_tiles);
  const int m = fragment / k_tiles;
  const int j = fragment % k_tiles;
  const u32 parts = shared_address(&rooms[warp_id()].parts);
  const u32 weights = shared_address(&rooms[warp_id()].weights);

  const uint4* from =
      partial_fragments(args, row, splits, 0, head_block, warp) + fragment * warp_lanes + lane;
  const int begin = splits * part_of_unit / warps_per_unit;
  const int end = splits * (part_of_unit + 1) / warps_per_unit;
  request_parts(parts, from, begin, end, lane);

  const SoftmaxState* states = partial_state(args, row, splits, 0, head_block) + 16 * m + g;
  SoftmaxState mine[2][states_per_lane];
  float sinks[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < states_per_lane; ++i) {
      const int s = 4 * i + t;
      mine[half][i] = s < splits ? states[s * head_blocks * heads_per_cta + 8 * half]
                                 : SoftmaxState{minus_infinity, 0.0f};
    }
    sinks[half] = load_sink(args, head_block * heads_per_cta + 16 * m + 8 * half + g);
  }

  // Weights of the lane's splits, the joined sums in all four lanes.
  SoftmaxState joined[2];
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
      const float weight =
          __fmul_rn(exp2_approx(__fsub_rn(mine[half][i].reference, base)), mine[half][i].sum);
      sum = __fadd_rn(sum, weight);
      if (4 * i + t < splits)
        store_shared_float(weights + ((4 * i + t) * 8 + g) * 8 + half * 4, weight);
    }
    sum = __fadd_rn(sum, __shfl_xor_sync(all_lanes, sum, 1));
    sum = __fadd_rn(sum, __shfl_xor_sync(all_lanes, sum, 2));
    joined[half] = {reference, sum};
  }
  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half)
    inverse[half] = inverse_denominator(sinks[half], joined[half]);
  __syncwarp();

  float4 sums[octets] = {};
  for (int first = begin; first < end; first += splits_at_a_time) {
    if (first > begin) request_parts(parts, from, first, end, lane);
    copy_async_wait<0>();
#pragma unroll
    for (int i = 0; i < splits_at_a_time; ++i) {
      if (first + i >= end) break;
      const uint2 pair = load_shared_8(weights + ((first + i) * 8 + g) * 8);
      const float w0 = __uint_as_float(pair.x);
      const float w1 = __uint_as_float(pair.y);
      const uint4 part = load_shared_16(parts + i * part_bytes + lane * 16);
      const u32 pairs[octets][2] = {{part.x, part.y}, {part.z, part.w}};
#pragma unroll
      for (int o = 0; o < octets; ++o) {
        sums[o].x = __fmaf_rn(w0, low_bf16(pairs[o][0]), sums[o].x);
        sums[o].y = __fmaf_rn(w0, high_bf16(pairs[o][0]), sums[o].y);
        sums[o].z = __fmaf_rn(w1, low_bf16(pairs[o][1]), sums[o].z);
        sums[o].w = __fmaf_rn(w1, high_bf16(pairs[o][1]), sums[o].w);
      }
    }
  }
  if constexpr (warps_per_unit > 1) {
    // Sums lie where the lane's parts were.
    if (part_of_unit > 0) {
#pragma unroll
      for (int o = 0; o < octets; ++o)
        store_shared_16(parts + (o * warp_lanes + lane) * 16,
                        {__float_as_uint(sums[o].x), __float_as_uint(sums[o].y),
                         __float_as_uint(sums[o].z), __float_as_uint(sums[o].w)});
    }
    __syncthreads();
    if (part_of_unit > 0) return;
#pragma unroll
    for (int source = 1; source < warps_per_unit; ++source) {
#pragma unroll
      for (int o = 0; o < octets; ++o) {
        const uint4 part = load_shared_16(parts + source * static_cast<u32>(sizeof(Room)) +
                                          (o * warp_lanes + lane) * 16);
        sums[o].x = __fadd_rn(sums[o].x, __uint_as_float(part.x));
        sums[o].y = __fadd_rn(sums[o].y, __uint_as_float(part.y));
        sums[o].z = __fadd_rn(sums[o].z, __uint_as_float(part.z));
        sums[o].w = __fadd_rn(sums[o].w, __uint_as_float(part.w));
      }
    }
  }

  const int first_dim = first_dim_of(warp, j, lane);
  const float values[2][4] = {{sums[1].x, sums[0].x, sums[1].y, sums[0].y},
                              {sums[1].z, sums[0].z, sums[1].w, sums[0].w}};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = head_block * heads_per_cta + 16 * m + 8 * half + g;
    if (head >= heads) continue;
    u32 pairs[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      pairs[e] = to_bf16x2(__fmul_rn(values[half][2 * e], inverse[half]),
                           __fmul_rn(values[half][2 * e + 1], inverse[half]));
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
