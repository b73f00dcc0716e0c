// RoPE by the definition of ops.md B5 and (f)5, for all kits: the angles of the model, and rotation
// by any.
#pragma once

#include <cstdint>
#include <functional>

namespace kiln::templates {

// bf16 of the elements of one row.
using RowBits = std::function<uint16_t(int64_t element)>;

// Cosines and sines of (f)5: element i < 32 of a row is a cosine, the others are sines.
float rope_angle(bool has_yarn, int64_t position, int64_t i);
// Element e of a row after RoPE, whose last 64 elements rotate: in fp32, and as bf16 (a NaN is
// 0x7fff).
double rotated_value(const RowBits& row, int64_t width, int64_t e,
                     const std::function<float(int64_t i)>& angle);
uint16_t rotated_bits(const RowBits& row, int64_t width, int64_t e,
                      const std::function<float(int64_t i)>& angle);

}  // namespace kiln::templates
