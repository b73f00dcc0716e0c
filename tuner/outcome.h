// How a candidate's run ended. The names are stored as reasons of rejections.
#pragma once

#include <string>

namespace kiln::tuner {

enum class Outcome {
  passed,
  wrong,       // computed something else than the oracle, or wrote where it must not
  launch,      // the driver refused to load or launch it
  trap,        // a fault on the device
  timeout,     // took longer than the hang limit and was killed
  crash,       // the child died for another reason
  no_memory,   // the case does not fit the tuner's memory
  impossible,  // measured faster than the hardware allows
  harness,     // not the candidate's fault: the oracle or the tuner itself failed
};
const char* outcome_name(Outcome outcome);
Outcome outcome_of(const std::string& name);  // fails with internal when unknown

// Whether the outcome says for good that the config is broken. A timeout, a crash or a refused
// launch may have been the machine's, and says nothing of the config.
bool disproves(Outcome outcome);
bool disproves(const std::string& name);  // likewise by the name; false for other reasons

struct RunVerdict {
  Outcome outcome = Outcome::passed;
  std::string detail;
  double worst_error = 0;  // in units of the tolerance
};

}  // namespace kiln::tuner
