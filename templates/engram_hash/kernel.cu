// Rows of the Engram table for each token: hashes of the n-grams that end there (ops.md B19.2).
//   r = t0 * m0, xor t1 * m1, xor ..;   rows[t, col] = r mod primes[col] + offsets[col]
// grid  (ceil(num_rows * columns / threads))   block (threads)   shared: none
//
// A thread has one column of one token. What a look-back wants is loaded at once; then those behind
// the first that leaves the sequence, or is dead, become the padding id.
#include "kiln_args.h"
#include "kiln_constants.h"  // num_heads, threads
#include "templates/common/types.cuh"

constexpr int look_backs = 3;
constexpr int columns = look_backs * num_heads;

// Of the token n places before row t, of the request whose rows begin at first_row.
__device__ __forceinline__ i32 id_before(const Args& args, i64 t, i32 request, i64 first_row,
                                         int n) {
  const i64 in_step = t - n;
  if (in_step >= first_row) return args.ids[in_step];
  return args.history[request * args.history_stride + look_backs + (in_step - first_row)];
}

extern "C" __global__ void __launch_bounds__(threads)
    engram_hash(const __grid_constant__ Args args) {
  const i64 index = static_cast<i64>(blockIdx.x) * threads + static_cast<int>(threadIdx.x);
  const i64 t = index / columns;
  const int column = static_cast<int>(index - t * columns);
  if (t >= args.num_rows) return;
  const i32 request = args.requests[t];
  i32* const row = args.rows + t * args.rows_stride + column;
  const bool is_request = request >= 0 && request < args.num_requests;
  const i64 first_row =
      is_request ? args.query_start_loc[request] - args.query_start_loc[0] : args.num_rows;
  if (t < first_row) {
    *row = -1;
    return;
  }
  i32 ids[1 + look_backs] = {args.ids[t]};
#pragma unroll
  for (int n = 1; n <= look_backs; ++n) ids[n] = id_before(args, t, request, first_row, n);

  u64 hash = 0;
  bool is_within = true;
#pragma unroll
  for (int n = 0; n <= look_backs; ++n) {
    is_within = is_within && ids[n] >= 0;
    const i64 id = is_within ? ids[n] : args.pad_id;
    const u64 product = static_cast<u64>(id) * static_cast<u64>(args.multipliers[n]);
    if (n <= 1 + column / num_heads) hash ^= product;
  }
  const u64 prime = static_cast<u32>(args.primes[column]);
  *row = static_cast<i32>(hash % prime) + args.offsets[column];
}
