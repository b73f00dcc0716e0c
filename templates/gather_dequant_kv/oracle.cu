// The naive form of gather_dequant_kv: one thread per element, decoded by the definition of each
// format.
#include "kiln_args.h"
#include "kiln_constants.h"  // format

__device__ double nan_value() { return __longlong_as_double(0x7ff8000000000000LL); }

__device__ double e4m3(int code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return nan_value();
  const double magnitude = exponent == 0 ? ldexp(static_cast<double>(mantissa), -9)
                                         : ldexp(static_cast<double>(8 + mantissa), exponent - 10);
  return code & 128 ? -magnitude : magnitude;
}

__device__ double e2m1(int code) {
  const double magnitudes[8] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
  return code & 8 ? -magnitudes[code & 7] : magnitudes[code & 7];
}

__device__ double ue8m0(int byte) { return byte == 255 ? nan_value() : ldexp(1.0, byte - 127); }

// Every product here is exact in fp32 (at most 8 significant bits, at least 2^-136), so this rounds
// once.
__device__ unsigned short round_to_bf16(double value) {
  if (value != value) return 0x7fc0;
  const unsigned int bits = __float_as_uint(static_cast<float>(value));
  return static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

__device__ unsigned short element_at(const unsigned char* page, long long page_size, long long r,
                                     int e) {
  if (format == 1) {
    return round_to_bf16(e4m3(page[r * 512 + e]) * ue8m0(page[page_size * 512 + r * 16 + e / 32]));
  }
  if (format == 2) {
    const int byte = page[r * 256 + e / 2];
    return round_to_bf16(e2m1(e % 2 == 0 ? byte & 15 : byte >> 4) *
                         e4m3(page[page_size * 256 + r * 32 + e / 16]));
  }
  if (format == 3) {
    if (e < 448)
      return round_to_bf16(e4m3(page[r * 576 + e]) * ue8m0(page[page_size * 576 + r * 8 + e / 64]));
    const unsigned char* tail = page + r * 576 + 448 + 2 * (e - 448);
    return static_cast<unsigned short>(tail[0] | tail[1] << 8);
  }
  const unsigned char* value = page + r * 1024 + 2 * e;
  return static_cast<unsigned short>(value[0] | value[1] << 8);
}

extern "C" __global__ void gather_dequant_kv_oracle(const __grid_constant__ Args args) {
  const long long b = blockIdx.x / args.max_rows;
  const long long i = blockIdx.x % args.max_rows;
  const long long length = args.lens[b];
  const long long wanted = args.gather_lens == nullptr ? length : args.gather_lens[b];
  if (i >= wanted) return;
  const long long x = length - wanted + i;
  const long long column = x / args.page_size;
  long long page = -1;
  if (x >= 0 && column < args.table_width)
    page = args.block_table[b * args.block_table_stride + column];
  const bool exists = page >= 0 && page < args.num_pages;

  for (int e = threadIdx.x; e < 512; e += blockDim.x) {
    unsigned short value = 0;
    if (exists)
      value =
          element_at(args.cache + page * args.cache_stride, args.page_size, x % args.page_size, e);
    args.out[b * args.out_stride0 + (args.offset + i) * args.out_stride1 + e] = value;
  }
}
