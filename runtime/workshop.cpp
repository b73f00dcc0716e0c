#include "runtime/workshop.h"

#include <algorithm>
#include <chrono>
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

KernelRun::KernelRun(Workshop& workshop, std::vector<KernelNeed>& needs, RunTiming timing,
                     Preloader* preloader)
    : workshop_(workshop),
      needs_(needs),
      claims_(workshop.kernels_),
      timing_(timing),
      preloader_(preloader) {
  summary_.total = static_cast<int>(needs_.size());
  for (size_t i = 0; i < needs_.size(); ++i) {
    if (preloader_ != nullptr && preloader_->give(needs_[i].key, claims_)) {
      mine_.push_back(i);
      coming_.insert(i);
      continue;
    }
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
        break;
    }
  }
}

void KernelRun::note_read(size_t index, const StoredBinary& stored) {
  if (stored.binary) {
    ++workshop_.counters_.binary_hits;
    ++summary_.stored;
    used_.push_back(needs_[index].key.binary);
  } else if (stored.is_listed) {
    ++workshop_.counters_.miss_damaged;
    ++summary_.damaged;
  } else {
    ++workshop_.counters_.miss_absent;
    ++summary_.absent;
  }
}

void KernelRun::start_compiles(const std::vector<size_t>& missing) {
  std::vector<size_t> wanted;  // several kernels may share a binary
  for (const size_t index : missing) {
    if (wanted_.insert(needs_[index].key.binary).second) wanted.push_back(index);
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
  if (!compiles_) {
    compiles_.emplace(
        workshop_.store_, jit::CompilePool::shared(compiler, size.workers), [this] { store({}); },
        [this](const std::string& line) { workshop_.log_.line(KILN_LOG_INFO, "{}", line); },
        timing_.sharing);
  }
  for (const size_t index : wanted) {
    const KernelNeed& need = needs_[index];
    compiles_->add(need.key.binary, templates::kernel_source(*need.subject.op, need.launch),
                   workshop_.arch_, templates::compile_options(need.launch));
  }
  compiles_->begin();
}

void KernelRun::tell(const Progress& progress, const KernelNeed& need) const {
  if (progress && !progress(done_, summary_.total, need.what)) {
    fail(Status::interrupted,
         "kiln_prepare was stopped by its progress callback; {} of {} kernels are ready", done_,
         summary_.total);
  }
}

void KernelRun::finish(const Progress& progress,
                       const std::function<void(const Summary&)>& tell_summary,
                       const std::function<void()>& made_one) {
  std::vector<size_t> stored;
  for (const size_t index : mine_) {
    if (coming_.contains(index) || workshop_.store_.has_binary(needs_[index].key.binary)) {
      stored.push_back(index);
    } else {
      missing_.push_back(index);
      note_read(index, {});
    }
  }
  bool is_told = !tell_summary;
  const auto tell_once = [&] {
    if (!std::exchange(is_told, true)) tell_summary(summary_);
  };
  try {
    start_compiles(missing_);
    make_stored(stored, progress, made_one);
    tell_once();
    make_missing(progress);
    if (!others_.empty()) store({});  // that thread may wait for a process that waits for this one
    for (const size_t index : others_) wait_for_other(index, progress);
  } catch (...) {
    tell_once();
    take_the_rest();
    throw;
  }
  if (progress) progress(done_, summary_.total, "");  // all is ready: there is nothing left to stop
}

void KernelRun::make_stored(const std::vector<size_t>& stored, const Progress& progress,
                            const std::function<void()>& made_one) {
  std::vector<size_t> missing;
  for (const size_t index : stored) {
    const KernelKey& key = needs_[index].key;
    tell(progress, needs_[index]);
    const std::optional<Preloaded> preloaded =
        coming_.contains(index) ? preloader_->take(key) : std::nullopt;
    const StoredBinary stored_binary =
        preloaded ? StoredBinary(*preloaded) : read_stored(workshop_.store_, key.binary);
    note_read(index, stored_binary);
    if (stored_binary.binary) {
      make(index, *stored_binary.binary, Origin::store, preloaded ? &*preloaded : nullptr);
      if (made_one) made_one();
    } else {
      missing.push_back(index);
    }
  }
  start_compiles(missing);
  missing_.insert(missing_.end(), missing.begin(), missing.end());
}

void KernelRun::make_missing(const Progress& progress) {
  for (const size_t index : missing_) {
    if (compiles_) {
      pending_.push_back(index);
    } else {
      make_here(index, progress);  // says why there is no compiler
    }
  }
  make_compiled(progress);
}

void KernelRun::give_up(size_t index, const Error& error) {
  KernelNeed& need = needs_[index];
  claims_.abandon(need.key);
  if (need.necessity == Necessity::required || !is_about_this_kernel(error.status())) throw error;
  need.error = error;
  ++done_;
}

void KernelRun::make(size_t index, const jit::Binary& binary, Origin origin,
                     const Preloaded* preloaded) {
  KernelNeed& need = needs_[index];
  try {
    claims_.hand_in(need.key, load(need, binary, origin, preloaded));
  } catch (const Error& error) {
    if (error.status() == Status::interrupted) throw;
    give_up(index, error);
    return;
  }
  need.ready = workshop_.kernels_.find(need.key);
  ++done_;
}

void KernelRun::make_here(size_t index, const Progress& progress) {
  tell(progress, needs_[index]);
  jit::Binary binary;
  try {
    binary = compile_now(needs_[index]);
  } catch (const Error& error) {
    give_up(index, error);
    return;
  }
  make(index, binary, Origin::compiled);
}

void KernelRun::make_compiled(const Progress& progress) {
  while (!pending_.empty()) {
    tell(progress, needs_[pending_.front()]);
    if (const auto finished = compiles_->next(kProgressInterval)) make_each(*finished, progress);
  }
}

// Several kernels may share a binary.
void KernelRun::make_each(const SharedCompiles::Finished& finished, const Progress& progress) {
  std::vector<size_t> served;
  for (const size_t index : pending_) {
    if (needs_[index].key.binary == finished.key) served.push_back(index);
  }
  std::erase_if(pending_, [&](size_t index) { return needs_[index].key.binary == finished.key; });
  jit::Binary binary;
  if (finished.stored) {
    binary = *finished.stored;
    ++workshop_.counters_.binary_hits;
    used_.push_back(finished.key);
  } else {
    try {
      binary = finished.compiled->result.get();
    } catch (const Error& error) {
      compiles_->give_back(finished.key);
      if (error.status() == Status::interrupted) throw;
      for (const size_t index : served) give_up(index, error);
      return;
    }
    keep(binary, *finished.compiled);
  }
  for (const size_t index : served) {
    if (index != served.front()) tell(progress, needs_[index]);
    make(index, binary, finished.stored ? Origin::store : Origin::compiled);
  }
}

// After a failure or a request to stop: what has not begun is not wanted any more, and what has is
// worth its short wait.
void KernelRun::take_the_rest() {
  if (!compiles_) return;
  for (const jit::CompilePool::Request& request : compiles_->stop()) {
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
  jit::Binary binary = compiler->compile(templates::kernel_source(*need.subject.op, need.launch),
                                         workshop_.arch_, templates::compile_options(need.launch));
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
ReadyKernel KernelRun::load(const KernelNeed& need, const jit::Binary& binary, Origin origin,
                            const Preloaded* preloaded) {
  const auto load_as = [&](const jit::Binary& image, Origin from) {
    if (preloaded != nullptr && preloaded->failure) {
      std::rethrow_exception(std::exchange(preloaded, nullptr)->failure);
    }
    const LoadedKernel kernel =
        preloaded != nullptr
            ? preloaded->kernel
            : workshop_.device_.load(image, need.key.threads, need.key.dynamic_smem_bytes);
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

// What another thread was to make. The summary has been told.
void KernelRun::make_alone(size_t index, const Progress& progress) {
  const Hash128& key = needs_[index].key.binary;
  const StoredBinary stored = read_stored(workshop_.store_, key);
  note_read(index, stored);
  if (!stored.binary) {
    make_here(index, progress);
    return;
  }
  tell(progress, needs_[index]);
  make(index, *stored.binary, Origin::store);
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
      make_alone(index, progress);
      return;
    }
    switch (claims_.claim(need.key)) {
      case KernelCache::Claim::ready:
        need.ready = workshop_.kernels_.find(need.key);
        ++workshop_.counters_.binary_hits;
        ++done_;
        return;
      case KernelCache::Claim::mine:  // the other thread gave it up
        make_alone(index, progress);
        return;
      case KernelCache::Claim::busy:
        break;
    }
  }
}

}  // namespace kiln::runtime
