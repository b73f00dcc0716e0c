// One store file as this process has it open: how it is opened for reading or writing, made,
// migrated, put aside when damaged, and shared by everybody in the process who opens the same file
// (a second descriptor would cost SQLite its locks).
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cache/files.h"
#include "cache/schema.h"
#include "cache/sqlite.h"

namespace kiln::cache {

// Why a file cannot serve, as a full sentence.
class Unusable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Brings the file at `path` up to date. Throws Unusable when the steps do not lead there; the file
// is then as it was.
void migrate_store(const std::string& path, Database& database, std::span<const Migration> steps);

class Layer {
 public:
  enum class Access { read_only, read_write };
  using Work = std::function<void(Database&)>;

  // Both throw Unusable, or SqliteError. A file that does not exist yet is an empty layer; the
  // first write makes it. `warnings` takes what happened on the way, for example that a damaged
  // file was put aside.
  static std::shared_ptr<Layer> in_memory();
  static std::shared_ptr<Layer> open(const std::string& path, Access access,
                                     std::vector<std::string>& warnings);
  ~Layer();

  // Runs `work` on the file. Does nothing when there is no file.
  void read(const Work& work);

  // Runs `work` in one transaction, in the file that is at the path now. Makes it if need be.
  void write(const Work& work, std::vector<std::string>& warnings);

  // Notes beside the file that it is damaged: the next one who opens it for writing puts it aside.
  void remember_damaged();

  const std::string& path() const { return path_; }  // ":memory:" for a layer in memory
  bool is_in_memory() const { return path_ == ":memory:"; }
  bool is_read_only();
  bool uses_wal();
  bool exists();  // false: no file yet

 private:
  struct Opened {
    std::unique_ptr<Database> database;  // null: no file yet
    FileId id;
    FileStamp stamp;
    bool read_only = false;
    bool immutable = false;
    bool wal = false;
  };

  // inherited: a parent process had the file open at a fork, so this process never writes it.
  enum class Origin { own, inherited };
  Layer(std::string path, Origin origin) : path_(std::move(path)), origin_(origin) {}

  static Opened open_for_reading(const std::string& path);
  static Opened open_inherited(const std::string& path);
  static Opened open_for_writing(const std::string& path, std::vector<std::string>& warnings);
  static Opened open_or_create(const std::string& path, std::vector<std::string>& warnings);
  static Opened open_current(const std::string& path, std::unique_ptr<SideLock>& lock);
  static Opened replace_damaged(const std::string& path, const FileId& id,
                                std::vector<std::string>& warnings);

  bool names(const std::string& path, const std::optional<FileId>& id);
  void upgrade(std::vector<std::string>& warnings);
  void warn_inherited(Access access, std::vector<std::string>& warnings);
  void check_process() const;

  const std::string path_;
  const Origin origin_;
  const pid_t process_ = ::getpid();
  std::mutex mutex_;  // guards what follows
  Opened opened_;

  friend struct LayerRegistry;
};

}  // namespace kiln::cache
