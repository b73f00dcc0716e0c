// Shapes, buckets and configs: from JSON and back, with every mistake answered by a sentence.
#include <algorithm>
#include <set>

#include "jit/base/json.h"
#include "templates/op.h"

namespace kiln::templates {
namespace {

std::vector<std::string> field_names(const Op& op, SizeKind kind) {
  std::vector<std::string> names;
  for (const Size& size : op.sizes) {
    if (size.kind == kind) names.push_back(size.field);
  }
  return names;
}

std::string legal_values(const Size& size) {
  if (size.names.empty()) return fmt::format("an integer from {} to {}", size.min, size.max);
  std::vector<std::string> names;
  for (const SizeName& name : size.names) names.push_back('"' + name.name + '"');
  return fmt::format("one of {}", fmt::join(names, ", "));
}

int64_t parse_value(const Op& op, const Size& size, const Json& value) {
  if (!size.names.empty() && value.is_string()) {
    for (const SizeName& name : size.names) {
      if (name.name == value.get<std::string>()) return name.value;
    }
  }
  const bool in_int64 = value.is_number_integer() &&
                        !(value.is_number_unsigned() &&
                          value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()});
  if (size.names.empty() && in_int64) {
    const int64_t number = value.get<int64_t>();
    if (number >= size.min && number <= size.max) return number;
  }
  fail(Status::invalid_argument, "{}: \"{}\" must be {}, but is {}", op.name, size.field,
       legal_values(size), value.dump());
}

std::string fields_text(const Op& op, SizeKind kind) {
  const std::vector<std::string> names = field_names(op, kind);
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

void refuse_unknown_fields(const Op& op, const Json& object, SizeKind kind, std::string_view what) {
  if (!object.is_object()) {
    fail(Status::invalid_argument, "{}: the {} must be a JSON object (its fields: {}), but is {}",
         op.name, what, fields_text(op, kind), object.dump());
  }
  for (const auto& [key, value] : object.items()) {
    const Size* size = op.find_size(key);
    if (size == nullptr || size->kind != kind || size->field != key) {
      fail(Status::invalid_argument, "{}: {} is no field of the {} (its fields: {})", op.name,
           in_quotes(key), what, fields_text(op, kind));
    }
  }
}

Json value_json(const Size& size, int64_t value) {
  const std::string* const name = size.name_of(value);
  return name != nullptr ? Json(*name) : Json(value);
}

Json sizes_json(const Op& op, const Sizes& sizes, SizeKind kind) {
  Json object = Json::object();
  for (const Size& size : op.sizes) {
    if (size.kind == kind && sizes.contains(size.symbol))
      object[size.field] = value_json(size, sizes[size.symbol]);
  }
  return object;
}

__extension__ typedef __int128 int128;

// By ratio and without floating point: is `value` nearer to `low` than to `high`?
bool nearer_to_low(int64_t value, int64_t low, int64_t high) {
  return static_cast<int128>(value) * value <= static_cast<int128>(low) * high;
}

int64_t nearest_edge(const Bucket& bucket, int64_t value) {
  for (size_t i = 0; i + 1 < bucket.edges.size(); ++i) {
    if (nearer_to_low(value, bucket.edges[i], bucket.edges[i + 1])) return bucket.edges[i];
  }
  return bucket.edges.back();
}

}  // namespace

Sizes parse_shape(const Op& op, const Json& shape) {
  refuse_unknown_fields(op, shape, SizeKind::fixed, "shape");
  Sizes fixed_sizes;
  for (const Size& size : op.sizes) {
    if (size.kind != SizeKind::fixed) continue;
    if (!shape.contains(size.field)) {
      fail(Status::invalid_argument, "{}: the shape lacks \"{}\" ({}), which must be {}", op.name,
           size.field, size.doc, legal_values(size));
    }
    fixed_sizes.set(size.symbol, parse_value(op, size, shape[size.field]));
  }
  if (op.check_fixed != nullptr) op.check_fixed(fixed_sizes);
  return fixed_sizes;
}

Json shape_json(const Op& op, const Sizes& fixed_sizes) {
  return sizes_json(op, fixed_sizes, SizeKind::fixed);
}

Sizes parse_dynamic(const Op& op, const Json& sizes) {
  refuse_unknown_fields(op, sizes, SizeKind::dynamic, "sizes");
  Sizes dynamic_sizes;
  for (const Size& size : op.sizes) {
    if (size.kind == SizeKind::dynamic && sizes.contains(size.field)) {
      dynamic_sizes.set(size.symbol, parse_value(op, size, sizes[size.field]));
    }
  }
  return dynamic_sizes;
}

Json dynamic_json(const Op& op, const Sizes& dynamic_sizes) {
  return sizes_json(op, dynamic_sizes, SizeKind::dynamic);
}

Json config_json(const Config& config) {
  Json object = Json::object();
  for (const auto& [axis, value] : config) object[axis] = value;
  return object;
}

Config parse_config(const Op& op, const Sizes& fixed_sizes, const Gpu& gpu, const Json& config) {
  const Space space = op.space(fixed_sizes, gpu);
  if (!config.is_object() || config.size() != space.axes.size()) {
    std::vector<std::string> names;
    for (const Axis& axis : space.axes) names.push_back(axis.name);
    fail(Status::invalid_argument,
         "{}: a config is a JSON object with exactly the axes {}, but this one is {}", op.name,
         fmt::join(names, ", "), config.dump());
  }
  Config parsed;
  for (const Axis& axis : space.axes) {
    const auto found = config.find(axis.name);
    if (found == config.end() || !found->is_number_integer() ||
        std::find(axis.values.begin(), axis.values.end(), found->get<int64_t>()) ==
            axis.values.end()) {
      fail(Status::invalid_argument, "{}: config axis \"{}\" must be one of {}, but is {}", op.name,
           axis.name, fmt::format("{}", fmt::join(axis.values, ", ")),
           found == config.end() ? "missing" : found->dump());
    }
    parsed.set(axis.name, found->get<int64_t>());
  }
  for (const Rule& rule : space.rules) {
    if (!rule.keeps(fixed_sizes, parsed, gpu)) {
      fail(Status::unsupported, "{}: config {} is not legal on {}: {}", op.name, config.dump(),
           gpu.slug, rule.why);
    }
  }
  return parsed;
}

Sizes with_derived(const Op& op, const Sizes& sizes) {
  Sizes all = sizes;
  for (const Size& size : op.sizes) {
    if (size.kind == SizeKind::derived) all.set(size.symbol, size.derived_value(all));
  }
  return all;
}

int64_t dense_bytes(const Op& op, const Arg& arg, const Sizes& fixed_sizes,
                    const Sizes& dynamic_sizes) {
  for (const Size& size : op.sizes) {
    if (size.kind == SizeKind::dynamic && !dynamic_sizes.contains(size.symbol)) {
      fail(Status::invalid_argument, "{}: the sizes lack \"{}\"; all of {} are needed", op.name,
           size.field, fmt::join(field_names(op, SizeKind::dynamic), ", "));
    }
  }
  if (arg.presence_in(fixed_sizes) == Presence::absent) return 0;
  const Sizes sizes = with_derived(op, fixed_sizes.merged(dynamic_sizes));
  int64_t bytes = dtype_bytes(arg.dtype);
  for (const std::string& dim : arg.dims) {
    if (__builtin_mul_overflow(bytes, sizes[dim], &bytes)) {
      fail(Status::invalid_argument, "{}: {} would have more than 2^63 bytes with the sizes {}",
           op.name, arg.name, dynamic_json(op, dynamic_sizes).dump());
    }
  }
  return bytes;
}

std::vector<Sizes> all_buckets(const Op& op) {
  std::vector<Sizes> buckets{Sizes{}};
  for (const Bucket& bucket : op.buckets) {
    std::vector<Sizes> longer;
    for (const Sizes& sizes : buckets) {
      for (const int64_t edge : bucket.edges)
        longer.push_back(sizes.merged({{bucket.symbol, edge}}));
    }
    buckets = std::move(longer);
  }
  return buckets;
}

Sizes nearest_bucket(const Op& op, const Sizes& dynamic_sizes) {
  Sizes result;
  for (const Bucket& bucket : op.buckets) {
    result.set(
        bucket.symbol,
        nearest_edge(bucket,
                     std::max<int64_t>(dynamic_sizes.get(bucket.symbol, bucket.edges.front()), 0)));
  }
  return result;
}

std::string bucket_key(const Op& op, const Sizes& bucket) {
  return canonical_json(dynamic_json(op, bucket));
}

Enumeration enumerate(const Op& op, const Sizes& fixed_sizes, const Gpu& gpu) {
  const Space space = op.space(fixed_sizes, gpu);
  std::vector<Config> all{Config{}};
  for (const Axis& axis : space.axes) {
    std::vector<Config> longer;
    for (const Config& config : all) {
      for (const int64_t value : axis.values) longer.push_back(config.merged({{axis.name, value}}));
    }
    all = std::move(longer);
  }

  Enumeration result;
  result.total = static_cast<int64_t>(all.size());
  const Config preferred = op.default_config(fixed_sizes);
  result.configs.push_back(preferred);
  for (const Config& config : all) {
    if (config == preferred) continue;
    const auto broken = std::find_if(space.rules.begin(), space.rules.end(), [&](const Rule& rule) {
      return !rule.keeps(fixed_sizes, config, gpu);
    });
    if (broken != space.rules.end()) {
      ++result.dropped[broken->why];
      continue;
    }
    result.configs.push_back(config);
  }
  return result;
}

}  // namespace kiln::templates
