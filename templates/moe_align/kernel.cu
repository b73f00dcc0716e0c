// Sorts the pairs of row and expert by expert, the run of each padded to whole blocks (ops.md
// B18.1, bit-exact).
// grid  (more_ctas + at most 256 parts of the pairs)   block (threads)
// shared: per expert its pairs, the start of its run, where the CTA's next pair of it goes, and how
// many pairs of it each warp has in this round
//
// Every CTA knows how many pairs of each expert there are, and how many before its own part: from
// what count.cu has counted of each part, or by counting itself. It places the pairs of its part in
// ascending order, and does its share of the padding.
#include "templates/common/memory.cuh"
#include "templates/common/types.cuh"
#include "templates/moe_align/pairs.cuh"

constexpr int warps = threads / warp_lanes;
constexpr int warp_words = warps / 4;  // of four bytes, one a warp
constexpr int experts_per_thread = (experts + threads - 1) / threads;

__device__ __forceinline__ i32 in_whole_blocks(i32 count) {
  return (count + block - 1) / block * block;
}

struct Shared {
  i32 counts[experts];
  i32 starts[experts];
  i32 next[experts];  // at first: pairs before the CTA's part
  u32 of_warps[experts][warp_words];
  i32 sums[warps];
};

// Groups of threads take parts in turn; neighbours take neighbouring experts.
__device__ __forceinline__ void add_counts_of_parts(const Args& args, Shared& shared) {
  const int4* counts = reinterpret_cast<const int4*>(args.workspace);
  constexpr int groups = threads / count_vectors > 1 ? threads / count_vectors : 1;
  constexpr int unroll = 8;
  for (int i = static_cast<int>(threadIdx.x); i < groups * count_vectors; i += threads) {
    const int vector = i % count_vectors;
    int4 all{0, 0, 0, 0};
    int4 before{0, 0, 0, 0};
#pragma unroll 1
    for (u32 first = i / count_vectors; first < gridDim.x; first += unroll * groups) {
      uint4 of[unroll];
#pragma unroll
      for (int n = 0; n < unroll; ++n) {
        const u32 part = min(first + n * groups, gridDim.x - 1);
        of[n] = load_16(
            reinterpret_cast<const u8*>(counts + static_cast<i64>(part) * count_vectors + vector));
      }
      // Sums wait for all loads; else only two are under way at a time.
      u32 any = 0;
#pragma unroll
      for (int n = 0; n < unroll; ++n) any |= of[n].x;
      all = {tied_to(all.x, any, args.num_rows), tied_to(all.y, any, args.num_rows),
             tied_to(all.z, any, args.num_rows), tied_to(all.w, any, args.num_rows)};
      before = {tied_to(before.x, any, args.num_rows), tied_to(before.y, any, args.num_rows),
                tied_to(before.z, any, args.num_rows), tied_to(before.w, any, args.num_rows)};
#pragma unroll
      for (int n = 0; n < unroll; ++n) {
        const u32 part = first + n * groups;
        const i32 is_part = part < gridDim.x ? 1 : 0;
        const i32 is_before = part < blockIdx.x ? 1 : 0;
        const int4 four{static_cast<i32>(of[n].x), static_cast<i32>(of[n].y),
                        static_cast<i32>(of[n].z), static_cast<i32>(of[n].w)};
        all = {all.x + is_part * four.x, all.y + is_part * four.y, all.z + is_part * four.z,
               all.w + is_part * four.w};
        before = {before.x + is_before * four.x, before.y + is_before * four.y,
                  before.z + is_before * four.z, before.w + is_before * four.w};
      }
    }
    const i32 all_of[4] = {all.x, all.y, all.z, all.w};
    const i32 before_of[4] = {before.x, before.y, before.z, before.w};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int expert = 4 * vector + n;
      if (expert >= experts) continue;
      atomicAdd(&shared.counts[expert], all_of[n]);
      atomicAdd(&shared.next[expert], before_of[n]);
    }
  }
}

// Starts of all runs; returns the end of the last.
__device__ __forceinline__ i32 find_starts(Shared& shared) {
  const int lane = lane_id();
  const int first = static_cast<int>(threadIdx.x) * experts_per_thread;
  i32 of_thread = 0;
#pragma unroll
  for (int i = 0; i < experts_per_thread; ++i)
    of_thread += first + i < experts ? in_whole_blocks(shared.counts[first + i]) : 0;
  i32 behind = of_thread;
#pragma unroll
  for (int distance = 1; distance < warp_lanes; distance *= 2) {
    const i32 before = __shfl_up_sync(all_lanes, behind, distance);
    if (lane >= distance) behind += before;
  }
  if (lane == warp_lanes - 1) shared.sums[warp_id()] = behind;
  __syncthreads();
  i32 start = behind - of_thread;
  i32 end = 0;
#pragma unroll
  for (int warp = 0; warp < warps; ++warp) {
    const i32 sum = shared.sums[warp];
    start += warp < warp_id() ? sum : 0;
    end += sum;
  }
#pragma unroll
  for (int i = 0; i < experts_per_thread; ++i) {
    if (first + i >= experts) continue;
    shared.starts[first + i] = start;
    shared.next[first + i] += start;
    start += in_whole_blocks(shared.counts[first + i]);
  }
  return end;
}

__device__ __forceinline__ u8* count_of_warp(Shared& shared, i32 expert) {
  return reinterpret_cast<u8*>(shared.of_warps[expert]) + warp_id();
}

// Pairs of the expert in the warps before, in this round.
__device__ __forceinline__ u32 count_of_warps_before(const Shared& shared, i32 expert) {
  u32 sums = 0;  // two of 16 bits
#pragma unroll
  for (int word = 0; word < warp_words; ++word) {
    const int bytes = min(max(warp_id() - 4 * word, 0), 4);
    const u32 mask = bytes == 4 ? 0xffffffffu : (1u << (8 * bytes)) - 1;
    const u32 counts = shared.of_warps[expert][word] & mask;
    sums += (counts & 0x00ff00ffu) + (counts >> 8 & 0x00ff00ffu);
  }
  return (sums & 0xffffu) + (sums >> 16);
}

// A pair a thread and round, in ascending order of threads.
__device__ __forceinline__ void place_pairs(const Args& args, Shared& shared, const Part& part,
                                            i32 expert) {
  const u32 lanes_before = (1u << lane_id()) - 1;
#pragma unroll 1
  for (u32 first = part.begin; first < part.end; first += threads) {
    const u32 pair = first + threadIdx.x;
    const u32 same = __match_any_sync(all_lanes, expert);
    const u32 rank = static_cast<u32>(__popc(same & lanes_before));
    const bool leads = expert != no_expert && rank == 0;
    if (leads) *count_of_warp(shared, expert) = static_cast<u8>(__popc(same));
    __syncthreads();
    if (expert != no_expert) {
      const u32 place =
          static_cast<u32>(shared.next[expert]) + count_of_warps_before(shared, expert) + rank;
      args.sorted_token_ids[place] = static_cast<i32>(pair);
    }
    if (first + threads >= part.end) break;
    const i32 next_expert = expert_of(args, pair + threads, part.end);
    __syncthreads();
    if (leads) {
      atomicAdd(&shared.next[expert], __popc(same));
      *count_of_warp(shared, expert) = 0;
    }
    __syncwarp();
    expert = next_expert;
  }
}

// The CTA's share of what is no pair: a warp an expert, then all threads behind the last run.
__device__ __forceinline__ void pad(const Args& args, const Shared& shared, u32 pairs, i32 end) {
  const int lane = lane_id();
  const i32 padding = static_cast<i32>(pairs);
  for (u32 expert = blockIdx.x + warp_id() * gridDim.x; expert < experts;
       expert += warps * gridDim.x) {
    const i32 count = shared.counts[expert];
    const i32 start = shared.starts[expert];
    const i32 padded = in_whole_blocks(count);
    for (i32 i = count + lane; i < padded; i += warp_lanes)
      args.sorted_token_ids[start + i] = padding;
    for (i32 i = lane; i < padded / block; i += warp_lanes)
      args.expert_ids[start / block + i] = static_cast<i32>(expert);
  }
  const u32 blocks = (pairs + experts * (block - 1) + block - 1) / block;
  const u32 thread = blockIdx.x * threads + threadIdx.x;
  const u32 all_threads = gridDim.x * threads;
  const uint4 four{pairs, pairs, pairs, pairs};
  for (u32 i = static_cast<u32>(end) / 4 + thread; i < blocks * (block / 4); i += all_threads)
    store_16(args.sorted_token_ids + 4 * static_cast<i64>(i), four);
  for (u32 i = static_cast<u32>(end) / block + thread; i < blocks; i += all_threads)
    args.expert_ids[i] = -1;
}

extern "C" __global__ void __launch_bounds__(threads) moe_align(const __grid_constant__ Args args) {
  __shared__ Shared shared;
  const u32 pairs = number_of_pairs(args);
  const Part part(pairs);
  const i32 expert = expert_of(args, part.begin + threadIdx.x, part.end);

  for (int i = static_cast<int>(threadIdx.x); i < experts; i += threads) {
    shared.counts[i] = 0;
    shared.next[i] = 0;
#pragma unroll
    for (int word = 0; word < warp_words; ++word) shared.of_warps[i][word] = 0;
  }
  __syncthreads();
  if constexpr (is_counted) {
    add_counts_of_parts(args, shared);
  } else {
    for_each_pair(args, 0, pairs, [&](u32 any, i32 its_expert) {
      atomicAdd(&shared.counts[its_expert], 1);
      if (any < part.begin) atomicAdd(&shared.next[its_expert], 1);
    });
  }
  __syncthreads();
  const i32 end = find_starts(shared);
  __syncthreads();
  place_pairs(args, shared, part, expert);
  pad(args, shared, pairs, end);
  if (blockIdx.x != 0) return;
  if (threadIdx.x == 0) args.num_tokens_post_pad[0] = end;
  if (args.expert_counts == nullptr) return;
  for (int i = static_cast<int>(threadIdx.x); i < experts; i += threads)
    args.expert_counts[i] = shared.counts[i];
}
