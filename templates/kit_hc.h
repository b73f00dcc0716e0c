// Inputs and truth of the ops on residual streams (ops.md B1), fp32 operation by operation, for
// their kits. Knob of a case: values (see HcValues).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "templates/kit.h"

namespace kiln::templates {

enum class HcValues : int64_t {
  activations = 0,  // streams of any magnitude, gates as the model has them, zeros among them
  any_bits = 1,     // infinities and NaN included, gates too
  single = 2,       // one stream of each row and column, and one gate, is not zero
  cancelling = 3,   // streams 0 and 3 alone, of opposite sign, under nearly equal gates
};

// Sizes: K columns, T rows. Fills y, h, post, comb, pre and weight.
void hc_fill(const Case& c, const Arg& arg, std::span<const int64_t> outer,
             std::span<std::byte> row);

// Stream j after the sub-layer, of the row's inputs.
uint16_t hc_mixed_bits(const Case& c, int64_t t, int64_t j, int64_t column);
// The fold of the streams as they come in, or after the sub-layer.
enum class HcStreamsOf : int64_t { input, mixed };
uint16_t hc_folded_bits(const Case& c, HcStreamsOf streams, int64_t t, int64_t column);
uint16_t hc_mean_bits(const Case& c, int64_t t, int64_t column);
float hc_sqrsum(const Case& c, int64_t t, int64_t part);  // of 256 columns
// Element of x, x_codes or x_scales: the norm of the fold, and its Q8a.
double hc_normed(const Case& c, HcStreamsOf streams, const Arg& arg,
                 std::span<const int64_t> index);

// Every stride of the op's tensors of rows `gap` elements beyond the dense one, of streams twice;
// odd where that is legal.
Sizes hc_padded_strides(const Op& op, const Sizes& fixed_sizes, int64_t gap);

// Rows 1, 2, 5 and 33, none, any bits, single gates, and one near the measured size.
std::vector<Case> hc_cases(const Sizes& fixed_sizes, const Sizes& bucket);
std::vector<Case> hc_replay_cases(const Sizes& fixed_sizes);
Case hc_case(std::string name, const Sizes& fixed_sizes, int64_t rows, HcValues values,
             uint64_t seed = 1);

}  // namespace kiln::templates
