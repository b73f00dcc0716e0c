// The questions of a session: can it serve an op, and which config would a call take and why.
#include <algorithm>
#include <utility>

#include "jit/base/error.h"
#include "jit/base/gpu.h"
#include "runtime/call_checks.h"
#include "runtime/plan_record.h"
#include "runtime/session.h"

namespace kiln::runtime {
namespace {

using templates::Config;
using templates::Op;
using templates::Sizes;

Sizes parse_bucket(const Op& op, const Sizes& fixed, std::string_view sizes) {
  const Sizes dynamic = templates::parse_dynamic(op, parse_json(sizes, "sizes"));
  const bool is_whole =
      std::all_of(op.sizes.begin(), op.sizes.end(), [&](const templates::Size& size) {
        return size.kind != templates::SizeKind::dynamic || dynamic.contains(size.symbol);
      });
  if (is_whole) require_sizes(op, fixed, dynamic);
  for (const templates::Bucket& bucket : op.buckets) {
    if (dynamic.contains(bucket.symbol)) continue;
    fail(Status::invalid_argument, "{}: the sizes lack \"{}\", by which the config is chosen",
         op.name, op.find_size(bucket.symbol)->field);
  }
  return templates::nearest_bucket(op, dynamic);
}

}  // namespace

std::string Session::why_supported(std::string_view op_name, const char* shape_text) {
  const Op& op = templates::require_op(op_name);
  require_arch(op);
  Sizes fixed;
  if (shape_text != nullptr) {
    fixed = templates::parse_shape(op, parse_json(shape_text, "shape"));
  } else if (op.model_shapes != nullptr) {
    const std::vector<Sizes> shapes = op.model_shapes(kDefaultTensorParallel);
    if (!shapes.empty()) fixed = shapes.front();
  }
  const Gpu& gpu = device_->info().gpu;
  const ServedShape shape(op, 0, fixed, *device_);
  TodaysPlans plans(device_->info().gpu);
  const ServedVariant variant = describe_variant(shape, op.default_config(fixed), plans);
  if (const auto broken = limit_broken(variant.launches, gpu)) {
    fail(Status::unsupported, "{} {}: {}: use a smaller shape or another device", op.name,
         shape.text, broken->detail);
  }
  const bool has_binaries =
      std::all_of(variant.keys.begin(), variant.keys.end(), [&](const KernelKey& key) {
        return workshop_->kernels().find(key) != nullptr || store_->has_binary(key.binary);
      });
  if (!has_binaries) {
    std::shared_ptr<jit::Compiler> compiler;
    try {
      compiler = workshop_->compiler();
    } catch (const Error& error) {
      fail(Status::unsupported,
           "{} {}: the store has no kernel for {}, and it cannot be compiled: {}; install NVRTC or "
           "use a store that was built for {}",
           op.name, shape.text, workshop_->arch(), error.what(), gpu.name);
    }
    const std::vector<int> archs = compiler->supported_archs();
    if (std::find(archs.begin(), archs.end(), gpu.cc()) == archs.end()) {
      fail(Status::unsupported,
           "{} {}: NVRTC {} does not know {}, only {}; install a newer CUDA toolkit", op.name,
           shape.text, compiler->version(), workshop_->arch(), fmt::join(archs, ", "));
    }
  }
  return fmt::format("{} {} is supported on {}; its default config is {}", op.name, shape.text,
                     device_->info().name, templates::config_json(variant.config).dump());
}

Json Session::explain_choice(const ServedShape& shape, const Choice& choice,
                             const ServedVariant& variant) {
  Json kernels = Json::array();
  for (size_t i = 0; i < variant.keys.size(); ++i) {
    const KernelKey& key = variant.keys[i];
    const ReadyKernel* ready = workshop_->kernels().find(key);
    Json kernel = {{"entry", variant.launches.kernels[i].entry},
                   {"binary", key.binary.hex()},
                   {"threads", key.threads},
                   {"dynamic_smem_bytes", key.dynamic_smem_bytes},
                   {"loaded", ready != nullptr}};
    if (ready != nullptr) {
      kernel["arch"] = ready->arch;
      kernel["registers"] = ready->resources.registers;
      kernel["spill_bytes"] =
          ready->resources.spill_store_bytes + ready->resources.spill_load_bytes;
      kernel["static_smem_bytes"] = ready->resources.static_smem_bytes;
      kernel["nvrtc"] = ready->nvrtc_version;
      kernel["from"] = ready->origin == Origin::store ? "store" : "compiled";
    } else {
      kernel["in_store"] = store_->has_binary(key.binary);
    }
    kernels.push_back(std::move(kernel));
  }
  return {{"bucket", templates::dynamic_json(shape.op, choice.bucket)},
          {"config", templates::config_json(variant.config)},
          {"kind", cache::kind_name(choice.kind)},
          {"reason", choice.reason},
          {"verified", cache::verified_json(choice.verified)},
          {"time_ns", known_number(choice.time_ns)},
          {"default_time_ns", known_number(choice.default_time_ns)},
          {"file", choice.layer.empty() ? Json(nullptr) : Json(choice.layer)},
          {"reduction_signature", variant.launches.reduction_signature},
          {"kernels", std::move(kernels)}};
}

// As resources_broken(), from the kernels that are loaded or stored; nothing while one is in
// neither.
std::optional<BrokenLimit> Session::resources_known_broken(const ServedVariant& variant) {
  std::vector<jit::Resources> resources;
  for (const KernelKey& key : variant.keys) {
    if (const ReadyKernel* ready = workshop_->kernels().find(key)) {
      resources.push_back(ready->resources);
    } else if (const auto binary = store_->find_binary(key.binary)) {
      resources.push_back(binary->resources);
    } else {
      return std::nullopt;
    }
  }
  return resources_broken(variant.launches, resources, device_->info().gpu);
}

// A shape that calls already use, and a sealed session, serve the default until a prepare has
// included the bucket; before that the first call prepares it.
Json Session::explain_unprepared(ServedShape& shape, size_t bucket) {
  const Config fallback = shape.op.default_config(shape.fixed);
  TodaysPlans plans(device_->info().gpu);
  Choice choice = choose(*store_, shape.op, shape.fixed, shape.bucket_sizes[bucket], plans);
  ServedVariant variant = describe_variant(shape, choice.config, plans);
  if (choice.config != fallback) {
    if (const auto broken = resources_known_broken(variant)) {
      choice = default_instead_of(choice, shape.op, shape.fixed, broken->detail);
      variant = describe_variant(shape, choice.config, plans);
    }
  }
  const bool is_served = shape.dispatch.load(std::memory_order_acquire) != nullptr;
  bool is_sealed = false;
  bool is_coming = false;
  {
    const std::lock_guard lock(mutex_);
    is_sealed = state_ == State::sealed;
    is_coming = background_ != nullptr && !background_->is_finished() &&
                bucket < shape.coming.size() && shape.coming[bucket];
  }
  Json would_take;
  if ((is_served || is_sealed) && choice.kind != cache::DecisionKind::fallback) {
    would_take = explain_choice(shape, choice, variant);
    choice = default_instead_of(
        choice, shape.op, shape.fixed,
        is_coming ? "its kernels are being prepared in the background, so calls take the default"
        : is_served
            ? "no prepare has included these sizes, so calls take the default"
            : "the session was sealed before this shape was prepared, so calls are refused");
    variant = describe_variant(shape, choice.config, plans);
  }
  Json entry = explain_choice(shape, choice, variant);
  entry["would_take"] = std::move(would_take);
  return entry;
}

Json Session::explain(std::string_view op_name, std::string_view shape_text, const char* sizes) {
  const Op& op = templates::require_op(op_name);
  require_arch(op);
  const Sizes fixed = templates::parse_shape(
      op, shape_text.empty() ? Json::object() : parse_json(shape_text, "shape"));
  const std::vector<Sizes> wanted =
      sizes == nullptr ? templates::all_buckets(op) : std::vector{parse_bucket(op, fixed, sizes)};
  ServedShape& shape = served_shape(op, fixed);
  const DeviceInfo& device = device_->info();

  Json buckets = Json::array();
  for (size_t i = 0; i < shape.bucket_sizes.size(); ++i) {
    if (std::find(wanted.begin(), wanted.end(), shape.bucket_sizes[i]) == wanted.end()) continue;
    std::optional<ServedBucket> served;
    ServedVariant variant;
    {
      const std::lock_guard lock(mutex_);
      served = shape.buckets[i];
      if (served) variant = shape.variants[served->variant];
    }
    Json entry =
        served ? explain_choice(shape, served->choice, variant) : explain_unprepared(shape, i);
    if (served) entry["would_take"] = nullptr;
    entry["prepared"] = served.has_value();
    buckets.push_back(std::move(entry));
  }

  const cache::StoreInfo store = store_->info();
  return {{"op", op.name},
          {"version", op.version},
          {"shape", templates::shape_json(op, fixed)},
          {"sizes", sizes == nullptr ? Json(nullptr) : parse_json(sizes, "sizes")},
          {"device",
           {{"id", device.id},
            {"name", device.name},
            {"gpu", device.match},
            {"arch", workshop_->arch()}}},
          {"searched",
           {{"store", store.path},
            {"pack", store.packs.empty() ? Json(nullptr) : Json(store.packs.front())},
            {"packs", store.packs},
            {"gpu_class", gpu_class_key(device.gpu)}}},
          {"buckets", std::move(buckets)}};
}

}  // namespace kiln::runtime
