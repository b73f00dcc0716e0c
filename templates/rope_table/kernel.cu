// Writes cosines and sines of the angles of consecutive positions (ops.md B5, (f)5).
// grid  (ceil(num_positions / positions of a CTA))   block (threads)   shared: none
//
// Lane i has pair i. The angle is the fp32 product of position and frequency, as the model's
// reference takes it; from there on everything is float64 until the one rounding to fp32.
#include "kiln_args.h"
#include "kiln_constants.h"  // yarn, threads, positions_per_thread
#include "templates/common/types.cuh"

constexpr int pairs = 32;
constexpr int warps = threads / warp_lanes;

// fp32 of 10000^(-2i / 64).
static __device__ const float base_10000[pairs] = {
    0x1p+0f,         0x1.7ff222p-1f,  0x1.1feb34p-1f,  0x1.afd136p-2f,  0x1.43d136p-2f,
    0x1.e5a848p-3f,  0x1.6c310ep-3f,  0x1.111aeep-3f,  0x1.99999ap-4f,  0x1.33281cp-4f,
    0x1.ccab86p-5f,  0x1.59742ap-5f,  0x1.030dc4p-5f,  0x1.8486ap-6f,   0x1.235a72p-6f,
    0x1.b4f7e2p-7f,  0x1.47ae14p-7f,  0x1.eb736p-8f,   0x1.708938p-8f,  0x1.145ceep-8f,
    0x1.9e7c6ep-9f,  0x1.36d21ap-9f,  0x1.d22a5p-10f,  0x1.5d931cp-10f, 0x1.0624dep-10f,
    0x1.892918p-11f, 0x1.26d42cp-11f, 0x1.ba2e4cp-12f, 0x1.4b96bep-12f, 0x1.f15028p-13f,
    0x1.74eea6p-13f, 0x1.17a8e4p-13f,
};
// fp32 of (g / 16) * ramp + g * (1 - ramp), g = 160000^(-2i / 64), ramp = clamp((i - 15) / 10).
static __device__ const float base_160000_yarn[pairs] = {
    0x1p+0f,         0x1.601474p-1f,  0x1.e4383ep-2f,  0x1.4cfa02p-2f,  0x1.c9f25cp-3f,
    0x1.3ae8eap-3f,  0x1.b1196ap-4f,  0x1.29d2c6p-4f,  0x1.99999ap-5f,  0x1.19a9f6p-5f,
    0x1.836032p-6f,  0x1.0a619cp-6f,  0x1.6e5b7ep-7f,  0x1.f7db1p-8f,   0x1.5a7abap-8f,
    0x1.dc846ep-9f,  0x1.28f5c2p-9f,  0x1.6e29cp-10f,  0x1.bd7b6cp-11f, 0x1.0a619cp-11f,
    0x1.37675ep-12f, 0x1.60b2f2p-13f, 0x1.7d209ap-14f, 0x1.7d36bep-15f, 0x1.47ae14p-16f,
    0x1.6887a2p-18f, 0x1.efd74ap-19f, 0x1.54f7d2p-19f, 0x1.d4effcp-20f, 0x1.4277b8p-20f,
    0x1.bb7e6p-21f,  0x1.30f898p-21f,
};

struct Turn {
  double cosine, sine;
};

// Of an angle in [0, 2^24), within two units in the last place of a double: up to position 2^20 all
// of both tables round to the fp32 that exact ones would (compared one by one). The remainder by pi
// / 2: the first step is exact, as angle and quotient * high_half have no bits below 2^-52; the
// second adds the bits of pi / 2 beyond a double. No fp32 angle is so near to a multiple that more
// count.
__device__ __forceinline__ Turn turn_of(double angle) {
  constexpr double two_over_pi = 0x1.45f306dc9c883p-1;
  constexpr double high_half = 0x1.921fb54442d18p+0;
  constexpr double low_half = 0x1.1a62633145c07p-54;
  constexpr double to_integer = 0x1.8p+52;  // the sum has no bits below 1
  const double shifted = __fma_rn(angle, two_over_pi, to_integer);
  const int quadrant = __double2loint(shifted) & 3;
  const double quotient = __dsub_rn(shifted, to_integer);
  const double r = __fma_rn(-quotient, low_half, __fma_rn(-quotient, high_half, angle));

  // Minimax polynomials on [-pi / 4, pi / 4] (fdlibm, k_sin.c and k_cos.c).
  const double z = __dmul_rn(r, r);
  double s = 1.58969099521155010221e-10;
  s = __fma_rn(s, z, -2.50507602534068634195e-08);
  s = __fma_rn(s, z, 2.75573137070700676789e-06);
  s = __fma_rn(s, z, -1.98412698298579493134e-04);
  s = __fma_rn(s, z, 8.33333333332248946124e-03);
  s = __fma_rn(s, z, -1.66666666666666324348e-01);
  const double sine = __fma_rn(__dmul_rn(r, z), s, r);
  double c = -1.13596475577881948265e-11;
  c = __fma_rn(c, z, 2.08757232129817482790e-09);
  c = __fma_rn(c, z, -2.75573143513906633035e-07);
  c = __fma_rn(c, z, 2.48015872894767294178e-05);
  c = __fma_rn(c, z, -1.38888888888741095749e-03);
  c = __fma_rn(c, z, 4.16666666666666019037e-02);
  const double cosine = __fma_rn(__dmul_rn(z, z), c, __fma_rn(-0.5, z, 1.0));

  const double first = quadrant % 2 == 0 ? cosine : sine;
  const double second = quadrant % 2 == 0 ? sine : cosine;
  return {quadrant == 1 || quadrant == 2 ? -first : first, quadrant >= 2 ? -second : second};
}

extern "C" __global__ void __launch_bounds__(threads)
    rope_table(const __grid_constant__ Args args) {
  const int pair = lane_id();
  const float frequency = yarn ? base_160000_yarn[pair] : base_10000[pair];
  const i64 first = static_cast<i64>(blockIdx.x) * (warps * positions_per_thread) + warp_id();
#pragma unroll
  for (int i = 0; i < positions_per_thread; ++i) {
    const i64 row = first + i * warps;
    if (row >= args.num_positions) return;
    const float position = static_cast<float>(static_cast<i32>(args.first_position + row));
    const Turn turn = turn_of(static_cast<double>(__fmul_rn(position, frequency)));
    float* const table = args.rope_table + row * args.rope_table_stride;
    table[pair] = static_cast<float>(turn.cosine);
    table[pairs + pair] = static_cast<float>(turn.sine);
  }
}
