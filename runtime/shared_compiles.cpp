#include "runtime/shared_compiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

namespace kiln::runtime {
namespace {

using std::chrono::milliseconds;

// How soon the end of one of several compiles is seen.
constexpr milliseconds kGlance{10};

bool is_ready(const jit::CompilePool::Request& request) {
  return request.result.wait_for(milliseconds(0)) == std::future_status::ready;
}

std::string kernels_text(size_t count) {
  return count == 1 ? "a kernel" : fmt::format("{} kernels", count);
}

}  // namespace

SharedCompiles::SharedCompiles(cache::Store& store, std::shared_ptr<jit::CompilePool> pool,
                               std::function<void()> publish,
                               std::function<void(const std::string&)> log, SharingTime time)
    : store_(store),
      pool_(std::move(pool)),
      publish_(std::move(publish)),
      log_(std::move(log)),
      time_(time) {}

SharedCompiles::~SharedCompiles() {
  stop();
  cache::release_leases(store_, cache::LeaseOf::binary, leased_);
}

void SharedCompiles::add(const Hash128& key, jit::KernelSource source, std::string arch,
                         jit::CompileOptions options) {
  waiting_.push_back({key, std::move(source), std::move(arch), std::move(options)});
}

std::optional<SharedCompiles::Finished> SharedCompiles::next(milliseconds at_most) {
  const Clock::time_point until = Clock::now() + at_most;
  for (;;) {
    share();
    if (!stored_.empty()) {
      Finished finished = std::move(stored_.front());
      stored_.pop_front();
      return finished;
    }
    const auto ready = std::find_if(running_.begin(), running_.end(), is_ready);
    if (ready != running_.end()) {
      Finished finished{.key = ready->key, .stored = {}, .compiled = std::move(*ready)};
      running_.erase(ready);
      has_room_ = true;
      return finished;
    }
    give_signs_of_life();
    const Clock::time_point now = Clock::now();
    if (now >= until || done()) return std::nullopt;
    const auto rest = std::chrono::duration_cast<milliseconds>(until - now) + milliseconds(1);
    if (running_.empty()) {
      std::this_thread::sleep_for(std::min(time_.look, rest));
    } else {
      running_.front().result.wait_for(std::min(kGlance, rest));
    }
  }
}

// Takes as much of what is left as it may: makes some of it, finds some of it made.
void SharedCompiles::share() {
  if (waiting_.empty()) return;
  const Clock::time_point now = Clock::now();
  if (!has_room_ && now - looked_at_ < time_.look) return;
  publish();
  has_room_ = false;
  looked_at_ = now;

  std::vector<Hash128> keys;
  for (const Work& work : waiting_) keys.push_back(work.key);
  const std::vector<cache::Lease> leases =
      cache::take_leases(store_, cache::LeaseOf::binary, keys, pool_->workers());
  std::vector<Work> left;
  std::vector<cache::Lease> of_others;
  for (size_t i = 0; i < leases.size(); ++i) {
    Work& work = waiting_[i];
    switch (leases[i].state) {
      case cache::Lease::State::mine:
        leased_.push_back(work.key);
        start(work);
        break;
      case cache::Lease::State::made:
        if (std::optional<jit::Binary> binary = store_.find_binary(work.key)) {
          stored_.push_back({.key = work.key, .stored = std::move(binary), .compiled = {}});
        } else {
          start(work);  // it is damaged, or went again
        }
        break;
      case cache::Lease::State::taken:
      case cache::Lease::State::full:
        of_others.push_back(leases[i]);
        left.push_back(std::move(work));
        break;
    }
  }
  waiting_ = std::move(left);
  note_waiting(of_others);
}

void SharedCompiles::publish() {
  publish_();
  std::vector<Hash128> ended;
  for (const Hash128& key : leased_) {
    const bool runs =
        std::any_of(running_.begin(), running_.end(),
                    [&](const jit::CompilePool::Request& request) { return request.key == key; });
    if (!runs) ended.push_back(key);
  }
  if (ended.empty()) return;
  cache::release_leases(store_, cache::LeaseOf::binary, ended);  // of what the store did not take
  std::erase_if(leased_, [&](const Hash128& key) {
    return std::find(ended.begin(), ended.end(), key) != ended.end();
  });
}

void SharedCompiles::start(const Work& work) {
  running_.push_back(pool_->request(work.source, work.arch, work.options));
}

// Says once what is waited for, and ends the waiting when nothing is heard any more.
void SharedCompiles::note_waiting(const std::vector<cache::Lease>& leases) {
  const Clock::time_point now = Clock::now();
  const bool is_idle = !leases.empty() && running_.empty() && stored_.empty();
  if (!is_idle) idle_since_.reset();
  if (is_idle && !idle_since_) idle_since_ = now;
  const auto is_known = [](const cache::Lease& a, const cache::Lease& b) {
    return a.state == b.state && a.holder == b.holder && a.heartbeat_at == b.heartbeat_at;
  };
  if (!std::equal(leases.begin(), leases.end(), last_heard_.begin(), last_heard_.end(), is_known)) {
    heard_at_ = now;
  }
  last_heard_ = leases;
  if (!is_idle) return;
  if (!is_told_ && now - *idle_since_ >= time_.told) {
    is_told_ = true;
    const auto taken = std::find_if(leases.begin(), leases.end(), [](const cache::Lease& lease) {
      return lease.state == cache::Lease::State::taken;
    });
    const std::string what = kernels_text(leases.size());
    if (taken != leases.end()) {
      log_(fmt::format("waiting for {}: {} has been compiling for {} s", what, taken->holder,
                       taken->age_s));
    } else {
      log_(
          fmt::format("waiting to compile {}: other processes of this machine compile as many as "
                      "it has room for, {} for {} s",
                      what, leases.front().holder, leases.front().age_s));
    }
  }
  if (now - heard_at_ < time_.patience) return;
  log_(fmt::format("nothing was heard of {} for {} s: compiling {} here too", leases.front().holder,
                   std::chrono::duration_cast<std::chrono::seconds>(time_.patience).count(),
                   kernels_text(waiting_.size())));
  for (const Work& work : waiting_) start(work);
  waiting_.clear();
}

void SharedCompiles::give_signs_of_life() {
  if (leased_.empty() || Clock::now() - renewed_at_ < time_.renew) return;
  renewed_at_ = Clock::now();
  cache::renew_leases(store_, cache::LeaseOf::binary, leased_);
}

void SharedCompiles::give_back(const Hash128& key) {
  if (std::erase(leased_, key) > 0) cache::release_leases(store_, cache::LeaseOf::binary, {key});
}

std::vector<jit::CompilePool::Request> SharedCompiles::stop() {
  std::vector<jit::CompilePool::Request> begun;
  for (jit::CompilePool::Request& request : running_) {
    if (pool_->withdraw(request) == jit::CompilePool::Withdrawn::expected)
      begun.push_back(std::move(request));
  }
  running_.clear();
  waiting_.clear();
  stored_.clear();
  return begun;
}

}  // namespace kiln::runtime
