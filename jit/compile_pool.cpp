// Compiles in the background: a fixed set of threads, a queue, and one future per key for as long
// as the pool lives.
#include <pthread.h>
#include <signal.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "jit/compiler.h"

namespace kiln::jit {
namespace {

// Signals of the host belong to the host's threads: a handler must never run on one of ours, and a
// thread inherits its mask.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

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

}  // namespace

struct CompilePool::Impl {
  struct Job {
    Hash128 key;
    KernelSource source;
    std::string arch;
    CompileOptions options;
    std::promise<Binary> promise;
  };

  std::shared_ptr<Compiler> compiler;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Job> queue;
  std::map<Hash128, std::shared_future<Binary>> futures;
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
    changed.wait(lock, [&] { return stopping || !queue.empty(); });
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
        forgotten.push_back(std::move(futures.at(job.key)));
        futures.erase(job.key);
      }
      job.promise.set_exception(failure);
    }
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
  if (!compiler || workers < 1) {
    fail(Status::invalid_argument,
         "A compile pool needs a compiler and at least one worker; got {} and {}.",
         compiler ? "one" : "none", workers);
  }
  impl_->compiler = std::move(compiler);
  const SignalsBlocked blocked;
  try {
    for (int i = 0; i < workers; ++i) {
      impl_->threads.emplace_back([impl = impl_.get()] { impl->work(); });
    }
  } catch (const std::system_error&) {
    // Fewer threads than asked for still do the work; none do not.
    if (impl_->threads.empty()) {
      fail(Status::out_of_memory, "Not one compile thread could be started.");
    }
  }
}

CompilePool::~CompilePool() { impl_->stop(); }

std::shared_future<Binary> CompilePool::submit(KernelSource source, std::string arch,
                                               CompileOptions options) {
  Impl::Job job;
  try {
    job.key = binary_key(source, arch, options);
  } catch (...) {
    return failed_future(std::current_exception());
  }
  job.source = std::move(source);
  job.arch = std::move(arch);
  job.options = std::move(options);

  std::shared_future<Binary> future;
  {
    const std::lock_guard lock(impl_->mutex);
    const auto known = impl_->futures.find(job.key);
    if (known != impl_->futures.end()) return known->second;
    future = job.promise.get_future().share();
    impl_->futures.emplace(job.key, future);
    impl_->queue.push_back(std::move(job));
  }
  impl_->changed.notify_one();
  return future;
}

int CompilePool::workers() const { return static_cast<int>(impl_->threads.size()); }

}  // namespace kiln::jit
