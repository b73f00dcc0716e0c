// Rows of the store for output: text of problems, filters and order.
#include "tools/kiln/decisions.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "tools/kiln/common.h"
#include "tools/kiln/text.h"

namespace kiln::cli {
namespace {

bool contains(const std::vector<std::string>& list, const std::string& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

bool DecisionFilter::lets_through(const std::string& gpu_class, const std::string& label) const {
  if (gpu_classes.empty() && gpu_labels.empty()) return true;
  return contains(gpu_classes, gpu_class) || contains(gpu_labels, label);
}

Json problem_json(const cache::Problem& problem) {
  return {{"version", problem.op_version},
          {"shape", stored_json(problem.shape)},
          {"bucket", stored_json(problem.bucket)}};
}

std::string problem_text(const cache::Problem& problem) {
  const Json shape = stored_json(problem.shape);
  const Json bucket = stored_json(problem.bucket);
  if (bucket.empty()) return short_json(shape);
  if (shape.empty()) return short_json(bucket);
  return short_json(shape) + ", " + short_json(bucket);
}

DecisionFilter decision_filter(cache::Store& store, const std::vector<std::string>& ops,
                               const std::vector<std::string>& gpus) {
  resolve_ops(ops);
  DecisionFilter filter;
  filter.ops = ops;
  std::set<std::string> stored_labels;
  for (const cache::DecisionRow& row : store.list_decisions()) {
    stored_labels.insert(row.decision.gpu_label);
  }
  for (const std::string& slug : gpus) {
    filter.gpu_labels.push_back(slug);
    if (stored_labels.contains(slug) && !contains(gpu_slugs(), slug)) continue;
    const Gpu& gpu = resolve_gpu(slug);
    filter.gpu_classes.push_back(gpu_class_key(gpu));
  }
  return filter;
}

std::vector<cache::DecisionRow> find_decisions(cache::Store& store, const DecisionFilter& filter) {
  std::vector<cache::DecisionRow> rows = store.list_decisions();
  std::erase_if(rows, [&](const cache::DecisionRow& row) {
    const cache::Decision& decision = row.decision;
    const bool wanted = filter.ops.empty() || contains(filter.ops, decision.problem.op);
    return !wanted || !filter.lets_through(decision.gpu_class, decision.gpu_label);
  });
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    const cache::Decision& x = a.decision;
    const cache::Decision& y = b.decision;
    const auto head = [](const cache::Decision& decision) {
      return std::tie(decision.problem.op, decision.problem.op_version, decision.problem.shape,
                      decision.gpu_label);
    };
    if (head(x) != head(y)) return head(x) < head(y);
    return stored_json(x.problem.bucket) < stored_json(y.problem.bucket);
  });
  return rows;
}

}  // namespace kiln::cli
