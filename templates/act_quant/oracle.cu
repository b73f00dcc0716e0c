// The naive form of act_quant: one thread per group, by the definitions of ops.md B4.
// grid  (rows)   block (some)   shared: none
#include "kiln_args.h"
#include "kiln_constants.h"  // format, output, columns

constexpr int q8c = 1, q8d = 2, q4n = 4;
constexpr bool is_e4m3 = format <= q8d;
constexpr int group = format == q8d ? 64 : format == q4n ? 16 : 32;

__device__ float bf16(unsigned short bits) { return __int_as_float(bits << 16); }

__device__ double power_of_two(int exponent) {
  return __longlong_as_double(static_cast<long long>(exponent + 1023) << 52);
}

// Byte of 2^k >= value > 0, the least of them that fp32 has as a normal number.
__device__ int pow2ceil(float value) {
  const int bits = __float_as_int(value);
  return (bits >> 23) + ((bits & 0x7fffff) != 0);
}

// Nearest code to 0 <= value <= 448: the binade gives the step, __double2int_rn the even neighbour.
__device__ int e4m3_code(double value) {
  int exponent = static_cast<int>(__double_as_longlong(value) >> 52) - 1023;
  if (exponent < -6) exponent = -6;
  const int steps = __double2int_rn(value * power_of_two(3 - exponent));
  return 8 * (exponent + 6) + steps;
}

__device__ double e4m3_value(int code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  return exponent == 0 ? mantissa * power_of_two(-9) : (8 + mantissa) * power_of_two(exponent - 10);
}

// The decision points of B4.
__device__ int e2m1_code(double a) {
  return (a > 0.25) + (a >= 0.75) + (a > 1.25) + (a >= 1.75) + (a > 2.5) + (a >= 3.5) + (a > 5);
}

__device__ double e2m1_value(int code) {
  return code < 4 ? 0.5 * code : code < 6 ? code - 2.0 : 2.0 * code - 8.0;
}

// The product of a code and a scale is exact in fp32, so this rounds once.
__device__ unsigned short round_to_bf16(double value) {
  const unsigned int bits = __float_as_uint(static_cast<float>(value));
  return static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

struct Scale {
  int byte;
  double value;
};

__device__ Scale scale_of(float largest) {
  if (format == q4n) {
    const float floor = 6.0f / 512.0f;
    const float sixth = __fdiv_rn(largest < floor ? floor : largest, 6.0f);
    const int byte = e4m3_code(sixth > 448.0f ? 448.0 : static_cast<double>(sixth));
    return {byte, e4m3_value(byte)};
  }
  const float floor = is_e4m3 ? 1e-4f : 6.0f * __int_as_float(1 << 23);  // 2^-126
  const float raised = format == q8c || largest > floor ? largest : floor;
  const int byte = pow2ceil(raised * (is_e4m3 ? 1.0f / 448.0f : 1.0f / 6.0f));
  return {byte, power_of_two(byte - 127)};
}

__device__ void put(const Args& args, long long row, int column, int code, unsigned short value) {
  if (output == 1) {
    args.y[row * args.y_stride + column] = value;
  } else if (is_e4m3) {
    args.codes[row * args.codes_stride + column] = static_cast<unsigned char>(code);
  } else {
    unsigned char* byte = args.codes + row * args.codes_stride + column / 2;
    *byte = static_cast<unsigned char>(column % 2 == 0 ? code : *byte | code << 4);
  }
}

__device__ void quantise(const Args& args, long long row, int first) {
  const unsigned short* x = args.x + row * args.x_stride + first;
  float largest = 0;
  bool is_finite = true;
  for (int i = 0; i < group; ++i) {
    const int magnitude = x[i] & 0x7fff;
    is_finite = is_finite && magnitude < 0x7f80;
    largest = fmaxf(largest, bf16(static_cast<unsigned short>(magnitude)));
  }
  const bool is_empty = format == q8c && is_finite && largest == 0;
  const Scale scale = scale_of(is_finite && !is_empty ? largest : 1.0f);
  for (int i = 0; i < group; ++i) {
    int code = 0;
    unsigned short value = 0;
    if (!is_finite) {
      code = is_e4m3 ? 0x7f : 0;
      value = 0x7fc0;
    } else if (!is_empty) {
      const bool is_negative = (x[i] & 0x8000) != 0;
      const float magnitude = bf16(static_cast<unsigned short>(x[i] & 0x7fff));
      if (is_e4m3) {
        code = e4m3_code(magnitude / scale.value);
        value = round_to_bf16(e4m3_value(code) * scale.value);
      } else {
        code = e2m1_code(format == q4n ? __fdiv_rn(magnitude, static_cast<float>(scale.value))
                                       : magnitude / scale.value);
        value = round_to_bf16(e2m1_value(code) * scale.value);
      }
      if (is_negative) {
        code |= is_e4m3 ? 0x80 : 8;
        value |= 0x8000;
      }
    }
    put(args, row, first + i, code, value);
  }
  if (output == 0) {
    const int byte = !is_finite ? (format == q4n ? 0x7f : 255) : is_empty ? 0 : scale.byte;
    args.scales[row * args.scales_stride + first / group] = static_cast<unsigned char>(byte);
  }
}

extern "C" __global__ void act_quant_oracle(const __grid_constant__ Args args) {
  const long long row = blockIdx.x;
  for (int first = group * static_cast<int>(threadIdx.x); first < columns;
       first += group * static_cast<int>(blockDim.x))
    quantise(args, row, first);
}
