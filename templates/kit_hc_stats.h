// Weights and truth of the statistics of residual streams (ops.md B1.1, B1.2), in float64, for the
// kits of the ops that make them. Knob of a case: fn (see HcFn).
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "templates/kit.h"

namespace kiln::templates {

enum class HcFn : int64_t {
  both_signs = 0,
  positive = 1,  // where all of h is: 32 times smaller, as its sums are larger
  large = 2,     // where one column of h counts
  matrix = 3,    // base is the matrix of ops.md (e)
  extreme = 4,   // base from -1e4 to 1e4: mass on one column, exp far beyond fp32
};

// Fills fn, scale and base.
void hc_stats_fill(const Case& c, const Arg& arg, std::span<const int64_t> outer,
                   std::span<std::byte> row);

struct HcGates {
  std::array<double, 4> pre{}, post{};
  std::array<std::array<double, 4>, 4> comb{};
};
// Of a row whose columns, of all streams, are these.
HcGates hc_gates_of(const Case& c, const std::function<double(int64_t column)>& h);

}  // namespace kiln::templates
