// Everything the store asks of the file system besides SQLite: what lies at a path, where a file
// may be made, the side-car lock, and putting a damaged file aside. Nothing here throws, except
// where it says so.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace kiln::cache {

// Tells whether a path still names the file that was opened.
struct FileId {
  uint64_t device = 0;
  uint64_t inode = 0;
  auto operator<=>(const FileId&) const = default;
};
std::optional<FileId> file_id(const std::string& path);

// Tells whether a file that is opened as immutable was changed after all.
struct FileStamp {
  FileId id;
  int64_t size_bytes = 0;
  int64_t modified_ns = 0;
  auto operator<=>(const FileStamp&) const = default;
};
FileStamp file_stamp(const std::string& path);

// Absolute, with links followed as far as the path exists.
std::string absolute_path(const std::string& path);

// What lies at a path, from stat, the header, and for a file that does not name itself a store the
// start of its contents. Only for files that no one in this process has open: closing a descriptor
// drops the locks that SQLite holds on the same file.
struct FileHead {
  enum class Kind {
    absent,
    empty,
    sqlite,         // the header of a whole SQLite file, whoever made it
    damaged,        // was a store as far as can be told: put it aside
    other_content,  // was none: leave it alone
    not_a_file,
    unreadable
  } kind = Kind::absent;
  FileId id;
  int32_t application_id = 0;
  int32_t user_version = 0;
  bool is_ours = false;    // says that it is a store, or holds the tables of one
  bool has_magic = false;  // begins as an SQLite file does
  int error = 0;           // errno, when unreadable
};
FileHead read_file_head(const std::string& path);

// Why this process may not write the file or make journals beside it: errno, 0 when it may.
int why_not_writable(const std::string& path);

// Why a file could not be made at this path, or "" when it seems possible. Makes nothing.
std::string why_not_creatable(const std::string& path);

// Both return errno, 0 on success: make the missing folders above a path (0700); make an empty file
// (0600) unless there is one.
int make_parent_folders(const std::string& path);
int create_private_file(const std::string& path);

// "" on a local file system, else its name ("nfs"): write-ahead logs need shared memory, which
// these do not have.
std::string network_file_system(const std::string& path);
std::string network_file_system_name(int64_t statfs_magic);

// Size of <path><suffix>, -1 when there is none. SQLite's side files: "-wal", "-shm", "-journal".
int64_t side_file_bytes(const std::string& path, const std::string& suffix);

// Whether a process has the store open, by the lock that SQLite holds in "-shm" all the while. Only
// for a file that no one in this process has open.
bool is_shared_memory_in_use(const std::string& path);

// Gives a finished file its name and makes both last through a crash. Never replaces a file.
struct Published {
  int error = 0;  // errno, EEXIST for a file that is there; 0: it has its name, the draft is gone
  int folder_error = 0;  // errno: it has its name, but a crash of the machine may take that away
};
enum class PublishWay { rename, link, copy };
inline constexpr PublishWay kPublishWays[] = {PublishWay::rename, PublishWay::link,
                                              PublishWay::copy};  // each where the last one cannot
Published publish_file(const std::string& draft, const std::string& path,
                       std::span<const PublishWay> ways = kPublishWays);

// An empty file (0600) beside `path` that nobody else has, "" with errno when it cannot be made.
std::string make_draft(const std::string& path);

// flock on <path>.lock: who makes, migrates or puts aside a store file holds it. The kernel
// releases it with its holder, and the file is never unlinked, so that everybody locks the same
// one. It also remembers which file was found damaged.
class SideLock {
 public:
  // existing: never makes the file. Waits five seconds at most; `held()` tells how that ended.
  enum class Make { if_absent, existing };
  explicit SideLock(const std::string& store_path, Make make = Make::if_absent);
  SideLock(const SideLock&) = delete;
  ~SideLock();

  bool held() const { return held_; }
  int error() const { return error_; }  // errno, when not held

  bool remember_damaged(const FileId& id);
  void forget_damaged();

 private:
  int descriptor_ = -1;
  bool held_ = false;
  int error_ = 0;
};

// Was this file found damaged by someone who had it open?
bool is_remembered_damaged(const std::string& store_path, const FileId& id);

// Renames the file and its side files to <path>.corrupt-<UTC time>, if the path still names `id`.
// The caller holds the lock. Returns the new path, "" when somebody else was faster, nothing when
// renaming failed.
std::optional<std::string> put_aside(const std::string& path, const FileId& id);

}  // namespace kiln::cache
