// Chooses the experts of each row by their keys and weighs them (ops.md B17).
//   s = sqrt(softplus(logit))   key = s + bias   weight = s / (sum of the chosen + 1e-20) * 1.5
// grid  (ceil(num_rows / rows_per_cta))   block (threads_per_row * rows_per_cta)
// shared: the scores of the CTA's rows; where warps share a row, what each has chosen of its part
//
// A thread holds the keys of every threads_per_row-th group of four experts in registers, with the
// best of each group and of all. top_k times the warp takes the best of its threads' best; only the
// group that it was in is looked through again.
#include "kiln_args.h"
#include "kiln_constants.h"  // experts, top_k, threads_per_row, rows_per_cta
#include "templates/common/memory.cuh"
#include "templates/common/shared.cuh"
#include "templates/common/types.cuh"
#include "templates/moe_route/score.cuh"

constexpr int group_experts = 4;
constexpr int groups = (experts + group_experts - 1) / group_experts;
constexpr int thread_groups = (groups + threads_per_row - 1) / threads_per_row;
constexpr int warps_per_row = threads_per_row / warp_lanes;
constexpr int block_threads = threads_per_row * rows_per_cta;
constexpr i32 no_expert = 0x7fffffff;  // behind every other

// Unsigned in the order of the floats, which are no NaN and no -0.
__device__ __forceinline__ u32 in_order(float key) {
  const u32 bits = __float_as_uint(key);
  return bits ^ (static_cast<u32>(static_cast<i32>(bits) >> 31) | 0x80000000u);
}
constexpr u32 never_chosen = 0x007fffffu;  // in_order(-infinity)

struct Candidate {
  u32 key;  // in_order
  i32 expert;
};

// The best of a warp's candidates, for all lanes: of equal keys the lowest expert.
__device__ __forceinline__ Candidate best_of_warp(Candidate mine) {
  const u32 key = __reduce_max_sync(all_lanes, mine.key);
  return {key, __reduce_min_sync(all_lanes, mine.key == key ? mine.expert : no_expert)};
}

struct Group {
  float keys[group_experts];
  float best;
  int place;  // of the best; the first of equals

  __device__ __forceinline__ void find_best() {
    best = keys[0];
    place = 0;
#pragma unroll
    for (int i = 1; i < group_experts; ++i) {
      const bool is_better = keys[i] > best;
      best = is_better ? keys[i] : best;
      place = is_better ? i : place;
    }
  }
};

struct Keys {
  Group of[thread_groups];

  static __device__ __forceinline__ int first_expert(int thread, int group) {
    return (thread + group * threads_per_row) * group_experts;
  }

  __device__ __forceinline__ Candidate best(int thread) const {
    float key = of[0].best;
    i32 expert = first_expert(thread, 0) + of[0].place;
#pragma unroll
    for (int group = 1; group < thread_groups; ++group) {
      const bool is_better = of[group].best > key;
      key = is_better ? of[group].best : key;
      expert = is_better ? first_expert(thread, group) + of[group].place : expert;
    }
    return {in_order(key), expert};
  }

  // The same expert for all lanes of the warp.
  __device__ __forceinline__ void remove(int thread, i32 expert) {
    const int group_of_row = expert / group_experts;
#pragma unroll
    for (int group = 0; group < thread_groups; ++group) {
      // No comparison for equality, from which the compiler would make an index into registers.
      const u32 thread_of_row = static_cast<u32>(group_of_row - group * threads_per_row);
      if (thread_of_row >= static_cast<u32>(threads_per_row)) continue;
#pragma unroll
      for (int i = 0; i < group_experts; ++i) {
        const bool is_it = first_expert(thread, group) + i == expert;
        of[group].keys[i] = is_it ? -infinity() : of[group].keys[i];
      }
      of[group].find_best();
    }
  }
};

__device__ __forceinline__ void load_group(float (&values)[group_experts], const float* row,
                                           int first, bool is_wide) {
  if (is_wide) {
    const uint4 four =
        first < experts ? load_16(reinterpret_cast<const u8*>(row + first)) : uint4{0, 0, 0, 0};
    values[0] = __uint_as_float(four.x);
    values[1] = __uint_as_float(four.y);
    values[2] = __uint_as_float(four.z);
    values[3] = __uint_as_float(four.w);
    return;
  }
#pragma unroll
  for (int i = 0; i < group_experts; ++i)
    values[i] = first + i < experts ? __uint_as_float(load_4(row + first + i)) : 0.0f;
}

__device__ __forceinline__ void copy_group(u32 to, const float* row, int first, bool is_wide) {
  if (is_wide) {
    if (first < experts) copy_async_16(to + 4 * first, row + first);
    return;
  }
#pragma unroll
  for (int i = 0; i < group_experts; ++i) {
    if (first + i < experts)
      copy_async<4>(to + 4 * (first + i), reinterpret_cast<u64>(row + first + i));
    else if (first < experts)
      store_shared_4(to + 4 * (first + i), 0);
  }
}

__device__ __forceinline__ bool is_wide(const float* row) {
  return experts % group_experts == 0 && aligned_16(row);
}

extern "C" __global__ void __launch_bounds__(block_threads)
    moe_route(const __grid_constant__ Args args) {
  __shared__ __align__(16) float all_scores[rows_per_cta][groups * group_experts];
  const int row_in_cta = static_cast<int>(threadIdx.x) / threads_per_row;
  const int thread = static_cast<int>(threadIdx.x) % threads_per_row;
  const i64 t = static_cast<i64>(blockIdx.x) * rows_per_cta + row_in_cta;
  if (t >= args.num_rows) return;

  const float* logits = args.logits + t * args.logits_stride;
  float values[thread_groups][group_experts];
  const bool has_wide_logits = is_wide(logits);
#pragma unroll
  for (int group = 0; group < thread_groups; ++group)
    load_group(values[group], logits, Keys::first_expert(thread, group), has_wide_logits);
  const bool is_valid = args.is_valid == nullptr || args.is_valid[t] != 0;
  const bool is_image =
      args.is_image != nullptr && args.bias_image != nullptr && args.is_image[t] != 0;
  const float* bias = is_image ? args.bias_image : args.bias;
  // Biases are on their way to where the scores will stand, each read by the thread that asked for
  // it: the compiler would ask for them behind the scores, a trip to memory later.
  const u32 scores = shared_address(all_scores[row_in_cta]);
  const bool has_wide_bias = is_wide(bias);
#pragma unroll
  for (int group = 0; group < thread_groups; ++group)
    copy_group(scores, bias, Keys::first_expert(thread, group), has_wide_bias);
  copy_async_commit();

#pragma unroll
  for (int group = 0; group < thread_groups; ++group) {
#pragma unroll
    for (int i = 0; i < group_experts; ++i) values[group][i] = score_of(values[group][i]);
  }

  copy_async_wait<0>();
  Keys keys;
#pragma unroll
  for (int group = 0; group < thread_groups; ++group) {
    const int first = Keys::first_expert(thread, group);
    const u32 place = scores + 4 * first;
    const float* const score = values[group];
    const uint4 four = first < experts ? load_shared_16(place) : uint4{0, 0, 0, 0};
    const u32 biases[group_experts] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < group_experts; ++i) {
      // Of a NaN and a number fmaxf takes the number.
      const float key = fmaxf(__fadd_rn(score[i], __uint_as_float(biases[i])), -infinity());
      keys.of[group].keys[i] = first + i < experts ? key : -infinity();
    }
    keys.of[group].find_best();
    if (first < experts) {
      store_shared_16(place, {__float_as_uint(score[0]), __float_as_uint(score[1]),
                              __float_as_uint(score[2]), __float_as_uint(score[3])});
    }
  }

  // Lane i holds what was chosen i-th.
  const int lane = lane_id();
  Candidate mine{never_chosen, no_expert};
  Candidate best_of_thread = keys.best(thread);
#pragma unroll 1
  for (int i = 0; i < top_k; ++i) {
    const Candidate best = best_of_warp(best_of_thread);
    if (best.key == never_chosen || !is_valid) break;
    if (lane == i) mine = best;
    keys.remove(thread, best.expert);
    best_of_thread = keys.best(thread);
  }

  if constexpr (warps_per_row > 1) {
    static_assert(warps_per_row * top_k <= warp_lanes, "a lane holds one candidate");
    __shared__ Candidate all_chosen[rows_per_cta][warps_per_row][top_k];
    Candidate* const chosen = all_chosen[row_in_cta][0];
    const int warp = thread / warp_lanes;
    if (lane < top_k) chosen[warp * top_k + lane] = mine;
    barrier(1 + row_in_cta, threads_per_row);
    if (warp != 0) return;
    Candidate left{never_chosen, no_expert};
    if (lane < warps_per_row * top_k) left = chosen[lane];
    mine = {never_chosen, no_expert};
#pragma unroll 1
    for (int i = 0; i < top_k; ++i) {
      const Candidate best = best_of_warp(left);
      if (best.key == never_chosen) break;
      if (lane == i) mine = best;
      if (left.expert == best.expert) left = {never_chosen, no_expert};
    }
  } else {
    __syncwarp();
  }

  const bool is_chosen = mine.key != never_chosen;
  const float score = is_chosen ? load_shared_float(scores + 4 * mine.expert) : 0.0f;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < top_k; ++i) sum = __fadd_rn(sum, __shfl_sync(all_lanes, score, i));
  const float weight = __fmul_rn(__fdiv_rn(score, __fadd_rn(sum, 1e-20f)), 1.5f);
  if (lane < top_k) {
    args.experts[t * args.experts_stride + lane] = is_chosen ? mine.expert : -1;
    args.weights[t * args.weights_stride + lane] = is_chosen ? weight : 0.0f;
  }
}
