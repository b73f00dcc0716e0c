// Who makes what while several processes need the same: the rows of `leases` in one file, and how
// the process that holds one is told from a process that is gone. A lease is a row, never a lock:
// it stands in nobody's way longer than its holder lives and gives signs of life. Every function on
// a file may throw SqliteError; the writers expect an open transaction.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cache/leases.h"
#include "cache/sqlite.h"

namespace kiln::cache {

// How long a lease counts when nobody can be asked whether its holder lives.
struct LeaseLimits {
  int64_t heartbeat_s;  // since the holder's last sign of life
  int64_t deadline_s;   // in all; of a search since the last sign of life
};
LeaseLimits lease_limits(LeaseOf of);

struct Holder {
  std::string host;     // its name and the namespace in which the pid means something
  std::string boot_id;  // "": not known, so that nobody can be asked about the pid
  int64_t pid = 0;
  int64_t started_at = 0;  // in clock ticks since boot; 0: not known
  bool operator==(const Holder&) const = default;

  std::string text() const;  // "process 4711 on node3"
};
Holder this_process();

// Whether a process of this host is gone for certain: it has ended, though perhaps nobody has taken
// notice yet, or its pid is another's by now. Of a process elsewhere nothing is known.
bool is_gone(const Holder& holder, const Holder& here);

struct LeaseRecord {
  LeaseOf of = LeaseOf::binary;
  Hash128 key;
  Holder holder;
  int64_t taken_at = 0;  // unix seconds
  int64_t heartbeat_at = 0;
  int64_t deadline_at = 0;
};
bool is_stale(const LeaseRecord& lease, const Holder& here, int64_t now);

// Those that count.
std::vector<LeaseRecord> read_live_leases(Database& database, const Holder& here);

struct LeaseRequest {
  LeaseOf of = LeaseOf::binary;
  const std::vector<Hash128>& keys;
  int most_on_host = 0;
  std::function<bool(const Hash128&)> is_made;
};
struct LeaseAnswer {
  std::vector<Lease> leases;     // one for each key
  std::vector<Hash128> granted;  // of those that are mine now, the ones without a row yet
};
LeaseAnswer judge_leases(Database& database, const LeaseRequest& request, const Holder& here);

// Drops those that no longer count, too.
void write_lease_rows(Database& database, LeaseOf of, const std::vector<Hash128>& keys,
                      const Holder& here);
void renew_lease_rows(Database& database, LeaseOf of, const std::vector<Hash128>& keys,
                      const Holder& here);
bool holds_any_lease(Database& database, LeaseOf of, const std::vector<Hash128>& keys,
                     const Holder& here);
void delete_lease_rows(Database& database, LeaseOf of, const std::vector<Hash128>& keys,
                       const Holder& here);
// Whoever holds it: the binary is there.
void delete_lease_of_binary(Database& database, const Hash128& key);

}  // namespace kiln::cache
