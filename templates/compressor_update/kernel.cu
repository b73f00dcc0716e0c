// The latent vector of every group of tokens that a step completes, and the ring of rows that later
// steps complete groups with (ops.md B9).
//   pooled = (value[p - 1] * e[p - 1] + value[p] * e[p]) / (e[p - 1] + e[p])     ratio 2
//   latent[t] = RMSNorm(bf16(pooled))
// grid  (ceil(num_rows / rows_per_cta))   block (threads_per_row * rows_per_cta)
// shared: one float a thread where a row has several warps
//
// A row that completes a group reads its own projections and its partner's, so every row is read
// once. A row of the ring is read by the first row of a request at most. Where a later row of the
// same step would replace it, the first row writes that one too, behind its read: nothing else is
// ordered.
#include "kiln_args.h"
#include "kiln_constants.h"  // ratio, rounds_pooled, threads_per_row, rows_per_cta, early_rows
#include "templates/common/memory.cuh"
#include "templates/common/norm.cuh"
#include "templates/common/pages.cuh"
#include "templates/common/types.cuh"

constexpr int channels = 512;
constexpr int pieces = channels / piece_elements / threads_per_row;  // of a thread

// The part of a row of projections that a thread holds.
struct Projections {
  float4 values[pieces][2];
  float4 scores[ratio == 2 ? pieces : 1][2];

  __device__ __forceinline__ void load(const float* row, int thread) {
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = (thread + i * threads_per_row) * piece_elements + 4 * half;
        values[i][half] = load_four(row + at);
        if constexpr (ratio == 2) scores[i][half] = load_four(row + channels + at);
      }
    }
  }
  __device__ __forceinline__ void store(float* row, int thread) const {
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = (thread + i * threads_per_row) * piece_elements + 4 * half;
        store_four(row + at, values[i][half]);
        store_four(row + channels + at, scores[i][half]);
      }
    }
  }

 private:
  static __device__ __forceinline__ float4 load_four(const float* p) {
    const uint4 bits = load_16(reinterpret_cast<const u8*>(p));
    return {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
            __uint_as_float(bits.w)};
  }
  static __device__ __forceinline__ void store_four(float* p, const float4& four) {
    store_16(p, {__float_as_uint(four.x), __float_as_uint(four.y), __float_as_uint(four.z),
                 __float_as_uint(four.w)});
  }
};

__device__ __forceinline__ float exp_of(float x) {
  float result;
  asm("ex2.approx.f32 %0, %1;" : "=f"(result) : "f"(__fmul_rn(x, 1.44269504f)));
  return result;
}

__device__ __forceinline__ float pool(float value_a, float score_a, float value_b, float score_b) {
  const float m = fmaxf(score_a, score_b);
  const float a = exp_of(__fsub_rn(score_a, m));
  const float b = exp_of(__fsub_rn(score_b, m));
  const float sum = __fadd_rn(__fmul_rn(value_a, a), __fmul_rn(value_b, b));
  return __fmul_rn(sum, __frcp_rn(__fadd_rn(a, b)));
}

__device__ __forceinline__ float4 pool(const float4& value_a, const float4& score_a,
                                       const float4& value_b, const float4& score_b) {
  return {pool(value_a.x, score_a.x, value_b.x, score_b.x),
          pool(value_a.y, score_a.y, value_b.y, score_b.y),
          pool(value_a.z, score_a.z, value_b.z, score_b.z),
          pool(value_a.w, score_a.w, value_b.w, score_b.w)};
}

struct Piece8 {
  float x[piece_elements];

  Piece8() = default;
  __device__ __forceinline__ Piece8(const float4& low, const float4& high)
      : x{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w} {}

  __device__ __forceinline__ uint4 in_bf16() const {
    return {to_bf16x2(x[0], x[1]), to_bf16x2(x[2], x[3]), to_bf16x2(x[4], x[5]),
            to_bf16x2(x[6], x[7])};
  }
  // As sum_of_squares of bf16.
  __device__ __forceinline__ float squares() const {
    float even = 0.0f, odd = 0.0f;
#pragma unroll
    for (int i = 0; i < piece_elements; i += 2) {
      even = __fmaf_rn(x[i], x[i], even);
      odd = __fmaf_rn(x[i + 1], x[i + 1], odd);
    }
    return __fadd_rn(even, odd);
  }
  __device__ __forceinline__ uint4 normalised_by(const uint4& weights, float factor) const {
    const u32 w[4] = {weights.x, weights.y, weights.z, weights.w};
    u32 y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      y[i] = to_bf16x2(__fmul_rn(__fmul_rn(x[2 * i], factor), low_bf16(w[i])),
                       __fmul_rn(__fmul_rn(x[2 * i + 1], factor), high_bf16(w[i])));
    }
    return {y[0], y[1], y[2], y[3]};
  }
};

// What a row has to do with the ring and with its neighbours (ratio 2).
struct RowPlan {
  bool completes;    // a group
  bool stores;       // its projections
  bool stores_late;  // those of the row at late_row too
  const float* partner;
  float* ring_row;
  i64 late_row;
  float* late_ring_row;
};

__device__ __forceinline__ RowPlan plan_row(const Args& args, i64 t, u32 position, i32 request) {
  const i32 base = args.query_start_loc[0];
  const i64 first_row = args.query_start_loc[request] - base;
  const i64 end_row =
      min(static_cast<i64>(args.query_start_loc[request + 1] - base), args.num_rows);
  const i32 block = args.ring_blocks[request];
  const u32 block_rows = static_cast<u32>(args.block_rows);
  const bool has_block = block > 0 && block < args.num_blocks && block_rows > 0;
  const PageSize rows_of_block(has_block ? block_rows : 1);
  float* ring = args.ring + (has_block ? block * args.ring_stride0 : 0);
  const auto ring_row = [&](u32 token) {
    const u32 row = token - rows_of_block.page_of(token) * rows_of_block.entries();
    return ring + row * args.ring_stride1;
  };

  const bool is_first = t <= first_row || t == 0;
  const u32 from_first = static_cast<u32>(t - first_row);
  const bool is_odd = (position & 1) != 0;
  RowPlan plan;
  plan.completes = is_odd && (!is_first || has_block);
  plan.partner =
      is_first ? ring_row(position - 1) : args.projections + (t - 1) * args.projections_stride;

  // The first row's partner stands where rows block_rows - 1, 2 * block_rows - 1, .. go.
  const bool ring_is_read = ((position - from_first) & 1) != 0;
  const auto replaces_partner = [&](u32 row) {
    return ring_is_read && rows_of_block.page_of(row + 1) * rows_of_block.entries() == row + 1;
  };
  const i64 rows_left = end_row - 1 - t;
  plan.stores = has_block && t >= first_row && rows_left >= 0 && rows_left < block_rows &&
                !replaces_partner(from_first);
  plan.ring_row = ring_row(position);

  const u32 query_len = static_cast<u32>(end_row - first_row);
  const u32 whole = rows_of_block.page_of(query_len) * rows_of_block.entries();
  plan.stores_late =
      has_block && t == first_row && ring_is_read && end_row > first_row && whole > 0;
  plan.late_row = first_row + whole - 1;
  plan.late_ring_row = ring_row(position + whole - 1);
  return plan;
}

extern "C" __global__ void __launch_bounds__(threads_per_row* rows_per_cta)
    compressor_update(const __grid_constant__ Args args) {
  __shared__ float shared[threads_per_row > warp_lanes ? threads_per_row * rows_per_cta : 1];
  const int row_in_cta = static_cast<int>(threadIdx.x) / threads_per_row;
  const int thread = static_cast<int>(threadIdx.x) % threads_per_row;
  const i64 t = static_cast<i64>(blockIdx.x) * rows_per_cta + row_in_cta;
  if (t >= args.num_rows) return;

  const float* row = args.projections + t * args.projections_stride;
  Projections own, partner;
  if constexpr (early_rows) own.load(row, thread);
  const i32 position = args.positions[t];
  const i32 request = args.requests[t];
  if (position < 0 || request < 0 || request >= args.num_requests) return;

  Piece8 x[pieces];
  if constexpr (ratio == 2) {
    const RowPlan plan = plan_row(args, t, static_cast<u32>(position), request);
    if (plan.completes) partner.load(plan.partner, thread);
    if (!early_rows && (plan.completes || plan.stores)) own.load(row, thread);
    if (plan.stores) own.store(plan.ring_row, thread);
    if (plan.stores_late) {
      Projections late;
      late.load(args.projections + plan.late_row * args.projections_stride, thread);
      late.store(plan.late_ring_row, thread);
    }
    if (!plan.completes) return;
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
      x[i] = Piece8(
          pool(partner.values[i][0], partner.scores[i][0], own.values[i][0], own.scores[i][0]),
          pool(partner.values[i][1], partner.scores[i][1], own.values[i][1], own.scores[i][1]));
    }
  } else {
    if constexpr (!early_rows) own.load(row, thread);
#pragma unroll
    for (int i = 0; i < pieces; ++i) x[i] = Piece8(own.values[i][0], own.values[i][1]);
  }

  RowPart<channels, threads_per_row> weights;
  weights.load_shared_by_all(args.norm_weight, thread);
  float* const exchange =
      shared + (threads_per_row > warp_lanes ? row_in_cta * threads_per_row : 0);
  uint4 rounded[pieces];
  float squares[pieces];
#pragma unroll
  for (int i = 0; i < pieces; ++i) {
    rounded[i] = x[i].in_bf16();
    squares[i] = rounds_pooled ? sum_of_squares(rounded[i]) : x[i].squares();
  }
  const float factor =
      norm_factor<channels>(sum_of_row<threads_per_row>(squares, exchange, thread, 1 + row_in_cta));
  u16* latent = args.latent + t * args.latent_stride;
#pragma unroll
  for (int i = 0; i < pieces; ++i) {
    const uint4 y = rounds_pooled ? normalised(rounded[i], weights.data[i], factor)
                                  : x[i].normalised_by(weights.data[i], factor);
    store_16(latent + RowPart<channels, threads_per_row>::column(thread, i), y);
  }
}
