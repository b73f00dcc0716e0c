// The naive form of index_query: one CTA per head of a row, one thread per group.
// grid  (rows * heads)   block (32)   shared: the head after RoPE
#include "kiln_args.h"
#include "kiln_constants.h"  // heads, output
#include "templates/naive/quantise.cuh"
#include "templates/naive/rope.cuh"

extern "C" __global__ void index_query_oracle(const __grid_constant__ Args args) {
  constexpr int quantiser = output == 1 ? naive::q8k : naive::q4m;
  __shared__ unsigned short x[128];
  const long long row = blockIdx.x / heads, head = blockIdx.x % heads;
  const long long position = args.positions[row];
  const bool rotates = position >= 0 && position < args.num_positions;
  const float* angles = rotates ? args.rope_table + position * args.rope_table_stride : nullptr;
  const unsigned short* q = args.q + row * args.q_stride0 + head * args.q_stride1;
  for (int e = threadIdx.x; e < 128; e += blockDim.x) x[e] = naive::rotated(q, 128, e, angles);
  __syncthreads();

  const int group = naive::group_of(quantiser);
  for (int first = group * static_cast<int>(threadIdx.x); first < 128;
       first += group * static_cast<int>(blockDim.x)) {
    const naive::Scale scale = naive::scale_of(quantiser, x + first);
    for (int e = first; e < first + group; e += 2) {
      const naive::Element even = naive::quantised(quantiser, scale, x[e]);
      const naive::Element odd = naive::quantised(quantiser, scale, x[e + 1]);
      if (output == 2) {
        unsigned short* y = args.y + row * args.y_stride0 + head * args.y_stride1;
        y[e] = even.value;
        y[e + 1] = odd.value;
        continue;
      }
      unsigned char* codes = args.codes + row * args.codes_stride0 + head * args.codes_stride1;
      if (output == 0) {
        codes[e / 2] = static_cast<unsigned char>(even.code | odd.code << 4);
      } else {
        codes[e] = static_cast<unsigned char>(even.code);
        codes[e + 1] = static_cast<unsigned char>(odd.code);
      }
    }
    if (output == 0) {
      args.scales[row * args.scales_stride0 + head * args.scales_stride1 + first / group] =
          static_cast<unsigned char>(scale.byte);
    }
    if (first > 0) continue;
    const double weight = naive::bf16(args.head_weights[row * args.head_weights_stride + head]);
    double factor = 1.0 / 64;
    if (output == 1) factor *= scale.is_finite ? scale.value : __int_as_float(0x7fc00000);
    args.weights[row * args.weights_stride + head] = static_cast<float>(weight * factor);
  }
}
