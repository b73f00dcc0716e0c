// Compiles in the background: a few threads, a queue, and one future per key for as long as the
// pool lives.
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "jit/base/signals_blocked.h"
#include "jit/compiler.h"

namespace kiln::jit {
namespace {

// Whether the same request would fail the same way again.
bool is_lasting(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error.status() == Status::compile_error || error.status() == Status::unsupported;
  } catch (...) {
    return false;
  }
}

std::shared_future<Binary> failed_future(std::exception_ptr failure) {
  std::promise<Binary> promise;
  promise.set_exception(std::move(failure));
  return promise.get_future().share();
}

// Guards which pool each compiler has. Locked across a fork, so that a child never inherits it
// held.
std::mutex& sharing() {
  static std::mutex* instance = [] {
    auto* created = new std::mutex;  // never destroyed: prepares may run while the process exits
    pthread_atfork([] { sharing().lock(); }, [] { sharing().unlock(); },
                   [] { sharing().unlock(); });
    return created;
  }();
  return *instance;
}

void check_pool(const std::shared_ptr<Compiler>& compiler, int workers) {
  if (compiler && workers >= 1) return;
  fail(Status::invalid_argument,
       "A compile pool needs a compiler and at least one worker; got {} and {}.",
       compiler ? "one" : "none", workers);
}

}  // namespace

struct CompilePool::Impl {
  struct Job {
    Hash128 key;
    KernelSource source;
    std::string arch;
    CompileOptions options;
    std::promise<Binary> promise;
  };

  struct Wanted {
    std::shared_future<Binary> result;
    uint64_t generation = 0;
    int by = 0;  // requests that were not taken back
  };

  std::shared_ptr<Compiler> compiler;
  size_t most_threads = 1;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Job> queue;
  size_t idle = 0;  // threads that wait for a job
  std::map<Hash128, Wanted> wanted;
  uint64_t generations = 0;  // so many entries of `wanted` there have been
  // Failures that may pass, no longer found by key. Held until the pool closes, so that it is never
  // a worker that frees an exception which a caller has read: libstdc++ counts those references out
  // of sight of ThreadSanitizer.
  std::vector<std::shared_future<Binary>> forgotten;
  bool stopping = false;
  std::vector<std::thread> threads;

  void work() {
    while (std::optional<Job> job = next()) run(*job);
  }

  std::optional<Job> next() {
    std::unique_lock lock(mutex);
    ++idle;
    changed.wait(lock, [&] { return stopping || !queue.empty(); });
    --idle;
    if (stopping) return std::nullopt;
    Job job = std::move(queue.front());
    queue.pop_front();
    return job;
  }

  void run(Job& job) {
    try {
      job.promise.set_value(compiler->compile(job.source, job.arch, job.options));
    } catch (...) {
      const std::exception_ptr failure = std::current_exception();
      if (!is_lasting(failure)) {
        const std::lock_guard lock(mutex);
        forget(job.key);
      }
      job.promise.set_exception(failure);
    }
  }

  // Under the mutex.
  void forget(const Hash128& key) {
    forgotten.push_back(std::move(wanted.at(key).result));
    wanted.erase(key);
  }

  // Under the mutex.
  void drop(std::deque<Job>::iterator job, const Error& why) {
    std::promise<Binary> promise = std::move(job->promise);
    forget(job->key);
    queue.erase(job);
    promise.set_exception(std::make_exception_ptr(why));
  }

  // Under the mutex. Starts one more thread when the queue has need of it and it is allowed. Fewer
  // threads than allowed still do the work; false: there is none.
  bool ensure_thread_for_queue() {
    if (queue.size() <= idle || threads.size() >= most_threads) return true;
    const SignalsBlocked blocked;
    try {
      threads.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      return !threads.empty();
    }
    return true;
  }

  void stop() {
    std::deque<Job> dropped;
    {
      const std::lock_guard lock(mutex);
      stopping = true;
      dropped.swap(queue);
    }
    changed.notify_all();
    for (Job& job : dropped) {
      job.promise.set_exception(std::make_exception_ptr(
          Error(Status::interrupted,
                fmt::format("The compile of {} for {} had not begun when its pool was closed.",
                            job.source.main.path, job.arch))));
    }
    for (std::thread& thread : threads) thread.join();
  }
};

CompilePool::CompilePool(std::shared_ptr<Compiler> compiler, int workers)
    : impl_(std::make_unique<Impl>()) {
  check_pool(compiler, workers);
  impl_->compiler = std::move(compiler);
  impl_->most_threads = static_cast<size_t>(workers);
}

CompilePool::~CompilePool() { impl_->stop(); }

std::shared_ptr<CompilePool> CompilePool::shared(const std::shared_ptr<Compiler>& compiler,
                                                 int workers) {
  check_pool(compiler, workers);
  const std::lock_guard lock(sharing());
  if (compiler->pool_process_ == getpid()) {  // in a forked child its threads are gone
    if (std::shared_ptr<CompilePool> pool = compiler->pool_.lock()) return pool;
  }
  const auto pool = std::make_shared<CompilePool>(compiler, workers);
  compiler->pool_ = pool;
  compiler->pool_process_ = getpid();
  return pool;
}

CompilePool::Request CompilePool::request(KernelSource source, std::string arch,
                                          CompileOptions options) {
  Impl::Job job;
  try {
    job.key = binary_key(source, arch, options);
  } catch (...) {
    return {.key = {}, .result = failed_future(std::current_exception())};
  }
  job.source = std::move(source);
  job.arch = std::move(arch);
  job.options = std::move(options);

  Request request{.key = job.key, .result = {}};
  {
    const std::lock_guard lock(impl_->mutex);
    const auto [place, is_new] = impl_->wanted.try_emplace(job.key);
    Impl::Wanted& wanted = place->second;
    ++wanted.by;
    if (is_new) {
      wanted.result = job.promise.get_future().share();
      wanted.generation = ++impl_->generations;
    }
    request.is_first = is_new;
    request.result = wanted.result;
    request.generation = wanted.generation;
    if (!is_new) return request;
    impl_->queue.push_back(std::move(job));
    if (!impl_->ensure_thread_for_queue()) {
      impl_->drop(std::prev(impl_->queue.end()),
                  Error(Status::out_of_memory, "Not one compile thread could be started."));
    }
  }
  impl_->changed.notify_one();
  return request;
}

std::shared_future<Binary> CompilePool::submit(KernelSource source, std::string arch,
                                               CompileOptions options) {
  return request(std::move(source), std::move(arch), std::move(options)).result;
}

CompilePool::Withdrawn CompilePool::withdraw(const Request& request) {
  const std::lock_guard lock(impl_->mutex);
  const auto place = impl_->wanted.find(request.key);
  const bool is_known =
      place != impl_->wanted.end() && place->second.generation == request.generation;
  if (!is_known) return Withdrawn::expected;  // it failed
  const bool is_last = --place->second.by == 0;
  const auto job = std::find_if(impl_->queue.begin(), impl_->queue.end(),
                                [&](const Impl::Job& queued) { return queued.key == request.key; });
  if (job == impl_->queue.end()) return Withdrawn::expected;
  if (!is_last) return Withdrawn::shared;
  impl_->drop(job, Error(Status::interrupted,
                         fmt::format("The compile of {} for {} was taken back before it began.",
                                     job->source.main.path, job->arch)));
  return Withdrawn::dropped;
}

int CompilePool::workers() const { return static_cast<int>(impl_->most_threads); }

int CompilePool::waiting() const {
  const std::lock_guard lock(impl_->mutex);
  return static_cast<int>(impl_->queue.size());
}

}  // namespace kiln::jit
