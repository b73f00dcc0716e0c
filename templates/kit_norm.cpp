#include "templates/kit_norm.h"

#include <cmath>
#include <vector>

#include "templates/kit_bf16.h"

namespace kiln::templates {
float norm_sum_of_squares(const std::function<uint16_t(int64_t)>& row, int64_t columns) {
  std::vector<float> sums;
  for (int64_t first = 0; first < columns; first += 8) {
    float chains[2] = {0, 0};
    for (int64_t i = 0; i < 8; ++i) {
      const float x = bf16_float(row(first + i));
      chains[i % 2] = std::fma(x, x, chains[i % 2]);
    }
    sums.push_back(chains[0] + chains[1]);
  }
  while (sums.size() > 1) {
    size_t half = 1;
    while (2 * half < sums.size()) half *= 2;
    for (size_t j = 0; j + half < sums.size(); ++j) sums[j] += sums[j + half];
    sums.resize(half);
  }
  return sums[0];
}

float norm_factor(const std::function<uint16_t(int64_t)>& row, int64_t columns) {
  const float sum = norm_sum_of_squares(row, columns);
  return 1.0f / std::sqrt(std::fma(sum, 1.0f / static_cast<float>(columns), 1e-20f));
}

uint16_t normalised_bits(uint16_t x, float factor, uint16_t weight) {
  const float scaled = bf16_float(x) * factor;
  return float_to_bf16(scaled * bf16_float(weight));
}

}  // namespace kiln::templates
