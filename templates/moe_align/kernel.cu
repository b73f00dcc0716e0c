// Sorts the pairs of tokens and experts by expert, each expert's padded to whole blocks (ops.md
// B18.1).
// grid  (1)   block (32 * warps)   shared: a counter for each warp and expert, and three an expert
//
// One CTA, as the order is one: warps have neighbouring ranges of pairs and count the experts of
// theirs; counts are added over warps and experts; then each warp goes through its range again and
// knows where the next pair of every expert stands. Lanes with one expert find each other by
// match.any, so that pairs keep their order.
#include "kiln_args.h"
#include "kiln_constants.h"  // num_experts, top_k, block_size, warps
#include "templates/common/types.cuh"

constexpr int threads = 32 * warps;
constexpr int experts_per_lane = (num_experts + warp_lanes - 1) / warp_lanes;

// Of the pair, on this rank; below 0: none.
__device__ __forceinline__ i32 expert_of(const Args& args, i64 pair, i64 pairs) {
  if (pair >= pairs) return -1;
  const i64 token = pair / top_k;
  const i32 id = args.ids[token * args.ids_stride + (pair - token * top_k)];
  if (args.expert_map == nullptr) return id < num_experts ? id : -1;
  const i32 local = id >= 0 && id < args.num_global_experts ? args.expert_map[id] : -1;
  return local < num_experts ? local : -1;
}

struct Peers {
  int before;  // lanes below with the same expert
  int count;
  bool is_first;
};

__device__ __forceinline__ Peers peers_of(i32 expert) {
  const u32 same = __match_any_sync(all_lanes, expert);
  const u32 below = same & ((1u << lane_id()) - 1);
  return {__popc(below), __popc(same), below == 0};
}

extern "C" __global__ void __launch_bounds__(threads) moe_align(const __grid_constant__ Args args) {
  __shared__ i32 of_warps[warps][num_experts];
  __shared__ i32 totals[num_experts];        // pairs of each expert
  __shared__ i32 first_blocks[num_experts];  // blocks of the experts before
  __shared__ i32 all_blocks;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = warp_id();
  const i64 pairs = args.num_rows * top_k;
  const i64 groups = (pairs + warp_lanes - 1) / warp_lanes;
  const i64 first_group = groups * warp / warps;
  const i64 end_group = groups * (warp + 1) / warps;

  for (int i = thread; i < warps * num_experts; i += threads) of_warps[0][i] = 0;
  for (i64 i = thread; i < args.capacity; i += threads)
    args.sorted_token_ids[i] = static_cast<i32>(pairs);
  const i64 capacity_blocks = (args.capacity + block_size - 1) / block_size;
  for (i64 i = thread; i < capacity_blocks; i += threads) args.expert_ids[i] = -1;
  __syncthreads();

#pragma unroll 4
  for (i64 group = first_group; group < end_group; ++group) {
    const i32 expert = expert_of(args, group * warp_lanes + lane_id(), pairs);
    const Peers peers = peers_of(expert);
    if (expert >= 0 && peers.is_first) of_warps[warp][expert] += peers.count;
    __syncwarp();
  }
  __syncthreads();

  // From counts to places within the expert's pairs.
  for (int expert = thread; expert < num_experts; expert += threads) {
    i32 sum = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w) {
      const i32 count = of_warps[w][expert];
      of_warps[w][expert] = sum;
      sum += count;
    }
    totals[expert] = sum;
  }
  __syncthreads();
  if (warp == 0) {
    i32 blocks[experts_per_lane];
    i32 own = 0;
#pragma unroll
    for (int i = 0; i < experts_per_lane; ++i) {
      const int expert = lane_id() * experts_per_lane + i;
      const i32 count = expert < num_experts ? totals[expert] : 0;
      blocks[i] = (count + block_size - 1) / block_size;
      own += blocks[i];
    }
    i32 before = own;
#pragma unroll
    for (int distance = 1; distance < warp_lanes; distance *= 2) {
      const i32 other = __shfl_up_sync(all_lanes, before, distance);
      before += lane_id() >= distance ? other : 0;
    }
    if (lane_id() == warp_lanes - 1) all_blocks = before;
    before -= own;
#pragma unroll
    for (int i = 0; i < experts_per_lane; ++i) {
      const int expert = lane_id() * experts_per_lane + i;
      if (expert < num_experts) first_blocks[expert] = before;
      before += blocks[i];
    }
  }
  __syncthreads();

  if (thread == 0) args.num_tokens_post_pad[0] = all_blocks * block_size;
  for (int expert = warp; expert < num_experts; expert += warps) {
    const i64 first = first_blocks[expert];
    const i64 end = min(first + (totals[expert] + block_size - 1) / block_size, capacity_blocks);
    for (i64 block = first + lane_id(); block < end; block += warp_lanes)
      args.expert_ids[block] = expert;
  }
#pragma unroll 4
  for (i64 group = first_group; group < end_group; ++group) {
    const i64 pair = group * warp_lanes + lane_id();
    const i32 expert = expert_of(args, pair, pairs);
    const Peers peers = peers_of(expert);
    if (expert >= 0) {
      const i64 place = static_cast<i64>(first_blocks[expert]) * block_size +
                        of_warps[warp][expert] + peers.before;
      if (place < args.capacity) args.sorted_token_ids[place] = static_cast<i32>(pair);
    }
    __syncwarp();
    if (expert >= 0 && peers.is_first) of_warps[warp][expert] += peers.count;
    __syncwarp();
  }
}
