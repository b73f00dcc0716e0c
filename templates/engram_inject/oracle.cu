// The naive form of engram_inject: a stream of a token a block, sums in float64.
// grid  (num_rows * num_streams)   block (threads)   shared: 3 doubles a thread
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, num_streams, threads
#include "templates/naive/quantise.cuh"

extern "C" __global__ void engram_inject_oracle(const __grid_constant__ Args args) {
  __shared__ double shared[3][threads];
  const long long t = blockIdx.x / num_streams;
  const int stream = blockIdx.x % num_streams;
  if (args.ids != nullptr && args.ids[t] < 0) return;
  unsigned short* h = args.h + t * args.h_stride0 + stream * args.h_stride1;
  const unsigned short* keys = args.keys_and_value + t * args.keys_and_value_stride;
  double sums[3] = {};
  for (int column = threadIdx.x; column < columns; column += threads) {
    const double x = naive::bf16(h[column]);
    const double key = naive::bf16(keys[stream * columns + column]);
    const double q = naive::bf16(args.q_weight[stream * args.q_weight_stride + column]);
    const double k = naive::bf16(args.k_weight[stream * args.k_weight_stride + column]);
    sums[0] += x * (q * k) * key;
    sums[1] += x * x;
    sums[2] += key * key;
  }
  for (int i = 0; i < 3; ++i) shared[i][threadIdx.x] = sums[i];
  __syncthreads();
  for (int i = 0; i < 3; ++i) {
    sums[i] = 0.0;
    for (int other = 0; other < threads; ++other) sums[i] += shared[i][other];
  }
  const double dot = sums[0] / sqrt(sums[1] / columns + 1e-20) / sqrt(sums[2] / columns + 1e-20) /
                     sqrt(static_cast<double>(columns));
  const double root = copysign(sqrt(fmax(fabs(dot), 1e-6)), dot);
  const double gate = 1.0 / (1.0 + exp(-root));
  for (int column = threadIdx.x; column < columns; column += threads) {
    const double value = naive::bf16(keys[num_streams * columns + column]);
    h[column] = naive::round_to_bf16(static_cast<float>(naive::bf16(h[column]) + gate * value));
  }
}
