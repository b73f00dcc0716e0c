// The gates of a row of residual streams by their definition (ops.md B1.1, B1.2), in float64, for
// oracles.
#pragma once

#include "templates/naive/quantise.cuh"

namespace naive {

constexpr int gates = 24;

__device__ inline double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

__device__ inline void sinkhorn(double (&a)[4][4]) {
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

struct GateRows {
  float* pre;
  float* post;
  float* comb;
  long long comb_stride;
};

// For all threads of the block, which come to it together; `shared` has 25 doubles for each.
template <int columns, int threads, int streams = 4>
__device__ inline void put_gates(const unsigned short* h, long long stream_stride, const float* fn,
                                 long long fn_stride, const float* scale, const float* base,
                                 double (&shared)[threads][gates + 1], const GateRows& to) {
  double sums[gates + 1] = {};
  for (int column = threadIdx.x; column < streams * columns; column += threads) {
    const double v = bf16(h[column / columns * stream_stride + column % columns]);
    for (int k = 0; k < gates; ++k) sums[k] += v * fn[k * fn_stride + column];
    sums[gates] += v * v;
  }
  for (int k = 0; k <= gates; ++k) shared[threadIdx.x][k] = sums[k];
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int k = 0; k <= gates; ++k) {
    for (int i = 1; i < threads; ++i) sums[k] += shared[i][k];
  }
  const float squares = static_cast<float>(sums[gates]);  // may leave fp32
  const double rs = 1.0 / sqrt(static_cast<double>(squares) / (1.0 * streams * columns) + 1e-20);
  double logits[gates];
  for (int k = 0; k < gates; ++k) {
    const int kind = k < 4 ? 0 : k < 8 ? 1 : 2;
    logits[k] = sums[k] * rs * scale[kind] + base[k];
  }
  double a[4][4];
  for (int j = 0; j < 4; ++j) {
    to.pre[j] = static_cast<float>(sigmoid(logits[j]) + 1e-6);
    to.post[j] = static_cast<float>(2.0 * sigmoid(logits[4 + j]));
    for (int c = 0; c < 4; ++c) a[j][c] = logits[8 + 4 * j + c];
  }
  sinkhorn(a);
  for (int r = 0; r < 4; ++r) {
    for (int c = 0; c < 4; ++c) to.comb[r * to.comb_stride + c] = static_cast<float>(a[r][c]);
  }
}

}  // namespace naive
