// Second step of the statistics of residual streams (ops.md B1.1, B1.2): the sums over the splits,
// and the gates of each row. `warps` warps of a CTA, of which `thread` is one's number, have
// rows_per_cta rows. Args has workspace, scale, base, num_rows and where the gates go.
//
// Groups of splits are added by warps at once; a lane has a gate up to its logit. Then a thread has
// a row and its 4 x 4 matrix in registers: the 39 steps wait for one another, not for other lanes.
#pragma once

#include "templates/common/exp.cuh"
#include "templates/common/hc_stats_layout.cuh"
#include "templates/common/memory.cuh"
#include "templates/common/norm.cuh"
#include "templates/common/shared.cuh"
#include "templates/common/types.cuh"

constexpr int side = 4;  // of comb
constexpr int sinkhorn_steps = 20;
constexpr float gate_epsilon = 1e-6f;

__device__ __forceinline__ float sigmoid(float x) { return __frcp_rn(__fadd_rn(1.0f, exp_of(-x))); }

// Off by one in the last place at most.
__device__ __forceinline__ float reciprocal_near(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

__device__ __forceinline__ float dot4(const float (&x)[side], const float (&y)[side], float more) {
  return __fadd_rn(__fmaf_rn(x[0], y[0], __fmaf_rn(x[1], y[1], more)),
                   __fmaf_rn(x[2], y[2], __fmul_rn(x[3], y[3])));
}

// comb[r][c] = rows[r] * a[r][c] * columns[c]: the steps change these factors alone. Dividing a
// column by its sum and epsilon makes its factor v to v / (v * s + epsilon) with s = sum over r of
// rows[r] * a[r][c], that is 1 / (s + epsilon * (1 / v)).
struct Sinkhorn {
  float a[side][side];  // softmax of the rows + epsilon
  float rows[side], columns[side];
  float of_rows[side], of_columns[side];  // their reciprocals

  // From the logits in a.
  __device__ __forceinline__ void start() {
#pragma unroll
    for (int r = 0; r < side; ++r) {
      const float largest = fmaxf(fmaxf(a[r][0], a[r][1]), fmaxf(a[r][2], a[r][3]));
#pragma unroll
      for (int c = 0; c < side; ++c) a[r][c] = exp_of(__fsub_rn(a[r][c], largest));
      const float sum = __fadd_rn(__fadd_rn(a[r][0], a[r][1]), __fadd_rn(a[r][2], a[r][3]));
      const float factor = reciprocal_rn(sum);
#pragma unroll
      for (int c = 0; c < side; ++c) a[r][c] = __fmaf_rn(a[r][c], factor, gate_epsilon);
      rows[r] = columns[r] = of_rows[r] = of_columns[r] = 1.0f;
    }
  }
  __device__ __forceinline__ void divide_rows() {
#pragma unroll
    for (int r = 0; r < side; ++r) {
      of_rows[r] = dot4(a[r], columns, __fmul_rn(gate_epsilon, of_rows[r]));
      rows[r] = reciprocal_near(of_rows[r]);
    }
  }
  __device__ __forceinline__ void divide_columns() {
#pragma unroll
    for (int c = 0; c < side; ++c) {
      const float column[side] = {a[0][c], a[1][c], a[2][c], a[3][c]};
      of_columns[c] = dot4(column, rows, __fmul_rn(gate_epsilon, of_columns[c]));
      columns[c] = reciprocal_near(of_columns[c]);
    }
  }
  __device__ __forceinline__ float comb(int r, int c) const {
    return __fmul_rn(__fmul_rn(rows[r], a[r][c]), columns[c]);
  }
};

// Where the gates of a row go.
struct GateTargets {
  float* pre;
  float* post;
  float* comb;
  i64 comb_stride;
};

// The logits of comb of a row, apart by what lets 32 threads read theirs at once.
struct Logits {
  float4 of_rows[side];
  float4 apart;
};

// What a lane needs to turn the sum of its gate into a logit.
struct GateOfLane {
  float scale, base;

  template <typename Args>
  __device__ __forceinline__ void load(const Args& args, int lane) {
    const int gate = min(lane, gates - 1);
    scale = args.scale[gate < side ? 0 : gate < 2 * side ? 1 : 2];
    base = args.base[gate];
  }
};

// targets_of(row): where its gates go. Uses barrier 1.
template <int width, int splits, int groups, int warps, int rows_per_cta, typename Args,
          typename TargetsOf>
__device__ __forceinline__ void put_gates(const Args& args, const TargetsOf& targets_of,
                                          int thread) {
  __shared__ float of_groups[rows_per_cta * groups][slots_of_row];
  __shared__ Logits logits[rows_per_cta];
  const i64 first_row = static_cast<i64>(blockIdx.x) * rows_per_cta;
  const int rows = static_cast<int>(min(args.num_rows - first_row, i64{rows_per_cta}));
  const int lane = thread % warp_lanes;
  const int first_item = thread / warp_lanes;
  GateOfLane gate;
  gate.load(args, lane);
  for (int item = first_item; item < rows * groups; item += warps) {
    if (lane >= sums_per_row) continue;
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
  barrier(1, 32 * warps);
  for (int row = first_item; row < rows; row += warps) {
    const int which = min(lane, gates);
    float sum = of_groups[row * groups][which];
#pragma unroll
    for (int group = 1; group < groups; ++group)
      sum = __fadd_rn(sum, of_groups[row * groups + group][which]);
    const float squares = __shfl_sync(all_lanes, sum, gates);
    const float mean = __fmaf_rn(squares, 1.0f / static_cast<float>(width), 1e-20f);
    const float rs = __frcp_rn(__fsqrt_rn(mean));
    const float logit = __fmaf_rn(__fmul_rn(sum, rs), gate.scale, gate.base);
    const GateTargets to = targets_of(first_row + row);
    if (lane < side)
      to.pre[lane] = __fadd_rn(sigmoid(logit), gate_epsilon);
    else if (lane < 2 * side)
      to.post[lane - side] = __fmul_rn(2.0f, sigmoid(logit));
    else if (lane < gates)
      reinterpret_cast<float*>(logits[row].of_rows)[lane - 2 * side] = logit;
  }
  barrier(1, 32 * warps);
  if (thread >= rows) return;
  Sinkhorn matrix;
#pragma unroll
  for (int r = 0; r < side; ++r) {
    const float4 row = logits[thread].of_rows[r];
    matrix.a[r][0] = row.x, matrix.a[r][1] = row.y, matrix.a[r][2] = row.z, matrix.a[r][3] = row.w;
  }
  matrix.start();
  matrix.divide_columns();
#pragma unroll 1
  for (int step = 1; step < sinkhorn_steps; ++step) {
    matrix.divide_rows();
    matrix.divide_columns();
  }
  const GateTargets to = targets_of(first_row + thread);
#pragma unroll
  for (int r = 0; r < side; ++r) {
    store_four(to.comb + r * to.comb_stride,
               {matrix.comb(r, 0), matrix.comb(r, 1), matrix.comb(r, 2), matrix.comb(r, 3)});
  }
}
