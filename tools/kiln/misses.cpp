// Compares keys field by field.
#include "tools/kiln/misses.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "jit/base/json.h"
#include "tools/kiln/text.h"

namespace kiln::cli {
namespace {

std::string value_text(const Json& object, const std::string& key) {
  if (!object.is_object() || !object.contains(key)) return "absent";
  const Json& value = object[key];
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void compare_objects(const std::string& prefix, const std::string& wanted_text,
                     const std::string& stored_text, std::vector<Difference>& differences) {
  const Json wanted = stored_json(wanted_text);
  const Json stored = stored_json(stored_text);
  if (!wanted.is_object() || !stored.is_object()) {
    if (wanted != stored) differences.push_back({prefix, wanted_text, stored_text});
    return;
  }
  std::set<std::string> keys;
  for (const auto& [key, value] : wanted.items()) keys.insert(key);
  for (const auto& [key, value] : stored.items()) keys.insert(key);
  for (const std::string& key : keys) {
    const std::string want = value_text(wanted, key);
    const std::string have = value_text(stored, key);
    if (want != have) differences.push_back({prefix + "." + key, want, have});
  }
}

std::vector<Difference> differences_of(const cache::Decision& stored, const cache::Problem& problem,
                                       const std::string& gpu_class) {
  std::vector<Difference> differences;
  if (stored.problem.op_version != problem.op_version) {
    differences.push_back({"op version", std::to_string(problem.op_version),
                           std::to_string(stored.problem.op_version)});
  }
  compare_objects("shape", problem.shape, stored.problem.shape, differences);
  compare_objects("bucket", problem.bucket, stored.problem.bucket, differences);
  compare_objects("GPU class", gpu_class, stored.gpu_class, differences);
  return differences;
}

}  // namespace

std::vector<NearMiss> near_misses(const std::vector<cache::DecisionRow>& rows,
                                  const cache::Problem& problem, const std::string& gpu_class,
                                  size_t count) {
  std::vector<NearMiss> misses;
  for (const cache::DecisionRow& row : rows) {
    if (row.decision.problem.op != problem.op) continue;
    NearMiss miss{row, differences_of(row.decision, problem, gpu_class)};
    if (!miss.differences.empty()) misses.push_back(std::move(miss));
  }
  std::stable_sort(misses.begin(), misses.end(), [](const NearMiss& a, const NearMiss& b) {
    return a.differences.size() < b.differences.size();
  });
  if (misses.size() > count) misses.resize(count);
  return misses;
}

}  // namespace kiln::cli
