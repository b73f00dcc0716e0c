// One store file as this process has it open: how it is opened for reading or writing, made,
// migrated, put aside when damaged, and shared by everybody in the process who opens the same file
// (a second descriptor would cost SQLite its locks).
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/files.h"
#include "cache/schema.h"
#include "cache/sqlite.h"

namespace kiln::cache {

// What helps when a file cannot serve. Whether it is the store or a pack is known above this
// header, and with it what to type.
enum class Remedy {
  other_file,  // name another file, besides what to_do() says
  replace,  // it is damaged: who opens the store for writing puts it aside; a pack has to come anew
  said,     // nothing besides what to_do() says
};

// Why a file cannot serve: what() is what is wrong, to_do() what to do about it ("" when that is
// the remedy alone). Both without a full stop.
class Unusable : public std::runtime_error {
 public:
  explicit Unusable(const std::string& wrong, std::string to_do = "",
                    Remedy remedy = Remedy::other_file)
      : std::runtime_error(wrong), to_do_(std::move(to_do)), remedy_(remedy) {}
  const std::string& to_do() const { return to_do_; }
  Remedy remedy() const { return remedy_; }

  // "<wrong>; <to do> or <other>", without what is empty.
  std::string sentence(std::string_view other = "") const;

 private:
  std::string to_do_;
  Remedy remedy_;
};

// What helps when a file cannot be written for this reason.
std::string what_helps(const SqliteError& error);

// Brings the file at `path` up to date. Throws Unusable when the steps do not lead there; the file
// is then as it was.
void migrate_store(const std::string& path, Database& database, std::span<const Migration> steps);

class Layer {
 public:
  enum class Access { read_only, read_write };
  using Work = std::function<void(Database&)>;

  // Both throw Unusable, or SqliteError. For writing, a file that does not exist yet is made and
  // one that exists is tried: a store that cannot be written is known now and not after hours of
  // work. Such a one is read only; why_read_only() says the reason. For reading, a file that does
  // not exist is an empty layer. `warnings` takes what happened on the way, for example that a
  // damaged file was put aside.
  static std::shared_ptr<Layer> in_memory();
  static std::shared_ptr<Layer> open(const std::string& path, Access access,
                                     std::vector<std::string>& warnings);
  ~Layer();

  // Runs `work` on the file; does nothing when there is none. A snapshot keeps others from cutting
  // off the log, or from writing at all, so what takes long, or begins a transaction itself, does
  // without.
  enum class Reads { in_one_snapshot, outside_of_transactions };
  void read(const Work& work, Reads reads = Reads::in_one_snapshot);

  // Runs `work` in one transaction, in the file that is at the path now. Makes it if need be. none:
  // throws SqliteError of SQLITE_BUSY at once when another process is writing.
  enum class Patience { usual, none };
  void write(const Work& work, std::vector<std::string>& warnings,
             Patience patience = Patience::usual);

  // Works the log into the file and cuts it off, as far as nobody is in the way.
  void take_in_log();

  // Notes beside the file that it is damaged, so that the next one who opens it for writing looks
  // at all of it and puts it aside. Somebody who only reads adds the note to a side-car that is
  // there and makes none. changed: a file that nobody was to write was written while it was read.
  enum class DamageNote { kept, not_kept, changed };
  DamageNote remember_damaged();

  const std::string& path() const { return path_; }  // ":memory:" for a layer in memory
  bool is_in_memory() const { return path_ == ":memory:"; }
  std::optional<Unusable> why_read_only();  // nothing when it can be written
  bool uses_wal();
  // False once the path was found to name another file than the one that was opened for writing.
  bool has_kept_its_file();

 private:
  struct Opened {
    std::unique_ptr<Database> database;  // null: no file yet
    FileId id;
    FileStamp stamp;
    bool read_only = false;
    std::optional<Unusable> why_read_only;  // of a file that was opened for writing
    bool immutable = false;
    bool wal = false;
    int64_t copied_from_version = 0;  // of a file that is read through a copy brought up to date
  };

  // inherited: a parent process had the file open at a fork, so this process never writes it.
  enum class Origin { own, inherited };
  Layer(std::string path, Origin origin) : path_(std::move(path)), origin_(origin) {}

  static Opened open_for_reading(const std::string& path);
  static Opened open_as_it_is(const std::string& path);
  static Opened open_copy(const std::string& path, Opened older);
  static Opened open_inherited(const std::string& path);
  static Opened open_for_writing(const std::string& path, std::vector<std::string>& warnings);
  static Opened open_unwritable(const std::string& path, std::string_view why,
                                std::string_view to_do);
  static Opened open_or_create(const std::string& path, std::vector<std::string>& warnings);
  static Opened open_current(const std::string& path, std::unique_ptr<SideLock>& lock,
                             std::vector<std::string>& warnings);
  enum class SharedMemory { there, absent };
  static Opened open_current(const std::string& path, std::unique_ptr<SideLock>& lock,
                             SharedMemory memory);
  static Opened replace_damaged(const std::string& path, const FileId& id,
                                std::vector<std::string>& warnings);

  bool names(const std::string& path, const std::optional<FileId>& id);
  void upgrade(std::vector<std::string>& warnings);
  void tell_copied(std::vector<std::string>& warnings) const;
  void tell_inherited(Access access, std::vector<std::string>& warnings);
  void check_process() const;
  // Throws Unusable when somebody has brought the file to another version since it was opened.
  void check_version();
  std::unique_ptr<Transaction> take_snapshot();

  const std::string path_;
  const Origin origin_;
  const pid_t process_ = ::getpid();
  std::mutex mutex_;  // guards what follows
  Opened opened_;
  bool lost_file_ = false;

  friend struct LayerRegistry;
};

}  // namespace kiln::cache
