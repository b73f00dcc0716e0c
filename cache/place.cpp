// Where the writable store goes when nobody says.
#include "cache/store.h"
#include "jit/base/environment.h"

namespace kiln::cache {
namespace {

bool is_absolute(const std::string& path) { return !path.empty() && path.front() == '/'; }

}  // namespace

StorePlace default_store_place() {
  if (const std::string path = environment("KILN_DB"); !path.empty()) {
    return {path, "from KILN_DB"};
  }
  // The XDG specification tells to ignore a relative path.
  if (const std::string folder = environment("XDG_CACHE_HOME"); is_absolute(folder)) {
    return {folder + "/kiln/kiln.db", "from XDG_CACHE_HOME"};
  }
  if (const std::string folder = environment("HOME"); is_absolute(folder)) {
    return {folder + "/.cache/kiln/kiln.db", "from HOME"};
  }
  return {":memory:", "neither KILN_DB, XDG_CACHE_HOME nor HOME names a place"};
}

}  // namespace kiln::cache
