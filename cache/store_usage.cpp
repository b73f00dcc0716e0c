// What processes really called: noted by sessions that close, read to be tuned.
#include <algorithm>
#include <map>
#include <utility>

#include "cache/batch.h"
#include "cache/layered_store.h"
#include "cache/rows.h"

namespace kiln::cache {

bool LayeredStore::put_used_sizes(const std::vector<Problem>& problems, std::string_view gpu_class,
                                  std::string_view gpu_label) {
  const std::lock_guard lock(mutex_);
  return write([&](Database& database) {
    for (const Problem& problem : problems) {
      require_problem(problem);
      write_used_size(database, problem, gpu_class, gpu_label);
    }
  });
}

std::vector<UsedSize> LayeredStore::used_sizes() {
  const std::lock_guard lock(mutex_);
  std::map<std::pair<Problem, std::string>, UsedSize> all;
  read_down([&](Database& database, Layer&) {
    for (UsedSize& used : read_used_sizes(database)) {
      const auto [place, is_new] = all.try_emplace({used.problem, used.gpu_class}, used);
      if (is_new) continue;
      UsedSize& known = place->second;
      known.sessions += used.sessions;
      known.first_used_at = std::min(known.first_used_at, used.first_used_at);
      known.last_used_at = std::max(known.last_used_at, used.last_used_at);
    }
    return false;
  });
  std::vector<UsedSize> list;
  for (auto& [key, used] : all) list.push_back(std::move(used));
  return list;
}

}  // namespace kiln::cache
