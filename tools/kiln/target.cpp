#include "tools/kiln/target.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "tools/kiln/common.h"
#include "tools/kiln/text.h"

namespace kiln::cli {
namespace {

Target device_target(const runtime::DeviceInfo& info) {
  if (info.timing == runtime::Timing::none) return {find_gpu(info.match), info.match};
  return {info.gpu, info.match.empty() ? info.gpu.slug : info.match};
}

}  // namespace

Target choose_target(const std::string& gpu_slug, const std::string& device, cache::Store& store) {
  if (!gpu_slug.empty()) {
    const Gpu& gpu = resolve_gpu(gpu_slug);
    return {gpu, gpu.slug};
  }
  if (!device.empty()) return device_target(require_device(device));
  const runtime::DeviceList list = runtime::list_devices();
  if (!list.devices.empty()) return device_target(list.devices.front());

  std::vector<std::string> labels;
  for (const cache::DecisionRow& row : store.list_decisions()) {
    const std::string& label = row.decision.gpu_label;
    if (std::find(labels.begin(), labels.end(), label) == labels.end()) labels.push_back(label);
  }
  if (labels.size() == 1) {
    const Gpu& gpu = resolve_gpu(labels.front());
    return {gpu, gpu.slug};
  }
  throw Failure(ExitCode::no_device, "there is no GPU here, so name one with --gpu SLUG.",
                labels.empty() ? fmt::format("Known GPUs: {}.", joined(gpu_slugs()))
                               : fmt::format("GPUs in the store: {}.", joined(labels)));
}

templates::Sizes bucket_sizes(const templates::Op& op, const std::string& sizes) {
  templates::Sizes dynamic = templates::parse_dynamic(op, object_argument(sizes, "--sizes"));
  for (const templates::Bucket& bucket : op.buckets) {
    if (dynamic.contains(bucket.symbol)) continue;
    throw Failure(ExitCode::usage,
                  fmt::format("{}: --sizes lacks \"{}\", which decides the bucket.", op.name,
                              op.find_size(bucket.symbol)->field),
                  "Leave --sizes out to mean every bucket.");
  }
  return dynamic;
}

}  // namespace kiln::cli
