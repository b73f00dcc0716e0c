#include "cache/layer.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <new>
#include <thread>
#include <tuple>
#include <utility>

#include "cache/schema.h"
#include "cache/store.h"
#include "jit/base/error.h"

namespace kiln::cache {
namespace {

constexpr int kOpenFlags = SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_URI;

Unusable newer(const std::string& path, int64_t version) {
  return Unusable(
      fmt::format("the store {} was written by a newer Kiln (its schema is version {}, this "
                  "library reads version {}), so it is left alone",
                  path, version, kSchemaVersion),
      "update this installation");
}

Unusable foreign(const std::string& path) {
  return Unusable(fmt::format("{} is a database of another program, so it is left alone", path));
}

Unusable no_way(const std::string& path, std::string_view why) {
  return Unusable(
      fmt::format("the store {} is of an older schema and cannot be brought to version {} ({}), "
                  "so it is left as it is",
                  path, kSchemaVersion, why));
}

Unusable needs_a_writer(const std::string& path, std::string_view wrong) {
  return Unusable(fmt::format("{} {}", path, wrong),
                  fmt::format("open it once for writing (`kiln build --db {}`)", path));
}

// What looks like the leavings of a writer may be the moment in which one comes or goes.
class LeftByAWriter : public Unusable {
 public:
  LeftByAWriter(const std::string& path, std::string_view wrong)
      : Unusable(needs_a_writer(path, wrong)) {}
};
constexpr int kReadAttempts = 20;
constexpr std::chrono::milliseconds kReadPause{5};

// Who had the store open closes it at this moment, and takes its log and shared memory away.
bool is_writers_going(const SqliteError& error) {
  return error.code() == SQLITE_CANTOPEN || error.code() == SQLITE_READONLY;
}

// Throws Unusable for what neither a reader nor a writer may touch.
void refuse_unusable(const std::string& path, const FileHead& head) {
  switch (head.kind) {
    case FileHead::Kind::not_a_file:
      throw Unusable(
          fmt::format("expected a Kiln store at {}, but that is not a regular file", path));
    case FileHead::Kind::unreadable:
      throw Unusable(
          fmt::format("the store {} cannot be read ({})", path, std::strerror(head.error)),
          "make it readable");
    case FileHead::Kind::other_content:
      if (head.has_magic) throw foreign(path);
      throw Unusable(
          fmt::format("expected a Kiln store at {}, but that is not an SQLite file, so it is left "
                      "as it is",
                      path));
    case FileHead::Kind::sqlite:
      // Zero may be our own file, caught in the middle of its first transaction: SQLite sorts that
      // out.
      if (head.application_id != kApplicationId && head.application_id != 0) {
        throw foreign(path);
      }
      if (head.application_id == kApplicationId && head.user_version > kSchemaVersion) {
        throw newer(path, head.user_version);
      }
      return;
    default:
      return;
  }
}

Unusable not_creatable(const std::string& path, std::string_view why, std::string to_do = "") {
  return Unusable(fmt::format("the store {} cannot be created ({})", path, why), std::move(to_do));
}

// A damaged header makes SQLite take the file for one of a format to come.
bool is_damage(const SqliteError& error, const FileHead& head) {
  return error.is_corruption() || (head.is_ours && error.code() == SQLITE_ERROR);
}

// Reads all of the file, so it is for one that was found damaged before. Throws SqliteError when
// something else than the file stands in the way: that says nothing about the file.
bool is_sound(const std::string& path, const FileHead& head) {
  try {
    Database database(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX);
    sqlite3_db_config(database.handle(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
    return classify(database) != FileKind::defective &&
           database.query_text("PRAGMA integrity_check(1)") == "ok";
  } catch (const SqliteError& error) {
    if (is_damage(error, head)) return false;
    throw;
  }
}

// How long a connection waits for another writer, for the length of a scope.
class WaitForOthers {
 public:
  WaitForOthers(Database& database, Layer::Patience patience) : database_(database) {
    if (patience == Layer::Patience::none) sqlite3_busy_timeout(database_.handle(), 0);
  }
  WaitForOthers(const WaitForOthers&) = delete;
  ~WaitForOthers() { sqlite3_busy_timeout(database_.handle(), kBusyTimeoutMs); }

 private:
  Database& database_;
};

// Writes a row, because a transaction without one touches no page and succeeds on a full disk.
// Somebody else who is writing is proof enough. Nothing is written when another file has taken the
// place of the one with this id: SQLite finds the log by its name, and it would be the other's.
void try_to_write(Database& database, const std::string& path, const FileId& id) {
  if (database.is_read_only()) throw SqliteError(SQLITE_READONLY, "it opens for reading only");
  const WaitForOthers wait(database, Layer::Patience::none);
  try {
    Transaction transaction(database);
    if (file_id(path) == id) {
      database.execute("INSERT OR REPLACE INTO meta VALUES ('opened_at', strftime('%s', 'now'))");
      refresh_views(database);
      transaction.commit();
    }
  } catch (const SqliteError& error) {
    if (!error.is_busy()) throw;
  }
}

constexpr size_t kMostPutAside = 3;

// A disk that goes bad and a service that restarts must not fill the folder: of the damaged stores
// put aside here the newest stay. The caller holds the lock. Returns how many went.
size_t drop_oldest_put_aside(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr const char* kSideFiles[] = {"-wal", "-shm", "-journal"};
  const std::string prefix = fs::path(path).filename().string() + ".corrupt-";
  std::vector<std::tuple<std::string, int64_t, std::string>> found;
  std::error_code error;
  for (fs::directory_iterator entry(fs::path(path).parent_path(), error), end;
       !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool is_side_file =
        std::any_of(std::begin(kSideFiles), std::end(kSideFiles),
                    [&](const char* suffix) { return name.ends_with(suffix); });
    if (!name.starts_with(prefix) || is_side_file) continue;
    // A name of the same second may be a used one, given away again: the renaming tells then.
    struct stat status = {};
    if (::stat(entry->path().c_str(), &status) != 0) continue;
    const int64_t renamed_ns =
        int64_t{status.st_ctim.tv_sec} * 1'000'000'000 + status.st_ctim.tv_nsec;
    constexpr size_t kTimeCharacters = 16;  // 20260101T000000Z
    found.push_back(
        {name.substr(prefix.size(), kTimeCharacters), renamed_ns, entry->path().string()});
  }
  if (found.size() <= kMostPutAside) return 0;
  std::sort(found.begin(), found.end());
  found.resize(found.size() - kMostPutAside);
  for (const auto& [when, renamed_ns, file] : found) {
    for (const char* suffix : kSideFiles) ::unlink((file + suffix).c_str());
    ::unlink(file.c_str());
  }
  return found.size();
}

}  // namespace

std::string Unusable::sentence(std::string_view other) const {
  std::string text = what();
  if (!to_do_.empty()) text += "; " + to_do_;
  if (!other.empty()) text += (to_do_.empty() ? "; " : " or ") + std::string(other);
  return text;
}

std::string what_helps(const SqliteError& error) {
  switch (error.code()) {
    case SQLITE_FULL:
      return "make room on the disk";
    case SQLITE_IOERR:
      return "check the disk and its quota";
    default:
      return "make it and its folder writable";
  }
}

// Every file that this process has open. A layer leaves it after its connection is closed, so
// whoever holds the mutex and does not find a file here may open and close descriptors of it.
struct LayerRegistry {
  struct Entry {
    std::weak_ptr<Layer> layer;
    Layer* address;
  };

  std::mutex mutex;
  std::condition_variable closed;
  pid_t process = ::getpid();
  std::vector<Entry> entries;
  // Files that a parent process had open at a fork. SQLite's lists of this process still hold them,
  // with locks that only the parent has: a connection made through these lists would take none.
  std::vector<FileId> inherited;

  static LayerRegistry& instance() {
    static auto* registry = [] {
      auto* made = new LayerRegistry;  // outlives every static that may hold a store
      ::pthread_atfork([] { instance().before_fork(); }, [] { instance().after_fork_in_parent(); },
                       [] { instance().after_fork_in_child(); });
      return made;
    }();
    return *registry;
  }

  // A fork waits for whoever works on a layer: SQLite's own locks, held at the fork by a thread
  // that the child does not have, would never be given back there. A layer that is listed is
  // alive, because it is deleted under the mutex.
  void before_fork() {
    mutex.lock();
    for (const Entry& entry : entries) entry.address->mutex_.lock();
  }

  void after_fork_in_parent() {
    for (const Entry& entry : entries) entry.address->mutex_.unlock();
    mutex.unlock();
  }

  void after_fork_in_child() {
    for (const Entry& entry : entries) entry.address->mutex_.unlock();
    new (&closed) std::condition_variable;  // those who waited are not in this process
    forget_after_fork();
    mutex.unlock();
  }

  // After a fork the parent's connections are of no use, and closing them here could damage the
  // parent's file.
  void forget_after_fork() {
    if (process == ::getpid()) return;
    for (const Entry& entry : entries) {
      // An immutable connection has neither locks nor shared memory that could be taken over.
      const Layer::Opened& opened = entry.address->opened_;
      if (opened.database && !opened.immutable) inherited.push_back(opened.id);
    }
    entries.clear();
    process = ::getpid();
  }

  Layer::Origin origin_of(const std::optional<FileId>& id) const {
    const bool is_inherited =
        id && std::find(inherited.begin(), inherited.end(), *id) != inherited.end();
    return is_inherited ? Layer::Origin::inherited : Layer::Origin::own;
  }

  void close(Layer* layer) {
    const std::lock_guard lock(mutex);
    forget_after_fork();
    delete layer;
    std::erase_if(entries, [&](const Entry& entry) { return entry.address == layer; });
    closed.notify_all();
  }

  std::shared_ptr<Layer> open(const std::string& path, Layer::Access access,
                              std::vector<std::string>& warnings) {
    std::vector<std::shared_ptr<Layer>> looked_at;  // must not be released under the mutex
    std::unique_lock lock(mutex);
    forget_after_fork();
    for (;;) {
      bool closing = false;
      const std::optional<FileId> id = file_id(path);
      for (const Entry& entry : entries) {
        std::shared_ptr<Layer> layer = entry.layer.lock();
        if (!layer) {
          closing = true;
          continue;
        }
        looked_at.push_back(layer);
        if (!layer->names(path, id)) continue;
        if (layer->origin_ == Layer::Origin::inherited) {
          layer->tell_inherited(access, warnings);
        } else if (access == Layer::Access::read_write) {
          layer->upgrade(warnings);
        }
        return layer;
      }
      if (!closing) break;
      closed.wait(lock);  // some layer is about to close its file
    }
    std::unique_ptr<Layer> layer(new Layer(path, origin_of(file_id(path))));
    if (layer->origin_ == Layer::Origin::inherited) {
      layer->opened_ = Layer::open_inherited(path);
      layer->tell_inherited(access, warnings);
    } else if (access == Layer::Access::read_write) {
      layer->opened_ = Layer::open_for_writing(path, warnings);
    } else {
      layer->opened_ = Layer::open_for_reading(path);
      layer->tell_copied(warnings);
    }
    return enter(std::move(layer));
  }

  std::shared_ptr<Layer> open_in_memory() {
    const std::lock_guard lock(mutex);
    forget_after_fork();
    std::unique_ptr<Layer> layer(new Layer(":memory:", Layer::Origin::own));
    layer->opened_.database = std::make_unique<Database>(
        ":memory:", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | kOpenFlags);
    Transaction transaction(*layer->opened_.database);
    create_schema(*layer->opened_.database);
    transaction.commit();
    return enter(std::move(layer));
  }

  // Expects the mutex.
  std::shared_ptr<Layer> enter(std::unique_ptr<Layer> layer) {
    Layer* address = layer.get();
    entries.push_back({{}, address});
    std::shared_ptr<Layer> shared(layer.release(), [](Layer* l) { instance().close(l); });
    entries.back().layer = shared;
    return shared;
  }
};

namespace {
// Made before main(): a fork in the middle of making it would leave the child a guard that nobody
// opens.
[[maybe_unused]] const LayerRegistry& made_at_load = LayerRegistry::instance();
}  // namespace

void migrate_store(const std::string& path, Database& database, std::span<const Migration> steps) {
  try {
    migrate(database, steps);
  } catch (const Error& error) {
    throw no_way(path, error.what());
  } catch (const SqliteError& error) {
    if (error.code() != SQLITE_ERROR) throw;
    // The step is wrong for this file; that does not make the file a damaged one.
    throw no_way(path, error.what());
  }
}

std::shared_ptr<Layer> Layer::in_memory() { return LayerRegistry::instance().open_in_memory(); }

std::shared_ptr<Layer> Layer::open(const std::string& path, Access access,
                                   std::vector<std::string>& warnings) {
  return LayerRegistry::instance().open(absolute_path(path), access, warnings);
}

Layer::~Layer() {
  // A forked child must not run SQLite's close on the parent's file.
  if (process_ != ::getpid()) static_cast<void>(opened_.database.release());
}

void Layer::check_process() const {
  if (process_ != ::getpid()) {
    throw Unusable(fmt::format("the store {} was opened before a fork", path_),
                   "open it again in the child process", Remedy::said);
  }
}

void Layer::check_version() {
  if (is_in_memory()) return;
  const int64_t version = opened_.database->query_integer("PRAGMA user_version");
  if (version == kSchemaVersion) return;
  throw Unusable(
      fmt::format("the store {} was brought to schema version {} while it was open (this library "
                  "reads version {}), so it is left alone from here on",
                  path_, version, kSchemaVersion),
      version > kSchemaVersion ? "update this installation" : "open it again");
}

bool Layer::names(const std::string& path, const std::optional<FileId>& id) {
  if (path == path_) return true;
  const std::lock_guard lock(mutex_);
  return opened_.database != nullptr && id == opened_.id;
}

std::optional<Unusable> Layer::why_read_only() {
  const std::lock_guard lock(mutex_);
  if (!opened_.read_only) return std::nullopt;
  if (opened_.why_read_only) return opened_.why_read_only;
  return Unusable(fmt::format("the store {} is open for reading only", path_));
}

bool Layer::uses_wal() {
  const std::lock_guard lock(mutex_);
  return opened_.wal;
}

bool Layer::has_kept_its_file() {
  const std::lock_guard lock(mutex_);
  if (is_in_memory() || !opened_.database || opened_.read_only) return !lost_file_;
  return !lost_file_ && file_id(path_) == opened_.id;
}

void Layer::upgrade(std::vector<std::string>& warnings) {
  const std::lock_guard lock(mutex_);
  if (opened_.database != nullptr && !opened_.read_only) return;
  opened_ = {};
  try {
    opened_ = open_for_writing(path_, warnings);
  } catch (...) {
    opened_ = open_for_reading(path_);  // as it was before
    throw;
  }
}

void Layer::read(const Work& work, Reads reads) {
  const std::lock_guard lock(mutex_);
  check_process();
  if (opened_.immutable && file_stamp(path_) != opened_.stamp) {
    // Someone writes to it after all; pages read before and after would not fit together.
    opened_ = {};
    opened_ = origin_ == Origin::inherited ? open_inherited(path_) : open_for_reading(path_);
  }
  std::unique_ptr<Transaction> snapshot = take_snapshot();
  if (!opened_.database) return;
  // One lock for all that is read, where each statement would take and return one.
  const bool is_locked = !opened_.immutable && !is_in_memory();
  if (!snapshot && is_locked && reads == Reads::in_one_snapshot)
    snapshot = std::make_unique<Transaction>(*opened_.database, Transaction::Kind::read);
  check_version();
  if (reads == Reads::outside_of_transactions) snapshot.reset();
  try {
    work(*opened_.database);
  } catch (const SqliteError& error) {
    // Outside of a snapshot the tables may have become others since.
    if (error.code() == SQLITE_ERROR && !snapshot) check_version();
    throw;
  }
}

// Of a file beside which a writer may come and go. The snapshot is taken before anything is read,
// because that is what its going can break; then it stays. None for any other file.
std::unique_ptr<Transaction> Layer::take_snapshot() {
  for (int attempt = 1; opened_.database && opened_.read_only && !opened_.immutable; ++attempt) {
    try {
      auto snapshot = std::make_unique<Transaction>(*opened_.database, Transaction::Kind::read);
      opened_.database->query_integer("SELECT count(*) FROM meta");
      return snapshot;
    } catch (const SqliteError& error) {
      if (!is_writers_going(error) || attempt == kReadAttempts) throw;
    }
    std::this_thread::sleep_for(kReadPause);
    opened_ = {};
    opened_ = open_for_reading(path_);
  }
  return nullptr;
}

void Layer::write(const Work& work, std::vector<std::string>& warnings, Patience patience) {
  const std::lock_guard lock(mutex_);
  check_process();
  constexpr int kAttempts = 3;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (!opened_.database) opened_ = open_or_create(path_, warnings);
    {
      const WaitForOthers wait(*opened_.database, patience);
      Transaction transaction(*opened_.database);
      // A file that was removed or put aside meanwhile would swallow the write.
      if (is_in_memory() || file_id(path_) == opened_.id) {
        check_version();
        work(*opened_.database);
        transaction.commit();
        return;
      }
    }
    lost_file_ = true;
    opened_ = {};
  }
  throw Unusable(fmt::format("the store {} is replaced again and again", path_),
                 "keep other programs off it", Remedy::said);
}

void Layer::take_in_log() {
  const std::lock_guard lock(mutex_);
  check_process();
  if (!opened_.database || opened_.read_only || !opened_.wal) return;
  const WaitForOthers wait(*opened_.database, Patience::none);
  opened_.database->query_integer("PRAGMA wal_checkpoint(TRUNCATE)");  // a row says whether it did
}

Layer::DamageNote Layer::remember_damaged() {
  const std::lock_guard lock(mutex_);
  if (is_in_memory() || !opened_.database) return DamageNote::not_kept;
  if (opened_.immutable && file_stamp(path_) != opened_.stamp) return DamageNote::changed;
  const auto make = opened_.read_only ? SideLock::Make::existing : SideLock::Make::if_absent;
  return SideLock(path_, make).remember_damaged(opened_.id) ? DamageNote::kept
                                                            : DamageNote::not_kept;
}

Layer::Opened Layer::open_for_reading(const std::string& path) {
  for (int attempt = 1;; ++attempt) {
    try {
      return open_as_it_is(path);
    } catch (const SqliteError& error) {
      if (!is_writers_going(error) || attempt == kReadAttempts || !file_id(path)) throw;
    } catch (const LeftByAWriter&) {
      if (attempt == kReadAttempts) throw;
    }
    std::this_thread::sleep_for(kReadPause);
  }
}

Layer::Opened Layer::open_as_it_is(const std::string& path) {
  const FileStamp stamp = file_stamp(path);
  const FileHead head = read_file_head(path);
  refuse_unusable(path, head);
  Opened opened{.id = head.id, .stamp = stamp, .read_only = true};
  if (head.kind == FileHead::Kind::absent || head.kind == FileHead::Kind::empty) return opened;
  if (head.kind == FileHead::Kind::damaged) {
    throw Unusable(fmt::format("the store {} is damaged", path), "", Remedy::replace);
  }

  // Nothing may be made beside the file, so a log is read with the shared memory of its writer or
  // not at all.
  constexpr int64_t kLogHeaderBytes = 32;
  const bool has_log = side_file_bytes(path, "-wal") > kLogHeaderBytes;
  // What a writer that was killed left there is of no use without a log.
  const bool has_shared_memory =
      side_file_bytes(path, "-shm") >= 0 && (has_log || is_shared_memory_in_use(path));
  const bool has_journal = side_file_bytes(path, "-journal") > 0;
  if (has_log && !has_shared_memory) {
    throw LeftByAWriter(path,
                        "has the write-ahead log of its last writer beside it, which only a "
                        "writer can take in");
  }
  const bool has_writer = has_shared_memory || has_journal;
  opened.immutable = !has_writer;
  opened.wal = has_shared_memory;
  opened.database = std::make_unique<Database>(
      file_uri(path, has_writer ? "mode=ro&readonly_shm=1" : "mode=ro&immutable=1"),
      SQLITE_OPEN_READONLY | kOpenFlags);
  sqlite3_db_config(opened.database->handle(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  FileKind kind = FileKind::current;
  try {
    kind = classify(*opened.database);
  } catch (const SqliteError& error) {
    if (error.code() != SQLITE_READONLY || !has_journal) throw;
    throw LeftByAWriter(path,
                        "has the journal of a writer that was ended beside it, which only a writer "
                        "can roll back");
  }
  switch (kind) {
    case FileKind::current:
      return opened;
    case FileKind::fresh:
      opened.database.reset();
      return opened;
    case FileKind::older:
      return open_copy(path, std::move(opened));
    case FileKind::newer:
      throw newer(path, opened.database->query_integer("PRAGMA user_version"));
    case FileKind::foreign:
      throw foreign(path);
    case FileKind::defective:
      throw Unusable(fmt::format("the tables of the store {} are damaged", path), "",
                     Remedy::replace);
  }
  return opened;
}

// Of an older file that nobody here may change, a pack on a read-only mount for example: what is
// read is a copy in memory, brought up to date there.
Layer::Opened Layer::open_copy(const std::string& path, Opened older) {
  constexpr int64_t kMostCopiedBytes = int64_t{512} << 20;
  if (!older.immutable || older.stamp.size_bytes > kMostCopiedBytes) {
    throw needs_a_writer(path, "is of an older schema, which only a writer can bring up to date");
  }
  auto copy = std::make_unique<Database>(":memory:",
                                         SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | kOpenFlags);
  sqlite3_backup* backup =
      sqlite3_backup_init(copy->handle(), "main", older.database->handle(), "main");
  if (backup == nullptr) copy->fail(sqlite3_extended_errcode(copy->handle()));
  constexpr int kAllPages = -1;
  const int stepped = sqlite3_backup_step(backup, kAllPages);
  sqlite3_backup_finish(backup);
  if (stepped != SQLITE_DONE) copy->fail(stepped);
  older.copied_from_version = copy->query_integer("PRAGMA user_version");
  migrate_store(path, *copy, schema_migrations());
  if (classify(*copy) != FileKind::current) throw no_way(path, "no step leads there");
  older.database = std::move(copy);
  return older;
}

void Layer::tell_copied(std::vector<std::string>& warnings) const {
  if (opened_.copied_from_version == 0) return;
  warnings.push_back(
      fmt::format("{} is of schema version {}, so it is read through a copy in memory that is "
                  "brought to version {}; open it once for writing (`kiln build --db {}`), or get "
                  "this pack anew",
                  path_, opened_.copied_from_version, kSchemaVersion, path_));
}

// Reads what the file itself holds, without SQLite's lists of open files (unix-none) and without
// the log beside it.
Layer::Opened Layer::open_inherited(const std::string& path) {
  Opened opened{.stamp = file_stamp(path), .read_only = true, .immutable = true};
  opened.id = opened.stamp.id;
  opened.database = std::make_unique<Database>(file_uri(path, "mode=ro&immutable=1&vfs=unix-none"),
                                               SQLITE_OPEN_READONLY | kOpenFlags);
  if (classify(*opened.database) != FileKind::current) opened.database.reset();
  return opened;
}

void Layer::tell_inherited(Access access, std::vector<std::string>& warnings) {
  const Unusable told(
      fmt::format("this process was forked while its parent had the store {} open, so it only "
                  "reads what was in the file itself",
                  path_),
      "close the store before the fork");
  if (access == Access::read_write) {
    const std::lock_guard lock(mutex_);
    opened_.why_read_only = told;
    return;
  }
  // Nothing is missed by a reader of a file that nobody writes, for example a pack.
  const bool has_log =
      side_file_bytes(path_, "-wal") >= 0 || side_file_bytes(path_, "-journal") >= 0;
  if (has_log) warnings.push_back(told.sentence());
}

// What may still be read of a file that cannot be written.
Layer::Opened Layer::open_unwritable(const std::string& path, std::string_view why,
                                     std::string_view to_do) {
  Opened opened = open_for_reading(path);
  opened.why_read_only =
      Unusable(fmt::format("the store {} cannot be written ({})", path, why), std::string(to_do));
  return opened;
}

Layer::Opened Layer::open_for_writing(const std::string& path, std::vector<std::string>& warnings) {
  const FileHead head = read_file_head(path);
  refuse_unusable(path, head);
  if (head.kind == FileHead::Kind::absent) {
    if (const std::string why = why_not_creatable(path); !why.empty())
      throw not_creatable(path, why);
    return open_or_create(path, warnings);
  }
  if (const int error = why_not_writable(path); error != 0) {
    // Somebody has just put it aside and is about to make the new one.
    if (error == ENOENT) return open_or_create(path, warnings);
    return open_unwritable(path, std::strerror(error), "make it and its folder writable");
  }
  if (head.kind == FileHead::Kind::empty) return open_or_create(path, warnings);
  // With a log beside it the file may yet be made whole; SQLite decides then.
  const bool has_log = side_file_bytes(path, "-wal") > 0 || side_file_bytes(path, "-journal") > 0;
  try {
    if (is_remembered_damaged(path, head.id)) {
      if (!is_sound(path, head)) return replace_damaged(path, head.id, warnings);
      // What was read wrong once reads right now: the file was mended, or the fault was not in it.
      SideLock(path).forget_damaged();
    }
    if (head.kind == FileHead::Kind::damaged && !has_log) {
      return replace_damaged(path, head.id, warnings);
    }
    std::unique_ptr<SideLock> lock;
    return open_current(path, lock, warnings);
  } catch (const SqliteError& error) {
    if (error.is_unwritable()) return open_unwritable(path, error.what(), what_helps(error));
    if (!is_damage(error, head)) {
      throw Unusable(fmt::format("the store {} cannot be opened: {}", path, error.what()));
    }
    if (!head.is_ours && head.kind != FileHead::Kind::damaged) {
      throw Unusable(
          fmt::format("{} is a damaged database, and nothing in it tells that it is a "
                      "Kiln store, so it is left alone",
                      path));
    }
  }
  return replace_damaged(path, head.id, warnings);
}

Layer::Opened Layer::open_or_create(const std::string& path, std::vector<std::string>& warnings) {
  if (const int error = make_parent_folders(path); error != 0) {
    throw not_creatable(path, std::strerror(error));
  }
  {
    auto lock = std::make_unique<SideLock>(path);
    if (!lock->held()) throw not_creatable(path, std::strerror(lock->error()));
    const FileHead head = read_file_head(path);
    if (head.kind == FileHead::Kind::absent || head.kind == FileHead::Kind::empty) {
      if (const int error = create_private_file(path); error != 0) {
        throw not_creatable(path, std::strerror(error));
      }
      try {
        return open_current(path, lock, warnings);
      } catch (const SqliteError& error) {
        throw not_creatable(path, error.what(), error.is_unwritable() ? what_helps(error) : "");
      }
    }
  }
  Opened opened = open_for_writing(path, warnings);  // somebody else has made it
  if (opened.why_read_only) throw *opened.why_read_only;
  return opened;
}

// Opens a file that exists, makes its tables if it has none and brings it up to date if it is
// older. Throws SqliteError of SQLITE_CORRUPT for a damaged file.
Layer::Opened Layer::open_current(const std::string& path, std::unique_ptr<SideLock>& lock,
                                  std::vector<std::string>& warnings) {
  if (!network_file_system(path).empty()) return open_current(path, lock, SharedMemory::absent);
  try {
    return open_current(path, lock, SharedMemory::there);
  } catch (const SqliteError& error) {
    if (!error.may_lack_shared_memory()) throw;
    Opened opened;
    try {
      opened = open_current(path, lock, SharedMemory::absent);
    } catch (const SqliteError&) {
      throw SqliteError(error);  // something else was the matter
    }
    warnings.push_back(
        fmt::format("the store {} has no write-ahead log, because there is no shared memory beside "
                    "it ({}), so whoever writes and whoever reads wait for each other; name a file "
                    "on another disk with KILN_DB or --db",
                    path, error.what()));
    return opened;
  }
}

Layer::Opened Layer::open_current(const std::string& path, std::unique_ptr<SideLock>& lock,
                                  SharedMemory memory) {
  Opened opened;
  opened.id = file_id(path).value_or(FileId{});
  opened.database = std::make_unique<Database>(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX);
  Database& database = *opened.database;
  // Until the file is known to be sound, closing it must not work the log into it.
  sqlite3_db_config(database.handle(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  database.execute("PRAGMA cell_size_check = ON");
  // Without shared memory between processes a log can be read in exclusive mode only.
  if (memory == SharedMemory::absent) database.execute("PRAGMA locking_mode = EXCLUSIVE");

  FileKind kind = classify(database);
  if (kind == FileKind::fresh || kind == FileKind::older) {
    if (!lock) lock = std::make_unique<SideLock>(path);
    if (!lock->held()) {
      throw Unusable(fmt::format("another process keeps {}.lock locked", path), "end that process");
    }
    kind = classify(database);
  }
  if (kind == FileKind::fresh) {
    database.execute("PRAGMA auto_vacuum = INCREMENTAL");
    Transaction transaction(database);
    create_schema(database);
    transaction.commit();
    kind = FileKind::current;
  } else if (kind == FileKind::older) {
    migrate_store(path, database, schema_migrations());
    kind = classify(database);
    if (kind == FileKind::older) throw no_way(path, "no step leads there");
  }
  if (kind == FileKind::foreign) throw foreign(path);
  if (kind == FileKind::newer) throw newer(path, database.query_integer("PRAGMA user_version"));
  if (kind != FileKind::current) {
    throw SqliteError(SQLITE_CORRUPT,
                      fmt::format("the tables of {} are not those of a store", path));
  }

  sqlite3_db_config(database.handle(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, nullptr);

  try {
    const char* wanted = memory == SharedMemory::there ? "PRAGMA journal_mode = WAL"
                                                       : "PRAGMA journal_mode = DELETE";
    opened.wal = database.query_text(wanted) == "wal";
  } catch (const SqliteError& error) {
    if (!error.is_busy()) throw;  // busy: another process is using the mode that the file has
    opened.wal = database.query_text("PRAGMA journal_mode") == "wal";
  }
  // A log that is synchronised at checkpoints keeps the file whole; a crash of the machine may cost
  // the last results.
  database.execute(opened.wal ? "PRAGMA synchronous = NORMAL" : "PRAGMA synchronous = FULL");
  if (memory == SharedMemory::absent) {
    database.execute("PRAGMA locking_mode = NORMAL");
    database.query_integer("SELECT count(*) FROM meta");  // the lock is given back by the next read
  }
  try_to_write(database, path, opened.id);
  return opened;
}

Layer::Opened Layer::replace_damaged(const std::string& path, const FileId& id,
                                     std::vector<std::string>& warnings) {
  auto lock = std::make_unique<SideLock>(path);
  const auto cannot = [&](int error) {
    return Unusable(fmt::format("the store {} is damaged and cannot be put aside ({})", path,
                                std::strerror(error)),
                    "move it away");
  };
  if (!lock->held()) throw cannot(lock->error());
  const std::optional<std::string> aside = put_aside(path, id);
  if (!aside) throw cannot(errno);
  if (!aside->empty()) {
    lock->forget_damaged();
    const size_t dropped = drop_oldest_put_aside(path);
    warnings.push_back(fmt::format(
        "the store {} was damaged; it was put aside as {} and a new one was started, so what it "
        "held has to be tuned again{}",
        path, *aside,
        dropped == 0 ? ""
                     : fmt::format("; older ones went ({}), because only the newest {} are kept: "
                                   "check the disk",
                                   dropped, kMostPutAside)));
  }
  if (const int error = create_private_file(path); error != 0) throw cannot(error);
  try {
    return open_current(path, lock, warnings);
  } catch (const SqliteError& error) {
    throw Unusable(fmt::format("the store {} cannot be made anew ({})", path, error.what()),
                   error.is_unwritable() ? what_helps(error) : "");
  }
}

}  // namespace kiln::cache
