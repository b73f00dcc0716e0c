// The naive form of hc_stats: a row a block, all of it in float64.
// grid  (rows)   block (threads)   shared: 25 doubles a thread
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, num_streams, threads
#include "templates/naive/hc_stats.cuh"

extern "C" __global__ void hc_stats_oracle(const __grid_constant__ Args args) {
  __shared__ double shared[threads][naive::gates + 1];
  const long long row = blockIdx.x;
  naive::put_gates<columns, threads, num_streams>(
      args.h + row * args.h_stride0, args.h_stride1, args.fn, args.fn_stride, args.scale, args.base,
      shared,
      {args.pre + row * args.pre_stride, args.post + row * args.post_stride,
       args.comb + row * args.comb_stride0, args.comb_stride1});
}
