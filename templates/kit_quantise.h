// The quantisers of ops.md B4 by definition, in float64, and inputs that reach their edges: for the
// kits of all ops that quantise. The codes of a format are a table of magnitudes; the nearest is
// looked for where every quotient that decides is exact or far from a tie.
#pragma once

#include <cstdint>
#include <span>

#include "templates/kit_bf16.h"

namespace kiln::templates {

// The numbers are those of the ops' fixed sizes.
enum class Quantiser : int64_t { q8a = 0, q8c = 1, q8d = 2, q4m = 3, q4n = 4, q8k = 5 };

bool is_e4m3(Quantiser quantiser);
int64_t group_of(Quantiser quantiser);  // elements that share a scale

// --- inputs

enum class QuantiserInput : int64_t {
  activations = 0,  // finite, magnitudes of a group within 2^14, some groups all zeros
  any_bits = 1,     // infinities and NaN included
  alone = 2,        // group u: the magnitude with the bits u % 32768, of either sign, among zeros
  ties = 3,         // between neighbouring codes and one bf16 step beside, under every scale
  vectors = 4,      // ops.md (e) and the edges of scales
};

// bf16 of one element; columns is a multiple of the group.
struct InputRows {
  QuantiserInput input = QuantiserInput::activations;
  Quantiser quantiser = Quantiser::q8a;
  int64_t columns = 0;
  uint64_t seed = 1;

  uint16_t bits(int64_t row, int64_t column) const;
  int64_t rows_of(int64_t groups) const;  // that hold so many groups
};
int64_t groups_of_ties(Quantiser quantiser);  // until every scale has been met
int64_t groups_of_vectors();

// --- truth

struct GroupScale {
  int byte = 0;          // UE8M0 or E4M3
  double value = 0;      // NaN: the group is not finite
  bool is_zero = false;  // all codes are 0 whatever the signs (q8c)
};
GroupScale group_scale(Quantiser quantiser, std::span<const uint16_t> group);

struct QuantisedElement {
  int code = 0;
  double value = 0;  // what code and scale stand for, rounded to bf16
};
QuantisedElement quantised_element(Quantiser quantiser, const GroupScale& scale, uint16_t bits);

}  // namespace kiln::templates
