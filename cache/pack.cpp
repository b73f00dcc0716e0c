#include "cache/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "jit/base/error.h"

namespace kiln::cache {
namespace {

template <typename Value>
bool contains(const std::vector<Value>& values, const Value& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace

PackReport make_pack_of(Store& store, const PackFilter& filter, const std::string& path) {
  ContentsFilter wanted{.ops = filter.ops, .gpu = {}, .images = Images::with};
  wanted.gpu = [&](const std::string& gpu_class, const std::string&) {
    return contains(filter.gpu_classes, gpu_class);
  };
  StoreContents contents = contents_of(store, wanted);
  if (contents.decisions.empty()) {
    fail(Status::store_error, "there is nothing to pack into {}: no decision matches", path);
  }

  PackReport report;
  report.decisions = static_cast<int64_t>(contents.decisions.size());
  for (const jit::Binary& binary : contents.binaries) {
    ++(binary.image.empty() ? report.missing_kernels : report.kernels);
  }

  // In memory, and without the packs that KILN_PACK names: what they hold belongs in this one too.
  constexpr const char* kNoPacks = ":";
  const std::unique_ptr<Store> part = Store::open({.path = ":memory:", .pack = kNoPacks});
  const MergeReport merged = part->absorb(contents, {.trust = Trust::any});
  if (!merged.written || merged.refused() > 0) {
    const auto refused =
        std::find_if(merged.rows.begin(), merged.rows.end(),
                     [](const MergeRow& row) { return row.outcome == MergeOutcome::refused; });
    fail(Status::store_error, "the pack {} cannot be made: {}", path,
         refused != merged.rows.end() ? refused->reason : "its records could not be written");
  }
  for (const BinaryRow& row : store.list_binaries()) {
    if (!row.op.empty() || !row.trusted || !contains(filter.archs, row.arch)) continue;
    const std::optional<jit::Binary> binary = store.find_binary(row.key);
    if (binary && part->put_binary(*binary)) ++report.kernels;
  }
  part->make_pack(path);
  return report;
}

}  // namespace kiln::cache
