#include "templates/kit_bf16.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "templates/kit.h"

namespace kiln::templates {

float bf16_float(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

double bf16_double(uint16_t bits) { return bf16_float(bits); }

uint16_t bf16_bits(double value) {
  const auto narrow = static_cast<float>(value);
  uint32_t bits = 0;
  std::memcpy(&bits, &narrow, sizeof(bits));
  const bool is_held = static_cast<double>(narrow) == value && (bits & 0xffff) == 0;
  if (!is_held && !std::isnan(value)) fail(Status::internal, "{} is no bf16 number", value);
  return static_cast<uint16_t>(bits >> 16);
}

uint16_t float_to_bf16(double value) {
  const auto narrow = static_cast<float>(value);
  uint32_t bits = 0;
  std::memcpy(&bits, &narrow, sizeof(bits));
  if (std::isnan(value)) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// 8 significant bits, subnormal step 2^-133.
double round_to_bf16(double value) {
  if (!std::isfinite(value) || value == 0) return value;
  const double step = std::ldexp(1.0, std::max(std::ilogb(value), -126) - 7);
  return std::copysign(std::nearbyint(value / step) * step, value);
}

double e4m3_double(uint8_t code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::nan("");
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

double ue8m0_double(uint8_t byte) {
  return byte == 255 ? std::nan("") : std::ldexp(1.0, byte - 127);
}

double dequantised(double product) {
  const double rounded = round_to_bf16(product);
  return std::fabs(rounded) >= std::ldexp(1.0, 128) ? std::copysign(INFINITY, product) : rounded;
}

}  // namespace kiln::templates
