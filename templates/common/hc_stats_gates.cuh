// Second step of the statistics of residual streams (ops.md B1.1, B1.2): the sums over the splits,
// and the gates of each row. A CTA has `warps` warps and rows_per_cta rows. Args has workspace,
// scale, base, num_rows and where the gates go.
//
// Groups of splits are added by warps at once. Then a thread has a row and its 4 x 4 matrix in
// registers: the 39 steps wait for one another, not for other lanes.
#pragma once

#include "templates/common/exp.cuh"
#include "templates/common/hc.cuh"
#include "templates/common/hc_stats_layout.cuh"
#include "templates/common/norm.cuh"
#include "templates/common/types.cuh"

constexpr int sinkhorn_steps = 20;
constexpr float gate_epsilon = 1e-6f;

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
      for (int c = 0; c < streams; ++c) a[r][c] = __fmaf_rn(a[r][c], factor, gate_epsilon);
    }
  }
  __device__ __forceinline__ void divide_rows() {
#pragma unroll
    for (int r = 0; r < streams; ++r) {
      const float sum = __fadd_rn(sum4(a[r][0], a[r][1], a[r][2], a[r][3]), gate_epsilon);
      const float factor = reciprocal_rn(sum);
#pragma unroll
      for (int c = 0; c < streams; ++c) a[r][c] = __fmul_rn(a[r][c], factor);
    }
  }
  __device__ __forceinline__ void divide_columns() {
#pragma unroll
    for (int c = 0; c < streams; ++c) {
      const float sum = __fadd_rn(sum4(a[0][c], a[1][c], a[2][c], a[3][c]), gate_epsilon);
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

// Where the gates of a row go.
struct GateTargets {
  float* pre;
  float* post;
  float* comb;
  i64 comb_stride;
};

// From the sums of a row over all columns.
template <int columns, typename Args>
__device__ __forceinline__ void put_gates_of(const Args& args, const GateTargets& to,
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
    pre[j] = __fadd_rn(sigmoid(logit(j)), gate_epsilon);
    post[j] = __fmul_rn(2.0f, sigmoid(logit(streams + j)));
#pragma unroll
    for (int c = 0; c < streams; ++c) comb.a[j][c] = logit(2 * streams + streams * j + c);
  }
  store_four(to.pre, {pre[0], pre[1], pre[2], pre[3]});
  store_four(to.post, {post[0], post[1], post[2], post[3]});
  comb.softmax_of_rows();
  comb.divide_columns();
#pragma unroll 1
  for (int step = 1; step < sinkhorn_steps; ++step) {
    comb.divide_rows();
    comb.divide_columns();
  }
#pragma unroll
  for (int r = 0; r < streams; ++r) {
    store_four(to.comb + r * to.comb_stride,
               {comb.a[r][0], comb.a[r][1], comb.a[r][2], comb.a[r][3]});
  }
}

// targets_of(row): where its gates go.
template <int columns, int splits, int groups, int warps, int rows_per_cta, typename Args,
          typename TargetsOf>
__device__ __forceinline__ void put_gates(const Args& args, const TargetsOf& targets_of) {
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
  put_gates_of<columns>(args, targets_of(first_row + row), sums);
}
