// The naive form of sparse_mla_decode: a CTA takes a row and up to 16 heads, and walks both lists
// 16 columns at a time. Entries are decoded by the definition of their format, all sums and
// probabilities are fp32.
#include "kiln_args.h"
#include "kiln_constants.h"  // heads, window_format, compressed_format, inverse_rope

constexpr int num_threads = 128;
constexpr int heads_per_block = heads < 16 ? heads : 16;
constexpr int num_blocks = (heads + heads_per_block - 1) / heads_per_block;
constexpr int tile = 16;
constexpr int head_pairs = (heads_per_block + 1) / 2;
constexpr int dims_per_thread = 512 / num_threads;

__device__ float bf16_value(unsigned short bits) {
  return __uint_as_float(static_cast<unsigned int>(bits) << 16);
}

__device__ unsigned short bf16_bits(float value) {
  const unsigned int bits = __float_as_uint(value);
  return static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

__device__ float power_of_two(int exponent) {
  return __uint_as_float(static_cast<unsigned int>(exponent + 127) << 23);
}

__device__ float e4m3_value(int code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  const float magnitude = exponent == 0
                              ? static_cast<float>(mantissa) * power_of_two(-9)
                              : static_cast<float>(8 + mantissa) * power_of_two(exponent - 10);
  return (code & 128) != 0 ? -magnitude : magnitude;
}

__device__ float e2m1_value(int code) {
  const int exponent = (code >> 1) & 3;
  const int mantissa = code & 1;
  const float magnitude = exponent == 0
                              ? 0.5f * static_cast<float>(mantissa)
                              : static_cast<float>(2 + mantissa) * power_of_two(exponent - 2);
  return (code & 8) != 0 ? -magnitude : magnitude;
}

__device__ float ue8m0_value(int byte) {
  return byte == 0 ? __uint_as_float(0x00400000u) : power_of_two(byte - 127);
}

// Elements e .. e + 3 of entry r.
__device__ void decode_entry(int format, const unsigned char* page, long long page_size,
                             long long r, int e, float (&value)[4]) {
  if (format == 1 || (format == 3 && e < 448)) {
    const int code_bytes = format == 1 ? 512 : 576;
    const unsigned char* scales = page + page_size * code_bytes;
    const float scale = ue8m0_value(format == 1 ? scales[r * 16 + e / 32] : scales[r * 8 + e / 64]);
    for (int i = 0; i < 4; ++i) value[i] = e4m3_value(page[r * code_bytes + e + i]) * scale;
  } else if (format == 2) {
    const float scale = e4m3_value(page[page_size * 256 + r * 32 + e / 16]);
    for (int i = 0; i < 4; i += 2) {
      const int byte = page[r * 256 + (e + i) / 2];
      value[i] = e2m1_value(byte & 15) * scale;
      value[i + 1] = e2m1_value(byte >> 4) * scale;
    }
  } else {
    const unsigned char* at =
        format == 3 ? page + r * 576 + 448 + 2 * (e - 448) : page + r * 1024 + 2 * e;
    for (int i = 0; i < 4; ++i)
      value[i] = bf16_value(static_cast<unsigned short>(at[2 * i] | at[2 * i + 1] << 8));
  }
}

struct Row {
  float largest[heads_per_block];  // the same in every thread, as the sums are
  float sum[heads_per_block];
  float out[heads_per_block][dims_per_thread];
};

struct List {
  int format;
  const unsigned char* cache;
  long long page_stride;
  long long page_size;
  long long num_slots;
  const int* slots;
  long long len;
};

__device__ void add_list(const Args& args, const List& list, long long t, int first_head,
                         Row& row) {
  __shared__ float keys[tile][513];
  __shared__ float scores[heads_per_block][tile];
  const int dim = static_cast<int>(threadIdx.x) * dims_per_thread;
  for (long long first = 0; first < list.len; first += tile) {
    unsigned int valid = 0;
    for (int i = 0; i < tile; ++i) {
      const long long column = first + i;
      const long long slot = column < list.len ? list.slots[column] : -1;
      if (slot < 0 || slot >= list.num_slots) continue;
      valid |= 1u << i;
      float value[4];
      decode_entry(list.format, list.cache + slot / list.page_size * list.page_stride,
                   list.page_size, slot % list.page_size, dim, value);
      for (int d = 0; d < 4; ++d) keys[i][dim + d] = value[d];
    }
    if (valid == 0) continue;
    __syncthreads();

    const int i = static_cast<int>(threadIdx.x) % tile;
    const int pair = static_cast<int>(threadIdx.x) / tile;
    if (pair < head_pairs && (valid >> i & 1) != 0) {
      float dots[2] = {};
      const unsigned int* q[2];
      for (int h = 0; h < 2; ++h) {
        const int head = min(first_head + 2 * pair + h, heads - 1);
        q[h] = reinterpret_cast<const unsigned int*>(args.q + t * args.q_stride0 +
                                                     head * args.q_stride1);
      }
#pragma unroll 4
      for (int d = 0; d < 512; d += 2) {
        const float even = keys[i][d];
        const float odd = keys[i][d + 1];
        for (int h = 0; h < 2; ++h) {
          const unsigned int both = q[h][d / 2];
          dots[h] = __fmaf_rn(__uint_as_float(both << 16), even, dots[h]);
          dots[h] = __fmaf_rn(__uint_as_float(both & 0xffff0000u), odd, dots[h]);
        }
      }
      for (int h = 0; h < 2; ++h) {
        if (2 * pair + h < heads_per_block)
          scores[2 * pair + h][i] = dots[h] * 0.044194173824159216f;
      }
    }
    __syncthreads();

#pragma unroll
    for (int h = 0; h < heads_per_block; ++h) {
      float largest = row.largest[h];
      for (int n = 0; n < tile; ++n) {
        if ((valid >> n & 1) != 0) largest = fmaxf(largest, scores[h][n]);
      }
      const float factor = expf(row.largest[h] - largest);
      row.largest[h] = largest;
      row.sum[h] *= factor;
      for (int d = 0; d < dims_per_thread; ++d) row.out[h][d] *= factor;
    }
    __syncthreads();
    for (int at = static_cast<int>(threadIdx.x); at < heads_per_block * tile; at += num_threads) {
      float largest = 0;
#pragma unroll
      for (int h = 0; h < heads_per_block; ++h) {
        if (at / tile == h) largest = row.largest[h];
      }
      if ((valid >> at % tile & 1) != 0)
        scores[at / tile][at % tile] = expf(scores[at / tile][at % tile] - largest);
    }
    __syncthreads();
    for (int n = 0; n < tile; ++n) {
      if ((valid >> n & 1) == 0) continue;
      float key[dims_per_thread];
      for (int d = 0; d < dims_per_thread; ++d) key[d] = keys[n][dim + d];
#pragma unroll
      for (int h = 0; h < heads_per_block; ++h) {
        const float p = scores[h][n];
        row.sum[h] += p;
        for (int d = 0; d < dims_per_thread; ++d)
          row.out[h][d] = __fmaf_rn(p, key[d], row.out[h][d]);
      }
    }
    __syncthreads();
  }
}

__device__ long long clamped(long long length, long long width) {
  return length < 0 ? 0 : length > width ? width : length;
}

extern "C" __global__ void __launch_bounds__(num_threads)
    sparse_mla_decode_oracle(const __grid_constant__ Args args) {
  const long long t = blockIdx.x / num_blocks;
  const int first_head = static_cast<int>(blockIdx.x % num_blocks) * heads_per_block;
  const float infinity = __uint_as_float(0x7f800000u);
  Row row;
#pragma unroll
  for (int h = 0; h < heads_per_block; ++h) {
    row.largest[h] = -infinity;
    row.sum[h] = 0;
    for (int d = 0; d < dims_per_thread; ++d) row.out[h][d] = 0;
  }
  add_list(args,
           {window_format, args.window_cache, args.window_cache_stride, args.window_page_size,
            args.num_window_pages * args.window_page_size,
            args.window_slots + t * args.window_slots_stride,
            clamped(args.window_lens[t], args.window_width)},
           t, first_head, row);
  if (compressed_format != 0) {
    add_list(args,
             {compressed_format, args.compressed_cache, args.compressed_cache_stride,
              args.compressed_page_size, args.num_compressed_pages * args.compressed_page_size,
              args.compressed_slots + t * args.compressed_slots_stride,
              clamped(args.compressed_lens[t], args.compressed_width)},
             t, first_head, row);
  }

  const int dim = static_cast<int>(threadIdx.x) * dims_per_thread;
#pragma unroll
  for (int h = 0; h < heads_per_block; ++h) {
    const int head = first_head + h;
    if (head >= heads) continue;
    const bool is_empty = row.sum[h] == 0;
    float denominator = row.sum[h];
    if (args.sink != nullptr && !is_empty) denominator += expf(args.sink[head] - row.largest[h]);
    float value[dims_per_thread];
    for (int d = 0; d < dims_per_thread; ++d) value[d] = is_empty ? 0 : row.out[h][d] / denominator;
    if (inverse_rope && dim >= 448) {
      const long long position = args.positions[t];
      if (position >= 0 && position < args.num_positions) {
        const float* table = args.rope_table + position * args.rope_table_stride;
        for (int d = 0; d < dims_per_thread; d += 2) {
          const float cosine = table[(dim + d - 448) / 2];
          const float sine = table[32 + (dim + d - 448) / 2];
          const float a = bf16_value(bf16_bits(value[d]));
          const float b = bf16_value(bf16_bits(value[d + 1]));
          value[d] = a * cosine + b * sine;
          value[d + 1] = b * cosine - a * sine;
        }
      }
    }
    for (int d = 0; d < dims_per_thread; ++d)
      args.out[t * args.out_stride0 + head * args.out_stride1 + dim + d] = bf16_bits(value[d]);
    if (threadIdx.x == 0 && args.lse != nullptr) {
      args.lse[t * args.lse_stride + head] =
          is_empty ? -infinity : row.largest[h] + logf(row.sum[h]);
    }
  }
}
