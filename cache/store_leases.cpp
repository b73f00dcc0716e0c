// Leases of the writable file. They are a convenience: whatever goes wrong with them, everybody
// makes what he needs himself.
#include <fmt/format.h>

#include <algorithm>

#include "cache/layered_store.h"
#include "cache/lease_rows.h"
#include "cache/rows.h"

namespace kiln::cache {

std::vector<Lease> LayeredStore::take_leases(LeaseOf of, const std::vector<Hash128>& keys,
                                             int most_on_host) {
  const std::lock_guard lock(mutex_);
  const std::vector<Lease> all_mine(keys.size());
  if (!top_ || top_->is_in_memory() || keys.empty()) return all_mine;
  const Holder here = this_process();
  LeaseAnswer answer;
  const auto judge = [&](Database& database) {
    const auto is_made = [&](const Hash128& key) {
      return of == LeaseOf::binary && has_image(database, key, Trust::needed) &&
             !damaged_binaries_.contains({top_.get(), key});
    };
    answer = judge_leases(
        database, {.of = of, .keys = keys, .most_on_host = most_on_host, .is_made = is_made}, here);
  };
  // Who waits asks often, and must not keep the others from writing.
  if (!read(*top_, judge)) return all_mine;
  if (answer.granted.empty()) return answer.leases;
  const auto take = [&](Database& database) {
    judge(database);
    write_lease_rows(database, of, answer.granted, here);
  };
  return write_quietly(take, Layer::Patience::usual) ? answer.leases : all_mine;
}

void LayeredStore::renew_leases(LeaseOf of, const std::vector<Hash128>& keys) {
  const std::lock_guard lock(mutex_);
  if (!top_ || top_->is_in_memory() || keys.empty()) return;
  const Holder here = this_process();
  write_quietly([&](Database& database) { renew_lease_rows(database, of, keys, here); },
                Layer::Patience::usual);
}

void LayeredStore::release_leases(LeaseOf of, const std::vector<Hash128>& keys) {
  const std::lock_guard lock(mutex_);
  if (!top_ || top_->is_in_memory() || keys.empty()) return;
  const Holder here = this_process();
  bool holds = false;
  read(*top_, [&](Database& database) { holds = holds_any_lease(database, of, keys, here); });
  if (!holds) return;
  write_quietly([&](Database& database) { delete_lease_rows(database, of, keys, here); },
                Layer::Patience::usual);
}

std::vector<LeaseRow> LayeredStore::list_leases() {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Layer> layer = top_ ? top_ : layers_.empty() ? nullptr : layers_.front();
  std::vector<LeaseRow> rows;
  if (!layer || layer->is_in_memory() || is_pack(layer->path())) return rows;
  const int64_t now = now_seconds();
  read(*layer, [&](Database& database) {
    for (const LeaseRecord& lease : read_live_leases(database, this_process())) {
      rows.push_back({.of = lease.of,
                      .key = lease.key,
                      .holder = lease.holder.text(),
                      .age_s = std::max<int64_t>(now - lease.taken_at, 0),
                      .silent_s = std::max<int64_t>(now - lease.heartbeat_at, 0)});
    }
  });
  return rows;
}

namespace {

// Every store that Store::open() gives; another one shares nothing.
LayeredStore* layered(Store& store) { return dynamic_cast<LayeredStore*>(&store); }

}  // namespace

std::vector<Lease> take_leases(Store& store, LeaseOf of, const std::vector<Hash128>& keys,
                               int most_on_host) {
  LayeredStore* shared = layered(store);
  return shared ? shared->take_leases(of, keys, most_on_host) : std::vector<Lease>(keys.size());
}

void renew_leases(Store& store, LeaseOf of, const std::vector<Hash128>& keys) {
  if (LayeredStore* shared = layered(store)) shared->renew_leases(of, keys);
}

void release_leases(Store& store, LeaseOf of, const std::vector<Hash128>& keys) {
  if (LayeredStore* shared = layered(store)) shared->release_leases(of, keys);
}

std::vector<LeaseRow> list_leases(Store& store) {
  LayeredStore* shared = layered(store);
  return shared ? shared->list_leases() : std::vector<LeaseRow>();
}

}  // namespace kiln::cache
