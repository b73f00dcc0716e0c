// The naive form of moe_route: a thread a row, which looks through all experts for each choice.
#include "kiln_args.h"
#include "kiln_constants.h"  // experts, top_k

// exp(-x / 2) for x from 0 on, by the same steps as everywhere: they decide which keys are equal.
__device__ float exp_of_half(float x) {
  const float y = x > 210.0f ? 105.0f : x * 0.5f;
  const float nearest = fmaf(-y, 1.44269502f, 12582912.0f) - 12582912.0f;
  float r = fmaf(nearest, -0.693145752f, -y);
  r = fmaf(nearest, -1.42860677e-6f, r);
  const float c[7] = {1.0f,          1.0f,           0.5f,          0.166665778f,
                      0.0416665561f, 0.00836317334f, 0.00139261759f};
  float p = c[6];
  for (int i = 5; i >= 0; --i) p = fmaf(p, r, c[i]);
  float whole = 1.0f;  // 2^(nearest + 64)
  for (int i = static_cast<int>(nearest) + 64; i > 0; --i) whole *= 2.0f;
  for (int i = static_cast<int>(nearest) + 64; i < 0; ++i) whole *= 0.5f;
  return p * whole * 5.42101086e-20f;  // 2^-64
}

__device__ float score_of(float x) {
  const float u = exp_of_half(fabsf(x));
  const float t = u * u;
  const float c[9] = {1.0f,          -0.499994457f, 0.333181202f,   -0.248353988f, 0.190768808f,
                      -0.136022478f, 0.0775160864f, -0.0290740654f, 0.00512610236f};
  float p = c[8];
  for (int i = 7; i >= 0; --i) p = fmaf(p, t, c[i]);
  return x < 0.0f ? u * __fsqrt_rn(p) : __fsqrt_rn(fmaf(t, p, x));
}

extern "C" __global__ void moe_route_oracle(const __grid_constant__ Args args) {
  const long long t = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (t >= args.num_rows) return;
  int* chosen = args.experts + t * args.experts_stride;
  float* weights = args.weights + t * args.weights_stride;
  const bool padding = args.is_valid != nullptr && args.is_valid[t] == 0;
  const bool image = args.is_image != nullptr && args.is_image[t] != 0;
  const float* bias = image && args.bias_image != nullptr ? args.bias_image : args.bias;
  float before_key = 0.0f;
  float sum = 0.0f;
  int before = -1;
  for (int i = 0; i < top_k; ++i) {
    // The best of those behind the one before, in the order of key and expert.
    int best = -1;
    float best_key = 0.0f;
    float best_score = 0.0f;
    const bool is_over = padding || (i > 0 && before < 0);
    for (int e = 0; e < experts && !is_over; ++e) {
      const float score = score_of(args.logits[t * args.logits_stride + e]);
      const float key = score + bias[e];
      const bool is_number = key == key && key != -__int_as_float(0x7f800000);
      const bool is_behind = i == 0 || key < before_key || (key == before_key && e > before);
      if (!is_number || !is_behind || (best >= 0 && key <= best_key)) continue;
      best = e;
      best_key = key;
      best_score = score;
    }
    chosen[i] = best;
    weights[i] = best < 0 ? 0.0f : best_score;
    sum += weights[i];
    before = best;
    before_key = best_key;
  }
  for (int i = 0; i < top_k; ++i)
    weights[i] = chosen[i] < 0 ? 0.0f : __fdiv_rn(weights[i], sum + 1e-20f) * 1.5f;
}
