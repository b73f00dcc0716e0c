#include "templates/kit_hc_stats.h"

#include <algorithm>
#include <cmath>

#include "templates/kit_bf16.h"

namespace kiln::templates {
namespace {

constexpr int64_t kStreams = 4;
constexpr size_t kGates = 24;

// Columns of h and fn: all streams, or the first layer's one.
int64_t width_of(const Case& c) { return c.sizes.get("S", kStreams) * c.sizes["K"]; }

enum Stream : uint64_t { kFn = 100, kScale, kBase };  // beside those of the kits

HcFn fn_of(const Case& c) { return static_cast<HcFn>(c.knobs.get("fn", 0)); }

// All 24 bits of it.
float fn_value(const Case& c, int64_t k, int64_t column) {
  const int64_t width = width_of(c);
  const uint64_t draw = counter_bits(c.seed, kFn, static_cast<uint64_t>(k * width + column));
  const auto magnitude = static_cast<float>(static_cast<double>(draw >> 40) * 0x1p-24);
  const float scaled = magnitude * 4 / std::sqrt(static_cast<float>(width));
  if (fn_of(c) == HcFn::positive) return scaled / 32;
  const float grown = fn_of(c) == HcFn::large ? 3 * scaled : scaled;
  return (draw & 1) != 0 ? -grown : grown;
}

float scale_value(const Case& c, int64_t kind) {
  return 0.25f +
         static_cast<float>(counter_range(c.seed, kScale, static_cast<uint64_t>(kind), 0, 1000)) *
             1e-3f;
}

float base_value(const Case& c, int64_t k) {
  constexpr float kMatrix[] = {0.5f, -1, 2, 0, 1.5f, 0.25f, -0.75f, 3, -2, 1, 0, 0.5f, 0, 0, 4, -1};
  constexpr float kExtreme[] = {1e4f, 0,  -1e4f, 100,   -1e4f, -1e4f, 90,  -1e4f,
                                88,   88, 88,    -1e4f, -100,  -200,  120, 119};
  if (fn_of(c) == HcFn::extreme) {
    constexpr float kSide = 30;
    return k < 8 ? (k % 2 == 0 ? kSide : -kSide) * static_cast<float>(1 + 100 * (k / 4))
                 : kExtreme[k - 8];
  }
  if (fn_of(c) == HcFn::matrix) return k < 8 ? static_cast<float>(4 * k - 14) : kMatrix[k - 8];
  return static_cast<float>(counter_range(c.seed, kBase, static_cast<uint64_t>(k), -300, 300)) *
         0.01f;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

void sinkhorn(std::array<std::array<double, kStreams>, kStreams>& a) {
  for (auto& row : a) {
    const double largest = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (double& x : row) sum += x = std::exp(x - largest);
    for (double& x : row) x = x / sum + 1e-6;
  }
  constexpr int kSteps = 20;
  for (int step = 0; step < kSteps; ++step) {
    if (step > 0) {
      for (auto& row : a) {
        const double sum = row[0] + row[1] + row[2] + row[3] + 1e-6;
        for (double& x : row) x /= sum;
      }
    }
    for (size_t column = 0; column < kStreams; ++column) {
      const double sum = a[0][column] + a[1][column] + a[2][column] + a[3][column] + 1e-6;
      for (auto& row : a) row[column] /= sum;
    }
  }
}

}  // namespace

HcGates hc_gates_of(const Case& c, const std::function<double(int64_t)>& h) {
  const int64_t width = width_of(c);
  std::array<double, kGates> sums{};
  double squares = 0;
  for (int64_t column = 0; column < width; ++column) {
    const double v = h(column);
    if (v == 0) continue;
    squares += v * v;
    for (size_t k = 0; k < kGates; ++k)
      sums[k] += v * double{fn_value(c, static_cast<int64_t>(k), column)};
  }
  const double mean = double{static_cast<float>(squares)} / static_cast<double>(width) + 1e-20;
  const auto logit = [&](size_t k) {
    const int64_t kind = k < 4 ? 0 : k < 8 ? 1 : 2;
    return sums[k] / std::sqrt(mean) * double{scale_value(c, kind)} +
           double{base_value(c, static_cast<int64_t>(k))};
  };
  HcGates gates;
  for (size_t j = 0; j < kStreams; ++j) {
    gates.pre[j] = sigmoid(logit(j)) + 1e-6;
    gates.post[j] = 2 * sigmoid(logit(kStreams + j));
    for (size_t column = 0; column < kStreams; ++column)
      gates.comb[j][column] = logit(2 * kStreams + kStreams * j + column);
  }
  sinkhorn(gates.comb);
  return gates;
}

void hc_stats_fill(const Case& c, const Arg& arg, std::span<const int64_t> outer,
                   std::span<std::byte> row) {
  auto* to = reinterpret_cast<float*>(row.data());
  for (size_t k = 0; k < row.size() / sizeof(float); ++k) {
    const auto column = static_cast<int64_t>(k);
    to[k] = arg.name == "fn"      ? fn_value(c, outer[0], column)
            : arg.name == "scale" ? scale_value(c, column)
                                  : base_value(c, column);
  }
}

}  // namespace kiln::templates
