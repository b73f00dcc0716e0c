// Which of two records of one key stays when a store takes over the records of another. Pure
// functions over the records, and the same whichever of the two was there first, so that merging A
// into B and B into A decide the same.
#pragma once

#include <cstdint>
#include <string>

#include "cache/store.h"
#include "cache/transfer.h"

namespace kiln::cache {

// A decision, and the date of the newest verification or timing of its plan; 0: none.
struct MergeSide {
  Decision decision;
  int64_t evidence_at = 0;
};

// Of two decisions of one problem, GPU class and kind: the one that was decided later; of one date
// that with the newer evidence; then the smaller text. A pin of the store gives way to no other
// config unless `pins` says so. `reason` tells what decided, and what the incoming one replaces.
struct MergeVerdict {
  MergeOutcome outcome = MergeOutcome::taken;
  std::string reason;
};
MergeVerdict judge_merge(const MergeSide* stored, const MergeSide& incoming, Pins pins);

// Of two records of one key: the newer, of one date a failure, then the smaller text.
bool supersedes(const Verification& incoming, const Verification& stored);
bool supersedes(const Timing& incoming, const Timing& stored);
bool supersedes(const Rejection& incoming, const Rejection& stored);

}  // namespace kiln::cache
