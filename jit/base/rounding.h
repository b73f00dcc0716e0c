// Sizes rounded to what memory and hardware hand out.
#pragma once

#include <cstdint>

namespace kiln {

// The next multiple of unit, for values that are not negative.
constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace kiln
