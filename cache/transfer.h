// What leaves a store and comes into one: its records as plain values, as canonical JSON, and as
// untrusted text that is checked field by field. A text holds no path, no code that runs, and no
// frame that unpacks to more than it may.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/store.h"
#include "jit/base/json.h"

namespace kiln::cache {

// Records of a store, the newest of each key over its layers.
struct StoreContents {
  std::vector<Decision> decisions;    // of every kind
  std::vector<PlanRecord> plans;      // that the others name
  std::vector<jit::Binary> binaries;  // that the plans launch; an empty image: description alone
  std::vector<Verification> verifications;
  std::vector<Timing> timings;
  std::vector<Rejection> rejections;

  bool empty() const {
    return decisions.empty() && plans.empty() && verifications.empty() && timings.empty() &&
           rejections.empty();
  }
};

enum class Images { with, without };

struct ContentsFilter {
  std::vector<std::string> ops;  // empty: all
  // By key of the GPU class and label, "" where none is known; null: all. What is known of a class
  // alone goes by the labels that its decisions have.
  std::function<bool(const std::string& gpu_class, const std::string& label)> gpu;
  Images images = Images::without;  // only trusted ones
};
StoreContents contents_of(Store& store, const ContentsFilter& filter);

// Evidence: reasons, verifications, timings, rejections.
enum class ExportParts { all, decisions };
// The arrays are sorted and hold no duplicates. "decisions" is stable: stores that decide the same
// give the same bytes. Numbers are integers: picoseconds, millionths.
std::string to_json(const StoreContents& contents, ExportParts parts);
// Of the array of decisions alone.
Hash128 decisions_digest(const StoreContents& contents);

// What a text from outside may ask for, each checked before memory is taken for it.
struct ImportLimits {
  int64_t text_bytes = int64_t{256} << 20;
  int64_t values = 8'000'000;  // of JSON, counted by commas
  int64_t image_bytes = int64_t{64} << 20;
  int64_t all_images_bytes = int64_t{1} << 30;
};

// Fails with invalid_argument and "<path of the field>: <expected>, it is <what came>" unless the
// text is an export in every field. Says nothing of whether ops, configs and keys exist.
StoreContents from_json(std::string_view text, const ImportLimits& limits = {});

// Why a record that came from elsewhere is not taken, by the values of its fields alone: lengths,
// control characters, dates, names. "" when nothing is wrong with it. now: unix seconds.
std::string why_refused(const Decision& decision, int64_t now);
std::string why_refused(const PlanRecord& plan);
std::string why_refused(const jit::Binary& binary);
std::string why_refused(const Verification& verification, int64_t now);
std::string why_refused(const Timing& timing, int64_t now);
std::string why_refused(const Rejection& rejection, int64_t now);

// taken: it was written. kept: the store has the same, or the same config with a newer date.
// dropped: the store has another that goes before it. refused: something is wrong with it.
enum class MergeOutcome { taken, kept, dropped, refused };
const char* outcome_name(MergeOutcome outcome);  // "taken", ...
enum class Pins { keep, replace };

struct MergeOptions {
  // any: images come in as they are and verifications count. needed: images that came from
  // elsewhere wait for a proof, and verifications of elsewhere are left out.
  Trust trust = Trust::needed;
  Pins pins = Pins::keep;
  enum class Mode { write, dry_run } mode = Mode::write;
};

struct MergeRow {
  enum class Record { decision, plan, binary, verification, timing, rejection };
  Record record = Record::decision;
  Problem problem;        // of a binary: empty
  std::string gpu_class;  // "" of a plan, binary or verification
  std::string gpu_label;  // of a decision
  std::string name;       // of a decision its config, else what tells it from its siblings
  DecisionKind kind = DecisionKind::fallback;  // of a decision
  MergeOutcome outcome = MergeOutcome::taken;
  std::string reason;
};
const char* record_name(MergeRow::Record record);  // "decision", ...
MergeRow refusal(const Decision& decision, std::string reason);
MergeRow refusal(const PlanRecord& plan, std::string reason);
MergeRow refusal(const jit::Binary& binary, std::string reason);
MergeRow refusal(const Verification& verification, std::string reason);
MergeRow refusal(const Timing& timing, std::string reason);
MergeRow refusal(const Rejection& rejection, std::string reason);

// Of one kind of record that is not a decision.
struct MergeCount {
  int64_t taken = 0;
  int64_t older = 0;  // the store has the same, or a newer one
};

struct MergeReport {
  std::vector<MergeRow> rows;  // every decision, and of the others what was refused
  MergeCount plans;
  MergeCount images;
  MergeCount verifications;
  MergeCount timings;
  MergeCount rejections;
  int64_t verifications_left_out = 0;  // not proven here
  int64_t images_untrusted = 0;        // of those taken
  bool written = true;                 // false: nothing was, and warnings() says why

  int64_t decisions(MergeOutcome outcome) const;
  int64_t refused() const;
  bool took_nothing() const;
};

}  // namespace kiln::cache
