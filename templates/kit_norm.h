// RMSNorm in the order that op rms_norm documents (ops.md B3), fp32 operation by operation: for the
// kits of the ops that take it in.
#pragma once

#include <cstdint>
#include <functional>

namespace kiln::templates {

// Sum of x^2, in the order of rms_norm.
float norm_sum_of_squares(const std::function<uint16_t(int64_t column)>& row, int64_t columns);
// 1 / sqrt(sum(x^2) / columns + 1e-20) of a row of bf16.
float norm_factor(const std::function<uint16_t(int64_t column)>& row, int64_t columns);
// bf16((x * factor) * weight); a NaN is 0x7fff.
uint16_t normalised_bits(uint16_t x, float factor, uint16_t weight);

}  // namespace kiln::templates
