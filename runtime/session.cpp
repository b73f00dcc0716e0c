#include "runtime/session.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "jit/base/error.h"
#include "jit/base/gpu.h"
#include "runtime/fork.h"
#include "runtime/handles.h"
#include "runtime/limits.h"
#include "runtime/plan_record.h"

namespace kiln::runtime {
namespace {

using cache::DecisionKind;
using templates::Config;
using templates::Op;
using templates::Sizes;

int op_position(const Op& op) {
  const auto all = templates::ops();
  return static_cast<int>(std::find(all.begin(), all.end(), &op) - all.begin());
}

cache::StoreOptions store_options(const SessionOptions& options) {
  cache::StoreOptions result;
  result.path = options.store;
  result.pack = options.pack;
  result.mode = options.store_mode;
  return result;
}

std::string store_text(const cache::StoreInfo& info) {
  const std::string mode = info.writable ? "" : " (not writable)";
  std::string packs;
  for (const std::string& pack : info.packs) packs += ", pack " + pack;
  return info.path + mode + packs;
}

[[noreturn]] void fail_preparing(std::string_view what) {
  fail(Status::bad_state,
       "{}: kernels of this session are being prepared; call it when that has returned", what);
}

Json parse_shape_text(std::string_view shape) {
  return shape.empty() ? Json::object() : parse_json(shape, "shape");
}

bool is_ready(const ServedVariant& variant) {
  return std::all_of(variant.kernels.begin(), variant.kernels.end(),
                     [](const ReadyKernel* kernel) { return kernel != nullptr; });
}

std::vector<jit::Resources> resources_of(const ServedVariant& variant) {
  std::vector<jit::Resources> resources;
  for (const ReadyKernel* kernel : variant.kernels) resources.push_back(kernel->resources);
  return resources;
}

}  // namespace

// While it lives, sealing and closing are refused.
class Session::PrepareScope {
 public:
  PrepareScope(Session& session, Status when_sealed, std::string_view what) : session_(session) {
    const std::lock_guard lock(session_.mutex_);
    if (session_.state_ == State::sealed) {
      fail(when_sealed,
           "{}: the session has been sealed by kiln_seal, so nothing may be compiled or loaded any "
           "more; let kiln_prepare have all that is called in its workload, before kiln_seal",
           what);
    }
    // What the outer prepare has begun would be waited for, and only this thread can finish it.
    if (!session_.preparing_.insert(std::this_thread::get_id()).second) {
      fail(Status::bad_state,
           "{}: this thread is inside a prepare of the same session (a progress or log callback); "
           "call it when that prepare has returned",
           what);
    }
  }
  ~PrepareScope() {
    const std::lock_guard lock(session_.mutex_);
    session_.preparing_.erase(std::this_thread::get_id());
  }
  PrepareScope(const PrepareScope&) = delete;
  PrepareScope& operator=(const PrepareScope&) = delete;

 private:
  Session& session_;
};

// One prepare: choose a config for every bucket that has none yet, make the kernels, publish the
// shapes that are complete.
class Session::Preparation {
 public:
  // at_once: run() follows, so that what it will need may be loaded from here on.
  enum class Runs { at_once, later };
  Preparation(Session& session, const std::vector<WorkloadItem>& items, Runs runs)
      : session_(session), todays_plans_(session.device_->info().gpu) {
    constexpr size_t kFewestItems = 4;  // that are worth three threads
    if (runs == Runs::at_once && items.size() >= kFewestItems)
      preloader_ = session_.workshop_->make_preloader();
    for (const WorkloadItem& item : items) add(item);
    collect_needs();
  }

  int kernel_count() const { return static_cast<int>(needs_.size()); }

  // Calls keep what they use until run(); what they will need of workspace then is answered now.
  void announce() {
    const std::lock_guard lock(session_.mutex_);
    for (const ShapeWork& work : shapes_) {
      ServedShape& shape = *work.shape;
      shape.coming.resize(shape.bucket_sizes.size());
      for (const BucketWork& bucket : work.buckets) {
        const ServedVariant& variant = work.variants.at(bucket.choice.config).variant;
        shape.coming[bucket.bucket] =
            shape.checks.resolver().compile(variant.launches.workspace_bytes, "workspace");
      }
      if (shape.dispatch.load(std::memory_order_acquire) != nullptr) session_.publish(shape);
    }
  }

  void run(const Progress& progress) {
    const auto start = std::chrono::steady_clock::now();
    const uint64_t compiles_before = session_.counters_.compiles;
    KernelRun kernels(*session_.workshop_, needs_, session_.timing_, preloader_.get());
    std::exception_ptr stopped;
    try {
      kernels.finish(
          progress, [&](const KernelRun::Summary& summary) { log_start(summary); },
          [&] { finish_what_is_made(); });
    } catch (...) {
      stopped = std::current_exception();
    }
    while (finished_ < shapes_.size()) finish_shape(shapes_[finished_++]);
    kernels.store(plans_);
    kernels.note_use();
    log_reasons();
    session_.workshop_->log_store_warnings();
    if (stopped) std::rethrow_exception(stopped);
    const auto elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - start);
    session_.log_.line(KILN_LOG_INFO, "prepared {} kernels of {} shapes in {} ms, {} compiled",
                       needs_.size(), shapes_.size(), elapsed.count(),
                       session_.counters_.compiles - compiles_before);
  }

 private:
  struct VariantWork {
    ServedVariant variant;
    std::vector<size_t> needs;  // indices into needs_
    Necessity necessity = Necessity::dispensable;
  };
  struct BucketWork {
    size_t bucket = 0;  // index into ServedShape::buckets
    Choice choice;
  };
  struct ShapeWork {
    ServedShape* shape = nullptr;
    std::map<Config, VariantWork> variants;
    std::vector<BucketWork> buckets;
  };

  const Gpu& gpu() const { return session_.device_->info().gpu; }

  void add(const WorkloadItem& item) {
    session_.require_arch(*item.op);
    ShapeWork work{.shape = &session_.served_shape(*item.op, item.fixed)};
    const std::vector<size_t> missing = missing_buckets(*work.shape, item.buckets);
    const bool is_new = work.shape->dispatch.load(std::memory_order_acquire) == nullptr;
    if (missing.empty() && !is_new) return;

    variant_of(work, item.op->default_config(item.fixed)).necessity = Necessity::required;
    for (const size_t bucket : missing) {
      work.buckets.push_back({bucket, choose_for(work, bucket)});
    }
    if (preloader_) preload(work);
    shapes_.push_back(std::move(work));
  }

  void preload(const ShapeWork& work) {
    for (const auto& [config, variant] : work.variants) {
      for (const KernelKey& key : variant.variant.keys)
        preloader_->want(key, subject_of(*work.shape, config));
    }
  }

  std::vector<size_t> missing_buckets(const ServedShape& shape, const std::vector<Sizes>& wanted) {
    const std::lock_guard lock(session_.mutex_);
    std::vector<size_t> missing;
    for (size_t i = 0; i < shape.bucket_sizes.size(); ++i) {
      const bool is_wanted =
          std::find(wanted.begin(), wanted.end(), shape.bucket_sizes[i]) != wanted.end();
      if (is_wanted && !shape.buckets[i]) missing.push_back(i);
    }
    return missing;
  }

  VariantWork& variant_of(ShapeWork& work, const Config& config) {
    const auto found = work.variants.find(config);
    if (found != work.variants.end()) return found->second;
    VariantWork made{.variant = session_.describe_variant(*work.shape, config, todays_plans_)};
    return work.variants.emplace(config, std::move(made)).first->second;
  }

  Choice choose_for(ShapeWork& work, size_t bucket) {
    const ServedShape& shape = *work.shape;
    Choice choice =
        choose(*session_.store_, shape.op, shape.fixed, shape.bucket_sizes[bucket], todays_plans_);
    variant_of(work, choice.config);
    return choice;
  }

  // Variants that no bucket takes after all get no kernels.
  void collect_needs() {
    std::map<KernelKey, size_t> index;
    for (ShapeWork& work : shapes_) {
      std::erase_if(work.variants, [&](const auto& entry) {
        const auto takes = [&](const BucketWork& bucket) {
          return bucket.choice.config == entry.first;
        };
        return entry.second.necessity == Necessity::dispensable &&
               std::none_of(work.buckets.begin(), work.buckets.end(), takes);
      });
      for (auto& [config, variant] : work.variants) {
        for (size_t i = 0; i < variant.variant.keys.size(); ++i) {
          const auto [place, is_new] = index.try_emplace(variant.variant.keys[i], needs_.size());
          if (is_new) needs_.push_back(need_for(*work.shape, variant.variant, i));
          if (variant.necessity == Necessity::required) {
            needs_[place->second].necessity = Necessity::required;
          }
          variant.needs.push_back(place->second);
        }
      }
    }
  }

  static KernelSubject subject_of(const ServedShape& shape, const Config& config) {
    return {.op = &shape.op, .fixed = shape.fixed, .config = templates::config_json(config).dump()};
  }

  static KernelNeed need_for(const ServedShape& shape, const ServedVariant& variant, size_t i) {
    const templates::KernelLaunch& launch = variant.launches.kernels[i];
    return {.key = variant.keys[i],
            .launch = launch,
            .necessity = Necessity::dispensable,
            .subject = subject_of(shape, variant.config),
            .what = fmt::format("{} {} {}", shape.op.name, shape.text,
                                templates::config_json(variant.config).dump())};
  }

  // Shapes in their order, as their kernels are.
  void finish_what_is_made() {
    const auto is_made = [&](size_t need) {
      return needs_[need].ready != nullptr || needs_[need].error.has_value();
    };
    const auto is_all_made = [&](const ShapeWork& work) {
      return std::all_of(work.variants.begin(), work.variants.end(), [&](const auto& entry) {
        return std::all_of(entry.second.needs.begin(), entry.second.needs.end(), is_made);
      });
    };
    while (finished_ < shapes_.size() && is_all_made(shapes_[finished_]))
      finish_shape(shapes_[finished_++]);
  }

  void finish_shape(ShapeWork& work) {
    for (auto& [config, variant] : work.variants) {
      for (const size_t need : variant.needs) variant.variant.kernels.push_back(needs_[need].ready);
    }
    VariantWork& fallback = work.variants.at(work.shape->op.default_config(work.shape->fixed));
    if (!is_ready(fallback.variant)) return;
    note_plans(work);
    const std::lock_guard lock(session_.mutex_);
    ServedShape& shape = *work.shape;
    adopt(shape, fallback.variant);
    std::vector<size_t> finished;
    finished.reserve(work.buckets.size());
    try {
      for (const BucketWork& bucket : work.buckets) {
        if (finish_bucket(work, bucket)) finished.push_back(bucket.bucket);
      }
      session_.publish(shape);
    } catch (...) {
      // Not served is not finished: the next prepare begins with these again.
      for (const size_t bucket : finished) shape.buckets[bucket].reset();
      throw;
    }
    for (const size_t bucket : finished) {
      const bool is_decided = shape.buckets[bucket]->choice.kind != DecisionKind::fallback;
      ++(is_decided ? session_.counters_.decision_hits : session_.counters_.decision_defaults);
    }
  }

  // False: there is nothing to serve yet, or another thread has prepared the same.
  bool finish_bucket(ShapeWork& work, const BucketWork& bucket) {
    ServedShape& shape = *work.shape;
    if (shape.buckets[bucket.bucket]) return false;
    VariantWork& variant = work.variants.at(bucket.choice.config);
    Choice choice = bucket.choice;
    if (is_ready(variant.variant)) {
      const std::optional<BrokenLimit> broken =
          resources_broken(variant.variant.launches, resources_of(variant.variant), gpu());
      if (broken && variant.necessity == Necessity::dispensable) {
        choice = default_instead_of(choice, shape.op, shape.fixed, broken->detail);
      }
    } else {
      const std::string why = why_not_made(variant);
      if (why.empty()) return false;  // stopped before its turn
      choice = default_instead_of(choice, shape.op, shape.fixed, why);
    }
    const uint32_t index = adopt(shape, work.variants.at(choice.config).variant);
    note_reason(shape, choice);
    shape.buckets[bucket.bucket] = ServedBucket{std::move(choice), index};
    return true;
  }

  std::string why_not_made(const VariantWork& variant) const {
    for (const size_t need : variant.needs) {
      if (needs_[need].error) {
        return fmt::format("its kernel cannot be made: {}", needs_[need].error->what());
      }
    }
    return "";
  }

  // Position of the variant in the shape, which takes it when it is new there.
  static uint32_t adopt(ServedShape& shape, const ServedVariant& variant) {
    for (size_t i = 0; i < shape.variants.size(); ++i) {
      if (shape.variants[i].config == variant.config) return static_cast<uint32_t>(i);
    }
    shape.variants.push_back(variant);
    return static_cast<uint32_t>(shape.variants.size() - 1);
  }

  // What was compiled here is worth keeping with what it serves.
  void note_plans(const ShapeWork& work) {
    for (const auto& [config, work_variant] : work.variants) {
      const ServedVariant& variant = work_variant.variant;
      const bool is_new =
          is_ready(variant) &&
          std::any_of(variant.kernels.begin(), variant.kernels.end(),
                      [](const ReadyKernel* kernel) { return kernel->origin == Origin::compiled; });
      if (!is_new) continue;
      std::vector<Hash128> binaries;
      for (const KernelKey& key : variant.keys) binaries.push_back(key.binary);
      plans_.push_back(plan_record(work.shape->op, work.shape->fixed, config,
                                   session_.workshop_->arch(), variant.launches, binaries));
    }
  }

  // Once per key: the reason goes to the log when no lock is held any more.
  void note_reason(const ServedShape& shape, const Choice& choice) {
    const bool is_proven =
        choice.kind != DecisionKind::fallback && choice.verified != cache::Verified::none;
    if (is_proven && choice.refused.empty()) return;
    const std::string bucket = templates::bucket_key(shape.op, choice.bucket);
    std::string line = fmt::format("{} {} {}: {} config, {}", shape.op.name, shape.text, bucket,
                                   cache::kind_name(choice.kind), choice.reason);
    if (!session_.reasons_logged_.insert(line).second) return;
    const bool is_refusal =
        !choice.refused.empty() || (choice.kind == DecisionKind::fallback && choice.has_decision);
    reasons_.emplace_back(is_refusal ? KILN_LOG_WARNING : KILN_LOG_INFO, std::move(line));
  }

  void log_reasons() const {
    if (reasons_.empty()) return;
    const std::string searched = store_text(session_.store_->info());
    for (const auto& [level, line] : reasons_) {
      session_.log_.line(level, "{} (searched: {})", line, searched);
    }
  }

  void log_start(const KernelRun::Summary& summary) const {
    int buckets = 0;
    int decided = 0;
    int used = 0;
    for (const ShapeWork& work : shapes_) {
      for (const BucketWork& bucket : work.buckets) {
        ++buckets;
        decided += bucket.choice.has_decision ? 1 : 0;
        used += bucket.choice.kind != DecisionKind::fallback ? 1 : 0;
      }
    }
    session_.log_.line(KILN_LOG_INFO,
                       "store {}: of {} kernels {} are loaded, {} stored, {} missing ({} absent, "
                       "{} damaged); of {} "
                       "buckets {} have a decision, {} of them usable",
                       store_text(session_.store_->info()), summary.total, summary.loaded,
                       summary.stored, summary.absent + summary.damaged, summary.absent,
                       summary.damaged, buckets, decided, used);
  }

  Session& session_;
  TodaysPlans todays_plans_;
  std::unique_ptr<Preloader> preloader_;
  std::vector<ShapeWork> shapes_;
  size_t finished_ = 0;  // of shapes_
  std::vector<KernelNeed> needs_;
  std::vector<cache::PlanRecord> plans_;  // of what was compiled here
  std::vector<std::pair<kiln_log_level, std::string>> reasons_;
};

Session::Session(const SessionOptions& options)
    : log_(options.log),
      timing_(options.timing),
      device_(Device::open(options.device)),
      memory_(std::make_unique<SessionMemory>(*device_)),
      store_(cache::Store::open(store_options(options))),
      workshop_(std::make_unique<Workshop>(*device_, *store_, log_, counters_, options.compiles)) {
  const DeviceInfo& info = device_->info();
  const cache::StoreInfo store = store_->info();
  log_.line(KILN_LOG_INFO, "{} is {} ({}), {}; store {}: {} decisions, {} binaries", info.id,
            info.name, info.match.empty() ? "not in the GPU table" : info.match, driver_text(info),
            store_text(store), store.decisions, store.binaries);
  workshop_->log_store_warnings();
}

Session::~Session() = default;

void Session::require_arch(const Op& op) const {
  const DeviceInfo& info = device_->info();
  if (info.gpu.cc() < op.min_cc) {
    fail(Status::unsupported,
         "{} needs compute capability {}.{} or newer; {} has {}.{}: use another device", op.name,
         op.min_cc / 10, op.min_cc % 10, info.name, info.gpu.cc_major, info.gpu.cc_minor);
  }
}

ServedShape& Session::served_shape(const Op& op, const Sizes& fixed) {
  const int index = op_position(op);
  const std::lock_guard lock(mutex_);
  const auto known = shapes_.find({index, fixed});
  if (known != shapes_.end()) return *known->second;
  // Made first: without memory for it nothing may be left in its place.
  auto shape = std::make_unique<ServedShape>(op, index, fixed, *device_);
  return *shapes_.emplace(std::pair{index, fixed}, std::move(shape)).first->second;
}

ServedVariant Session::describe_variant(const ServedShape& shape, const Config& config,
                                        TodaysPlans& plans) const {
  ServedVariant variant;
  variant.config = config;
  variant.launches = shape.op.plan(shape.fixed, config, device_->info().gpu);
  for (const auto& kernel : plans.plan(shape.op, shape.fixed, config, workshop_->arch()).kernels) {
    variant.keys.push_back({.binary = kernel.binary,
                            .threads = kernel.threads,
                            .dynamic_smem_bytes = kernel.dynamic_smem_bytes});
  }
  return variant;
}

// Builds the table that calls read and makes it visible to them at once.
void Session::publish(ServedShape& shape) {
  std::vector<DispatchVariant> variants;
  for (const ServedVariant& served : shape.variants) {
    DispatchVariant variant;
    for (size_t i = 0; i < served.kernels.size(); ++i) {
      const templates::KernelLaunch& launch = served.launches.kernels[i];
      const FieldResolver& resolver = shape.checks.resolver();
      variant.kernels.push_back({.kernel = served.kernels[i]->kernel,
                                 .grid_x = resolver.compile(launch.grid_x, "grid"),
                                 .grid_y = resolver.compile(launch.grid_y, "grid"),
                                 .grid_z = resolver.compile(launch.grid_z, "grid")});
    }
    variant.workspace_bytes =
        shape.checks.resolver().compile(served.launches.workspace_bytes, "workspace");
    variants.push_back(std::move(variant));
  }
  std::vector<uint32_t> pick;
  for (const auto& bucket : shape.buckets) pick.push_back(bucket ? bucket->variant : 0);
  shape.dispatches.push_back(std::make_unique<const Dispatch>(shape.checks, std::move(variants),
                                                              std::move(pick), shape.coming));
  shape.dispatch.store(shape.dispatches.back().get(), std::memory_order_release);
}

void Session::make_ready(const std::vector<WorkloadItem>& items, const Progress& progress) {
  Preparation(*this, items, Preparation::Runs::at_once).run(progress);
}

void Session::prepare(std::string_view workload, const Progress& progress) {
  const PrepareScope scope(*this, Status::bad_state, "kiln_prepare");
  make_ready(parse_workload(workload), progress);
}

void Session::start_preparing(std::string_view workload, const Progress& progress) {
  constexpr std::string_view kName = "kiln_prepare_start";
  const PrepareScope scope(*this, Status::bad_state, kName);
  const std::vector<WorkloadItem> items = parse_workload(workload);
  const auto background = std::make_shared<Background>();
  std::shared_ptr<Background> before;  // its thread is waited for when no lock is held
  {
    const std::lock_guard lock(mutex_);
    if (background_ != nullptr && !background_->is_finished()) {
      fail(Status::bad_state,
           "{}: kernels are being prepared in the background already; call it when "
           "kiln_prepare_wait has said how that ended",
           kName);
    }
    before = std::exchange(background_, background);
  }
  try {
    std::vector<WorkloadItem> defaults = items;
    for (WorkloadItem& item : defaults) item.buckets.clear();
    make_ready(defaults, nullptr);
    // One of each shape, so that each serves as soon as its kernels are there.
    auto rest = std::make_shared<std::vector<std::unique_ptr<Preparation>>>();
    for (const WorkloadItem& item : items) {
      rest->push_back(
          std::make_unique<Preparation>(*this, std::vector{item}, Preparation::Runs::later));
      rest->back()->announce();
    }
    background->start(
        [this, rest, progress, work = background.get()] { prepare_rest(*rest, *work, progress); });
  } catch (...) {
    background->fail_at_start(std::current_exception());
    const std::lock_guard lock(mutex_);
    background_.reset();
    throw;
  }
}

void Session::prepare_rest(const std::vector<std::unique_ptr<Preparation>>& rest,
                           Background& background, const Progress& progress) {
  const PrepareScope scope(*this, Status::bad_state, "kiln_prepare_start");
  int total = 0;
  for (const auto& preparation : rest) total += preparation->kernel_count();
  background.note_progress(0, total);
  int before = 0;
  for (const auto& preparation : rest) {
    const auto tell = [&](int done, int, const std::string& what) {
      background.note_progress(before + done, total);
      if (background.is_stopping()) return false;
      const bool is_end_of_shape = what.empty() && before + done < total;
      return !progress || is_end_of_shape || progress(before + done, total, what);
    };
    if (!tell(0, total, "")) {
      fail(
          Status::interrupted,
          "kiln_prepare_start: stopped by its progress callback or by kiln_close; {} of {} kernels "
          "are ready",
          before, total);
    }
    preparation->run(tell);
    before += preparation->kernel_count();
  }
}

void Session::wait_for_preparing(std::chrono::milliseconds timeout) {
  std::shared_ptr<Background> background;
  {
    const std::lock_guard lock(mutex_);
    require_outside_prepare("kiln_prepare_wait");
    background = background_;
  }
  if (background == nullptr) {
    fail(Status::bad_state,
         "kiln_prepare_wait: no background preparation was started; call kiln_prepare_start first");
  }
  const Background::Progress progress = background->wait(timeout);
  if (!progress.finished) {
    fail(Status::not_prepared,
         "kiln_prepare_wait: {} of {} kernels are ready; calls take the default configs until the "
         "rest is, so wait longer or go on",
         progress.done, progress.total);
  }
  if (progress.error) std::rethrow_exception(progress.error);
}

void Session::prepare_shape(ServedShape& shape) {
  const PrepareScope scope(*this, Status::not_prepared, shape.op.name);
  log_.line(KILN_LOG_INFO, "{} {}: first call of a plan that was not prepared; preparing it now",
            shape.op.name, shape.text);
  make_ready({{&shape.op, shape.fixed, shape.bucket_sizes}}, nullptr);
}

void Session::seal() {
  const std::lock_guard lock(mutex_);
  require_none_preparing("kiln_seal");
  state_ = State::sealed;
}

void Session::end_preparing(std::string_view what) {
  std::shared_ptr<Background> background;
  {
    const std::lock_guard lock(mutex_);
    require_outside_prepare(what);
    background = background_;
    const bool is_alone = std::all_of(preparing_.begin(), preparing_.end(), [&](auto thread) {
      return background != nullptr && thread == background->thread_id();
    });
    if (!is_alone) fail_preparing(what);
  }
  if (background != nullptr) background->stop();
}

void Session::require_outside_prepare(std::string_view what) const {
  if (preparing_.contains(std::this_thread::get_id())) {
    fail(Status::bad_state,
         "{}: this thread is inside a prepare of the same session (a progress or log callback); "
         "call it when that prepare has returned",
         what);
  }
}

void Session::require_none_preparing(std::string_view what) const {
  if (background_ != nullptr && !background_->is_finished()) {
    fail(Status::bad_state,
         "{}: kernels of this session are being prepared in the background; call it when "
         "kiln_prepare_wait has said how that ended",
         what);
  }
  if (!preparing_.empty()) fail_preparing(what);
}

kiln_plan* Session::create_plan(std::string_view op_name, std::string_view shape_text) {
  const Op& op = templates::require_op(op_name);
  require_arch(op);
  ServedShape& shape = served_shape(op, templates::parse_shape(op, parse_shape_text(shape_text)));
  auto plan = std::make_unique<kiln_plan>();
  plan->fork_generation = fork_generation();
  plan->op_index = shape.op_index;
  plan->op_name = op.name.c_str();
  plan->shape = &shape;
  plan->session = this;

  const std::lock_guard lock(mutex_);
  const bool is_prepared = shape.dispatch.load(std::memory_order_acquire) != nullptr;
  if (state_ == State::sealed && !is_prepared) {
    fail(Status::not_prepared,
         "{} {}: not prepared, and the session is sealed; add this shape to the workload of "
         "kiln_prepare",
         op.name, shape.text);
  }
  return register_plan(std::move(plan));
}

kiln_stats Session::stats() const {
  kiln_stats stats{};
  stats.size = sizeof stats;
  stats.compiles = counters_.compiles;
  stats.binary_hits = counters_.binary_hits;
  stats.miss_absent = counters_.miss_absent;
  stats.miss_damaged = counters_.miss_damaged;
  stats.miss_unloadable = counters_.miss_unloadable;
  stats.decision_hits = counters_.decision_hits;
  stats.decision_defaults = counters_.decision_defaults;
  stats.kernels_loaded = workshop_->kernels().size();
  const std::lock_guard lock(mutex_);
  for (const auto& [key, shape] : shapes_) stats.calls += shape->calls.sum();
  return stats;
}

std::vector<WorkloadItem> Session::used() const {
  const std::lock_guard lock(mutex_);
  std::vector<WorkloadItem> items;
  for (const auto& [key, shape] : shapes_) {
    WorkloadItem item{.op = &shape->op, .fixed = shape->fixed, .buckets = {}};
    for (size_t i = 0; i < shape->used.count(); ++i) {
      if (shape->used.has(i)) item.buckets.push_back(shape->bucket_sizes[i]);
    }
    if (!item.buckets.empty()) items.push_back(std::move(item));
  }
  return items;
}

void Session::note_use() {
  std::vector<cache::Problem> problems;
  for (const WorkloadItem& item : used()) {
    for (const Sizes& bucket : item.buckets) {
      problems.push_back(problem_of(*item.op, item.fixed, bucket));
    }
  }
  if (problems.empty()) return;
  const Gpu& gpu = device_->info().gpu;
  store_->put_used_sizes(problems, gpu_class_key(gpu), gpu.slug);
  workshop_->log_store_warnings();
}

Digests Session::digests() const {
  const std::lock_guard lock(mutex_);
  HashRecord exact;
  HashRecord numerics;
  for (const auto& entry : shapes_) {  // sorted, so that the order of preparing does not matter
    const auto& shape = entry.second;
    if (shape->variants.empty()) continue;
    const auto add = [&](const std::string& bucket, const ServedVariant& variant) {
      for (HashRecord* record : {&exact, &numerics}) {
        record->field("op", shape->op.name)
            .field("op_version", shape->op.version)
            .field("shape", shape->text)
            .field("bucket", bucket);
      }
      numerics.field("reduction", variant.launches.reduction_signature);
      exact.field("config", canonical_json(templates::config_json(variant.config)));
      for (const KernelKey& kernel : variant.keys) exact.field("binary", kernel.binary.hex());
    };
    add("default", shape->variants.front());
    for (size_t i = 0; i < shape->buckets.size(); ++i) {
      const auto& bucket = shape->buckets[i];
      if (!bucket) continue;
      add(templates::bucket_key(shape->op, shape->bucket_sizes[i]),
          shape->variants[bucket->variant]);
    }
  }
  return {.exact = exact.hash(), .numerics = numerics.hash()};
}

}  // namespace kiln::runtime
