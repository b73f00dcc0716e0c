// The text of a `kiln import`: whatever it holds, it is refused with a sentence, or what is taken
// of it reads back the same, and the store that took it is sound.
#include <cstdint>
#include <string>
#include <utility>

#include "cache/transfer.h"
#include "jit/base/error.h"
#include "runtime/import_check.h"
#include "tests/fuzz/fuzz.h"

namespace kiln::fuzz {
namespace {

using cache::ExportParts;
using cache::StoreContents;

constexpr cache::ImportLimits kLimits{
    .text_bytes = 1 << 20, .values = 20'000, .image_bytes = 1 << 20, .all_images_bytes = 4 << 20};

void take_in(StoreContents contents) {
  const std::string once = to_json(contents, ExportParts::all);
  require(to_json(cache::from_json(once), ExportParts::all) == once, "export of an import differs");
  runtime::drop_refused(contents);
  const auto store = cache::Store::open({.path = ":memory:", .pack = ":"});
  for (const cache::Trust trust : {cache::Trust::needed, cache::Trust::any}) {
    const cache::MergeReport report = store->absorb(contents, {.trust = trust});
    require(report.written, "a store in memory did not take what was checked");
  }
  for (const std::string& defect : store->check()) require(false, defect.c_str());
  for (const std::string& warning : store->warnings()) require(false, warning.c_str());
  // Once more, and nothing changes.
  const std::string before = to_json(cache::contents_of(*store, {}), ExportParts::all);
  store->absorb(contents, {.trust = cache::Trust::any});
  require(to_json(cache::contents_of(*store, {}), ExportParts::all) == before,
          "a second import of the same changes the store");
}

}  // namespace
}  // namespace kiln::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace kiln;
  cache::StoreContents contents;
  try {
    contents = cache::from_json({reinterpret_cast<const char*>(data), bytes}, fuzz::kLimits);
  } catch (const Error& error) {
    fuzz::require(error.status() == Status::invalid_argument, error.what());
    return 0;
  }
  fuzz::take_in(std::move(contents));
  return 0;
}
