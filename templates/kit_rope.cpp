#include "templates/kit_rope.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "templates/kit_bf16.h"

namespace kiln::templates {
namespace {

std::array<float, 32> frequencies(bool has_yarn) {
  std::array<float, 32> f{};
  for (int i = 0; i < 32; ++i) {
    const double plain = std::pow(has_yarn ? 160000.0 : 10000.0, -2.0 * i / 64);
    const double ramp = has_yarn ? std::clamp((i - 15) / 10.0, 0.0, 1.0) : 0.0;
    f[static_cast<size_t>(i)] = static_cast<float>(plain / 16 * ramp + plain * (1 - ramp));
  }
  return f;
}

double as_float(double value) { return static_cast<double>(static_cast<float>(value)); }

}  // namespace

float rope_angle(bool has_yarn, int64_t position, int64_t i) {
  static const std::array<float, 32> plain = frequencies(false), yarn = frequencies(true);
  const float frequency = (has_yarn ? yarn : plain)[static_cast<size_t>(i % 32)];
  const auto angle = static_cast<double>(static_cast<float>(position) * frequency);
  return static_cast<float>(i < 32 ? std::cos(angle) : std::sin(angle));
}

// Products of fp32 numbers that come from bf16 are exact in float64, so each step rounds once.
double rotated_value(const RowBits& row, int64_t width, int64_t e,
                     const std::function<float(int64_t)>& angle) {
  const int64_t first = width - 64;
  if (e < first) return bf16_double(row(e));
  const int64_t i = (e - first) / 2;
  const double a = bf16_double(row(first + 2 * i)), b = bf16_double(row(first + 2 * i + 1));
  const double cos = angle(i), sin = angle(32 + i);
  const double value =
      e % 2 == 0 ? as_float(a * cos) - as_float(b * sin) : as_float(a * sin) + as_float(b * cos);
  return as_float(value);
}

uint16_t rotated_bits(const RowBits& row, int64_t width, int64_t e,
                      const std::function<float(int64_t)>& angle) {
  return e < width - 64 ? row(e) : float_to_bf16(rotated_value(row, width, e, angle));
}

}  // namespace kiln::templates
