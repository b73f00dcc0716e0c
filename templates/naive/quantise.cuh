// The quantisers of ops.md B4 by their definitions, for oracles; nothing here is shared with a
// kernel. Numbers of the quantisers: q8a 0, q8c 1, q8d 2, q4m 3, q4n 4, q8k 5.
#pragma once

namespace naive {

constexpr int q8a = 0, q8c = 1, q8d = 2, q4m = 3, q4n = 4, q8k = 5;

__device__ constexpr bool is_e4m3(int quantiser) { return quantiser != q4m && quantiser != q4n; }
__device__ constexpr int group_of(int quantiser) {
  return quantiser == q8k ? 128 : quantiser == q8d ? 64 : quantiser == q4n ? 16 : 32;
}

__device__ inline float bf16(unsigned short bits) { return __int_as_float(bits << 16); }

__device__ inline double power_of_two(int exponent) {
  return __longlong_as_double(static_cast<long long>(exponent + 1023) << 52);
}

// Byte of 2^k >= value > 0, the least of them that fp32 has as a normal number.
__device__ inline int pow2ceil(float value) {
  const int bits = __float_as_int(value);
  return (bits >> 23) + ((bits & 0x7fffff) != 0);
}

// Nearest code to 0 <= value <= 448: the binade gives the step, __double2int_rn the even neighbour.
__device__ inline int e4m3_code(double value) {
  int exponent = static_cast<int>(__double_as_longlong(value) >> 52) - 1023;
  if (exponent < -6) exponent = -6;
  const int steps = __double2int_rn(value * power_of_two(3 - exponent));
  return 8 * (exponent + 6) + steps;
}

__device__ inline double e4m3_value(int code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  return exponent == 0 ? mantissa * power_of_two(-9) : (8 + mantissa) * power_of_two(exponent - 10);
}

// The decision points of B4.
__device__ inline int e2m1_code(double a) {
  return (a > 0.25) + (a >= 0.75) + (a > 1.25) + (a >= 1.75) + (a > 2.5) + (a >= 3.5) + (a > 5);
}

__device__ inline double e2m1_value(int code) {
  return code < 4 ? 0.5 * code : code < 6 ? code - 2.0 : 2.0 * code - 8.0;
}

// Of a finite value; nearest even.
__device__ inline unsigned short round_to_bf16(float value) {
  const unsigned int bits = __float_as_uint(value);
  return static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

struct Scale {
  int byte;
  double value;
  bool is_finite;  // else the group is stored as NaN
  bool is_zero;    // all codes are 0 (q8c)
};

// Of the group whose first element is *x.
__device__ inline Scale scale_of(int quantiser, const unsigned short* x) {
  float largest = 0;
  for (int i = 0; i < group_of(quantiser); ++i) {
    const int magnitude = x[i] & 0x7fff;
    if (magnitude >= 0x7f80) return {quantiser == q4n ? 0x7f : 255, 0.0, false, false};
    largest = fmaxf(largest, bf16(static_cast<unsigned short>(magnitude)));
  }
  if (quantiser == q8c && largest == 0) return {0, 0.0, true, true};
  if (quantiser == q4n) {
    const float floor = 6.0f / 512.0f;
    const float sixth = __fdiv_rn(largest < floor ? floor : largest, 6.0f);
    const int byte = e4m3_code(sixth > 448.0f ? 448.0 : static_cast<double>(sixth));
    return {byte, e4m3_value(byte), true, false};
  }
  const float floor = is_e4m3(quantiser) ? 1e-4f : 6.0f * __int_as_float(1 << 23);  // 2^-126
  const float raised = quantiser == q8c || largest > floor ? largest : floor;
  const int byte = pow2ceil(raised * (is_e4m3(quantiser) ? 1.0f / 448.0f : 1.0f / 6.0f));
  return {byte, power_of_two(byte - 127), true, false};
}

struct Element {
  int code;
  unsigned short value;  // what code and scale stand for, bf16
};

__device__ inline Element quantised(int quantiser, const Scale& scale, unsigned short x) {
  if (!scale.is_finite) return {is_e4m3(quantiser) ? 0x7f : 0, 0x7fc0};
  if (scale.is_zero) return {0, 0};
  const float magnitude = bf16(static_cast<unsigned short>(x & 0x7fff));
  Element element;
  // The product of a code and a scale is exact in fp32, so this rounds once.
  if (is_e4m3(quantiser)) {
    element.code = e4m3_code(magnitude / scale.value);
    element.value = round_to_bf16(static_cast<float>(e4m3_value(element.code) * scale.value));
  } else {
    element.code =
        e2m1_code(quantiser == q4n ? __fdiv_rn(magnitude, static_cast<float>(scale.value))
                                   : magnitude / scale.value);
    element.value = round_to_bf16(static_cast<float>(e2m1_value(element.code) * scale.value));
  }
  if (x & 0x8000) {
    element.code |= is_e4m3(quantiser) ? 0x80 : 8;
    element.value |= 0x8000;
  }
  return element;
}

}  // namespace naive
