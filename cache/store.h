// The store: decisions, evidence and binaries in one SQLite file over read-only packs.
// A read falls through from the writable file to the packs; a write goes to the top. Nothing above
// this header writes SQL.
//
// A store that cannot be used is a miss, never an error: open() always returns a store, in the
// worst case an empty one in memory, and says why in warnings(). Opening for writing makes the file
// and writes a row of it, so what cannot be written is known then. A damaged store is put aside
// beside itself, when it is opened for writing; a file that never was one is left alone. Explicit
// operations (export, verify a file) may fail.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "jit/base/gpu.h"
#include "jit/base/hash.h"
#include "jit/base/json.h"
#include "jit/compiler.h"

namespace kiln::cache {

inline constexpr int kSchemaVersion = 2;

// Stored as numbers, best first. Never renumber.
enum class DecisionKind : int32_t {
  pinned = 1,
  measured = 2,
  borrowed = 3,
  predicted = 4,
  fallback = 5
};
inline constexpr DecisionKind kDecisionKinds[] = {DecisionKind::pinned, DecisionKind::measured,
                                                  DecisionKind::borrowed, DecisionKind::predicted,
                                                  DecisionKind::fallback};  // best first
enum class Verified : int32_t { none = 0, simulator = 1, device = 2 };
// Whether an image that came from elsewhere, and was not proven here, counts. What is loaded must
// be trusted; what is checked, proven or named by a plan need not be.
enum class Trust { needed, any };
const char* kind_name(DecisionKind kind);      // "pinned", ..., "default"
const char* verified_name(Verified verified);  // "none", "simulator", "device"
Json verified_json(Verified verified);         // null, "simulator", "device"

// op + version + static shape + bucket of the dynamic sizes; shape and bucket are canonical JSON.
struct Problem {
  std::string op;
  int op_version = 0;
  std::string shape;
  std::string bucket;
  auto operator<=>(const Problem&) const = default;
};

// What a config means on an arch: the kernels that a call launches, in order, each a binary of this
// store.
struct PlanRecord {
  Hash128 id;  // op, version, shape, config, arch, binaries and how they are launched
  std::string op;
  int op_version = 0;
  std::string shape;
  std::string config;  // canonical JSON
  std::string arch;    // "sm_86"
  std::string reduction_signature;
  std::string packed_layout;  // "" when weights are taken as the checkpoint has them
  struct Kernel {
    Hash128 binary;
    std::string entry;
    int threads = 0;
    int64_t dynamic_smem_bytes = 0;
    bool operator==(const Kernel&) const = default;
  };
  std::vector<Kernel> kernels;
};

// Evidence of a plan on a problem: does it compute the right thing.
struct Verification {
  Hash128 plan;
  Problem problem;
  Verified by = Verified::none;
  bool passed = false;
  std::string detail;       // cases run, or the first mismatch
  std::string tolerance;    // "bit-exact", or the bound that was checked
  double worst_error = 0;   // in units of the tolerance; 0 when bit-exact
  std::string card;         // its name, or "simulator"
  std::string driver;       // "" for the simulator
  int64_t verified_at = 0;  // unix seconds; 0 in a record to write: now
};

std::string device_text(const Verification& verification);  // "A100, driver 580", or "simulator"

// Evidence of a plan on a problem and a GPU class: how fast it is.
struct Timing {
  Hash128 plan;
  Problem problem;
  std::string gpu_class;  // gpu_class_key()
  double time_ns = 0;     // median
  double spread_ns = 0;   // half of the 10 to 90 percentile range
  int rounds = 0;
  std::string method;    // "graph replay, cold, interleaved"; "model" for a predicted time
  std::string limits;    // slug of --limits, or ""
  std::string device;    // card, driver, clocks: evidence, not identity
  int64_t timed_at = 0;  // unix seconds; 0 in a record to write: now
};

// This problem on this GPU class uses this config.
struct Decision {
  Problem problem;
  std::string gpu_class;
  std::string gpu_label;  // slug, for people
  std::string config;     // canonical JSON
  Hash128 plan;
  DecisionKind kind = DecisionKind::fallback;
  std::string reason;  // "12 % faster than the default", "within noise of the default", ...
  enum class Scope { all, part } scope = Scope::all;  // of the candidates, part: time ran out
  std::string limits;                  // slug of --limits under which a stand-in measured it, or ""
  std::vector<std::string> tie_group;  // configs within the noise, this one included
  double time_ns = 0;                  // 0: not known
  double default_time_ns = 0;
  int64_t decided_at = 0;  // unix seconds; 0 in a record to write: now
};

// A candidate that did not make it, kept with its reason so that it is not tried again.
struct Rejection {
  Problem problem;
  std::string gpu_class;
  std::string config;
  Hash128 plan;        // what ran, perhaps in no store; zero when nothing did
  std::string limits;  // slug of --limits that it ran under, or ""
  std::string stage;   // "resources", "compile", "verify", "measure"
  std::string reason;  // "wrong", "trap", "timeout", "registers", ...
  std::string detail;
  int64_t rejected_at = 0;  // unix seconds; 0 in a record to write: now
};

// One finished problem, written in one transaction: all of it or nothing.
struct TuningResult {
  Decision decision;
  std::vector<PlanRecord> plans;
  std::vector<jit::Binary> binaries;
  std::vector<Verification> verifications;
  std::vector<Timing> timings;
  std::vector<Rejection> rejections;
};

// A plan is judged by the newest verification on each card, whichever driver it ran with.
struct DecisionRow {
  Decision decision;
  Verified verified =
      Verified::none;   // the best level that it passed; none while `failure` says why
  std::string failure;  // "" or where and how it failed, by the newest evidence of some card
  std::string layer;    // path of the file it came from
};

// One binary of the store, without its bytes.
struct BinaryRow {
  Hash128 key;
  std::string op;  // of the first plan that launches it, "" without one
  std::string arch;
  std::string entry;
  jit::BinaryKind kind = jit::BinaryKind::cubin;
  int registers = 0;
  int64_t spill_bytes = 0;   // stores and loads
  int64_t image_bytes = 0;   // as loaded
  int64_t stored_bytes = 0;  // compressed
  bool trusted = true;       // false: it came from elsewhere and was not proven here
  std::string layer;         // path of the file it is in
};

// That processes called a problem on a GPU class, as their sessions noted it when they closed.
struct UsedSize {
  Problem problem;
  std::string gpu_class;
  std::string gpu_label;
  int64_t sessions = 0;
  int64_t first_used_at = 0;  // unix seconds
  int64_t last_used_at = 0;
};

struct StoreInfo {
  std::string path;                // writable file, or ":memory:"
  std::vector<std::string> packs;  // read-only files, in the order in which they are read
  bool writable = false;
  bool wal = false;
  int schema_version = kSchemaVersion;
  int64_t file_bytes = 0;
  int64_t budget_bytes = 0;
  int64_t decisions = 0;  // counts are over all layers
  int64_t binaries = 0;
  int64_t timings = 0;
};

// What collect() did, or would do. Sizes are those of the pages in use, which is what the file and
// its log come to when nobody else has it open.
struct GcReport {
  int64_t budget_bytes = 0;
  int64_t before_bytes = 0;
  int64_t after_bytes = 0;
  int64_t images = 0;
  int64_t image_bytes = 0;    // as stored
  int64_t images_in_use = 0;  // of these: a decision names them, or they were used within a day
  int64_t plans = 0;          // records that nobody named
  int64_t leases = 0;         // past their deadline
  std::string problem;  // why it ended early, or why the file is still too large; "": it is not
};
enum class GcMode { collect, look };  // look: changes nothing

inline constexpr int64_t kUsualBudgetBytes = int64_t{2} << 30;

struct StoreOptions {
  std::string path;  // "" : KILN_DB, else $XDG_CACHE_HOME/kiln/kiln.db, else ~/.cache/kiln/kiln.db,
                     // else a folder of this machine (KILN_LOCAL), else memory;
                     // ":memory:" is legal
  // Read-only files under it, separated by ':', the upper ones first; a folder stands for its *.db
  // in the order of their names. "" : KILN_PACK, else none.
  std::string pack;
  enum class Mode { read_write, read_only } mode = Mode::read_write;
  // What the writable file may hold. A write of binaries that takes it further drops images until
  // four fifths are left, as collect() does. 0: KILN_STORE_BYTES, else kUsualBudgetBytes.
  int64_t budget_bytes = 0;
};

struct StoreContents;  // cache/transfer.h
struct MergeOptions;
struct MergeReport;

// Thread-safe. Close (destroy) before fork: a child that opens a file which its parent had open
// then reads what is in the file itself, keeps its own results in memory, and says so. Opening one
// path several times in a process is fine: the stores share a connection, and nothing else in the
// process may open the file meanwhile.
class Store {
 public:
  static std::unique_ptr<Store> open(const StoreOptions& options);
  virtual ~Store() = default;

  virtual StoreInfo info() = 0;
  virtual std::vector<std::string>
  warnings() = 0;  // what went wrong at open or since, one clear sentence each
  // Why something that was kept, or should have been, is not there for the next reader: a file that
  // cannot be read or written, that was found damaged, or that was removed meanwhile. "" when all
  // is well.
  virtual std::string trouble() = 0;

  // Decisions. Across layers, of one kind the newest counts. What a session uses is among the kinds
  // whose newest verifications all passed, so the best of these goes before one that failed; when
  // all failed, the best kind is returned with its failure. Whether a session on this build finds
  // it stale is not known here.
  virtual std::optional<DecisionRow> find_decision(const Problem& problem,
                                                   std::string_view gpu_class) = 0;
  // Of one kind, whether or not there is a better one.
  virtual std::optional<DecisionRow> find_decision(const Problem& problem,
                                                   std::string_view gpu_class,
                                                   DecisionKind kind) = 0;
  // The newest of each kind, best kind first.
  virtual std::vector<DecisionRow> decisions(const Problem& problem,
                                             std::string_view gpu_class) = 0;
  // Of each problem and GPU class the one that find_decision() returns.
  virtual std::vector<DecisionRow> list_decisions() = 0;
  virtual std::vector<Problem> problems() = 0;  // every problem that anything is known about
  // Keys of the GPU classes for which the problem has a decision, a time or a rejection.
  virtual std::vector<std::string> gpu_classes(const Problem& problem) = 0;

  // Plans and binaries. A blob whose checksum does not hold is a miss and leaves a warning. An
  // image that came from elsewhere and was not proven here is a miss too; only list_binaries() has
  // it, and Trust::any, for who proves it.
  virtual std::optional<PlanRecord> find_plan(const Hash128& id) = 0;
  virtual std::optional<jit::Binary> find_binary(const Hash128& key,
                                                 Trust trust = Trust::needed) = 0;
  virtual bool has_binary(const Hash128& key) = 0;
  // Without its image, which may be gone or never have been there.
  virtual std::optional<jit::Binary> describe_binary(const Hash128& key) = 0;
  virtual std::vector<BinaryRow> list_binaries() = 0;

  // Evidence, the newest of each key over all layers: of each plan, level and card; of each plan,
  // method, limits and device, fastest first; of each config.
  virtual std::vector<Verification> verifications(const Problem& problem) = 0;
  virtual std::vector<Timing> timings(const Problem& problem, std::string_view gpu_class) = 0;
  virtual std::vector<Rejection> rejections(const Problem& problem, std::string_view gpu_class) = 0;

  virtual std::vector<UsedSize> used_sizes() = 0;  // one of each problem and class, of all layers

  // Writes, each in one transaction. On a store that cannot be written, and for a record that
  // contradicts the store (a plan of a binary that is nowhere, a shape that is not JSON), they
  // leave one warning, return false and have changed nothing. Decisions of different kinds stand
  // side by side, so a worse one never replaces a better one. Of one kind the newer stays, so an
  // older one contradicts the store; what is decided now is newer than all that is stored. Of
  // evidence of one key the newer stays too, and an older one is passed over without a word.
  virtual bool put(const TuningResult& result) = 0;
  virtual bool put_binary(const jit::Binary& binary) = 0;
  virtual bool put_plan(const PlanRecord& plan) = 0;  // its binaries must be there
  // All of them in one transaction; the plans may be of these binaries.
  virtual bool put_kernels(const std::vector<jit::Binary>& binaries,
                           const std::vector<PlanRecord>& plans) = 0;
  virtual bool put_verification(const Verification& verification) = 0;
  virtual bool put_timing(const Timing& timing) = 0;
  virtual bool put_rejections(const std::vector<Rejection>& rejections) = 0;
  // Notes that one session called these problems.
  virtual bool put_used_sizes(const std::vector<Problem>& problems, std::string_view gpu_class,
                              std::string_view gpu_label) = 0;
  // Notes for gc that these binaries are in use: in the writable file and by the hour, so that a
  // warm start writes nothing. While another process is writing, and where nothing can be written,
  // it is not noted, and nobody is told: nothing of value is lost.
  virtual void touch(const std::vector<Hash128>& binaries) = 0;
  virtual bool forget(const Problem& problem,
                      std::string_view gpu_class) = 0;  // drops the decisions in the writable file
  virtual bool forget(const Problem& problem, std::string_view gpu_class, DecisionKind kind) = 0;
  // Drops the decisions in the writable file and hides those of the packs below it.
  virtual bool hide(const Problem& problem, std::string_view gpu_class,
                    std::string_view reason) = 0;

  // Takes over the records of another store, in one transaction. Records of one key are judged by
  // merge_rules.h; one that names a plan or a binary which neither the store nor the contents know
  // is refused. With MergeOptions::Mode::dry_run nothing is written, and a read-only store will do.
  virtual MergeReport absorb(const StoreContents& contents, const MergeOptions& options) = 0;
  // Makes the writable file hold no more than the budget (0: the budget that it was opened with).
  // Images go, each with the time it was last used: first those that no decision of this file
  // uses, then the others, those of pinned decisions last. What is known about a binary stays, and
  // it is compiled again when it is needed. Plans that nobody names and whose images went, and
  // leases past their deadline, go whatever the budget. Each step is a transaction of its own.
  // Packs are never changed.
  virtual GcReport collect(int64_t budget_bytes, GcMode mode) = 0;

  // Writes the writable file's contents as a new read-only pack. Fails with store_error: there is
  // such a file, or it cannot be made. A pack that is made but may not outlast a crash of the
  // machine leaves a warning.
  virtual void make_pack(const std::string& path) = 0;

  // Checks every row and blob of all layers; returns one sentence per defect.
  virtual std::vector<std::string> check() = 0;
};

// Where the writable file goes when nobody says, and what led there: "from KILN_DB", "from
// XDG_CACHE_HOME", ...
struct StorePlace {
  std::string path;
  std::string why;
};
StorePlace default_store_place();

}  // namespace kiln::cache
