// What the layers mean together: reads fall through from the writable file to the packs, writes go
// to the top, and whatever goes wrong with a file becomes a miss and one warning.
#include "cache/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include "cache/check.h"
#include "cache/layer.h"
#include "cache/rows.h"
#include "cache/schema.h"
#include "jit/base/error.h"
#include "jit/base/json.h"

namespace kiln::cache {
namespace {

constexpr size_t kMaxWarnings = 100;

void require_json(std::string_view what, const std::string& op, const std::string& text) {
  if (Json::accept(text)) return;
  fail(Status::invalid_argument, "{} of a record of op {} must be JSON, but it is '{}'", what, op,
       text);
}

void require_problem(const Problem& problem) {
  if (problem.op.empty()) fail(Status::invalid_argument, "a problem must name its op");
  require_json("the shape", problem.op, problem.shape);
  require_json("the bucket", problem.op, problem.bucket);
}

void require_time(std::string_view what, const std::string& op, double time_ns) {
  if (std::isfinite(time_ns) && time_ns >= 0) return;
  fail(Status::invalid_argument, "{} of op {} must be a time, but it is {} ns", what, op, time_ns);
}

void require_record(const Decision& decision) {
  require_problem(decision.problem);
  require_json("the GPU class", decision.problem.op, decision.gpu_class);
  require_json("the config", decision.problem.op, decision.config);
  require_time("the decided time", decision.problem.op, decision.time_ns);
  require_time("the default's time", decision.problem.op, decision.default_time_ns);
}

void require_record(const PlanRecord& plan) {
  require_json("the shape", plan.op, plan.shape);
  require_json("the config", plan.op, plan.config);
}

void require_record(const Verification& verification) { require_problem(verification.problem); }

void require_record(const Timing& timing) {
  require_problem(timing.problem);
  require_json("the GPU class", timing.problem.op, timing.gpu_class);
  require_time("the measured time", timing.problem.op, timing.time_ns);
  require_time("the spread", timing.problem.op, timing.spread_ns);
}

void require_record(const Rejection& rejection) {
  require_problem(rejection.problem);
  require_json("the GPU class", rejection.problem.op, rejection.gpu_class);
  require_json("the config", rejection.problem.op, rejection.config);
}

// The records of one write, and what they name that must be in some layer.
struct Batch {
  std::vector<const jit::Binary*> binaries;
  std::vector<const PlanRecord*> plans;
  std::vector<const Verification*> verifications;
  std::vector<const Timing*> timings;
  std::vector<const Rejection*> rejections;
  const Decision* decision = nullptr;

  void require_records() const {
    for (const auto* plan : plans) require_record(*plan);
    for (const auto* verification : verifications) require_record(*verification);
    for (const auto* timing : timings) require_record(*timing);
    for (const auto* rejection : rejections) require_record(*rejection);
    if (decision != nullptr) require_record(*decision);
  }

  std::map<Hash128, std::string> needed_binaries() const {
    std::map<Hash128, std::string> needed;
    for (const auto* plan : plans) {
      for (const auto& kernel : plan->kernels) needed[kernel.binary] = "plan " + plan->id.hex();
    }
    for (const auto* binary : binaries) needed.erase(binary->key);
    return needed;
  }

  std::map<Hash128, std::string> needed_plans() const {
    std::map<Hash128, std::string> needed;
    for (const auto* verification : verifications) needed[verification->plan] = "a verification";
    for (const auto* timing : timings) needed[timing->plan] = "a timing";
    // A default that was never compiled has no plan.
    if (decision != nullptr && decision->plan != Hash128{}) needed[decision->plan] = "a decision";
    for (const auto* plan : plans) needed.erase(plan->id);
    return needed;
  }
};

template <typename Record>
std::vector<const Record*> pointers(const std::vector<Record>& records) {
  std::vector<const Record*> result;
  for (const Record& record : records) result.push_back(&record);
  return result;
}

// Of one key the newer decision stays, and of two of one date that of the upper layer.
template <typename Key>
void keep_newer(std::map<Key, DecisionRow>& newest, const Key& key, DecisionRow row) {
  const auto [known, is_new] = newest.try_emplace(key, std::move(row));  // moved when it is new
  if (!is_new && row.decision.decided_at > known->second.decision.decided_at) {
    known->second = std::move(row);
  }
}

// Whether a decision of a worse kind goes before one of a better kind.
bool is_sounder(const DecisionRow& worse, const DecisionRow& better) {
  return worse.failure.empty() && !better.failure.empty();
}

class LayeredStore : public Store {
 public:
  explicit LayeredStore(const StoreOptions& options);

  StoreInfo info() override;
  std::string trouble() override;
  std::vector<std::string> warnings() override;

  std::optional<DecisionRow> find_decision(const Problem& problem,
                                           std::string_view gpu_class) override;
  std::optional<DecisionRow> find_decision(const Problem& problem, std::string_view gpu_class,
                                           DecisionKind kind) override;
  std::vector<DecisionRow> decisions(const Problem& problem, std::string_view gpu_class) override;
  std::vector<DecisionRow> list_decisions() override;
  std::vector<Problem> problems() override;
  std::vector<std::string> gpu_classes(const Problem& problem) override;

  std::optional<PlanRecord> find_plan(const Hash128& id) override;
  std::optional<jit::Binary> find_binary(const Hash128& key) override;
  bool has_binary(const Hash128& key) override;
  std::vector<BinaryRow> list_binaries() override;

  std::vector<Verification> verifications(const Problem& problem) override;
  std::vector<Timing> timings(const Problem& problem, std::string_view gpu_class) override;
  std::vector<Rejection> rejections(const Problem& problem, std::string_view gpu_class) override;

  bool put(const TuningResult& result) override;
  bool put_binary(const jit::Binary& binary) override;
  bool put_plan(const PlanRecord& plan) override;
  bool put_kernels(const std::vector<jit::Binary>& binaries,
                   const std::vector<PlanRecord>& plans) override;
  bool put_verification(const Verification& verification) override;
  bool put_timing(const Timing& timing) override;
  bool put_rejections(const std::vector<Rejection>& rejections) override;
  bool forget(const Problem& problem, std::string_view gpu_class) override;
  bool hide(const Problem& problem, std::string_view gpu_class, std::string_view reason) override;

  void make_pack(const std::string& path) override;
  std::vector<std::string> check() override;

 private:
  // All private functions expect the mutex.
  void open_top(const std::string& path);
  void open_read_only(const std::string& path);
  void add_read_layer(const std::string& path, std::string_view consequence);
  void use_memory(std::string_view why);

  void warn(const std::string& key, const std::string& sentence);
  // What to type when the file at this path cannot serve, or is damaged.
  std::string other_file(const std::string& path) const;
  std::string replacement(const std::string& path) const;
  std::string with_remedy(const std::string& path, const Unusable& error) const;
  void note_damage(Layer& layer, std::string_view how, std::string_view consequence);
  void note_failure(Layer& layer, const SqliteError& error, std::string_view consequence);
  // Runs `work` on a layer; false, with a warning, when the layer could not answer.
  bool read(Layer& layer, const Layer::Work& work);
  // Runs `work` on each layer from the top until it says that it is done.
  template <typename Work>
  void read_down(Work work);
  bool write(const Layer::Work& work);
  bool write(const Batch& batch);

  // The newest of each kind, best kind first: not judged, and judged.
  std::map<DecisionKind, DecisionRow> newest_decisions(const Problem& problem,
                                                       std::string_view gpu_class);
  std::vector<DecisionRow> judged_decisions(const Problem& problem, std::string_view gpu_class);
  void judge(DecisionRow& row, const std::vector<Verification>& newest) const;
  std::vector<Verification> newest_verifications(const Problem& problem);
  void warn_damaged(Layer& layer, std::string_view what, const std::string& name,
                    std::string_view remedy);

  std::mutex mutex_;
  std::vector<std::shared_ptr<Layer>> layers_;  // in the order in which they are read
  std::shared_ptr<Layer> top_;                  // the writable one, null in a read-only store
  std::string path_;  // the file asked for, also when it could not be used
  std::string pack_;
  std::string trouble_;  // as trouble() says it, but for a file that is gone
  std::vector<std::string> warnings_;
  std::set<std::string> warned_;
  std::set<std::pair<Layer*, Hash128>> damaged_binaries_;
};

LayeredStore::LayeredStore(const StoreOptions& options) {
  StorePlace place = {options.path, "asked for"};
  if (place.path.empty()) place = default_store_place();
  path_ = place.path == ":memory:" ? place.path : absolute_path(place.path);
  pack_ = options.pack;
  if (const char* pack = std::getenv("KILN_PACK"); pack_.empty() && pack != nullptr) pack_ = pack;
  if (!pack_.empty()) pack_ = absolute_path(pack_);

  const char* named = std::getenv("KILN_DB");
  const bool is_named = !options.path.empty() || (named != nullptr && *named != '\0');
  const bool nowhere = place.path == ":memory:" && !is_named;
  const std::string no_place = "there is no place for the store: " + place.why +
                               "; name a file on a local disk with KILN_DB or --db";
  if (options.mode == StoreOptions::Mode::read_only) {
    if (nowhere) warn("memory", no_place);
    if (path_ != ":memory:") open_read_only(path_);
  } else if (nowhere) {
    use_memory(no_place);
  } else if (path_ == ":memory:") {
    top_ = Layer::in_memory();
    layers_.push_back(top_);
  } else {
    open_top(path_);
  }
  if (!pack_.empty() && pack_ != path_) {
    if (!file_id(pack_)) {
      warn("pack", fmt::format("there is no pack at {}; correct KILN_PACK or --pack", pack_));
      pack_.clear();
    } else {
      add_read_layer(pack_, "This pack is not used");
    }
  }
}

void LayeredStore::use_memory(std::string_view why) {
  warn("memory", fmt::format("{}. Results are kept in memory and lost at the end", why));
  trouble_ = why;
  top_ = Layer::in_memory();
  layers_.insert(layers_.begin(), top_);
}

std::string LayeredStore::other_file(const std::string& path) const {
  return path == pack_ ? "name another pack with KILN_PACK or --pack"
                       : "name another file with KILN_DB or --db";
}

std::string LayeredStore::replacement(const std::string& path) const {
  if (path == pack_) return "get a sound copy of this pack, or " + other_file(path);
  return fmt::format(
      "`kiln tune` and `kiln build` put it aside as {}.corrupt-<time> and start a new "
      "one, as does every program that opens it for writing",
      path);
}

std::string LayeredStore::with_remedy(const std::string& path, const Unusable& error) const {
  switch (error.remedy()) {
    case Remedy::other_file:
      return error.sentence(other_file(path));
    case Remedy::replace:
      return error.sentence(replacement(path));
    case Remedy::said:
      break;
  }
  return error.sentence();
}

void LayeredStore::open_top(const std::string& path) {
  std::vector<std::string> happened;
  try {
    std::shared_ptr<Layer> layer = Layer::open(path, Layer::Access::read_write, happened);
    layers_.push_back(layer);
    for (const std::string& sentence : happened) warn(sentence, sentence);
    if (const std::optional<Unusable> why = layer->why_read_only()) {
      use_memory(with_remedy(path, *why));
      return;
    }
    top_ = std::move(layer);
    if (const std::string network = network_file_system(path); !network.empty()) {
      warn("network",
           fmt::format("the store {} is on a network file system ({}), which is slow and safe for "
                       "one writer only; name a file on a local disk with KILN_DB or --db and "
                       "share a read-only pack instead",
                       path, network));
    }
  } catch (const Unusable& error) {
    use_memory(with_remedy(path, error));
  } catch (const SqliteError& error) {
    use_memory(
        fmt::format("the store {} cannot be opened: {}; {}", path, error.what(), other_file(path)));
  }
}

void LayeredStore::open_read_only(const std::string& path) {
  if (!file_id(path)) {
    const int error = errno;
    if (error != ENOENT && error != ENOTDIR) {
      trouble_ = fmt::format("{} cannot be read ({})", path, std::strerror(error));
      warn("absent", fmt::format("{}; {}", trouble_, other_file(path)));
    } else if (pack_.empty()) {
      warn("absent", fmt::format("there is no store at {} yet; `kiln tune` or `kiln build` makes "
                                 "one",
                                 path));
    }
    return;
  }
  add_read_layer(path, "Nothing is read from it");
}

void LayeredStore::add_read_layer(const std::string& path, std::string_view consequence) {
  std::vector<std::string> happened;
  try {
    layers_.push_back(Layer::open(path, Layer::Access::read_only, happened));
    for (const std::string& sentence : happened) warn(sentence, sentence);
  } catch (const Unusable& error) {
    warn("read:" + path, fmt::format("{}. {}", with_remedy(path, error), consequence));
    trouble_ = error.what();
  } catch (const SqliteError& error) {
    const Unusable unusable(
        fmt::format("{} {} ({})", path, error.is_corruption() ? "is damaged" : "cannot be read",
                    error.what()),
        "", error.is_corruption() ? Remedy::replace : Remedy::other_file);
    warn("read:" + path, fmt::format("{}. {}", with_remedy(path, unusable), consequence));
    trouble_ = unusable.what();
  }
}

void LayeredStore::warn(const std::string& key, const std::string& sentence) {
  if (warnings_.size() >= kMaxWarnings || !warned_.insert(key).second) return;
  warnings_.push_back(sentence);
}

void LayeredStore::note_damage(Layer& layer, std::string_view how, std::string_view consequence) {
  const std::string& path = layer.path();
  trouble_ = fmt::format("{} is damaged", path);
  std::string next = replacement(path);
  if (path == pack_) {
    // Nobody writes a pack, so nobody would read a note about it.
  } else if (const Layer::DamageNote note = layer.remember_damaged();
             note == Layer::DamageNote::changed) {
    warn("changed:" + path,
         fmt::format("{} was changed while it was read, {}; run this again", path, consequence));
    return;
  } else if (note == Layer::DamageNote::not_kept) {
    next = fmt::format(
        "move it away with `mv {0} {0}.damaged`, and `kiln tune` or `kiln build` makes "
        "a new one",
        path);
  }
  warn("damaged:" + path, fmt::format("{} is damaged ({}), {}; {}", path, how, consequence, next));
}

void LayeredStore::note_failure(Layer& layer, const SqliteError& error,
                                std::string_view consequence) {
  const std::string& path = layer.path();
  if (error.is_corruption()) {
    note_damage(layer, error.what(), consequence);
    return;
  }
  trouble_ = fmt::format("{} failed: {}", path, error.what());
  if (error.is_busy()) {
    warn("busy:" + path,
         fmt::format("{} was locked by another process for too long, {}", path, consequence));
  } else if (error.code() == SQLITE_FULL) {
    warn("full:" + path, fmt::format("the disk of {} is full, {}; {} or {}", path, consequence,
                                     what_helps(error), other_file(path)));
  } else if (error.is_unwritable()) {
    warn(fmt::format("error {}:{}", error.code(), path),
         fmt::format("{} failed ({}), {}; {} or {}", path, error.what(), consequence,
                     what_helps(error), other_file(path)));
  } else {
    warn(fmt::format("error {}:{}", error.code(), path),
         fmt::format("{} failed: {}, {}", path, error.what(), consequence));
  }
}

bool LayeredStore::read(Layer& layer, const Layer::Work& work) {
  try {
    layer.read(work);
    return true;
  } catch (const SqliteError& error) {
    note_failure(layer, error, "so what it holds may be missed");
  } catch (const Unusable& error) {
    warn("read:" + layer.path(), with_remedy(layer.path(), error));
    trouble_ = error.what();
  }
  return false;
}

template <typename Work>
void LayeredStore::read_down(Work work) {
  for (const std::shared_ptr<Layer>& layer : layers_) {
    bool done = false;
    read(*layer, [&](Database& database) { done = work(database, *layer); });
    if (done) return;
  }
}

void LayeredStore::warn_damaged(Layer& layer, std::string_view what, const std::string& name,
                                std::string_view remedy) {
  warn(fmt::format("record:{}:{}", layer.path(), name),
       fmt::format("the checksum of {} {} in {} does not hold, so it is not used; {}", what, name,
                   layer.path(), remedy));
}

StoreInfo LayeredStore::info() {
  const std::lock_guard lock(mutex_);
  StoreInfo info;
  info.path = top_ ? top_->path() : path_;
  info.pack = pack_;
  info.writable = top_ != nullptr;
  info.wal = top_ && top_->uses_wal();
  if (!(top_ && top_->is_in_memory())) {
    for (const char* suffix : {"", "-wal"}) {
      info.file_bytes += std::max<int64_t>(0, side_file_bytes(info.path, suffix));
    }
  }
  read_down([&](Database& database, Layer&) {
    info.decisions += database.query_integer("SELECT count(*) FROM decisions");
    info.binaries += database.query_integer("SELECT count(*) FROM images");
    info.timings += database.query_integer("SELECT count(*) FROM timings");
    return false;
  });
  return info;
}

std::string LayeredStore::trouble() {
  const std::lock_guard lock(mutex_);
  if (trouble_.empty() && top_ && !top_->has_kept_its_file()) {
    return fmt::format("the store {} was removed or replaced meanwhile", path_);
  }
  return trouble_;
}

std::vector<std::string> LayeredStore::warnings() {
  const std::lock_guard lock(mutex_);
  return warnings_;
}

void LayeredStore::judge(DecisionRow& row, const std::vector<Verification>& newest) const {
  for (const Verification& verification : newest) {
    if (verification.plan != row.decision.plan) continue;
    if (!verification.passed) {
      row.verified = Verified::none;
      row.failure = fmt::format("it failed verification on {}: {}", device_text(verification),
                                verification.detail);
      return;
    }
    row.verified = std::max(row.verified, verification.by);
  }
}

std::optional<DecisionRow> LayeredStore::find_decision(const Problem& problem,
                                                       std::string_view gpu_class) {
  const std::lock_guard lock(mutex_);
  std::optional<DecisionRow> best;
  for (DecisionRow& row : judged_decisions(problem, gpu_class)) {
    if (!best || is_sounder(row, *best)) best = std::move(row);
  }
  return best;
}

std::optional<DecisionRow> LayeredStore::find_decision(const Problem& problem,
                                                       std::string_view gpu_class,
                                                       DecisionKind kind) {
  const std::lock_guard lock(mutex_);
  std::map<DecisionKind, DecisionRow> newest = newest_decisions(problem, gpu_class);
  const auto found = newest.find(kind);
  if (found == newest.end()) return std::nullopt;
  judge(found->second, newest_verifications(problem));
  return std::move(found->second);
}

std::vector<DecisionRow> LayeredStore::decisions(const Problem& problem,
                                                 std::string_view gpu_class) {
  const std::lock_guard lock(mutex_);
  return judged_decisions(problem, gpu_class);
}

std::map<DecisionKind, DecisionRow> LayeredStore::newest_decisions(const Problem& problem,
                                                                   std::string_view gpu_class) {
  std::map<DecisionKind, DecisionRow> newest;
  read_down([&](Database& database, Layer& layer) {
    for (Found<Decision>& found : read_decisions(database, problem, gpu_class)) {
      if (found.damaged) {
        warn_damaged(layer, "the decision for", problem.op + " " + problem.shape + problem.bucket,
                     "tune the problem again");
        continue;
      }
      const DecisionKind kind = found.record->kind;
      keep_newer(newest, kind, {.decision = std::move(*found.record), .layer = layer.path()});
    }
    return hides_decision(database, problem, gpu_class);
  });
  return newest;
}

std::vector<DecisionRow> LayeredStore::judged_decisions(const Problem& problem,
                                                        std::string_view gpu_class) {
  std::map<DecisionKind, DecisionRow> newest = newest_decisions(problem, gpu_class);
  std::vector<DecisionRow> rows;
  if (newest.empty()) return rows;
  const std::vector<Verification> evidence = newest_verifications(problem);
  for (auto& [kind, row] : newest) {
    judge(row, evidence);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<DecisionRow> LayeredStore::list_decisions() {
  const std::lock_guard lock(mutex_);
  std::map<std::tuple<Problem, std::string, DecisionKind>, DecisionRow> newest;
  std::set<std::pair<Problem, std::string>> hidden;
  read_down([&](Database& database, Layer& layer) {
    for (Found<Decision>& found : read_all_decisions(database)) {
      const Decision& decision = *found.record;
      if (found.damaged) {
        warn_damaged(layer, "the decision for",
                     decision.problem.op + " " + decision.problem.shape + decision.problem.bucket,
                     "tune the problem again");
        continue;
      }
      if (hidden.contains({decision.problem, decision.gpu_class})) continue;
      keep_newer(newest, std::tuple(decision.problem, decision.gpu_class, decision.kind),
                 {.decision = decision, .layer = layer.path()});
    }
    for (auto& key : hidden_decisions(database)) hidden.insert(std::move(key));
    return false;
  });

  std::vector<DecisionRow> rows;
  std::optional<Problem> known;  // rows of one problem follow each other
  std::vector<Verification> evidence;
  for (auto& [key, row] : newest) {
    const Decision& decision = row.decision;
    if (known != decision.problem) {
      known = decision.problem;
      evidence = newest_verifications(decision.problem);
    }
    judge(row, evidence);
    const bool is_next = rows.empty() || rows.back().decision.problem != decision.problem ||
                         rows.back().decision.gpu_class != decision.gpu_class;
    if (is_next) {
      rows.push_back(std::move(row));
    } else if (is_sounder(row, rows.back())) {
      rows.back() = std::move(row);
    }
  }
  return rows;
}

std::vector<Problem> LayeredStore::problems() {
  const std::lock_guard lock(mutex_);
  std::set<Problem> problems;
  read_down([&](Database& database, Layer&) {
    for (Problem& problem : read_problems(database)) problems.insert(std::move(problem));
    return false;
  });
  return {problems.begin(), problems.end()};
}

std::vector<std::string> LayeredStore::gpu_classes(const Problem& problem) {
  const std::lock_guard lock(mutex_);
  std::set<std::string> keys;
  read_down([&](Database& database, Layer&) {
    for (std::string& key : read_gpu_classes(database, problem)) keys.insert(std::move(key));
    return false;
  });
  return {keys.begin(), keys.end()};
}

std::optional<PlanRecord> LayeredStore::find_plan(const Hash128& id) {
  const std::lock_guard lock(mutex_);
  std::optional<PlanRecord> plan;
  read_down([&](Database& database, Layer& layer) {
    Found<PlanRecord> found = read_plan(database, id);
    if (found.damaged) warn_damaged(layer, "plan", id.hex(), "it is made again when it is needed");
    plan = std::move(found.record);
    return plan.has_value();
  });
  return plan;
}

std::optional<jit::Binary> LayeredStore::find_binary(const Hash128& key) {
  const std::lock_guard lock(mutex_);
  std::optional<jit::Binary> binary;
  read_down([&](Database& database, Layer& layer) {
    Found<jit::Binary> found = read_binary(database, key);
    if (found.damaged) {
      damaged_binaries_.emplace(&layer, key);
      warn_damaged(layer, "binary", key.hex(), "it is compiled again when it is needed");
    }
    binary = std::move(found.record);
    return binary.has_value() || hides_binary(database, key);
  });
  return binary;
}

bool LayeredStore::has_binary(const Hash128& key) {
  const std::lock_guard lock(mutex_);
  bool has = false;
  read_down([&](Database& database, Layer& layer) {
    has = has_image(database, key) && !damaged_binaries_.contains({&layer, key});
    return has || hides_binary(database, key);
  });
  return has;
}

std::vector<BinaryRow> LayeredStore::list_binaries() {
  const std::lock_guard lock(mutex_);
  std::map<Hash128, BinaryRow> binaries;
  read_down([&](Database& database, Layer& layer) {
    for (BinaryRow& row : read_binary_rows(database)) {
      row.layer = layer.path();
      const auto [known, is_new] = binaries.try_emplace(row.key, row);
      if (!is_new && known->second.op.empty()) known->second.op = row.op;
    }
    return false;
  });
  std::vector<BinaryRow> rows;
  for (auto& [key, row] : binaries) rows.push_back(std::move(row));
  return rows;
}

std::vector<Verification> LayeredStore::newest_verifications(const Problem& problem) {
  std::vector<Verification> newest;
  std::map<std::tuple<Hash128, Verified, std::string>, size_t> place;
  read_down([&](Database& database, Layer&) {
    for (Verification& one : read_verifications(database, problem)) {
      const auto [known, is_new] =
          place.try_emplace(std::tuple(one.plan, one.by, one.card), newest.size());
      if (is_new) {
        newest.push_back(std::move(one));
      } else if (one.verified_at > newest[known->second].verified_at) {
        newest[known->second] = std::move(one);
      }
    }
    return false;
  });
  return newest;
}

std::vector<Verification> LayeredStore::verifications(const Problem& problem) {
  const std::lock_guard lock(mutex_);
  return newest_verifications(problem);
}

std::vector<Timing> LayeredStore::timings(const Problem& problem, std::string_view gpu_class) {
  const std::lock_guard lock(mutex_);
  std::vector<Timing> all;
  std::set<std::tuple<Hash128, std::string, std::string, std::string>> known;
  read_down([&](Database& database, Layer&) {
    for (Timing& one : read_timings(database, problem, gpu_class)) {
      if (known.emplace(one.plan, one.method, one.limits, one.device).second) {
        all.push_back(std::move(one));
      }
    }
    return false;
  });
  std::stable_sort(all.begin(), all.end(),
                   [](const Timing& a, const Timing& b) { return a.time_ns < b.time_ns; });
  return all;
}

std::vector<Rejection> LayeredStore::rejections(const Problem& problem,
                                                std::string_view gpu_class) {
  const std::lock_guard lock(mutex_);
  std::vector<Rejection> all;
  std::set<std::string> known;
  read_down([&](Database& database, Layer&) {
    for (Rejection& one : read_rejections(database, problem, gpu_class)) {
      if (known.insert(one.config).second) all.push_back(std::move(one));
    }
    return false;
  });
  return all;
}

bool LayeredStore::write(const Layer::Work& work) {
  if (!top_) {
    warn("read-only",
         fmt::format("the store {} was opened for reading only, so nothing is kept", path_));
    return false;
  }
  try {
    std::vector<std::string> happened;
    try {
      top_->write(work, happened);
    } catch (const Unusable& error) {
      if (top_->is_in_memory()) throw;
      std::erase(layers_, top_);
      use_memory(with_remedy(path_, error));
      top_->write(work, happened);
    }
    for (const std::string& sentence : happened) warn(sentence, sentence);
    return true;
  } catch (const SqliteError& error) {
    note_failure(*top_, error, "so a result was not kept");
  } catch (const Error& error) {
    warn(error.what(), fmt::format("a result was not kept: {}", error.what()));
  } catch (const Unusable& error) {
    warn("write", with_remedy(path_, error));
    trouble_ = error.what();
  }
  return false;
}

bool LayeredStore::write(const Batch& batch) {
  std::vector<PackedImage> images;
  std::map<Hash128, std::string> binaries = batch.needed_binaries();
  std::map<Hash128, std::string> plans = batch.needed_plans();
  try {
    batch.require_records();
    for (const jit::Binary* binary : batch.binaries) images.push_back(pack_image(binary->image));
  } catch (const Error& error) {
    warn(error.what(), fmt::format("a result was not kept: {}", error.what()));
    return false;
  }
  for (const std::shared_ptr<Layer>& layer : layers_) {
    if (layer == top_) continue;
    read(*layer, [&](Database& database) {
      std::erase_if(binaries,
                    [&](const auto& needed) { return has_image(database, needed.first); });
      std::erase_if(plans, [&](const auto& needed) { return has_plan(database, needed.first); });
    });
  }
  int64_t newest_at = 0;
  if (const Decision* decision = batch.decision) {
    const auto newest = newest_decisions(decision->problem, decision->gpu_class);
    const auto found = newest.find(decision->kind);
    if (found != newest.end()) newest_at = found->second.decision.decided_at;
  }
  const bool written = write([&](Database& database) {
    for (const auto& [key, needed_by] : binaries) {
      if (!has_image(database, key)) {
        fail(Status::store_error, "{} launches binary {}, which is in no layer of the store",
             needed_by, key.hex());
      }
    }
    for (const auto& [id, needed_by] : plans) {
      if (!has_plan(database, id)) {
        fail(Status::store_error, "{} names plan {}, which is in no layer of the store", needed_by,
             id.hex());
      }
    }
    for (size_t i = 0; i < images.size(); ++i)
      write_binary(database, *batch.binaries[i], images[i]);
    for (const auto* plan : batch.plans) write_plan(database, *plan);
    for (const auto* verification : batch.verifications) {
      write_verification(database, *verification);
    }
    for (const auto* timing : batch.timings) write_timing(database, *timing);
    for (const auto* rejection : batch.rejections) write_rejection(database, *rejection);
    if (batch.decision != nullptr) write_decision(database, *batch.decision, newest_at);
  });
  if (written) {
    for (const auto* binary : batch.binaries) damaged_binaries_.erase({top_.get(), binary->key});
  }
  return written;
}

bool LayeredStore::put(const TuningResult& result) {
  const std::lock_guard lock(mutex_);
  return write(Batch{.binaries = pointers(result.binaries),
                     .plans = pointers(result.plans),
                     .verifications = pointers(result.verifications),
                     .timings = pointers(result.timings),
                     .rejections = pointers(result.rejections),
                     .decision = &result.decision});
}

bool LayeredStore::put_binary(const jit::Binary& binary) {
  const std::lock_guard lock(mutex_);
  return write(Batch{.binaries = {&binary}});
}

bool LayeredStore::put_plan(const PlanRecord& plan) {
  const std::lock_guard lock(mutex_);
  return write(Batch{.plans = {&plan}});
}

bool LayeredStore::put_kernels(const std::vector<jit::Binary>& binaries,
                               const std::vector<PlanRecord>& plans) {
  const std::lock_guard lock(mutex_);
  return write(Batch{.binaries = pointers(binaries), .plans = pointers(plans)});
}

bool LayeredStore::put_verification(const Verification& verification) {
  const std::lock_guard lock(mutex_);
  return write(Batch{.verifications = {&verification}});
}

bool LayeredStore::put_timing(const Timing& timing) {
  const std::lock_guard lock(mutex_);
  return write(Batch{.timings = {&timing}});
}

bool LayeredStore::put_rejections(const std::vector<Rejection>& rejections) {
  const std::lock_guard lock(mutex_);
  return write(Batch{.rejections = pointers(rejections)});
}

bool LayeredStore::forget(const Problem& problem, std::string_view gpu_class) {
  const std::lock_guard lock(mutex_);
  return write([&](Database& database) { delete_decisions(database, problem, gpu_class); });
}

bool LayeredStore::hide(const Problem& problem, std::string_view gpu_class,
                        std::string_view reason) {
  const std::lock_guard lock(mutex_);
  return write([&](Database& database) {
    require_problem(problem);
    delete_decisions(database, problem, gpu_class);
    write_decision_tombstone(database, problem, gpu_class, reason);
  });
}

void LayeredStore::make_pack(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Layer> source = top_ ? top_ : layers_.empty() ? nullptr : layers_.front();
  const auto refuse = [&](std::string_view why) {
    fail(Status::store_error, "the pack {} cannot be made: {}", path, why);
  };
  const auto read_source = [&](const Layer::Work& work) {
    try {
      if (source) source->read(work);
    } catch (const SqliteError& error) {
      if (error.is_corruption()) note_damage(*source, error.what(), "so it cannot be packed");
      refuse(error.what());
    } catch (const Unusable& error) {
      refuse(with_remedy(source->path(), error));
    }
  };
  int64_t rows = 0;
  read_source([&](Database& database) {
    rows = database.query_integer(
        "SELECT (SELECT count(*) FROM problems) + (SELECT count(*) FROM binaries)");
  });
  if (rows == 0) {
    fail(Status::store_error, "there is nothing to pack: the store {} is empty", path_);
  }
  constexpr const char* kExists = "the file exists; remove it or give another name";
  if (file_id(path)) refuse(kExists);
  const std::string draft = make_draft(path);
  if (draft.empty()) refuse(std::strerror(errno));
  Published published;
  try {
    read_source([&](Database& database) {
      database.prepare("VACUUM INTO ?").bind(draft).run();
      // Leases and the packs below are matters of the place where the store was.
      Database pack(draft, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX);
      pack.execute("PRAGMA journal_mode = DELETE; DELETE FROM leases; DELETE FROM packs");
    });
    if (::chmod(draft.c_str(), 0644) == 0) {
      published = publish_file(draft, path);
    } else {
      published.error = errno;
    }
  } catch (...) {
    ::unlink(draft.c_str());
    throw;
  }
  ::unlink(draft.c_str());
  if (published.error != 0) {
    refuse(published.error == EEXIST ? kExists : std::strerror(published.error));
  }
  if (published.folder_error != 0) {
    warn("unsynchronised:" + path,
         fmt::format("the pack {} is made, but its folder cannot be synchronised ({}), so a crash "
                     "of the machine may take it away; keep a copy elsewhere",
                     path, std::strerror(published.folder_error)));
  }
}

std::vector<std::string> LayeredStore::check() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> defects;
  for (const std::shared_ptr<Layer>& layer : layers_) {
    const std::string& path = layer->path();
    std::vector<Reference> plans;
    std::vector<Reference> binaries;
    bool is_whole = true;
    try {
      layer->read([&](Database& database) {
        const FileCheck found = check_file(database, path);
        defects.insert(defects.end(), found.defects.begin(), found.defects.end());
        is_whole = found.is_whole;
        plans = referenced_plans(database);
        binaries = referenced_binaries(database);
      });
    } catch (const SqliteError& error) {
      is_whole = is_whole && !error.is_corruption();
      defects.push_back(fmt::format("{} cannot be checked to the end: {}", path, error.what()));
    } catch (const Unusable& error) {
      defects.push_back(with_remedy(path, error));
    }
    if (!is_whole) {
      note_damage(*layer, "its pages do not fit together", "so what it holds may be missed");
    }
    // A layer may use what the layers below it hold, and on this machine also what lies above.
    for (const std::shared_ptr<Layer>& other : layers_) {
      read(*other, [&](Database& database) {
        std::erase_if(plans, [&](const Reference& r) { return has_plan(database, r.target); });
        std::erase_if(binaries, [&](const Reference& r) { return has_image(database, r.target); });
      });
    }
    for (const Reference& reference : plans) {
      defects.push_back(fmt::format("{}: {} names plan {}, which is in no layer", path,
                                    reference.from, reference.target.hex()));
    }
    for (const Reference& reference : binaries) {
      defects.push_back(fmt::format("{}: {} launches binary {}, which is in no layer", path,
                                    reference.from, reference.target.hex()));
    }
  }
  return defects;
}

}  // namespace

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

std::unique_ptr<Store> Store::open(const StoreOptions& options) {
  return std::make_unique<LayeredStore>(options);
}

}  // namespace kiln::cache
