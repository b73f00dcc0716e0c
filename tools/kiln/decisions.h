// Stored decisions as people and JSON readers see them, and how a command picks some of them.
#pragma once

#include <string>
#include <vector>

#include "cache/store.h"
#include "jit/base/json.h"

namespace kiln::cli {

// {"version": 1, "shape": {...}, "bucket": {...}}
Json problem_json(const cache::Problem& problem);
std::string problem_text(const cache::Problem& problem);  // "ratio=2 top_k=512, num_tokens=256"

// An empty list lets everything through.
struct DecisionFilter {
  std::vector<std::string> ops;
  std::vector<std::string> gpu_classes;  // a class matches whatever its rows are called
  std::vector<std::string> gpu_labels;

  bool lets_through(const std::string& gpu_class, const std::string& label) const;
};
// Resolves the names; unknown ones are usage errors. A card that is not in the GPU table is known
// by the label that the store has for it.
DecisionFilter decision_filter(cache::Store& store, const std::vector<std::string>& ops,
                               const std::vector<std::string>& gpus);
// Ordered by op, shape, GPU and bucket, with the sizes of buckets as numbers.
std::vector<cache::DecisionRow> find_decisions(cache::Store& store, const DecisionFilter& filter);

}  // namespace kiln::cli
