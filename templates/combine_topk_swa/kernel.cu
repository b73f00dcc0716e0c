// Writes, for each query, one row of workspace indices: its top-k entries, then its window (ops.md
// B15.2, bit-exact).
//   idx[t, 0, lc)        workspace rows of t's top-k entries
//   idx[t, lc, lc + lw)  workspace rows of t's window
//   idx[t, lc + lw, W)   -1
// grid  (ceil(num_tokens / rows_per_cta))   block (threads_per_row * rows_per_cta)   shared: none
//
// Whole warps serve a row. Rows, zones and columns are independent, so no write is ordered against
// another.
#include "kiln_args.h"
#include "kiln_constants.h"  // ratio, top_k, threads_per_row, rows_per_cta, prefetch_topk
#include "templates/common/memory.cuh"
#include "templates/common/types.cuh"

constexpr int window = 128;
constexpr int vector_ints = 4;
// Vectors of the top-k part that a thread may read before it knows how many of them count.
constexpr int topk_vectors = (top_k + vector_ints - 1) / vector_ints;
constexpr int prefetched =
    prefetch_topk ? (topk_vectors + threads_per_row - 1) / threads_per_row : 0;

struct Row {
  i32 from_topk;    // lc
  i32 from_window;  // lw
  i32 request_row;  // b * M: what a compressed index is relative to
  i32 window_row;   // b * M + N + (ws - g0)
  i32 num_compressed;
};

struct RequestBounds {
  i32 index;  // b; num_requests for padding
  i32 begin;  // first row of b
  i32 end;
  i32 seq_len;
  i32 gather_len;
};

// The last b with query_start_loc[b] - base <= t. All lanes of the warp probe 32 boundaries at a
// time; with at most 31 requests one round is enough, and the lengths come with it.
__device__ __forceinline__ RequestBounds find_request(const Args& args, i32 t) {
  const int lane = lane_id();
  const i32 num_requests = static_cast<i32>(args.num_requests);
  if (num_requests == 0) return {0, 0, 0, 0, 0};
  const i32 base = args.query_start_loc[0];
  if (num_requests < warp_lanes) {
    const i32 probe = min(lane, num_requests);
    const i32 request = min(lane, num_requests - 1);
    const i32 boundary = args.query_start_loc[probe] - base;
    const i32 seq_len = args.seq_lens[request];
    const i32 gather_len = args.gather_lens[request];
    const u32 reached = __ballot_sync(all_lanes, lane <= num_requests && boundary <= t);
    const int b = 31 - __clz(reached);
    return {b, __shfl_sync(all_lanes, boundary, b),
            __shfl_sync(all_lanes, boundary, min(b + 1, num_requests)),
            __shfl_sync(all_lanes, seq_len, b), __shfl_sync(all_lanes, gather_len, b)};
  }
  i32 low = 0;
  for (i32 count = num_requests + 1; count > 1;) {
    const i32 step = (count + warp_lanes - 1) / warp_lanes;
    const i32 probe = lane * step;
    const bool inside = probe < count;
    const bool reaches = inside && args.query_start_loc[low + probe] - base <= t;
    const int last = 31 - __clz(__ballot_sync(all_lanes, reaches));
    low += last * step;
    count = min(step, count - last * step);
  }
  if (low >= num_requests) return {num_requests, 0, 0, 0, 0};
  return {low, args.query_start_loc[low] - base, args.query_start_loc[low + 1] - base,
          args.seq_lens[low], args.gather_lens[low]};
}

__device__ __forceinline__ Row describe_row(const Args& args, i32 t) {
  const RequestBounds request = find_request(args, t);
  if (request.index >= args.num_requests) return {0, 0, 0, 0, 0};
  const i32 position = request.seq_len - (request.end - request.begin) + (t - request.begin);
  const i32 first_gathered = request.seq_len - request.gather_len;
  const i32 window_start = max(max(position - (window - 1), 0), first_gathered);
  Row row;
  row.from_topk = ratio == 0 ? 0 : min(max(position + 1, 0) / max(ratio, 1), top_k);
  row.from_window = max(position - window_start + 1, 0);
  row.request_row = request.index * static_cast<i32>(args.rows_per_request);
  row.window_row =
      row.request_row + static_cast<i32>(args.compressed_rows) + (window_start - first_gathered);
  row.num_compressed = static_cast<i32>(args.compressed_rows);
  return row;
}

__device__ __forceinline__ i32 index_at(const Row& row, i32 column, i32 topk_value) {
  if (column < row.from_topk) {
    return static_cast<u32>(topk_value) < static_cast<u32>(row.num_compressed)
               ? row.request_row + topk_value
               : -1;
  }
  const i32 in_window = column - row.from_topk;
  return in_window < row.from_window ? row.window_row + in_window : -1;
}

__device__ __forceinline__ int4 index_vector_at(const Row& row, i32 column, int4 topk) {
  return {index_at(row, column, topk.x), index_at(row, column + 1, topk.y),
          index_at(row, column + 2, topk.z), index_at(row, column + 3, topk.w)};
}

extern "C" __global__ void __launch_bounds__(threads_per_row* rows_per_cta)
    combine_topk_swa(const __grid_constant__ Args args) {
  const int row_in_cta = static_cast<int>(threadIdx.x) / threads_per_row;
  const int thread = static_cast<int>(threadIdx.x) % threads_per_row;
  const i64 t = static_cast<i64>(blockIdx.x) * rows_per_cta + row_in_cta;
  if (t >= args.num_tokens) return;

  const i32* topk = args.topk + t * args.topk_stride;
  i32* idx = args.idx + t * args.idx_stride;
  const i32 width = static_cast<i32>(args.idx_width);
  const bool topk_vectors_legal = top_k % vector_ints == 0 && aligned_16(topk);
  const bool vectors_legal = topk_vectors_legal && width % vector_ints == 0 && aligned_16(idx);

  int4 early[prefetched > 0 ? prefetched : 1];
  if (prefetched > 0 && vectors_legal) {
#pragma unroll
    for (int i = 0; i < prefetched; ++i) {
      const int vector = thread + i * threads_per_row;
      if (vector < topk_vectors) early[i] = reinterpret_cast<const int4*>(topk)[vector];
    }
  }

  const Row row = describe_row(args, static_cast<i32>(t));
  if (thread == 0) args.len[t] = row.from_topk + row.from_window;

  if (!vectors_legal) {
    // Unsigned: a row may be so wide that the last step leaves int32.
    for (u32 next = thread; next < static_cast<u32>(width); next += threads_per_row) {
      const i32 column = static_cast<i32>(next);
      idx[column] = index_at(row, column, column < row.from_topk ? topk[column] : -1);
    }
    return;
  }
  int4* out = reinterpret_cast<int4*>(idx);
  const i32 vectors = width / vector_ints;
#pragma unroll
  for (int i = 0; i < prefetched; ++i) {
    const i32 vector = thread + i * threads_per_row;
    if (vector < topk_vectors) out[vector] = index_vector_at(row, vector * vector_ints, early[i]);
  }
  for (i32 vector = thread + (prefetched > 0 ? topk_vectors - topk_vectors % threads_per_row : 0);
       vector < vectors; vector += threads_per_row) {
    if (prefetched > 0 && vector < topk_vectors) continue;
    const bool reads = vector * vector_ints < row.from_topk;
    const int4 values = reads ? reinterpret_cast<const int4*>(topk)[vector] : int4{-1, -1, -1, -1};
    out[vector] = index_vector_at(row, vector * vector_ints, values);
  }
}
