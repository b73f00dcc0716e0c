// Where the writable file of a store may lie when nobody names one: the user's cache folder, then a
// folder of this machine, then memory.
#pragma once

#include <string>
#include <vector>

#include "cache/store.h"

namespace kiln::cache {

struct PassedOver {
  std::string path;  // "" where there is not even a name
  std::string why;   // a sentence without its full stop
};

struct ChosenPlace {
  StorePlace place;
  std::vector<PassedOver> passed_over;  // in the order in which they were tried
};

// The first of these that may be written: $XDG_CACHE_HOME/kiln/kiln.db, ~/.cache/kiln/kiln.db,
// kiln-<uid>/kiln.db in KILN_LOCAL or else /var/tmp; then memory. KILN_DB is a name, so no other
// place is looked for. Makes nothing.
ChosenPlace choose_store_place();

// "<path> cannot be written (...); ...": why they were passed over.
std::string passed_over_text(const std::vector<PassedOver>& places);

// The folder kiln-<uid> of this machine, by permissions that keep other users out.
std::string local_folder();
// Why that folder cannot be trusted, "" when it can or is not there. /var/tmp is open to all, so
// what lies there may be somebody else's.
std::string why_not_private(const std::string& folder);

}  // namespace kiln::cache
