// Second kernel of hc_stats (ops.md B1.1, B1.2): the sums over the splits, and the gates of each
// row.
// grid  (ceil(num_rows / rows_per_cta))   block (32 * warps)   shared: 32 floats a group, 25 a row
//
// Groups of splits are added by warps at once. Then a thread has a row and its 4 x 4 matrix in
// registers: the 39 steps wait for one another, not for other lanes.
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, splits, groups, warps, rows_per_cta
#include "templates/common/hc.cuh"
#include "templates/common/norm.cuh"
#include "templates/common/types.cuh"
#include "templates/hc_stats/layout.cuh"

constexpr int steps = 20;
constexpr float epsilon = 1e-6f;

__device__ __forceinline__ float exp_of(float x) {
  float result;
  asm("ex2.approx.f32 %0, %1;" : "=f"(result) : "f"(__fmul_rn(x, 1.44269504f)));
  return result;
}

__device__ __forceinline__ float sigmoid(float x) { return __frcp_rn(__fadd_rn(1.0f, exp_of(-x))); }

struct Matrix {
  float a[streams][streams];

  __device__ __forceinline__ void softmax_of_rows() {
#pragma unroll
    for (int r = 0; r < streams; ++r) {
      const float largest = fmaxf(fmaxf(a[r][0], a[r][1]), fmaxf(a[r][2], a[r][3]));
#pragma unroll
      for (int c = 0; c < streams; ++c) a[r][c] = exp_of(__fsub_rn(a[r][c], largest));
      const float factor = reciprocal_rn(sum4(a[r][0], a[r][1], a[r][2], a[r][3]));
#pragma unroll
      for (int c = 0; c < streams; ++c) a[r][c] = __fmaf_rn(a[r][c], factor, epsilon);
    }
  }
  __device__ __forceinline__ void divide_rows() {
#pragma unroll
    for (int r = 0; r < streams; ++r) {
      const float sum = __fadd_rn(sum4(a[r][0], a[r][1], a[r][2], a[r][3]), epsilon);
      const float factor = reciprocal_rn(sum);
#pragma unroll
      for (int c = 0; c < streams; ++c) a[r][c] = __fmul_rn(a[r][c], factor);
    }
  }
  __device__ __forceinline__ void divide_columns() {
#pragma unroll
    for (int c = 0; c < streams; ++c) {
      const float sum = __fadd_rn(sum4(a[0][c], a[1][c], a[2][c], a[3][c]), epsilon);
      const float factor = reciprocal_rn(sum);
#pragma unroll
      for (int r = 0; r < streams; ++r) a[r][c] = __fmul_rn(a[r][c], factor);
    }
  }

 private:
  static __device__ __forceinline__ float sum4(float x, float y, float z, float w) {
    return __fadd_rn(__fadd_rn(x, y), __fadd_rn(z, w));
  }
};

__device__ __forceinline__ void store_four(float* to, float x, float y, float z, float w) {
  store_16(to, {__float_as_uint(x), __float_as_uint(y), __float_as_uint(z), __float_as_uint(w)});
}

// From the sums of a row over all columns.
__device__ __forceinline__ void put_gates(const Args& args, i64 row,
                                          const float (&sums)[sums_of_row]) {
  const float mean = __fmaf_rn(sums[gates], 1.0f / static_cast<float>(streams * columns), 1e-20f);
  const float rs = __frcp_rn(__fsqrt_rn(mean));
  const auto logit = [&](int k) {
    const int kind = k < 4 ? 0 : k < 8 ? 1 : 2;
    return __fmaf_rn(__fmul_rn(sums[k], rs), args.scale[kind], args.base[k]);
  };
  float pre[streams], post[streams];
  Matrix comb;
#pragma unroll
  for (int j = 0; j < streams; ++j) {
    pre[j] = __fadd_rn(sigmoid(logit(j)), epsilon);
    post[j] = __fmul_rn(2.0f, sigmoid(logit(streams + j)));
#pragma unroll
    for (int c = 0; c < streams; ++c) comb.a[j][c] = logit(2 * streams + streams * j + c);
  }
  store_four(args.pre + row * args.pre_stride, pre[0], pre[1], pre[2], pre[3]);
  store_four(args.post + row * args.post_stride, post[0], post[1], post[2], post[3]);
  comb.softmax_of_rows();
  comb.divide_columns();
#pragma unroll 1
  for (int step = 1; step < steps; ++step) {
    comb.divide_rows();
    comb.divide_columns();
  }
#pragma unroll
  for (int r = 0; r < streams; ++r) {
    store_four(args.comb + row * args.comb_stride0 + r * args.comb_stride1, comb.a[r][0],
               comb.a[r][1], comb.a[r][2], comb.a[r][3]);
  }
}

extern "C" __global__ void __launch_bounds__(32 * warps)
    hc_stats_gates(const __grid_constant__ Args args) {
  __shared__ float of_groups[rows_per_cta * groups][slots_of_row];
  const i64 first_row = static_cast<i64>(blockIdx.x) * rows_per_cta;
  const int rows = static_cast<int>(min(args.num_rows - first_row, i64{rows_per_cta}));
  const int lane = lane_id();
  for (int item = warp_id(); item < rows * groups; item += warps) {
    if (lane >= sums_of_row) continue;
    const int group = item % groups;
    const i64 row = first_row + item / groups;
    float parts[(splits + groups - 1) / groups];
#pragma unroll
    for (int i = 0; i < (splits + groups - 1) / groups; ++i) {
      const int split = group + i * groups;
      const bool is_one = splits % groups == 0 || split < splits;
      parts[i] = is_one ? partial_sums(args.workspace, args.num_rows, split, row)[lane] : 0.0f;
    }
    float sum = parts[0];
#pragma unroll
    for (int i = 1; i < (splits + groups - 1) / groups; ++i) sum = __fadd_rn(sum, parts[i]);
    of_groups[item][lane] = sum;
  }
  __syncthreads();
  const int row = static_cast<int>(threadIdx.x);
  if (row >= rows) return;
  float sums[sums_of_row];
#pragma unroll
  for (int which = 0; which < sums_of_row; ++which) {
    sums[which] = of_groups[row * groups][which];
#pragma unroll
    for (int group = 1; group < groups; ++group)
      sums[which] = __fadd_rn(sums[which], of_groups[row * groups + group][which]);
  }
  put_gates(args, first_row + row, sums);
}
