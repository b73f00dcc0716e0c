// The naive form of compressed_kv_insert: one CTA per row, one thread per group.
// grid  (rows)   block (64)   shared: the row after RoPE
#include "kiln_args.h"
#include "kiln_constants.h"  // format, ratio
#include "templates/naive/kv_entry.cuh"
#include "templates/naive/rope.cuh"

extern "C" __global__ void compressed_kv_insert_oracle(const __grid_constant__ Args args) {
  constexpr int quantiser = format == 1 ? naive::q8a : format == 3 ? naive::q8d : naive::q4n;
  __shared__ unsigned short rotated[512];
  const long long row = blockIdx.x;
  const long long slot = args.slots[row];
  const long long position = args.positions[row];
  if (slot < 0 || slot / args.page_size >= args.num_pages) return;
  const bool rotates = position >= 0 && position < args.num_positions;
  const float* angles =
      rotates ? args.rope_table + position / ratio * ratio * args.rope_table_stride : nullptr;
  for (int e = threadIdx.x; e < 512; e += blockDim.x)
    rotated[e] = naive::rotated(args.latent + row * args.latent_stride, 512, e, angles);
  __syncthreads();
  const naive::Place place{args.cache + slot / args.page_size * args.cache_stride, args.page_size,
                           slot % args.page_size};
  const int group = naive::group_of(quantiser);
  for (int e = group * static_cast<int>(threadIdx.x); e < 512;
       e += group * static_cast<int>(blockDim.x))
    naive::put_group(place, format, quantiser, rotated, e);
}
