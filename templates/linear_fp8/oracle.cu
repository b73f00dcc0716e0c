// The naive form of linear_fp8 by the definitions of ops.md B4 and B6, in float64.
// grid  (rows * groups * out_features / 32)   block (32)   shared: the values of all E4M3 codes
//
// A warp computes 32 neighbouring columns of one row; lane l takes element l of each 32.
#include "kiln_args.h"
#include "kiln_constants.h"  // out_features, in_features, groups, x_format, y_format, w_layout

constexpr int bf16_q8a = 0, codes_q8a = 1;
constexpr int columns_of_warp = 32;
constexpr int blocks = in_features / 32;

__device__ double power_of_two(int exponent) {
  return __longlong_as_double(static_cast<long long>(exponent + 1023) << 52);
}

__device__ double not_a_number() { return __longlong_as_double(0x7ff8000000000000ll); }

__device__ double e4m3_value(int code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? mantissa * power_of_two(-9) : (8 + mantissa) * power_of_two(exponent - 10);
  return code & 128 ? -magnitude : magnitude;
}

// x / s on the E4M3 grid, times s: s is 2^(byte - 127).
__device__ double quantised(double x, int scale_byte) {
  const double quotient = x * power_of_two(127 - scale_byte);
  int exponent = static_cast<int>(__double_as_longlong(quotient) >> 52 & 0x7ff) - 1023;
  if (exponent < -6) exponent = -6;
  return __double2int_rn(quotient * power_of_two(3 - exponent)) * power_of_two(exponent - 3) *
         power_of_two(scale_byte - 127);
}

// A group of 32 of x lies across the warp.
__device__ double q8a(float x) {
  float largest = x < 0 ? -x : x;
  bool is_finite = largest < __int_as_float(0x7f800000);
  for (int step = 1; step < 32; step *= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, largest, step);
    is_finite = is_finite && other < __int_as_float(0x7f800000);
    largest = other > largest ? other : largest;
  }
  is_finite = __all_sync(0xffffffffu, is_finite);
  if (!is_finite) return not_a_number();
  const int bits = __float_as_int((largest < 1e-4f ? 1e-4f : largest) * (1.0f / 448.0f));
  return quantised(x, (bits >> 23) + ((bits & 0x7fffff) != 0));
}

__device__ double x_at(const Args& args, long long row, int group, int k) {
  if (x_format == codes_q8a) {
    const int code = args.x_codes[row * args.x_codes_stride0 + group * args.x_codes_stride1 + k];
    const int byte =
        args.x_scales[row * args.x_scales_stride0 + group * args.x_scales_stride1 + k / 32];
    if (byte == 255 || (code & 127) == 127) return not_a_number();
    return e4m3_value(code) * power_of_two(byte - 127);
  }
  const unsigned int bits = args.x[row * args.x_stride0 + group * args.x_stride1 + k];
  const float x = __uint_as_float(bits << 16);
  return x_format == bf16_q8a ? q8a(x) : x;
}

// Code of column k of row `row` of the 32 whose weights begin at w.
__device__ int w_at(const unsigned char* w, int row, int k) {
  if (w_layout == 0) return w[static_cast<long long>(row) * in_features + k];
  constexpr long long blocks_of_row = (in_features + 63) / 64;
  const long long at = (row / 8 * blocks_of_row + k / 64) * 512 + row % 8 * 64 + k % 64 / 4 * 4;
  const int bits = *reinterpret_cast<const unsigned short*>(w + at + k % 2 * 2);
  if (k % 4 < 2) return (bits >> 8 & 128) | (bits >> 4 & 127);
  return (bits >> 4 & 128) | (bits >> 8 & 0x70) | (bits & 15);
}

__device__ unsigned short to_bf16(float value) {
  const unsigned int bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

__device__ void put(const Args& args, long long row, int group, int column, double value) {
  if (y_format == 1) {
    args.y_f32[row * args.y_f32_stride0 + group * args.y_f32_stride1 + column] =
        static_cast<float>(value);
    return;
  }
  args.y[row * args.y_stride0 + group * args.y_stride1 + column] =
      to_bf16(static_cast<float>(value));
}

extern "C" __global__ void linear_fp8_oracle(const __grid_constant__ Args args) {
  __shared__ double values[256];
  for (int code = static_cast<int>(threadIdx.x); code < 256; code += static_cast<int>(blockDim.x))
    values[code] = e4m3_value(code);
  __syncthreads();

  constexpr int blocks_of_columns = out_features / columns_of_warp;
  const long long row = blockIdx.x / (groups * blocks_of_columns);
  const int scale_row = static_cast<int>(blockIdx.x % (groups * blocks_of_columns));
  const int group = scale_row / blocks_of_columns;
  const int column = scale_row % blocks_of_columns * columns_of_warp;
  const int lane = static_cast<int>(threadIdx.x);
  constexpr long long w_row_bytes = w_layout == 0 ? in_features : (in_features + 63) / 64 * 64;
  const unsigned char* w = args.w + scale_row * columns_of_warp * w_row_bytes;

  double sums[columns_of_warp] = {};
  for (int block = 0; block < blocks; ++block) {
    const int k = block * 32 + lane;
    const int byte = args.w_scales[static_cast<long long>(scale_row) * blocks + block];
    const double scale = byte == 255 ? not_a_number() : power_of_two(byte - 127);
    const double x = x_at(args, row, group, k) * scale;
#pragma unroll
    for (int j = 0; j < columns_of_warp; ++j) sums[j] += x * values[w_at(w, j, k)];
  }
#pragma unroll
  for (int j = 0; j < columns_of_warp; ++j) {
    for (int step = 1; step < 32; step *= 2) sums[j] += __shfl_xor_sync(0xffffffffu, sums[j], step);
    if (lane == 0) put(args, row, group, column + j, sums[j]);
  }
}
