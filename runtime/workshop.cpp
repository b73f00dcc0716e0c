#include "runtime/workshop.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

namespace kiln::runtime {
namespace {

using std::chrono::milliseconds;

// How soon a request to stop is heard while a compile runs.
constexpr milliseconds kProgressInterval{200};

// With these the default kernel can stand in; anything else would hit it as well.
bool is_about_this_kernel(Status status) {
  return status == Status::compile_error || status == Status::no_compiler ||
         status == Status::unsupported;
}

}  // namespace

Workshop::Workshop(Device& device, cache::Store& store, const Log& log, Counters& counters,
                   Compiles compiles)
    : device_(device),
      store_(store),
      log_(log),
      counters_(counters),
      compiles_(compiles),
      arch_(device.info().gpu.arch()) {}

std::shared_ptr<jit::Compiler> Workshop::compiler() {
  const std::lock_guard lock(mutex_);
  if (compiler_ == nullptr) {
    compiler_ = jit::Compiler::load(device_.info().cuda_major);
  }
  return compiler_;
}

void Workshop::log_store_warnings() {
  std::vector<std::string> warnings;
  size_t first = 0;
  {
    const std::lock_guard lock(mutex_);  // also for the copy: an older one would set it back
    warnings = store_.warnings();
    first = std::exchange(warnings_logged_, warnings.size());
  }
  for (size_t i = first; i < warnings.size(); ++i) log_.line(KILN_LOG_WARNING, "{}", warnings[i]);
}

KernelRun::KernelRun(Workshop& workshop, std::vector<KernelNeed>& needs, RunTiming timing)
    : workshop_(workshop), needs_(needs), claims_(workshop.kernels_), timing_(timing) {
  summary_.total = static_cast<int>(needs_.size());
  for (size_t i = 0; i < needs_.size(); ++i) {
    switch (claims_.claim(needs_[i].key)) {
      case KernelCache::Claim::ready:
        needs_[i].ready = workshop_.kernels_.find(needs_[i].key);
        ++workshop_.counters_.binary_hits;
        ++summary_.loaded;
        ++done_;
        break;
      case KernelCache::Claim::busy:
        others_.push_back(i);
        ++summary_.loaded;
        break;
      case KernelCache::Claim::mine:
        mine_.push_back(i);
        look_up(i);
        break;
    }
  }
}

void KernelRun::look_up(size_t index) {
  const Hash128& key = needs_[index].key.binary;
  const bool is_listed = workshop_.store_.has_binary(key);
  std::optional<jit::Binary> binary = workshop_.store_.find_binary(key);
  if (binary) {
    ++workshop_.counters_.binary_hits;
    ++summary_.stored;
    used_.push_back(key);
    found_.emplace(index, std::move(*binary));
  } else if (is_listed) {
    ++workshop_.counters_.miss_damaged;
    ++summary_.damaged;
  } else {
    ++workshop_.counters_.miss_absent;
    ++summary_.absent;
  }
}

void KernelRun::submit_compiles() {
  std::set<Hash128> wanted;
  for (const size_t index : mine_) {
    if (!found_.contains(index)) wanted.insert(needs_[index].key.binary);
  }
  if (wanted.empty() || workshop_.compiles() == Compiles::refused) return;

  std::shared_ptr<jit::Compiler> compiler;
  try {
    compiler = workshop_.compiler();
  } catch (const Error&) {
    return;  // each kernel says so when its turn comes: some may not be required
  }
  const jit::PoolSize size = jit::pool_size();
  const int workers = std::min(size.workers, static_cast<int>(wanted.size()));
  workshop_.log_.line(KILN_LOG_INFO, "compiling {} kernels with NVRTC {} ({}), {} at once ({})",
                      wanted.size(), compiler->version(), compiler->library_path(), workers,
                      size.why);
  pool_ = jit::CompilePool::shared(compiler, size.workers);
  for (const size_t index : mine_) {
    const KernelNeed& need = needs_[index];
    if (found_.contains(index) || compiles_.contains(need.key.binary)) continue;
    compiles_[need.key.binary] = pool_->request(need.source, workshop_.arch_, need.options);
  }
}

void KernelRun::tell(const Progress& progress, const KernelNeed& need) const {
  if (progress && !progress(done_, summary_.total, need.what)) {
    fail(Status::interrupted,
         "kiln_prepare was stopped by its progress callback; {} of {} kernels are ready", done_,
         summary_.total);
  }
}

void KernelRun::finish(const Progress& progress) {
  submit_compiles();
  try {
    make_all(progress);
  } catch (...) {
    take_the_rest();
    throw;
  }
}

void KernelRun::make_all(const Progress& progress) {
  for (const size_t index : mine_) make(index, progress);
  for (const size_t index : others_) wait_for_other(index, progress);
  if (progress) progress(done_, summary_.total, "");  // all is ready: there is nothing left to stop
}

void KernelRun::give_up(size_t index, const Error& error) {
  KernelNeed& need = needs_[index];
  claims_.abandon(need.key);
  if (need.necessity == Necessity::required || !is_about_this_kernel(error.status())) throw error;
  need.error = error;
}

void KernelRun::make(size_t index, const Progress& progress) {
  KernelNeed& need = needs_[index];
  tell(progress, need);
  try {
    const auto found = found_.find(index);
    const Origin origin = found != found_.end() ? Origin::store : Origin::compiled;
    const jit::Binary binary =
        found != found_.end() ? std::move(found->second) : wait_for_compile(index, progress);
    claims_.hand_in(need.key, load(need, binary, origin));
    need.ready = workshop_.kernels_.find(need.key);
  } catch (const Error& error) {
    if (error.status() == Status::interrupted) throw;
    give_up(index, error);
  }
  ++done_;
}

jit::Binary KernelRun::wait_for_compile(size_t index, const Progress& progress) {
  const KernelNeed& need = needs_[index];
  const auto running = compiles_.find(need.key.binary);
  if (running == compiles_.end()) return compile_now(need);  // says why there is no compiler
  while (running->second.result.wait_for(kProgressInterval) != std::future_status::ready) {
    tell(progress, need);
  }
  const jit::CompilePool::Request request = running->second;
  jit::Binary binary = request.result.get();
  // A binary that two kernels share was kept for the first of them.
  if (taken_.insert(request.key).second) keep(binary, request);
  return binary;
}

// After a failure or a request to stop: what has not begun is not wanted any more, and what has is
// worth its short wait.
void KernelRun::take_the_rest() {
  for (const auto& [key, request] : compiles_) {
    if (!taken_.insert(key).second) continue;
    if (pool_->withdraw(request) != jit::CompilePool::Withdrawn::expected) continue;
    try {
      keep(request.result.get(), request);
    } catch (const Error&) {
      // The error at hand came first.
    }
  }
}

jit::Binary KernelRun::compile_now(const KernelNeed& need) {
  if (workshop_.compiles() == Compiles::refused) {
    fail(Status::not_prepared,
         "{}: the store {} does not hold its kernel in a form that serves here, and this session "
         "was opened with options.compiles \"refused\"; fill the store with `kiln build`, or open "
         "without it",
         need.what, workshop_.store_.info().path);
  }
  std::shared_ptr<jit::Compiler> compiler;
  try {
    compiler = workshop_.compiler();
  } catch (const Error& error) {
    fail(error.status(), "{}: the store {} does not hold its kernel, and it cannot be compiled: {}",
         need.what, workshop_.store_.info().path, error.what());
  }
  jit::Binary binary = compiler->compile(need.source, workshop_.arch_, need.options);
  ++workshop_.counters_.compiles;
  add_unwritten(binary);
  return binary;
}

void KernelRun::keep(const jit::Binary& binary, const jit::CompilePool::Request& request) {
  ++(request.is_first ? workshop_.counters_.compiles : workshop_.counters_.binary_hits);
  add_unwritten(binary);
}

void KernelRun::add_unwritten(const jit::Binary& binary) {
  unwritten_.push_back(binary);
  if (std::chrono::steady_clock::now() - written_at_ >= timing_.write_interval) store({});
}

void KernelRun::store(const std::vector<cache::PlanRecord>& plans) {
  if (store_state_ == StoreState::refused || (unwritten_.empty() && plans.empty())) return;
  if (!workshop_.store_.put_kernels(unwritten_, plans)) store_state_ = StoreState::refused;
  unwritten_.clear();
  written_at_ = std::chrono::steady_clock::now();
}

// A binary of the store that the driver refuses was made for or damaged by something else: it is
// compiled anew, once.
ReadyKernel KernelRun::load(const KernelNeed& need, const jit::Binary& binary, Origin origin) {
  const auto load_as = [&](const jit::Binary& image, Origin from) {
    const LoadedKernel kernel =
        workshop_.device_.load(image, need.key.threads, need.key.dynamic_smem_bytes);
    workshop_.device_.describe(kernel, need.subject);
    return ReadyKernel{.kernel = kernel,
                       .resources = image.resources,
                       .arch = image.arch,
                       .nvrtc_version = image.nvrtc_version,
                       .origin = from};
  };
  try {
    return load_as(binary, origin);
  } catch (const Error& error) {
    if (origin == Origin::compiled || error.status() != Status::driver_error) throw;
    ++workshop_.counters_.miss_unloadable;
    workshop_.log_.line(KILN_LOG_WARNING,
                        "{}: the driver refused the stored kernel ({}); compiling it anew",
                        need.what, error.what());
  }
  return load_as(compile_now(need), Origin::compiled);
}

void KernelRun::wait_for_other(size_t index, const Progress& progress) {
  KernelNeed& need = needs_[index];
  const auto deadline = std::chrono::steady_clock::now() + timing_.patience;
  for (;;) {
    while (!workshop_.kernels_.wait_while_busy(need.key,
                                               std::min(kProgressInterval, timing_.patience))) {
      tell(progress, need);
      if (std::chrono::steady_clock::now() < deadline) continue;
      // That thread is stuck: its other kernels are not waited for.
      timing_.patience = milliseconds(0);
      look_up(index);
      make(index, progress);
      return;
    }
    switch (claims_.claim(need.key)) {
      case KernelCache::Claim::ready:
        need.ready = workshop_.kernels_.find(need.key);
        ++workshop_.counters_.binary_hits;
        ++done_;
        return;
      case KernelCache::Claim::mine:  // the other thread gave it up
        look_up(index);
        make(index, progress);
        return;
      case KernelCache::Claim::busy:
        break;
    }
  }
}

}  // namespace kiln::runtime
