// The naive form of index_key_insert: one CTA per row, one thread per group.
// grid  (rows)   block (32)   shared: the row after the norm and after RoPE, sums
#include "kiln_args.h"
#include "kiln_constants.h"  // format, ratio
#include "templates/naive/kv_entry.cuh"
#include "templates/naive/norm.cuh"
#include "templates/naive/rope.cuh"

extern "C" __global__ void index_key_insert_oracle(const __grid_constant__ Args args) {
  constexpr int quantiser = format == 5 ? naive::q4m : naive::q8k;
  __shared__ unsigned short normalised[128], rotated[128];
  __shared__ float sums[16];
  const long long row = blockIdx.x;
  const long long slot = args.slots[row];
  const long long position = args.positions[row];
  if (slot < 0 || slot / args.page_size >= args.num_pages) return;
  const unsigned short* k = args.k + row * args.k_stride;
  const float factor = naive::norm_factor<128>(k, sums);
  for (int e = threadIdx.x; e < 128; e += blockDim.x)
    normalised[e] = naive::normalised(k[e], factor, args.weight[e]);
  __syncthreads();
  const bool rotates = position >= 0 && position < args.num_positions;
  const float* angles =
      rotates ? args.rope_table + position / ratio * ratio * args.rope_table_stride : nullptr;
  for (int e = threadIdx.x; e < 128; e += blockDim.x)
    rotated[e] = naive::rotated(normalised, 128, e, angles);
  __syncthreads();
  const naive::Place place{args.cache + slot / args.page_size * args.cache_stride, args.page_size,
                           slot % args.page_size};
  const int group = naive::group_of(quantiser);
  for (int e = group * static_cast<int>(threadIdx.x); e < 128;
       e += group * static_cast<int>(blockDim.x))
    naive::put_group(place, format, quantiser, rotated, e);
}
