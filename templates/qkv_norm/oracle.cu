// The naive form of qkv_norm: a row a block, sums by halves in shared memory, one thread a group.
// grid  (rows)   block (some)   shared: a float a piece
#include "kiln_args.h"
#include "kiln_constants.h"  // q_columns, kv_columns, qr_format
#include "templates/naive/norm.cuh"
#include "templates/naive/quantise.cuh"

constexpr int most_columns = q_columns > kv_columns ? q_columns : kv_columns;
constexpr int group_size = naive::group_of(naive::q8a);

__device__ void put_codes(const Args& args, long long row, int group, const unsigned short* y) {
  const naive::Scale scale = naive::scale_of(naive::q8a, y);
  args.qr_scales[row * args.qr_scales_stride + group] = static_cast<unsigned char>(scale.byte);
  unsigned char* codes = args.qr_codes + row * args.qr_codes_stride + group_size * group;
  for (int i = 0; i < group_size; ++i)
    codes[i] = static_cast<unsigned char>(naive::quantised(naive::q8a, scale, y[i]).code);
}

extern "C" __global__ void qkv_norm_oracle(const __grid_constant__ Args args) {
  __shared__ float sums[most_columns / 8];
  const long long row = blockIdx.x;
  const unsigned short* x = args.qkv + row * args.qkv_stride;
  const unsigned short* kv = x + q_columns;
  const float q_factor = naive::norm_factor<q_columns>(x, sums);
  const float kv_factor = naive::norm_factor<kv_columns>(kv, sums);
  for (int group = threadIdx.x; group < q_columns / group_size; group += blockDim.x) {
    unsigned short y[group_size];
    for (int i = 0; i < group_size; ++i) {
      const int column = group_size * group + i;
      y[i] = naive::normalised(x[column], q_factor, args.q_weight[column]);
      if (qr_format != 1) args.qr[row * args.qr_stride + column] = y[i];
    }
    if (qr_format != 0) put_codes(args, row, group, y);
  }
  for (int column = threadIdx.x; column < kv_columns; column += blockDim.x) {
    args.kv[row * args.kv_stride + column] =
        naive::normalised(kv[column], kv_factor, args.kv_weight[column]);
  }
}
