// The naive form of qkv_norm: a row a block, sums by halves in shared memory, one thread a group.
// grid  (rows)   block (some)   shared: a float a piece
#include "kiln_args.h"
#include "kiln_constants.h"  // q_columns, kv_columns, qr_format

constexpr int most_columns = q_columns > kv_columns ? q_columns : kv_columns;

__device__ float bf16(unsigned short bits) { return __int_as_float(bits << 16); }

// Nearest even; any NaN becomes one.
__device__ unsigned short round_to_bf16(float value) {
  const unsigned int bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

__device__ float factor_of(const unsigned short* x, int columns, float* sums) {
  const int pieces = columns / 8;
  __syncthreads();
  for (int j = threadIdx.x; j < pieces; j += blockDim.x) {
    float chains[2] = {0.0f, 0.0f};
    for (int i = 0; i < 8; ++i) {
      const float value = bf16(x[8 * j + i]);
      chains[i % 2] = fmaf(value, value, chains[i % 2]);
    }
    sums[j] = chains[0] + chains[1];
  }
  for (int half = 1 << 30; half >= 1; half /= 2) {
    if (half >= pieces) continue;
    __syncthreads();
    for (int j = threadIdx.x; j < half && j + half < pieces; j += blockDim.x)
      sums[j] += sums[j + half];
  }
  __syncthreads();
  return __fdiv_rn(1.0f, sqrtf(fmaf(sums[0], 1.0f / columns, 1e-20f)));
}

__device__ double power_of_two(int exponent) {
  return __longlong_as_double(static_cast<long long>(exponent + 1023) << 52);
}

// Nearest code to 0 <= value <= 448: the binade gives the step, __double2int_rn the even neighbour.
__device__ int e4m3_code(double value) {
  int exponent = static_cast<int>(__double_as_longlong(value) >> 52) - 1023;
  if (exponent < -6) exponent = -6;
  return 8 * (exponent + 6) + __double2int_rn(value * power_of_two(3 - exponent));
}

// Q8a of ops.md B4 and (f)4.
__device__ void quantise(const Args& args, long long row, int group, const unsigned short* y) {
  float largest = 1e-4f;
  bool is_finite = true;
  for (int i = 0; i < 32; ++i) {
    const int magnitude = y[i] & 0x7fff;
    is_finite = is_finite && magnitude < 0x7f80;
    largest = fmaxf(largest, bf16(static_cast<unsigned short>(magnitude)));
  }
  const int bits = is_finite ? __float_as_int(largest * (1.0f / 448.0f)) : 0;
  const int scale = is_finite ? (bits >> 23) + ((bits & 0x7fffff) != 0) : 255;
  args.qr_scales[row * args.qr_scales_stride + group] = static_cast<unsigned char>(scale);
  for (int i = 0; i < 32; ++i) {
    int code = 0x7f;
    if (is_finite) {
      const float magnitude = bf16(static_cast<unsigned short>(y[i] & 0x7fff));
      code = e4m3_code(magnitude * power_of_two(127 - scale)) | (y[i] >> 8 & 0x80);
    }
    args.qr_codes[row * args.qr_codes_stride + 32 * group + i] = static_cast<unsigned char>(code);
  }
}

extern "C" __global__ void qkv_norm_oracle(const __grid_constant__ Args args) {
  __shared__ float sums[most_columns / 8];
  const long long row = blockIdx.x;
  const unsigned short* x = args.qkv + row * args.qkv_stride;
  const float q_factor = factor_of(x, q_columns, sums);
  const float kv_factor = factor_of(x + q_columns, kv_columns, sums);
  for (int group = threadIdx.x; group < q_columns / 32; group += blockDim.x) {
    unsigned short y[32];
    for (int i = 0; i < 32; ++i) {
      const int column = 32 * group + i;
      y[i] = round_to_bf16(bf16(x[column]) * q_factor * bf16(args.q_weight[column]));
      if (qr_format != 1) args.qr[row * args.qr_stride + column] = y[i];
    }
    if (qr_format != 0) quantise(args, row, group, y);
  }
  for (int column = threadIdx.x; column < kv_columns; column += blockDim.x) {
    args.kv[row * args.kv_stride + column] =
        round_to_bf16(bf16(x[q_columns + column]) * kv_factor * bf16(args.kv_weight[column]));
  }
}
