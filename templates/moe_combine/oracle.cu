// The naive form of moe_combine: a block a row; each thread looks for the next expert of the row
// for every column.
#include "kiln_args.h"
#include "kiln_constants.h"  // hidden, top_k, result_is_f32

__device__ float from_bf16(unsigned short bits) {
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}

__device__ unsigned short to_bf16(float value) {
  const unsigned bits = __float_as_uint(value);
  if (value != value) return 0x7fff;
  return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

__device__ bool adds(const Args& args, int expert) {
  if (expert < 0) return false;
  if (args.expert_map == nullptr) return true;
  return expert < args.num_experts && args.expert_map[expert] >= 0;
}

extern "C" __global__ void moe_combine_oracle(const __grid_constant__ Args args) {
  const long long t = blockIdx.x;
  const int* experts = args.experts + t * args.experts_stride;
  for (int column = threadIdx.x; column < hidden; column += blockDim.x) {
    float sum = 0.0f;
    int last_expert = -1;
    int last = -1;
    for (int n = 0; n < top_k; ++n) {
      int next = -1;
      for (int i = 0; i < top_k; ++i) {
        const bool is_behind = experts[i] > last_expert || (experts[i] == last_expert && i > last);
        if (!adds(args, experts[i]) || !is_behind) continue;
        if (next < 0 || experts[i] < experts[next]) next = i;
      }
      if (next < 0) break;
      sum += from_bf16(args.pairs[t * args.pairs_stride0 + next * args.pairs_stride1 + column]);
      last = next;
      last_expert = experts[next];
    }
    if constexpr (result_is_f32) {
      args.y_f32[t * args.y_f32_stride + column] = sum;
    } else {
      if (args.shared != nullptr) sum += from_bf16(args.shared[t * args.shared_stride + column]);
      args.y[t * args.y_stride + column] = to_bf16(sum);
    }
  }
}
