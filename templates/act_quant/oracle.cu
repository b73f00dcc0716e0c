// The naive form of act_quant: one thread per group, by the definitions of ops.md B4.
// grid  (rows)   block (some)   shared: none
#include "kiln_args.h"
#include "kiln_constants.h"  // format, output, columns
#include "templates/naive/quantise.cuh"

constexpr bool is_e4m3 = naive::is_e4m3(format);
constexpr int group = naive::group_of(format);

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
  const naive::Scale scale = naive::scale_of(format, x);
  for (int i = 0; i < group; ++i) {
    const naive::Element element = naive::quantised(format, scale, x[i]);
    put(args, row, first + i, element.code, element.value);
  }
  if (output == 0)
    args.scales[row * args.scales_stride + first / group] = static_cast<unsigned char>(scale.byte);
}

extern "C" __global__ void act_quant_oracle(const __grid_constant__ Args args) {
  const long long row = blockIdx.x;
  for (int first = group * static_cast<int>(threadIdx.x); first < columns;
       first += group * static_cast<int>(blockDim.x))
    quantise(args, row, first);
}
