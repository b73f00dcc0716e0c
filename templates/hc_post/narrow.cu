// hc_post for few rows: a thread has two columns of all streams, so that a row is many threads and
// what each does one after another is short. The bits are those of kernel.cu.
// grid  (num_rows * row_parts)   block (threads)   shared: none
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, threads
#include "templates/common/hc.cuh"

constexpr int pairs = columns / 2;
constexpr int row_parts = (pairs + threads - 1) / threads;

extern "C" __global__ void __launch_bounds__(threads)
    hc_post_narrow(const __grid_constant__ Args args) {
  const i64 row = blockIdx.x / row_parts;
  const int pair =
      static_cast<int>(blockIdx.x % row_parts) * threads + static_cast<int>(threadIdx.x);
  if (pairs % threads != 0 && pair >= pairs) return;
  u16* const h = args.h + row * args.h_stride0 + 2 * pair;
  PostGates gates;
  gates.load(args.post + row * args.post_stride, args.comb + row * args.comb_stride0,
             args.comb_stride1);
  const u32 y = load_4(args.y + row * args.y_stride + 2 * pair);
  u32 x[streams];
#pragma unroll
  for (int i = 0; i < streams; ++i) x[i] = load_4(h + i * args.h_stride1);
  mix_pair(y, x, gates);
#pragma unroll
  for (int i = 0; i < streams; ++i) *reinterpret_cast<u32*>(h + i * args.h_stride1) = x[i];
}
