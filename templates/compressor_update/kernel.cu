// The latent vector of every group of tokens that a step completes, and the ring of rows that later
// steps complete groups with (ops.md B9).
//   pooled = (value[p - 1] * e[p - 1] + value[p] * e[p]) / (e[p - 1] + e[p])     ratio 2
//   latent[t] = RMSNorm(bf16(pooled))
// grid  (ceil(num_rows / rows_per_cta)), half of it where a group of threads takes two rows
// block (threads_per_row * rows_per_cta)
// shared: two floats a thread where a row has several warps
//
// A row that completes a group reads its own projections and its partner's. With ratio 2 each row
// is read once where a group of threads takes two rows or early_rows is off, but for rows that go
// to the ring. A row of the ring is read by the first row of a request at most. Where a later row
// of the same step would replace it, the first row writes that one too, behind its read: nothing
// else is ordered.
#include "kiln_args.h"
#include "kiln_constants.h"  // ratio, rounds_pooled, threads_per_row, rows_per_cta, early_rows,
                             // takes_two_rows
#include "templates/common/exp.cuh"
#include "templates/common/memory.cuh"
#include "templates/common/norm.cuh"
#include "templates/common/pages.cuh"
#include "templates/common/types.cuh"

constexpr int channels = 512;
constexpr int pieces = channels / piece_elements / threads_per_row;  // of a thread
constexpr int block_threads = threads_per_row * rows_per_cta;
constexpr bool has_exchange = threads_per_row > warp_lanes;

// The part of a row of projections that a thread holds.
struct Projections {
  float4 values[pieces][2];
  float4 scores[ratio == 2 ? pieces : 1][2];

  __device__ __forceinline__ void load(const float* row, int thread) {
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* four = row + thread * piece_elements + place(i, half);
        values[i][half] = load_four(four);
        if constexpr (ratio == 2) scores[i][half] = load_four(four + channels);
      }
    }
  }
  __device__ __forceinline__ void store(float* row, int thread) const {
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* four = row + thread * piece_elements + place(i, half);
        store_four(four, values[i][half]);
        store_four(four + channels, scores[i][half]);
      }
    }
  }

 private:
  // Behind the thread's first channel.
  static __device__ __forceinline__ int place(int i, int half) {
    return i * (threads_per_row * piece_elements) + 4 * half;
  }
};

// The larger score's e is 1: only the other one needs its exponential, and their sum lies in [1,
// 2].
__device__ __forceinline__ float pool(float value_a, float score_a, float value_b, float score_b) {
  const float difference = __fsub_rn(score_a, score_b);
  const float e = exp_of(-fabsf(difference));
  // Infinity minus infinity spoils the group: so does an infinite maximum, times 0.
  const float smaller = __fmaf_rn(fmaxf(score_a, score_b), 0.0f, e);
  const bool a_is_larger = difference >= 0.0f;
  const float value_1 = a_is_larger ? value_a : value_b;
  const float value_e = a_is_larger ? value_b : value_a;
  const float sum = __fadd_rn(value_1, __fmul_rn(value_e, smaller));
  return __fmul_rn(sum, reciprocal_rn(__fadd_rn(1.0f, smaller)));
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

// Of the request of a row.
struct Request {
  i32 base, first, end, block;

  __device__ __forceinline__ void load(const Args& args, i32 request) {
    base = load_i32(args.query_start_loc);
    first = load_i32(args.query_start_loc + request);
    end = load_i32(args.query_start_loc + request + 1);
    block = load_i32(args.ring_blocks + request);
  }
  __device__ __forceinline__ i64 first_row() const { return first - base; }
  __device__ __forceinline__ i64 end_row(const Args& args) const {
    return min(static_cast<i64>(end - base), args.num_rows);
  }
  __device__ __forceinline__ bool has_block(const Args& args) const {
    return block > 0 && block < args.num_blocks && args.block_rows > 0;
  }

 private:
  static __device__ __forceinline__ i32 load_i32(const i32* p) {
    return static_cast<i32>(load_4(p));
  }
};

// The block of a request.
class Ring {
 public:
  __device__ __forceinline__ Ring(const Args& args, const Request& request)
      : rows_(request.has_block(args) ? args.block_rows : 1),
        first_(args.ring + (request.has_block(args) ? request.block * args.ring_stride0 : 0)),
        stride_(args.ring_stride1) {}

  __device__ __forceinline__ u32 whole_blocks(u32 tokens) const {
    return rows_.page_of(tokens) * rows_.entries();
  }
  __device__ __forceinline__ float* row(u32 token) const {
    return first_ + (token - whole_blocks(token)) * stride_;
  }

 private:
  PageSize rows_;
  float* first_;
  i64 stride_;
};

// What a row has to store (ratio 2).
struct Stores {
  bool own;   // its projections
  bool late;  // those of the row at late_row too
  float* ring_row;
  i64 late_row;
  float* late_ring_row;
};

__device__ __forceinline__ Stores plan_stores(const Args& args, i64 t, u32 position,
                                              const Request& request) {
  const i64 first_row = request.first_row();
  const i64 end_row = request.end_row(args);
  const bool has_block = request.has_block(args);
  const Ring ring(args, request);
  const u32 from_first = static_cast<u32>(t - first_row);

  // The first row's partner stands where rows block_rows - 1, 2 * block_rows - 1, .. go.
  const bool ring_is_read = ((position - from_first) & 1) != 0;
  const auto replaces_partner = [&](u32 row) {
    return ring_is_read && ring.whole_blocks(row + 1) == row + 1;
  };
  const i64 rows_left = end_row - 1 - t;
  Stores stores;
  stores.own = has_block && t >= first_row && rows_left >= 0 && rows_left < args.block_rows &&
               !replaces_partner(from_first);
  stores.ring_row = ring.row(position);

  const u32 whole = ring.whole_blocks(static_cast<u32>(end_row - first_row));
  stores.late = has_block && t == first_row && ring_is_read && end_row > first_row && whole > 0;
  stores.late_row = first_row + whole - 1;
  stores.late_ring_row = ring.row(position + whole - 1);
  return stores;
}

__device__ __forceinline__ const float* row_of(const Args& args, i64 t) {
  return args.projections + t * args.projections_stride;
}

__device__ __forceinline__ void copy_row(const Args& args, i64 from, float* to, int thread) {
  Projections row;
  row.load(row_of(args, from), thread);
  row.store(to, thread);
}

// A row is none of a request.
__device__ __forceinline__ bool is_padding(const Args& args, i32 position, i32 request) {
  return position < 0 || request < 0 || request >= args.num_requests;
}

__device__ __forceinline__ void pool_rows(Piece8 (&x)[pieces], const Projections& partner,
                                          const Projections& own) {
#pragma unroll
  for (int i = 0; i < pieces; ++i) {
    x[i] = Piece8(
        pool(partner.values[i][0], partner.scores[i][0], own.values[i][0], own.scores[i][0]),
        pool(partner.values[i][1], partner.scores[i][1], own.values[i][1], own.scores[i][1]));
  }
}

// latent[t] from what is pooled; `group` of the CTA's groups of threads.
__device__ __forceinline__ void put_latent(const Args& args, i64 t, const Piece8 (&x)[pieces],
                                           float* exchange, int thread, int group) {
  RowPart<channels, threads_per_row> weights;
  weights.load(args.norm_weight, thread);
  uint4 rounded[pieces];
  float squares[pieces];
#pragma unroll
  for (int i = 0; i < pieces; ++i) {
    rounded[i] = x[i].in_bf16();
    squares[i] = rounds_pooled ? sum_of_squares(rounded[i]) : x[i].squares();
  }
  const float factor =
      norm_factor<channels>(sum_of_row<threads_per_row>(squares, exchange, thread, 1 + group));
  u16* latent = args.latent + t * args.latent_stride;
#pragma unroll
  for (int i = 0; i < pieces; ++i) {
    const uint4 y = rounds_pooled ? normalised(rounded[i], weights.data[i], factor)
                                  : x[i].normalised_by(weights.data[i], factor);
    store_16(RowPart<channels, threads_per_row>::place(latent, thread, i), y);
  }
}

__device__ __forceinline__ void take_row(const Args& args, i64 t, float* exchange, int thread,
                                         int group) {
  if (t >= args.num_rows) return;
  const float* row = row_of(args, t);
  Projections own, partner;
  if constexpr (early_rows) own.load(row, thread);
  const i32 position = args.positions[t];
  const i32 request_of_row = args.requests[t];
  if (is_padding(args, position, request_of_row)) return;

  Piece8 x[pieces];
  if constexpr (ratio == 2) {
    Request request;
    request.load(args, request_of_row);
    const bool is_first = t <= request.first_row() || t == 0;
    const bool is_odd = (position & 1) != 0;
    const bool completes = is_odd && (!is_first || request.has_block(args));
    const Ring ring(args, request);
    if (completes) partner.load(is_first ? ring.row(position - 1) : row_of(args, t - 1), thread);
    const Stores stores = plan_stores(args, t, position, request);
    if (!early_rows && (completes || stores.own)) own.load(row, thread);
    if (stores.own) own.store(stores.ring_row, thread);
    if (stores.late) copy_row(args, stores.late_row, stores.late_ring_row, thread);
    if (!completes) return;
    pool_rows(x, partner, own);
  } else {
    if constexpr (!early_rows) own.load(row, thread);
#pragma unroll
    for (int i = 0; i < pieces; ++i) x[i] = Piece8(own.values[i][0], own.values[i][1]);
  }
  put_latent(args, t, x, exchange, thread, group);
}

// Rows t and t + 1, which are a group where positions are even at even rows: then each row is read
// once. Neighbours of one request are found without query_start_loc; that and the block are needed
// by the first and the last rows of a request only and are on their way meanwhile.
__device__ __forceinline__ void take_two_rows(const Args& args, i64 t, float* exchange, int thread,
                                              int group) {
  if (t >= args.num_rows) return;
  const bool has_second = t + 1 < args.num_rows;
  const i32 positions[2] = {args.positions[t], has_second ? args.positions[t + 1] : -1};
  const i32 requests[2] = {args.requests[t], has_second ? args.requests[t + 1] : -1};
  const i32 request_before = t > 0 ? args.requests[t - 1] : -1;
  Projections partner, own;
  if constexpr (early_rows) {
    partner.load(row_of(args, t), thread);
    if (has_second) own.load(row_of(args, t + 1), thread);
  }
  if (is_padding(args, positions[0], requests[0])) return;
  Request of_first_row;
  of_first_row.load(args, requests[0]);
  const auto request_of = [&](int i) {
    Request request = of_first_row;
    if (i == 1 && requests[1] != requests[0]) request.load(args, requests[1]);
    return request;
  };

#pragma unroll 1
  for (int i = 1; i >= 0; --i) {
    const i32 position = i == 1 ? positions[1] : positions[0];
    const i32 request_of_row = i == 1 ? requests[1] : requests[0];
    const bool is_first = request_of_row != (i == 1 ? requests[0] : request_before);
    if (is_padding(args, position, request_of_row) || (position & 1) == 0) continue;
    const float* partner_row = row_of(args, t + i - 1);
    if (is_first) {
      const Request request = request_of(i);
      if (!request.has_block(args)) continue;
      partner_row = Ring(args, request).row(position - 1);
    }
    if (!early_rows || i == 0 || is_first) {
      partner.load(partner_row, thread);
      own.load(row_of(args, t + i), thread);
    }
    Piece8 x[pieces];
    pool_rows(x, partner, own);
    // Threads of the row before may still read its sums.
    float* const exchange_of_row = exchange + (has_exchange ? i * block_threads : 0);
    put_latent(args, t + i, x, exchange_of_row, thread, group);
  }

  // Behind all reads of the ring by these threads.
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    const i32 position = i == 0 ? positions[0] : positions[1];
    if (is_padding(args, position, i == 0 ? requests[0] : requests[1])) continue;
    const Request request = request_of(i);
    const bool is_within =
        t + i > request.first_row() && t + i + args.block_rows < request.end_row(args);
    if (is_within) continue;
    const Stores stores = plan_stores(args, t + i, position, request);
    if (stores.own) copy_row(args, t + i, stores.ring_row, thread);
    if (stores.late) copy_row(args, stores.late_row, stores.late_ring_row, thread);
  }
}

// At 128 registers, which two rows need, 16 warps fit an SM.
constexpr int warps_per_sm = 16;
constexpr int ctas_that_fit = warps_per_sm * warp_lanes / block_threads;
constexpr int ctas_per_sm = !takes_two_rows ? 0 : ctas_that_fit > 0 ? ctas_that_fit : 1;

extern "C" __global__ void __launch_bounds__(block_threads, ctas_per_sm)
    compressor_update(const __grid_constant__ Args args) {
  __shared__ float shared[has_exchange ? 2 * block_threads : 1];
  const int group = static_cast<int>(threadIdx.x / threads_per_row);
  const int thread = static_cast<int>(threadIdx.x % threads_per_row);
  float* const exchange = shared + (has_exchange ? group * threads_per_row : 0);
  const i64 index = static_cast<i64>(blockIdx.x) * rows_per_cta + group;
  if constexpr (takes_two_rows) {
    take_two_rows(args, 2 * index, exchange, thread, group);
  } else {
    take_row(args, index, exchange, thread, group);
  }
}
