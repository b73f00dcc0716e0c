// bench(): the config that serves a size, beside the op's default and the ceilings of the same run.
#include <algorithm>
#include <cmath>

#include "runtime/choice.h"
#include "runtime/workload.h"
#include "tuner/binaries.h"
#include "tuner/candidates.h"
#include "tuner/decide.h"
#include "tuner/device_worker.h"
#include "tuner/tuner.h"

namespace kiln::tuner {
namespace {

using templates::Case;
using templates::Config;
using templates::Kit;
using templates::Op;
using templates::Sizes;

constexpr int kRounds = 15;
constexpr int64_t kCeilingBytes = int64_t{512} << 20;
constexpr double kShareStep = 1.0 / 64;  // mixes closer than this share one measurement

struct Subject {
  const Op* op = nullptr;
  const Kit* kit = nullptr;
  Sizes fixed;
  Sizes sizes;  // of the bucket symbols and whatever else was given
};

// The measured case of an op is chosen by its bucket sizes and nothing else.
void require_bucket_fields(const Op& op, const Sizes& given) {
  std::vector<std::string> taken, missing, beyond;
  for (const templates::Size& size : op.sizes) {
    if (size.kind != templates::SizeKind::dynamic) continue;
    const bool is_bucket =
        std::any_of(op.buckets.begin(), op.buckets.end(),
                    [&](const auto& bucket) { return bucket.symbol == size.symbol; });
    if (is_bucket) taken.push_back(size.field);
    if (is_bucket && !given.contains(size.symbol)) missing.push_back(size.field);
    if (!is_bucket && given.contains(size.symbol)) beyond.push_back(size.field);
  }
  if (!missing.empty() || !beyond.empty()) {
    fail(Status::invalid_argument,
         "{}: sizes to measure are given by {}; missing: {}, not taken: {}.", op.name,
         fmt::join(taken, ", "),
         missing.empty() ? "none" : fmt::format("{}", fmt::join(missing, ", ")),
         beyond.empty() ? "none" : fmt::format("{}", fmt::join(beyond, ", ")));
  }
}

std::vector<Subject> subjects_of(const BenchOptions& options) {
  std::vector<Subject> subjects;
  const auto wanted = [&](const Op& op) {
    return options.ops.empty() ||
           std::find(options.ops.begin(), options.ops.end(), op.name) != options.ops.end();
  };
  const auto add = [&](const Op& op, const Sizes& fixed, const std::vector<Sizes>& buckets) {
    const Kit& kit = templates::require_kit(op);
    if (options.sizes.empty()) {
      for (const Sizes& bucket : buckets) subjects.push_back({&op, &kit, fixed, bucket});
      return;
    }
    const Sizes given = templates::parse_dynamic(op, parse_json(options.sizes, "sizes"));
    require_bucket_fields(op, given);
    subjects.push_back({&op, &kit, fixed, given});
  };
  for (const std::string& name : options.ops) templates::require_op(name);
  if (!options.shape.empty()) {
    if (options.ops.size() != 1)
      fail(Status::invalid_argument, "A shape belongs to one op; name that op too (--op NAME).");
    const Op& op = templates::require_op(options.ops.front());
    add(op, templates::parse_shape(op, parse_json(options.shape, "shape")),
        templates::all_buckets(op));
    return subjects;
  }
  for (const runtime::WorkloadItem& item : runtime::parse_workload(options.workload)) {
    if (wanted(*item.op)) add(*item.op, item.fixed, item.buckets);
  }
  return subjects;
}

class Bench {
 public:
  Bench(cache::Store& store, const BenchOptions& options)
      : store_(store),
        options_(options),
        binaries_(store),
        worker_({.executable = find_worker(options.worker),
                 .device = options.device,
                 .log = options.log}) {
    binaries_.serve_driver(worker_.info().cuda_major);
    worker_.set_tools(binaries_.tools(gpu().arch()));
    launch_ns_ = worker_.empty_launch_ns();
  }

  BenchRow measure(const Subject& subject);

 private:
  const Gpu& gpu() const { return worker_.info().gpu; }
  PlanWork plan_of(const Subject& subject, const Config& config);
  double ceiling_gb_per_s(double read_bytes, double write_bytes);
  double ceiling_bus_gb_per_s();
  double ceiling_tflop_per_s();

  cache::Store& store_;
  const BenchOptions& options_;
  Binaries binaries_;
  DeviceWorker worker_;
  double launch_ns_ = 0;
  const Target target_{
      .gpu = options_.limits.empty() ? gpu() : find_gpu(options_.limits),
      .limits = options_.limits,
      .device = gpu(),
  };
  runtime::TodaysPlans plans_{target_.gpu};
  std::map<int64_t, double> ceilings_;  // by read share in steps
  std::optional<double> bus_ceiling_;
  double mma_ceiling_ = 0;
};

PlanWork Bench::plan_of(const Subject& subject, const Config& config) {
  PlanWork work{.op = subject.op,
                .fixed = subject.fixed,
                .config = config,
                .limits = target_.limits,
                .binaries = {},
                .smem_bytes = {}};
  const auto launches = subject.op->plan(subject.fixed, config, target_.runs_as()).kernels;
  const auto on_gpu = subject.op->plan(subject.fixed, config, target_.gpu).kernels;
  if (on_gpu.size() != launches.size()) {
    fail(Status::unsupported, "{}: on the SMs of this card the config is a plan of other kernels",
         subject.op->name);
  }
  const auto built = [&](const templates::KernelLaunch& launch, const Gpu& which) {
    return binaries_.get(templates::kernel_source(*subject.op, launch), which.arch(),
                         templates::compile_options(launch));
  };
  for (size_t i = 0; i < launches.size(); ++i) {
    work.binaries.push_back(built(launches[i], gpu()));
    work.smem_bytes.push_back(launched_smem_bytes(target_, launches[i],
                                                  work.binaries.back()->resources,
                                                  built(on_gpu[i], target_.gpu)->resources));
  }
  return work;
}

double Bench::ceiling_gb_per_s(double read_bytes, double write_bytes) {
  const double total = read_bytes + write_bytes;
  const double share = total > 0 ? read_bytes / total : 0.5;
  const int64_t step = std::llround(share / kShareStep);
  const auto known = ceilings_.find(step);
  if (known != ceilings_.end()) return known->second;
  return ceilings_[step] =
             worker_.ceiling_gb_per_s(static_cast<double>(step) * kShareStep, kCeilingBytes);
}

double Bench::ceiling_bus_gb_per_s() {
  if (bus_ceiling_) return *bus_ceiling_;
  bus_ceiling_ = 0;
  try {
    bus_ceiling_ = worker_.ceiling_bus_gb_per_s();
  } catch (const Error& error) {
    // The rows are measured all the same.
    if (options_.log) options_.log(fmt::format("the rate of the bus is unknown: {}", error.what()));
  }
  return *bus_ceiling_;
}

double Bench::ceiling_tflop_per_s() {
  if (mma_ceiling_ == 0) mma_ceiling_ = worker_.ceiling_tflop_per_s();
  return mma_ceiling_;
}

BenchRow Bench::measure(const Subject& subject) {
  const Op& op = *subject.op;
  const Sizes bucket = templates::nearest_bucket(op, subject.sizes);
  const runtime::Choice choice = runtime::choose(store_, op, subject.fixed, bucket, plans_);
  const Config fallback = op.default_config(subject.fixed);
  const Case c = subject.kit->measured_case(subject.fixed, subject.sizes);
  std::vector<PlanWork> plans{plan_of(subject, choice.config)};
  if (choice.config != fallback) plans.push_back(plan_of(subject, fallback));
  const MeasureResult measured = worker_.measure(plans, c, kRounds, 0);

  Sizes dynamic_sizes;
  for (const templates::Size& size : op.sizes) {
    if (size.kind == templates::SizeKind::dynamic)
      dynamic_sizes.set(size.symbol, c.sizes[size.symbol]);
  }
  BenchRow row{.op = op.name,
               .shape = canonical_json(templates::shape_json(op, subject.fixed)),
               .sizes = canonical_json(templates::dynamic_json(op, dynamic_sizes)),
               .config = canonical_json(templates::config_json(choice.config)),
               .kind = cache::kind_name(choice.kind),
               .launch_ns = launch_ns_};
  if (measured.outcome != Outcome::passed) {
    row.problem = fmt::format("{}: {}", outcome_name(measured.outcome), measured.detail);
    if (options_.log)
      options_.log(fmt::format("{} {}: {} ({})", row.op, row.sizes, outcome_name(measured.outcome),
                               measured.detail));
    return row;
  }
  const Samples samples = usable(measured.samples);
  row.time_ns = median(samples.times_ns.front());
  row.default_ns = median(samples.times_ns.back());
  const templates::Cost cost = op.cost(templates::with_derived(op, c.sizes));
  // What is worked on in place rotates with the outputs. What else the layer has just written waits
  // in the L2 only where it fits beside what is written now.
  double read_bytes = cost.cold_read_bytes + cost.in_place_read_bytes;
  if (cost.warm_read_bytes + cost.write_bytes > static_cast<double>(gpu().l2_bytes))
    read_bytes += cost.warm_read_bytes;
  row.bytes = read_bytes + cost.write_bytes;
  row.ceiling_gb_per_s = ceiling_gb_per_s(read_bytes, cost.write_bytes);
  row.floor_ns = row.bytes / row.ceiling_gb_per_s;
  if (cost.bus_read_bytes > 0) {
    row.bus_bytes = cost.bus_read_bytes;
    row.ceiling_bus_gb_per_s = ceiling_bus_gb_per_s();
    if (row.ceiling_bus_gb_per_s > 0)
      row.floor_ns = std::max(row.floor_ns, row.bus_bytes / row.ceiling_bus_gb_per_s);
  }
  if (cost.mma_fma > 0) {
    constexpr double kNsPerS = 1e9, kTera = 1e12;
    row.mma_operations = 2 * cost.mma_fma;
    row.ceiling_tflop_per_s = ceiling_tflop_per_s();
    row.floor_ns =
        std::max(row.floor_ns, row.mma_operations / (row.ceiling_tflop_per_s * kTera) * kNsPerS);
  }
  return row;
}

}  // namespace

std::vector<BenchRow> bench(cache::Store& store, const BenchOptions& options) {
  const std::vector<Subject> subjects = subjects_of(options);
  Bench bench(store, options);
  std::vector<BenchRow> rows;
  for (const Subject& subject : subjects) rows.push_back(bench.measure(subject));
  return rows;
}

}  // namespace kiln::tuner
