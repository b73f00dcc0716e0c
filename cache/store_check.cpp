// Looks for defects in every layer, and for what they name that no layer holds.
#include <fmt/format.h>

#include "cache/check.h"
#include "cache/layered_store.h"
#include "cache/rows.h"

namespace kiln::cache {

std::vector<std::string> LayeredStore::check() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> defects;
  const std::vector<std::shared_ptr<Layer>> layers = layers_;  // read() may put another one there
  for (const std::shared_ptr<Layer>& layer : layers) {
    const std::string& path = layer->path();
    std::vector<Reference> plans;
    std::vector<Reference> binaries;
    bool is_whole = true;
    try {
      layer->read(
          [&](Database& database) {
            const FileCheck found = check_file(database, path);
            defects.insert(defects.end(), found.defects.begin(), found.defects.end());
            is_whole = found.is_whole;
            plans = referenced_plans(database);
            binaries = referenced_binaries(database);
          },
          Layer::Reads::outside_of_transactions);  // it takes long, and writers would wait
    } catch (const SqliteError& error) {
      is_whole = is_whole && !error.is_corruption();
      defects.push_back(fmt::format("{} cannot be checked to the end: {}", path, error.what()));
    } catch (const Unusable& error) {
      defects.push_back(with_remedy(path, error));
    }
    if (!is_whole) {
      note_damage(*layer, "its pages do not fit together", "so what it holds may be missed");
    }
    // A layer may use what the layers below it hold, and on this machine also what lies above.
    for (const std::shared_ptr<Layer>& other : layers) {
      read(*other, [&](Database& database) {
        std::erase_if(plans, [&](const Reference& r) { return has_plan(database, r.target); });
        // An image may be missing: it is compiled again. What it was may not.
        std::erase_if(binaries,
                      [&](const Reference& r) { return has_description(database, r.target); });
      });
    }
    for (const Reference& reference : plans) {
      defects.push_back(fmt::format("{}: {} names plan {}, which is in no layer", path,
                                    reference.from, reference.target.hex()));
    }
    for (const Reference& reference : binaries) {
      defects.push_back(fmt::format("{}: {} launches binary {}, which is in no layer", path,
                                    reference.from, reference.target.hex()));
    }
  }
  return defects;
}

}  // namespace kiln::cache
