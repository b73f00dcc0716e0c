// Leases of a store: who makes what while several processes need the same, so that those which
// start on one store at once do not all make it. Nobody has to ask: who makes something without a
// lease does what is done twice, and no harm. A lease counts while its holder lives, as far as that
// can be told here, and gives signs of life: every 30 seconds for a binary, which may take 10
// minutes in all, every 10 minutes for a search. After that it is the next one's. What is put into
// the store is no longer leased, by the same transaction.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/store.h"

namespace kiln::cache {

// A binary, or all decisions of an op, a shape and a GPU class.
enum class LeaseOf { binary, search };

struct Lease {
  enum class State {
    mine,   // make it; the others wait
    made,   // a binary that is there by now
    taken,  // another process makes it
    full,   // nobody makes it, and as many are being made on this machine as may be
  } state = State::mine;
  // Of taken: who. Of full: who makes something since longest.
  std::string holder;        // "process 4711 on node3"
  int64_t age_s = 0;         // since it took that
  int64_t heartbeat_at = 0;  // unix seconds
};

// One that counts, for people.
struct LeaseRow {
  LeaseOf of = LeaseOf::binary;
  Hash128 key;
  std::string holder;
  int64_t age_s = 0;
  int64_t silent_s = 0;  // since its holder's last sign of life
};

// One answer for each key. most_on_host: so many leases of this sort are granted on one machine, to
// all processes together. In a store in memory, and in one that cannot be written, all is mine,
// without limit. Writes only when it grants something. None of these fails.
std::vector<Lease> take_leases(Store& store, LeaseOf of, const std::vector<Hash128>& keys,
                               int most_on_host);
void renew_leases(Store& store, LeaseOf of, const std::vector<Hash128>& keys);  // a sign of life
// Those that this process holds; a write only when there is one.
void release_leases(Store& store, LeaseOf of, const std::vector<Hash128>& keys);
std::vector<LeaseRow> list_leases(Store& store);  // of the store's own file, oldest first

}  // namespace kiln::cache
