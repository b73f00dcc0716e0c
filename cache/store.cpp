// How the stored enums and records read.
#include "cache/store.h"

#include <fmt/format.h>

namespace kiln::cache {

const char* kind_name(DecisionKind kind) {
  switch (kind) {
    case DecisionKind::pinned:
      return "pinned";
    case DecisionKind::measured:
      return "measured";
    case DecisionKind::borrowed:
      return "borrowed";
    case DecisionKind::predicted:
      return "predicted";
    case DecisionKind::fallback:
      return "default";
  }
  return "unknown";
}

const char* verified_name(Verified verified) {
  switch (verified) {
    case Verified::none:
      return "none";
    case Verified::simulator:
      return "simulator";
    case Verified::device:
      return "device";
  }
  return "unknown";
}

Json verified_json(Verified verified) {
  return verified == Verified::none ? Json() : Json(verified_name(verified));
}

std::string device_text(const Verification& verification) {
  if (verification.driver.empty()) return verification.card;
  return fmt::format("{}, driver {}", verification.card, verification.driver);
}

}  // namespace kiln::cache
