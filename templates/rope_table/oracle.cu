// The naive form of rope_table: frequencies by the formula and angles by the device's own functions
// of a double.
// grid  (positions)   block (64)   shared: none
#include "kiln_args.h"
#include "kiln_constants.h"  // yarn

extern "C" __global__ void rope_table_oracle(const __grid_constant__ Args args) {
  const int column = threadIdx.x;
  const int pair = column % 32;
  const double g = pow(yarn ? 160000.0 : 10000.0, -2.0 * pair / 64);
  const double ramp = fmin(fmax((pair - 15) / 10.0, 0.0), 1.0);
  const float frequency = static_cast<float>(yarn ? g / 16 * ramp + g * (1 - ramp) : g);
  const float angle = static_cast<float>(args.first_position + blockIdx.x) * frequency;
  args.rope_table[blockIdx.x * args.rope_table_stride + column] = static_cast<float>(
      column < 32 ? cos(static_cast<double>(angle)) : sin(static_cast<double>(angle)));
}
