// A test-only op: y[r, c] = x[r, c] * scale for c < limit, the rest of y stays. Its space holds one
// config per way of going right or wrong.
#pragma once

#include "cache/store.h"
#include "templates/kit.h"

namespace kiln::testing {

enum ToyBehaviour : int64_t {
  kToyDefault,            // right, 2 ms
  kToyFast,               // right, 1 ms
  kToyFastMoreRegisters,  // right, 1 ms, a larger CTA
  kToyMiddling,           // right, 1.5 ms
  kToyWrong,              // one element off
  kToyTrap,
  kToyHang,
  kToyAbort,
  kToyRefused,      // the driver does not launch it
  kToyBefore,       // right, and writes before y
  kToyAfter,        // right, and writes after y
  kToyBetween,      // right, and writes between the rows of y
  kToyBeyondLimit,  // right, and writes an element that must stay
  kToyLazy,         // leaves the last element out
  kToyChangesInput,
  kToyTrapsWhenTimed,
  kToyHangsWhenTimed,
  kToyImpossible,  // right, 0.001 ns
  kToyRight,       // the first of eight that are right, 1.2 ms and then 0.1 ms more each
  kToyRightEnd = kToyRight + 8,
  kToyChangesEarlierInput = kToyRightEnd,  // right, and changes x of the call before
  kToyForFewRows,                          // right, 0.5 ms for up to 16 rows, else 4 ms
  kToyForManyRows,                         // right, 1.8 ms for up to 16 rows, else 0.5 ms
  kToyBehaviours,
};

const templates::Op& toy_op();
const templates::Kit& toy_kit();
void register_toy();  // once

// Which behaviours the space holds; all that are right unless told otherwise.
void set_toy_space(std::vector<int64_t> behaviours);

// Puts into the store what NVRTC would make, as binaries that HostDevice runs: of the tuner's own
// kernels; and of every config and the oracle too.
void store_tool_binaries(cache::Store& store, const std::string& arch);
void store_toy_binaries(cache::Store& store, const std::string& arch, int64_t scale = 3);

}  // namespace kiln::testing
