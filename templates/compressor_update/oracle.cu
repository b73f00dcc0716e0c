// The naive form of compressor_update: one CTA a request, first all latents in float64, then all
// stores.
#include "kiln_args.h"
#include "kiln_constants.h"  // ratio, rounds_pooled
#include "templates/naive/quantise.cuh"

__device__ unsigned short to_bf16(double value) {
  return value != value ? 0x7fc0 : naive::round_to_bf16(static_cast<float>(value));
}

__device__ double pooled(double value_a, double score_a, double value_b, double score_b) {
  const double m = score_a > score_b ? score_a : score_b;
  const double a = exp(score_a - m), b = exp(score_b - m);
  return (value_a * a + value_b * b) / (a + b);
}

extern "C" __global__ void compressor_update_oracle(const __grid_constant__ Args args) {
  __shared__ double x[512];
  const long long request = blockIdx.x;
  long long first = 0, end = args.num_rows;
  const float* block = nullptr;
  if (ratio == 2) {
    first = args.query_start_loc[request] - args.query_start_loc[0];
    end = args.query_start_loc[request + 1] - args.query_start_loc[0];
    const long long number = args.ring_blocks[request];
    if (number > 0 && number < args.num_blocks && args.block_rows > 0)
      block = args.ring + number * args.ring_stride0;
  }
  for (long long t = first; t < end; ++t) {
    const long long p = args.positions[t];
    if (args.requests[t] != request || p < 0 || (p + 1) % ratio != 0) continue;
    const float* own = args.projections + t * args.projections_stride;
    const float* partner = own;
    if (ratio == 2) {
      partner = own - args.projections_stride;
      if (t == first) {
        if (block == nullptr) continue;
        partner = block + (p - 1) % args.block_rows * args.ring_stride1;
      }
    }
    for (int c = threadIdx.x; c < 512; c += blockDim.x) {
      const int score = ratio == 2 ? 512 + c : c;
      const double value =
          ratio == 2 ? pooled(partner[c], partner[score], own[c], own[score]) : own[c];
      x[c] = rounds_pooled ? naive::bf16(to_bf16(value)) : value;
    }
    __syncthreads();
    double sum = 0;
    for (int c = 0; c < 512; ++c) sum += x[c] * x[c];
    const double r = 1.0 / sqrt(sum / 512 + 1e-20);
    for (int c = threadIdx.x; c < 512; c += blockDim.x)
      args.latent[t * args.latent_stride + c] =
          to_bf16(x[c] * r * naive::bf16(args.norm_weight[c]));
    __syncthreads();
  }
  if (ratio != 2 || block == nullptr) return;
  long long stored = first > end - args.block_rows ? first : end - args.block_rows;
  for (; stored < end; ++stored) {
    const long long p = args.positions[stored];
    if (args.requests[stored] != request || p < 0) continue;
    float* to = const_cast<float*>(block) + p % args.block_rows * args.ring_stride1;
    for (int c = threadIdx.x; c < 1024; c += blockDim.x)
      to[c] = args.projections[stored * args.projections_stride + c];
  }
}
