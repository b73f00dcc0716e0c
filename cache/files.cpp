#include "cache/files.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string_view>
#include <thread>
#include <vector>

#include "cache/schema.h"
#include "jit/base/file_descriptor.h"

namespace kiln::cache {
namespace {

namespace fs = std::filesystem;

constexpr auto kLockDeadline = std::chrono::seconds(5);
constexpr auto kLockRetry = std::chrono::milliseconds(10);
constexpr std::string_view kSqliteMagic("SQLite format 3\0", 16);

FileId id_of(const struct stat& status) { return {status.st_dev, status.st_ino}; }

int32_t big_endian(const unsigned char* bytes) {
  return static_cast<int32_t>(uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 |
                              uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]});
}

using Header = std::array<unsigned char, 100>;

// How sqlite_schema stores the type, name and table of two of our tables: no text file has these
// words without a gap, and they outlive a damaged header.
constexpr std::string_view kTableRecords[] = {"tableproblemsproblems", "tabledecisionsdecisions"};
constexpr size_t kSchemaBytes = size_t{1} << 20;  // the schema is written first, so it lies in here

bool holds_kiln_tables(int file) {
  std::string start(kSchemaBytes, '\0');
  const ssize_t got = ::pread(file, start.data(), start.size(), 0);
  if (got <= 0) return false;
  start.resize(static_cast<size_t>(got));
  return std::all_of(std::begin(kTableRecords), std::end(kTableRecords),
                     [&](std::string_view record) { return start.find(record) != start.npos; });
}

// The magic, and the two bytes that say how the file is written and read: 1 rollback journal, 2
// write-ahead log.
bool is_sqlite_header(const Header& header) {
  const auto is_known_version = [](unsigned char byte) { return byte == 1 || byte == 2; };
  return std::memcmp(header.data(), kSqliteMagic.data(), kSqliteMagic.size()) == 0 &&
         is_known_version(header[18]) && is_known_version(header[19]);
}

int64_t page_bytes(const Header& header) {
  const int64_t bytes = header[16] << 8 | header[17];
  return bytes <= 1 ? 65536 : bytes;  // 65536 does not fit and is written as 1
}

std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// By the effective user, unlike access(); errno says why not.
bool may(const std::string& path, int mode) {
  return ::faccessat(AT_FDCWD, path.c_str(), mode, AT_EACCESS) == 0;
}

std::string damaged_note(const FileId& id) {
  return fmt::format("damaged {} {}\n", id.device, id.inode);
}

std::string lock_path(const std::string& store_path) { return store_path + ".lock"; }

}  // namespace

std::optional<FileId> file_id(const std::string& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return id_of(status);
}

FileStamp file_stamp(const std::string& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) return {};
  return {id_of(status), status.st_size,
          int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

std::string absolute_path(const std::string& path) {
  std::error_code error;
  fs::path absolute = fs::absolute(path, error);
  if (error) return path;
  const fs::path canonical = fs::weakly_canonical(absolute, error);
  return error ? absolute.lexically_normal().string() : canonical.string();
}

namespace {

// `got` bytes of the header were there.
void read_header(const Header& bytes, ssize_t got, int64_t file_bytes, int file, FileHead& head) {
  constexpr ssize_t kIdEnd = 72;
  constexpr int64_t kSmallestPage = 512;
  head.has_magic = std::memcmp(bytes.data(), kSqliteMagic.data(), kSqliteMagic.size()) == 0;
  head.user_version = big_endian(&bytes[60]);
  head.application_id = big_endian(&bytes[68]);
  const bool has_id =
      head.application_id == kApplicationId && (head.has_magic || file_bytes % kSmallestPage == 0);
  head.is_ours = has_id || holds_kiln_tables(file);
  const bool is_whole = got == static_cast<ssize_t>(bytes.size()) && is_sqlite_header(bytes) &&
                        file_bytes % page_bytes(bytes) == 0;
  // Cut off before it names its program: nobody else's file is looked for at this path.
  const bool is_stump = head.has_magic && got < kIdEnd;
  head.kind = is_whole                   ? FileHead::Kind::sqlite
              : head.is_ours || is_stump ? FileHead::Kind::damaged
                                         : FileHead::Kind::other_content;
}

}  // namespace

FileHead read_file_head(const std::string& path) {
  FileHead head;
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return head;
    head.kind = FileHead::Kind::unreadable;
    head.error = errno;
    return head;
  }
  head.id = id_of(status);
  if (!S_ISREG(status.st_mode)) {  // opening a pipe would wait for its other end
    head.kind = FileHead::Kind::not_a_file;
    return head;
  }
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0 && errno == ENOENT) return FileHead{};  // gone since the line above
  Header bytes{};
  const ssize_t got = file.get() < 0 ? -1 : ::pread(file.get(), bytes.data(), bytes.size(), 0);
  if (got < 0) {
    head.kind = FileHead::Kind::unreadable;
    head.error = errno;
  } else if (got == 0) {
    head.kind = FileHead::Kind::empty;
  } else {
    read_header(bytes, got, status.st_size, file.get(), head);
  }
  return head;
}

int why_not_writable(const std::string& path) {
  return may(path, R_OK | W_OK) && may(parent_of(path), W_OK | X_OK) ? 0 : errno;
}

std::string why_not_creatable(const std::string& path) {
  struct stat file;
  // Links in a circle, or a name that is too long; what the folders lack is found below.
  if (::stat(path.c_str(), &file) != 0 && errno != ENOENT && errno != ENOTDIR) {
    return std::strerror(errno);
  }
  // The nearest folder that exists decides.
  for (std::string folder = parent_of(path);; folder = parent_of(folder)) {
    struct stat status;
    if (::stat(folder.c_str(), &status) == 0) {
      if (!S_ISDIR(status.st_mode)) return fmt::format("{} is not a folder", folder);
      if (!may(folder, W_OK | X_OK)) {
        return fmt::format("folder {}: {}", folder, std::strerror(errno));
      }
      return "";
    }
    if (errno != ENOENT) return fmt::format("folder {}: {}", folder, std::strerror(errno));
    if (folder == parent_of(folder)) return fmt::format("folder {} does not exist", folder);
  }
}

int make_parent_folders(const std::string& path) {
  std::vector<std::string> missing;
  for (std::string folder = parent_of(path); ::access(folder.c_str(), F_OK) != 0;
       folder = parent_of(folder)) {
    if (errno != ENOENT || folder == parent_of(folder)) break;
    missing.push_back(folder);
  }
  for (auto folder = missing.rbegin(); folder != missing.rend(); ++folder) {
    if (::mkdir(folder->c_str(), 0700) != 0 && errno != EEXIST) return errno;
  }
  return 0;
}

int create_private_file(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  return file.get() < 0 && errno != EEXIST ? errno : 0;
}

std::string network_file_system_name(int64_t statfs_magic) {
  switch (static_cast<uint32_t>(statfs_magic)) {
    case 0x00006969:
      return "nfs";
    case 0x0000517b:
      return "smb";
    case 0xff534d42:
      return "cifs";
    case 0xfe534d42:
      return "smb2";
    case 0x0000564c:
      return "ncp";
    case 0x65735546:
      return "fuse";
    case 0x0bd00bd0:
      return "lustre";
    case 0x47504653:
      return "gpfs";
    case 0x19830326:
      return "beegfs";
    case 0x20030528:
      return "pvfs2";
    case 0x00c36400:
      return "ceph";
    case 0x5346414f:
    case 0x6b414653:
      return "afs";
    case 0x73757245:
      return "coda";
    case 0x01021997:
      return "9p";
    case 0x01161970:
      return "gfs2";
    case 0x7461636f:
      return "ocfs2";
    case 0x786f4256:
      return "vboxsf";
    case 0xaad7aaea:
      return "panfs";
    default:
      return "";
  }
}

std::string network_file_system(const std::string& path) {
  struct statfs status;
  if (::statfs(parent_of(path).c_str(), &status) != 0) return "";
  return network_file_system_name(static_cast<int64_t>(status.f_type));
}

int64_t side_file_bytes(const std::string& path, const std::string& suffix) {
  struct stat status;
  return ::stat((path + suffix).c_str(), &status) == 0 ? static_cast<int64_t>(status.st_size) : -1;
}

bool is_shared_memory_in_use(const std::string& path) {
  constexpr off_t kInUse = 128;  // "dead man switch" of SQLite's file format
  const FileDescriptor file(::open((path + "-shm").c_str(), O_RDONLY | O_CLOEXEC));
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = kInUse;
  lock.l_len = 1;
  if (file.get() < 0 || ::fcntl(file.get(), F_GETLK, &lock) != 0) return false;
  return lock.l_type != F_UNLCK;
}

namespace {

int synchronise(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  // Some file systems cannot synchronise a folder; then there is nothing more to do.
  if (file.get() < 0) return errno;
  return ::fsync(file.get()) != 0 && errno != EINVAL && errno != EROFS ? errno : 0;
}

// All three return errno, 0 on success, and never replace a file.
int publish_by_rename(const std::string& draft, const std::string& path) {
  constexpr unsigned kNoReplace = 1;  // RENAME_NOREPLACE
  return ::syscall(SYS_renameat2, AT_FDCWD, draft.c_str(), AT_FDCWD, path.c_str(), kNoReplace) == 0
             ? 0
             : errno;
}

int publish_by_link(const std::string& draft, const std::string& path) {
  if (::link(draft.c_str(), path.c_str()) != 0) return errno;
  ::unlink(draft.c_str());
  return 0;
}

int copy_bytes(int from, int to) {
  std::vector<char> bytes(size_t{1} << 20);
  for (;;) {
    const ssize_t got = ::read(from, bytes.data(), bytes.size());
    if (got == 0) return 0;
    if (got < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    for (ssize_t done = 0; done < got;) {
      const ssize_t put = ::write(to, bytes.data() + done, static_cast<size_t>(got - done));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return errno;
      if (put == 0) return EIO;  // it would be so for ever
      done += put;
    }
  }
}

int publish_by_copy(const std::string& draft, const std::string& path) {
  const FileDescriptor from(::open(draft.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status;
  if (from.get() < 0 || ::fstat(from.get(), &status) != 0) return errno;
  // Nobody may open it before it is whole.
  const FileDescriptor to(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0));
  if (to.get() < 0) return errno;
  int error = copy_bytes(from.get(), to.get());
  if (error == 0 && ::fsync(to.get()) != 0) error = errno;
  if (error == 0 && ::fchmod(to.get(), status.st_mode & 0777U) != 0) error = errno;
  ::unlink(error == 0 ? draft.c_str() : path.c_str());
  return error;
}

}  // namespace

Published publish_file(const std::string& draft, const std::string& path,
                       std::span<const PublishWay> ways) {
  if (const int error = synchronise(draft); error != 0) return {.error = error};
  int error = ENOTSUP;
  for (const PublishWay way : ways) {
    switch (way) {
      case PublishWay::rename:
        error = publish_by_rename(draft, path);
        break;
      case PublishWay::link:
        error = publish_by_link(draft, path);
        break;
      case PublishWay::copy:
        error = publish_by_copy(draft, path);
        break;
    }
    if (error == 0) return {.folder_error = synchronise(parent_of(path))};
    if (error == EEXIST) break;
  }
  return {.error = error};
}

std::string make_draft(const std::string& path) {
  std::string name = path + ".draft-XXXXXX";
  const FileDescriptor file(::mkostemp(name.data(), O_CLOEXEC));
  return file.get() < 0 ? "" : name;
}

SideLock::SideLock(const std::string& store_path, Make make) {
  const int create = make == Make::if_absent ? O_CREAT : 0;
  descriptor_ = ::open(lock_path(store_path).c_str(), O_RDWR | create | O_CLOEXEC, 0600);
  if (descriptor_ < 0) {
    error_ = errno;
    return;
  }
  const auto deadline = std::chrono::steady_clock::now() + kLockDeadline;
  for (;;) {
    held_ = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
    if (held_) return;
    error_ = errno;
    const bool may_change = errno == EWOULDBLOCK || errno == EINTR;
    if (!may_change || std::chrono::steady_clock::now() >= deadline) return;
    std::this_thread::sleep_for(kLockRetry);
  }
}

SideLock::~SideLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool SideLock::remember_damaged(const FileId& id) {
  if (!held_) return false;
  const std::string note = damaged_note(id);
  return ::ftruncate(descriptor_, 0) == 0 &&
         ::pwrite(descriptor_, note.data(), note.size(), 0) == static_cast<ssize_t>(note.size());
}

void SideLock::forget_damaged() {
  if (held_ && ::ftruncate(descriptor_, 0) != 0) return;
}

bool is_remembered_damaged(const std::string& store_path, const FileId& id) {
  const FileDescriptor file(
      ::open(lock_path(store_path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return false;
  std::array<char, 128> bytes{};
  const ssize_t got = ::pread(file.get(), bytes.data(), bytes.size(), 0);
  return got > 0 && std::string_view(bytes.data(), static_cast<size_t>(got)) == damaged_note(id);
}

std::optional<std::string> put_aside(const std::string& path, const FileId& id) {
  if (file_id(path) != id) return "";
  const std::string stem =
      fmt::format("{}.corrupt-{:%Y%m%dT%H%M%SZ}", path, fmt::gmtime(std::time(nullptr)));
  std::string target = stem;
  for (int copy = 2; file_id(target); ++copy) target = fmt::format("{}-{}", stem, copy);
  // The logs go first: a log that stayed behind would be replayed into the file that takes this
  // one's place.
  for (const char* suffix : {"-wal", "-shm", "-journal"}) {
    if (::rename((path + suffix).c_str(), (target + suffix).c_str()) != 0 && errno != ENOENT) {
      return std::nullopt;
    }
  }
  if (::rename(path.c_str(), target.c_str()) != 0) return std::nullopt;
  return target;
}

}  // namespace kiln::cache
