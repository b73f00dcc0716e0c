// The naive form of hc_stats: a row a block, sums in float64, the gates by one thread in float64.
// grid  (rows)   block (threads)   shared: 25 doubles a thread
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, threads
#include "templates/naive/quantise.cuh"

constexpr int gates = 24;

__device__ double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

__device__ void sinkhorn(double (&a)[4][4]) {
  for (int r = 0; r < 4; ++r) {
    double largest = a[r][0], sum = 0.0;
    for (int c = 1; c < 4; ++c) largest = fmax(largest, a[r][c]);
    for (int c = 0; c < 4; ++c) sum += a[r][c] = exp(a[r][c] - largest);
    for (int c = 0; c < 4; ++c) a[r][c] = a[r][c] / sum + 1e-6;
  }
  for (int step = 0; step < 20; ++step) {
    for (int r = 0; step > 0 && r < 4; ++r) {
      const double sum = a[r][0] + a[r][1] + a[r][2] + a[r][3] + 1e-6;
      for (int c = 0; c < 4; ++c) a[r][c] /= sum;
    }
    for (int c = 0; c < 4; ++c) {
      const double sum = a[0][c] + a[1][c] + a[2][c] + a[3][c] + 1e-6;
      for (int r = 0; r < 4; ++r) a[r][c] /= sum;
    }
  }
}

extern "C" __global__ void hc_stats_oracle(const __grid_constant__ Args args) {
  __shared__ double shared[threads][gates + 1];
  const long long row = blockIdx.x;
  double sums[gates + 1] = {};
  for (int column = threadIdx.x; column < 4 * columns; column += threads) {
    const double v = naive::bf16(
        args.h[row * args.h_stride0 + column / columns * args.h_stride1 + column % columns]);
    for (int k = 0; k < gates; ++k) sums[k] += v * args.fn[k * args.fn_stride + column];
    sums[gates] += v * v;
  }
  for (int k = 0; k <= gates; ++k) shared[threadIdx.x][k] = sums[k];
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int k = 0; k <= gates; ++k) {
    for (int i = 1; i < threads; ++i) sums[k] += shared[i][k];
  }
  const float squares = static_cast<float>(sums[gates]);  // may leave fp32
  const double rs = 1.0 / sqrt(static_cast<double>(squares) / (4.0 * columns) + 1e-20);
  double logits[gates];
  for (int k = 0; k < gates; ++k) {
    const int kind = k < 4 ? 0 : k < 8 ? 1 : 2;
    logits[k] = sums[k] * rs * args.scale[kind] + args.base[k];
  }
  double a[4][4];
  for (int j = 0; j < 4; ++j) {
    args.pre[row * args.pre_stride + j] = static_cast<float>(sigmoid(logits[j]) + 1e-6);
    args.post[row * args.post_stride + j] = static_cast<float>(2.0 * sigmoid(logits[4 + j]));
    for (int c = 0; c < 4; ++c) a[j][c] = logits[8 + 4 * j + c];
  }
  sinkhorn(a);
  for (int r = 0; r < 4; ++r) {
    for (int c = 0; c < 4; ++c)
      args.comb[row * args.comb_stride0 + r * args.comb_stride1 + c] = static_cast<float>(a[r][c]);
  }
}
