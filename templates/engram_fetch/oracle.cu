// The naive form of engram_fetch: a pair of a row and a head a block, element after element.
// grid  (num_rows * num_heads)   block (some)   shared: none
#include "kiln_args.h"
#include "kiln_constants.h"  // num_heads, columns, x_format
#include "templates/naive/quantise.cuh"

constexpr int group = 32;

__device__ unsigned short decoded(int code, int scale) {
  if ((code & 127) == 127 || scale == 255) return 0x7fc0;
  const double magnitude = naive::e4m3_value(code & 127) * naive::power_of_two(scale - 127);
  return naive::round_to_bf16(static_cast<float>(code & 128 ? -magnitude : magnitude));
}

extern "C" __global__ void engram_fetch_oracle(const __grid_constant__ Args args) {
  const long long t = blockIdx.x / num_heads;
  const int head = blockIdx.x % num_heads;
  const long long row = args.rows[t * args.rows_stride + head] - args.first_row;
  const bool exists = row >= 0 && row < args.num_table_rows;
  for (int d = threadIdx.x; d < columns; d += blockDim.x) {
    const int code = exists ? args.table[row * args.table_stride + d] : 0;
    const int scale = exists ? args.table_scales[row * args.table_scales_stride + d / group] : 0;
    const int column = head * columns + d;
    if (x_format == 0) {
      args.x[t * args.x_stride + column] = decoded(code, scale);
    } else {
      args.x_codes[t * args.x_codes_stride + column] = static_cast<unsigned char>(code);
      args.x_scales[t * args.x_scales_stride + column / group] = static_cast<unsigned char>(scale);
    }
  }
}
