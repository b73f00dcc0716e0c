// Chooses the experts of each token from the router's logits (ops.md B17).
//   score = sqrt(softplus(logit));   the top_k of score + bias;   weights = scores / their sum
//   * 1.5
// grid  (ceil(num_rows / rows_per_cta))   block (32 * rows_per_cta)   shared: none
//
// A warp has a token, a lane every 32nd expert: scores and keys stay in registers. A round takes
// the largest key and, of those that have it, the lowest expert.
#include "kiln_args.h"
#include "kiln_constants.h"  // num_experts, top_k, rows_per_cta
#include "templates/common/memory.cuh"
#include "templates/common/types.cuh"

constexpr int count = (num_experts + warp_lanes - 1) / warp_lanes;  // of a lane
constexpr float scaling = 1.5f;
constexpr u32 never = 0;  // the key of what is never chosen

// Keeps the order of numbers; `never` for NaN and minus infinity.
__device__ __forceinline__ u32 ordered(float key) {
  const u32 bits = __float_as_uint(key);
  const u32 value = bits ^ (static_cast<u32>(static_cast<i32>(bits) >> 31) | 0x80000000u);
  const bool is_chosen_ever = key > __int_as_float(static_cast<int>(0xff800000u));
  return is_chosen_ever ? value : never;
}

// softplus as torch has it, with its threshold.
__device__ __forceinline__ float score_of(float logit) {
  const float softplus = logit > 20.0f ? logit : log1pf(expf(logit));
  return __fsqrt_rn(softplus);
}

struct Chosen {
  i32 id;
  float score;
};

struct Experts {
  float scores[count];
  u32 keys[count];

  __device__ __forceinline__ void load(const Args& args, i64 row, int lane) {
    const float* logits = args.logits + row * args.logits_stride;
    const bool is_image = args.is_image != nullptr && args.is_image[row] != 0;
    const float* bias = is_image && args.image_bias != nullptr ? args.image_bias : args.bias;
    float logit[count], added[count];
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int expert = lane + i * warp_lanes;
      const bool is_one = num_experts % warp_lanes == 0 || expert < num_experts;
      logit[i] = is_one ? logits[expert] : 0.0f;
      added[i] = is_one ? bias[expert] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int expert = lane + i * warp_lanes;
      const bool is_one = num_experts % warp_lanes == 0 || expert < num_experts;
      const bool is_number = logit[i] == logit[i];
      scores[i] = is_number ? score_of(logit[i]) : 0.0f;
      keys[i] = is_one && is_number ? ordered(__fadd_rn(scores[i], added[i])) : never;
    }
  }

  // Takes the best one out, for all lanes.
  __device__ __forceinline__ Chosen next(int lane) {
    u32 largest = never;
#pragma unroll
    for (int i = 0; i < count; ++i) largest = max(largest, keys[i]);
    largest = __reduce_max_sync(all_lanes, largest);
    if (largest == never) return {-1, 0.0f};
    u32 own = ~0u;
#pragma unroll
    for (int i = count - 1; i >= 0; --i)
      own = keys[i] == largest ? static_cast<u32>(lane + i * warp_lanes) : own;
    const u32 id = __reduce_min_sync(all_lanes, own);
    float score = 0.0f;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (id != static_cast<u32>(lane + i * warp_lanes)) continue;
      score = scores[i];
      keys[i] = never;
    }
    return {static_cast<i32>(id), __shfl_sync(all_lanes, score, static_cast<int>(id) % warp_lanes)};
  }
};

extern "C" __global__ void __launch_bounds__(32 * rows_per_cta)
    moe_route(const __grid_constant__ Args args) {
  const i64 row = static_cast<i64>(blockIdx.x) * rows_per_cta + warp_id();
  if (row >= args.num_rows) return;
  const int lane = lane_id();
  Experts experts;
  experts.load(args, row, lane);
  const bool is_valid = args.is_valid == nullptr || args.is_valid[row] != 0;
  Chosen own = {-1, 0.0f};
  float sum = 0.0f;
#pragma unroll 1
  for (int i = 0; is_valid && i < top_k; ++i) {
    const Chosen chosen = experts.next(lane);
    if (chosen.id < 0) break;
    sum = __fadd_rn(sum, chosen.score);
    if (lane == i) own = chosen;
  }
  if (lane >= top_k) return;
  args.ids[row * args.ids_stride + lane] = own.id;
  const float weight = __fmul_rn(__fdiv_rn(own.score, __fadd_rn(sum, 1e-20f)), scaling);
  args.weights[row * args.weights_stride + lane] = own.id < 0 ? 0.0f : weight;
}
