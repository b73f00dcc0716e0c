#include "runtime/workload.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "jit/base/error.h"
#include "jit/base/json.h"

namespace kiln::runtime {
namespace {

using templates::Bucket;
using templates::Op;
using templates::Size;
using templates::SizeKind;
using templates::Sizes;

constexpr std::array kTensorParallel = {1, 2, 4, 8};

struct Range {
  int64_t least = 0;
  int64_t most = 0;
};
using Ranges = std::map<std::string, Range>;  // by symbol

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> sentence, Args&&... args) {
  fail(Status::invalid_argument, "workload: {}",
       fmt::format(sentence, std::forward<Args>(args)...));
}

// What is refused below says where in the workload it stands.
template <typename Work>
decltype(auto) with_place(const std::string& where, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    fail(error.status(), "workload: {}: {}", where, error.what());
  }
}

void require_known_keys(const Json& object, std::initializer_list<std::string_view> known,
                        const std::string& where) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      refuse("{} has the unknown key {}; known are {}", where, in_quotes(key),
             fmt::join(known, ", "));
    }
  }
}

std::string dynamic_fields(const Op& op) {
  std::vector<std::string> fields;
  for (const Size& size : op.sizes) {
    if (size.kind == SizeKind::dynamic) fields.push_back(size.field);
  }
  return fmt::format("{}", fmt::join(fields, ", "));
}

// As int64, what JSON numbers may be too large for.
bool fits_int64(const Json& value) {
  return value.is_number_integer() &&
         !(value.is_number_unsigned() &&
           value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()});
}

Range parse_range(const Op& op, const Size& size, const Json& value, const std::string& where) {
  const bool is_range = value.is_array() && value.size() == 2 && value[0].is_number_integer() &&
                        value[1].is_number_integer();
  if (!is_range) {
    refuse("{}: \"{}\" of {} must be [least, most], two integers; it is {}", where, size.field,
           op.name, value.dump());
  }
  const auto refuse_illegal = [&] {
    refuse("{}: \"{}\" of {} is [{}, {}]; legal sizes are {} to {}", where, size.field, op.name,
           value[0].dump(), value[1].dump(), size.min, size.max);
  };
  if (!fits_int64(value[0]) || !fits_int64(value[1])) refuse_illegal();
  const Range range{value[0].get<int64_t>(), value[1].get<int64_t>()};
  if (range.least > range.most) {
    refuse("{}: \"{}\" of {} is [{}, {}]; the least must not be above the most", where, size.field,
           op.name, range.least, range.most);
  }
  if (range.least < size.min || range.most > size.max) refuse_illegal();
  return range;
}

Ranges parse_ranges(const Op& op, const Json& sizes, const std::string& where) {
  if (!sizes.is_object()) {
    refuse("{}: \"sizes\" must be an object such as {{\"{}\": [1, 8192]}}; it is {}", where,
           dynamic_fields(op), sizes.dump());
  }
  Ranges ranges;
  for (const auto& [field, value] : sizes.items()) {
    const Size* size = op.find_size(field);
    if (size == nullptr || size->kind != SizeKind::dynamic || size->field != field) {
      refuse("{}: {} has no dynamic size {}; it has {}", where, op.name, in_quotes(field),
             dynamic_fields(op));
    }
    ranges[size->symbol] = parse_range(op, *size, value, where);
  }
  return ranges;
}

// The buckets that sizes within the ranges can reach.
std::vector<Sizes> reachable_buckets(const Op& op, const Ranges& ranges) {
  std::vector<Sizes> all = templates::all_buckets(op);
  if (ranges.empty() || op.buckets.empty()) return all;
  Sizes low;
  Sizes high;
  for (const Bucket& bucket : op.buckets) {
    const auto range = ranges.find(bucket.symbol);
    const bool given = range != ranges.end();
    low.set(bucket.symbol, given ? range->second.least : bucket.edges.front());
    high.set(bucket.symbol, given ? range->second.most : bucket.edges.back());
  }
  const Sizes first = templates::nearest_bucket(op, low);
  const Sizes last = templates::nearest_bucket(op, high);
  std::erase_if(all, [&](const Sizes& bucket) {
    return std::any_of(op.buckets.begin(), op.buckets.end(), [&](const Bucket& axis) {
      const int64_t edge = bucket[axis.symbol];
      return edge < first[axis.symbol] || edge > last[axis.symbol];
    });
  });
  return all;
}

class Builder {
 public:
  void add(const Op& op, const Sizes& fixed, const std::vector<Sizes>& buckets) {
    const auto [place, is_new] = index_.try_emplace({&op, fixed}, items_.size());
    if (is_new) items_.push_back({&op, fixed, {}});
    std::vector<Sizes>& known = items_[place->second].buckets;
    for (const Sizes& bucket : buckets) {
      if (std::find(known.begin(), known.end(), bucket) == known.end()) known.push_back(bucket);
    }
  }
  std::vector<WorkloadItem> take() { return std::move(items_); }

 private:
  std::vector<WorkloadItem> items_;
  std::map<std::pair<const Op*, Sizes>, size_t> index_;
};

std::vector<Sizes> model_shapes(const Op& op, int tensor_parallel) {
  if (op.model_shapes == nullptr) return {};
  return op.model_shapes(tensor_parallel);
}

int parse_tensor_parallel(const Json& workload) {
  const auto found = workload.find("tensor_parallel");
  if (found == workload.end()) return kDefaultTensorParallel;
  if (found->is_number_integer()) {
    const auto legal =
        std::find(kTensorParallel.begin(), kTensorParallel.end(), found->get<int64_t>());
    if (legal != kTensorParallel.end()) return *legal;
  }
  refuse("\"tensor_parallel\" must be 1, 2, 4 or 8; it is {}", found->dump());
}

void add_entry(Builder& builder, const Json& entry, size_t position, int tensor_parallel) {
  const std::string where = fmt::format("ops[{}]", position);
  if (!entry.is_object()) {
    refuse("{} must be an object such as {{\"op\": \"...\"}}; it is {}", where, entry.dump());
  }
  require_known_keys(entry, {"op", "shape", "sizes"}, where);
  const auto name = entry.find("op");
  if (name == entry.end() || !name->is_string()) {
    refuse("{} must name its op: {{\"op\": \"...\"}}; it is {}", where, entry.dump());
  }
  const Op& op = with_place(
      where, [&]() -> const Op& { return templates::require_op(name->get<std::string>()); });

  const auto sizes = entry.find("sizes");
  const Ranges ranges = sizes == entry.end() ? Ranges{} : parse_ranges(op, *sizes, where);
  const std::vector<Sizes> buckets = reachable_buckets(op, ranges);

  const auto shape = entry.find("shape");
  if (shape != entry.end()) {
    builder.add(op, with_place(where, [&] { return templates::parse_shape(op, *shape); }), buckets);
    return;
  }
  for (const Sizes& fixed : model_shapes(op, tensor_parallel)) builder.add(op, fixed, buckets);
}

// The buckets as ranges from the first to the last one: those that follow one another along the
// last axis are one range.
std::vector<std::pair<Sizes, Sizes>> runs_of(const Op& op, const std::vector<Sizes>& buckets) {
  std::vector<std::pair<Sizes, Sizes>> runs;
  const std::vector<Sizes> all = templates::all_buckets(op);
  const size_t row = op.buckets.empty() ? 1 : op.buckets.back().edges.size();
  bool goes_on = false;
  for (size_t i = 0; i < all.size(); ++i) {
    const bool is_used = std::find(buckets.begin(), buckets.end(), all[i]) != buckets.end();
    if (is_used && goes_on && i % row != 0) {
      runs.back().second = all[i];
    } else if (is_used) {
      runs.emplace_back(all[i], all[i]);
    }
    goes_on = is_used;
  }
  return runs;
}

}  // namespace

std::vector<WorkloadItem> parse_workload(std::string_view text) {
  const Json workload = text.empty() ? Json::object() : parse_json(text, "workload");
  if (!workload.is_object()) {
    refuse("an object such as {{\"ops\": [{{\"op\": \"...\"}}]}} was expected; it is {}",
           workload.dump());
  }
  require_known_keys(workload, {"tensor_parallel", "ops"}, "the object");
  const int tensor_parallel = parse_tensor_parallel(workload);

  Builder builder;
  const auto ops = workload.find("ops");
  if (ops == workload.end()) {
    for (const Op* op : templates::ops()) {
      for (const Sizes& fixed : model_shapes(*op, tensor_parallel)) {
        builder.add(*op, fixed, templates::all_buckets(*op));
      }
    }
    return builder.take();
  }
  if (!ops->is_array()) refuse("\"ops\" must be an array; it is {}", ops->dump());
  for (size_t i = 0; i < ops->size(); ++i) add_entry(builder, (*ops)[i], i, tensor_parallel);
  return builder.take();
}

Json workload_json(const std::vector<WorkloadItem>& items) {
  Json entries = Json::array();
  for (const WorkloadItem& item : items) {
    const Op& op = *item.op;
    for (const auto& [first, last] : runs_of(op, item.buckets)) {
      Json entry = {{"op", op.name}, {"shape", templates::shape_json(op, item.fixed)}};
      for (const Bucket& axis : op.buckets) {
        entry["sizes"][op.find_size(axis.symbol)->field] = {first[axis.symbol], last[axis.symbol]};
      }
      entries.push_back(std::move(entry));
    }
  }
  return {{"ops", std::move(entries)}};
}

}  // namespace kiln::runtime
