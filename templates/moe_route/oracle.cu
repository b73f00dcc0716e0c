// The naive form of moe_route: a token a thread, in float64 where it counts.
// grid  (rows)   block (1)   shared: none
#include "kiln_args.h"
#include "kiln_constants.h"  // num_experts, top_k

__device__ double score_of(float logit) {
  if (logit != logit) return 0.0;
  const double x = logit;
  return sqrt(logit > 20.0f ? x : log1p(exp(x)));
}

extern "C" __global__ void moe_route_oracle(const __grid_constant__ Args args) {
  const long long row = blockIdx.x;
  const float* logits = args.logits + row * args.logits_stride;
  const bool is_image = args.is_image != nullptr && args.is_image[row] != 0;
  const float* bias = is_image && args.image_bias != nullptr ? args.image_bias : args.bias;
  const bool is_valid = args.is_valid == nullptr || args.is_valid[row] != 0;
  int ids[top_k];
  double sum = 0.0;
  for (int i = 0; i < top_k; ++i) {
    ids[i] = -1;
    float best = 0.0f;
    for (int e = 0; is_valid && e < num_experts; ++e) {
      bool is_taken = logits[e] != logits[e];
      for (int j = 0; j < i; ++j) is_taken |= ids[j] == e;
      const float key = static_cast<float>(score_of(logits[e])) + bias[e];
      if (is_taken || !(key > __int_as_float(0xff800000))) continue;
      if (ids[i] < 0 || key > best) {
        ids[i] = e;
        best = key;
      }
    }
    if (ids[i] >= 0) sum += score_of(logits[ids[i]]);
  }
  for (int i = 0; i < top_k; ++i) {
    args.ids[row * args.ids_stride + i] = ids[i];
    args.weights[row * args.weights_stride + i] =
        ids[i] < 0 ? 0.0f : static_cast<float>(score_of(logits[ids[i]]) / (sum + 1e-20) * 1.5);
  }
}
