// Why the store has no decision for a problem: the stored ones that come nearest, and which fields
// of their keys differ. "No hit" alone sends people to guess; "sm_count: 108 here, 82 there" does
// not.
#pragma once

#include <string>
#include <vector>

#include "cache/store.h"

namespace kiln::cli {

struct Difference {
  std::string field;  // "op version", "shape.ratio", "bucket.num_tokens", "GPU class.sm_count"
  std::string wanted;
  std::string stored;
};
struct NearMiss {
  cache::DecisionRow row;
  std::vector<Difference> differences;
};

// At most `count`, the fewest differences first. Only rows of the same op.
std::vector<NearMiss> near_misses(const std::vector<cache::DecisionRow>& rows,
                                  const cache::Problem& problem, const std::string& gpu_class,
                                  size_t count);

}  // namespace kiln::cli
