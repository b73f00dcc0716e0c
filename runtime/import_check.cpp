#include "runtime/import_check.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <set>
#include <utility>

#include "jit/base/error.h"
#include "runtime/dispatch.h"
#include "runtime/limits.h"
#include "runtime/plan_record.h"
#include "templates/op.h"

namespace kiln::runtime {
namespace {

using cache::MergeRow;
using cache::StoreContents;
using templates::Op;
using templates::Sizes;

// Fails with a sentence unless the op is known in that version.
const Op& known_op(const std::string& name, int version) {
  const Op& op = templates::require_op(name);
  if (op.version != version) {
    fail(Status::unsupported, "it is for version {} of {}, this build has version {}", version,
         name, op.version);
  }
  return op;
}

Sizes known_shape(const Op& op, const std::string& text) {
  const Sizes fixed = templates::parse_shape(op, parse_json(text, "shape"));
  if (canonical_json(templates::shape_json(op, fixed)) != text) {
    fail(Status::invalid_argument, "the shape {} is not in the form that keys have", text);
  }
  return fixed;
}

void require_bucket(const Op& op, const std::string& text) {
  for (const Sizes& bucket : templates::all_buckets(op)) {
    if (templates::bucket_key(op, bucket) == text) return;
  }
  fail(Status::invalid_argument, "{} has no bucket {}", op.name, text);
}

// The sentence that a check fails with.
template <typename Check>
std::string sentence_of(Check check) {
  try {
    check();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void require_problem(const cache::Problem& problem) {
  const Op& op = known_op(problem.op, problem.op_version);
  known_shape(op, problem.shape);
  require_bucket(op, problem.bucket);
}

Gpu require_gpu(const std::string& key) {
  std::optional<Gpu> gpu = gpu_of_class_key(key);
  if (!gpu) {
    fail(Status::invalid_argument, "its GPU class is none that this build makes: {}",
         key.substr(0, 200));
  }
  return *std::move(gpu);
}

// The slug that people know a class by, "" for a card that is not in the table.
std::string label_of(const std::string& gpu_class) {
  for (const Gpu& gpu : gpu_table()) {
    if (gpu_class_key(gpu) == gpu_class) return gpu.slug;
  }
  return "";
}

// Shapes of problems repeat, and a bucket is found by search.
class ProblemChecks {
 public:
  const std::string& why(const cache::Problem& problem) {
    const auto [known, is_new] = reasons_.try_emplace(problem);
    if (is_new) known->second = why_meaningless(problem);
    return known->second;
  }

 private:
  std::map<cache::Problem, std::string> reasons_;
};

template <typename Record, typename Why>
void drop_of(std::vector<Record>& records, std::vector<MergeRow>& refused, Why why) {
  std::erase_if(records, [&](const Record& record) {
    std::string reason = why(record);
    if (reason.empty()) return false;
    refused.push_back(cache::refusal(record, std::move(reason)));
    return true;
  });
}

}  // namespace

std::optional<Gpu> gpu_of_class_key(std::string_view key) {
  const Json json = Json::parse(key, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  constexpr int64_t kMost = int64_t{1} << 40;
  bool is_whole = true;
  const auto number = [&](const char* name) -> int64_t {
    const auto found = json.find(name);
    const bool fits = found != json.end() && found->is_number_unsigned() &&
                      found->get<uint64_t>() <= static_cast<uint64_t>(kMost);
    is_whole = is_whole && fits;
    return fits ? found->get<int64_t>() : 0;
  };
  const auto small = [&](const char* name) {
    const int64_t value = number(name);
    is_whole = is_whole && value <= 1'000'000;
    return is_whole ? static_cast<int>(value) : 0;
  };
  const int cc = small("cc");
  Gpu gpu{.cc_major = cc / 10, .cc_minor = cc % 10};
  gpu.dram_gb_per_s = static_cast<double>(number("bandwidth_gb_per_s"));
  gpu.max_ctas_per_sm = small("ctas_per_sm");
  gpu.l2_bytes = number("l2_bytes");
  gpu.registers_per_sm = number("registers_per_sm");
  gpu.max_registers_per_thread = small("registers_per_thread");
  gpu.sm_count = small("sm_count");
  gpu.smem_per_cta_optin_bytes = number("smem_per_cta_optin_bytes");
  gpu.smem_per_sm_bytes = number("smem_per_sm_bytes");
  gpu.smem_reserved_per_cta_bytes = number("smem_reserved_per_cta_bytes");
  gpu.max_warps_per_sm = small("warps_per_sm");
  if (!is_whole || cc < 10 || gpu.sm_count < 1 || gpu_class_key(gpu) != key) return std::nullopt;
  return gpu;
}

std::string why_meaningless(const cache::Problem& problem) {
  return sentence_of([&] { require_problem(problem); });
}

std::string why_meaningless(const cache::Decision& decision) {
  return sentence_of([&] {
    const Op& op = known_op(decision.problem.op, decision.problem.op_version);
    require_problem(decision.problem);
    const Sizes fixed = known_shape(op, decision.problem.shape);
    const Gpu gpu = require_gpu(decision.gpu_class);
    const templates::Config config =
        templates::parse_config(op, fixed, gpu, parse_json(decision.config, "config"));
    if (canonical_json(templates::config_json(config)) != decision.config) {
      fail(Status::invalid_argument, "the config {} is not in the form that keys have",
           decision.config);
    }
    if (const auto broken = limit_broken(op.plan(fixed, config, gpu), gpu)) {
      fail(Status::unsupported, "{}", broken->detail);
    }
  });
}

std::string why_meaningless(const cache::PlanRecord& plan) {
  return sentence_of([&] {
    const Op& op = known_op(plan.op, plan.op_version);
    known_shape(op, plan.shape);
    if (plan.kernels.size() > kMaxKernels) {
      fail(Status::invalid_argument, "it launches {} kernels, of at most {}", plan.kernels.size(),
           kMaxKernels);
    }
    if (plan_id(plan) != plan.id) {
      fail(Status::invalid_argument, "its id is {}, and {} follows from its fields", plan.id.hex(),
           plan_id(plan).hex());
    }
  });
}

std::vector<MergeRow> drop_refused(StoreContents& contents) {
  const auto now = static_cast<int64_t>(std::time(nullptr));
  std::vector<MergeRow> refused;
  ProblemChecks problems;
  const auto first_of = [](std::string first, auto second) {
    return first.empty() ? second() : first;
  };
  drop_of(contents.binaries, refused,
          [](const jit::Binary& binary) { return cache::why_refused(binary); });
  drop_of(contents.plans, refused, [&](const cache::PlanRecord& plan) {
    return first_of(cache::why_refused(plan), [&] { return why_meaningless(plan); });
  });
  drop_of(contents.decisions, refused, [&](const cache::Decision& decision) {
    return first_of(cache::why_refused(decision, now), [&] { return why_meaningless(decision); });
  });
  drop_of(contents.verifications, refused, [&](const cache::Verification& verification) {
    return first_of(cache::why_refused(verification, now),
                    [&] { return problems.why(verification.problem); });
  });
  const auto class_and_problem = [&](const auto& record) {
    return first_of(problems.why(record.problem),
                    [&] { return sentence_of([&] { require_gpu(record.gpu_class); }); });
  };
  drop_of(contents.timings, refused, [&](const cache::Timing& timing) {
    return first_of(cache::why_refused(timing, now), [&] { return class_and_problem(timing); });
  });
  drop_of(contents.rejections, refused, [&](const cache::Rejection& rejection) {
    return first_of(cache::why_refused(rejection, now),
                    [&] { return class_and_problem(rejection); });
  });
  for (cache::Decision& decision : contents.decisions) {
    if (decision.gpu_label.empty()) decision.gpu_label = label_of(decision.gpu_class);
  }
  return refused;
}

void borrow(StoreContents& contents, const Gpu& gpu) {
  std::set<std::string> classes;
  std::set<std::string> labels;
  for (const cache::Decision& decision : contents.decisions) {
    classes.insert(decision.gpu_class);
    labels.insert(decision.gpu_label.empty() ? decision.gpu_class : decision.gpu_label);
  }
  if (classes.size() != 1) {
    fail(Status::invalid_argument,
         "the decisions of one GPU class were expected to be borrowed, they are of {}: {}",
         classes.size(), fmt::join(labels, ", "));
  }
  const std::optional<Gpu> from = gpu_of_class_key(*classes.begin());
  if (!from || from->cc() != gpu.cc()) {
    fail(Status::invalid_argument,
         "decisions for {} can be borrowed by GPUs of the same compute capability only, and {} "
         "has {}.{}",
         *labels.begin(), gpu.slug, gpu.cc_major, gpu.cc_minor);
  }
  const std::string gpu_class = gpu_class_key(gpu);
  if (gpu_class == *classes.begin()) return;
  std::map<cache::Problem, cache::Decision> best;
  for (cache::Decision& decision : contents.decisions) {
    const auto [known, is_new] = best.try_emplace(decision.problem, decision);
    if (!is_new && decision.kind < known->second.kind) known->second = decision;
  }
  contents.decisions.clear();
  for (auto& [problem, decision] : best) {
    decision.reason = fmt::format("borrowed from {}: {}, {}", *labels.begin(),
                                  cache::kind_name(decision.kind), decision.reason);
    decision.kind = cache::DecisionKind::borrowed;
    decision.gpu_class = gpu_class;
    decision.gpu_label = gpu.slug;
    decision.limits.clear();
    decision.time_ns = 0;
    decision.default_time_ns = 0;
    contents.decisions.push_back(std::move(decision));
  }
  contents.timings.clear();
  contents.rejections.clear();
}

}  // namespace kiln::runtime
