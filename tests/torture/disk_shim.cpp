#include "tests/torture/disk_shim.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace kiln::testing {
namespace {

constexpr int64_t kNever = INT64_MAX;
constexpr int kMaxDescriptors = 1 << 12;

struct Faults {
  char root[PATH_MAX] = "";
  int64_t write_fails_at = kNever;
  int64_t write_works_from = kNever;
  int write_error = 0;
  int64_t make_fails_at = kNever;
  int64_t killed_at = kNever;
  int64_t file_system = 0;  // 0: as it is
  bool no_shared_memory = false;
};

// No constructor runs and nothing is allocated: libc may call these functions before main().
constinit Faults faults;
constinit std::atomic<int64_t> writes{0};
constinit std::atomic<int64_t> makes{0};
char count_path[PATH_MAX] = "";  // where the numbers go when the program ends
enum : uint8_t { kElsewhere = 0, kUnderRoot = 1, kSharedMemory = 2 };
constinit std::atomic<uint8_t> descriptors[kMaxDescriptors]{};

bool is_under_root(const char* path) {
  const size_t length = std::strlen(faults.root);
  return length > 0 && std::strncmp(path, faults.root, length) == 0;
}

bool ends_with(const char* text, const char* end) {
  const size_t length = std::strlen(text);
  const size_t tail = std::strlen(end);
  return length >= tail && std::strcmp(text + length - tail, end) == 0;
}

void parse(const char* text) {
  faults.write_fails_at = faults.write_works_from = kNever;
  faults.make_fails_at = faults.killed_at = kNever;
  faults.file_system = 0;
  faults.no_shared_memory = false;
  while (*text != '\0') {
    const auto takes = [&](const char* word) {
      const size_t length = std::strlen(word);
      if (std::strncmp(text, word, length) != 0) return false;
      text += length;
      return true;
    };
    const auto number = [&] {
      char* end = nullptr;
      const long long value = std::strtoll(text, &end, 0);
      text = end;
      return static_cast<int64_t>(value);
    };
    if (takes("enospc:")) {
      faults.write_error = ENOSPC;
      faults.write_fails_at = number();
    } else if (takes("eio:")) {
      faults.write_error = EIO;
      faults.write_fails_at = number();
      if (takes(":once")) faults.write_works_from = faults.write_fails_at + 1;
    } else if (takes("edquot-create:")) {
      faults.make_fails_at = number();
    } else if (takes("kill:")) {
      faults.killed_at = number();
    } else if (takes("statfs:")) {
      faults.file_system = number();
    } else if (takes("noshm")) {
      faults.no_shared_memory = true;
    } else if (!takes(",")) {
      static constexpr char kSentence[] = "KILN_DISK names a fault that disk_shim.h does not\n";
      static_cast<void>(!::syscall(SYS_write, 2, kSentence, sizeof kSentence - 1));
      ::abort();
    }
  }
  writes = 0;
  makes = 0;
}

__attribute__((constructor)) void read_environment() {
  const char* root = std::getenv("KILN_DISK_ROOT");
  const char* text = std::getenv("KILN_DISK");
  if (root == nullptr || text == nullptr) return;
  std::strncpy(faults.root, root, sizeof faults.root - 1);
  parse(text);
  const char* path = std::getenv("KILN_DISK_COUNT");
  if (path != nullptr) std::strncpy(count_path, path, sizeof count_path - 1);
}

__attribute__((destructor)) void tell_counts() {
  if (count_path[0] == '\0') return;
  faults.root[0] = '\0';
  if (FILE* file = std::fopen(count_path, "w")) {
    std::fprintf(file, "%lld %lld\n", static_cast<long long>(writes.load()),
                 static_cast<long long>(makes.load()));
    std::fclose(file);
  }
}

void maybe_kill() {
  if (writes + makes >= faults.killed_at) ::kill(::getpid(), SIGKILL);
}

// Whether this call that writes has to fail; errno is set then.
bool fails_to_write(int descriptor) {
  if (descriptor < 0 || descriptor >= kMaxDescriptors) return false;
  if (descriptors[descriptor] == kElsewhere) return false;
  const int64_t number = ++writes;
  maybe_kill();
  if (number < faults.write_fails_at || number >= faults.write_works_from) return false;
  errno = faults.write_error;
  return true;
}

bool fails_to_make(const char* path) {
  if (!is_under_root(path)) return false;
  const int64_t number = ++makes;
  maybe_kill();
  if (number < faults.make_fails_at) return false;
  errno = EDQUOT;
  return true;
}

// Likewise, of what is still done when the quota is used up.
void count_make(const char* path) {
  if (!is_under_root(path)) return;
  ++makes;
  maybe_kill();
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

int open_as(const char* name, const char* path, int flags, mode_t mode) {
  const bool is_here = is_under_root(path);
  if (is_here && (flags & O_CREAT) != 0 && ::access(path, F_OK) != 0 && fails_to_make(path)) {
    return -1;
  }
  const int descriptor = next<int(const char*, int, ...)>(name)(path, flags, mode);
  if (descriptor >= 0 && descriptor < kMaxDescriptors) {
    descriptors[descriptor] = !is_here                  ? kElsewhere
                              : ends_with(path, "-shm") ? kSharedMemory
                                                        : kUnderRoot;
  }
  return descriptor;
}

void* map_as(const char* name, void* at, size_t bytes, int protection, int flags, int descriptor,
             off_t offset) {
  if (faults.no_shared_memory && descriptor >= 0 && descriptor < kMaxDescriptors &&
      descriptors[descriptor] == kSharedMemory) {
    errno = ENODEV;
    return MAP_FAILED;
  }
  return next<void*(void*, size_t, int, int, int, off_t)>(name)(at, bytes, protection, flags,
                                                                descriptor, offset);
}

}  // namespace

void set_disk_faults(const std::string& root, const std::string& text) {
  std::strncpy(faults.root, root.c_str(), sizeof faults.root - 1);
  parse(text.c_str());
}

DiskCalls disk_calls() { return {.writes = writes, .makes = makes}; }

}  // namespace kiln::testing

using namespace kiln::testing;  // NOLINT

extern "C" {

#define KILN_MODE(mode, flags)                  \
  mode_t mode = 0;                              \
  if (((flags) & (O_CREAT | O_TMPFILE)) != 0) { \
    va_list rest;                               \
    va_start(rest, flags);                      \
    mode = va_arg(rest, mode_t);                \
    va_end(rest);                               \
  }

int open(const char* path, int flags, ...) {
  KILN_MODE(mode, flags)
  return open_as("open", path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  KILN_MODE(mode, flags)
  return open_as("open64", path, flags, mode);
}

int close(int descriptor) {
  if (descriptor >= 0 && descriptor < kMaxDescriptors) descriptors[descriptor] = kElsewhere;
  return next<int(int)>("close")(descriptor);
}

int dup2(int from, int to) noexcept {
  const int descriptor = next<int(int, int)>("dup2")(from, to);
  if (descriptor >= 0 && descriptor < kMaxDescriptors && from < kMaxDescriptors) {
    descriptors[descriptor] = descriptors[from].load();
  }
  return descriptor;
}

ssize_t write(int descriptor, const void* data, size_t bytes) {
  if (fails_to_write(descriptor)) return -1;
  return next<ssize_t(int, const void*, size_t)>("write")(descriptor, data, bytes);
}
ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) {
  if (fails_to_write(descriptor)) return -1;
  return next<ssize_t(int, const void*, size_t, off_t)>("pwrite")(descriptor, data, bytes, offset);
}
ssize_t pwrite64(int descriptor, const void* data, size_t bytes, off64_t offset) {
  if (fails_to_write(descriptor)) return -1;
  return next<ssize_t(int, const void*, size_t, off64_t)>("pwrite64")(descriptor, data, bytes,
                                                                      offset);
}
int ftruncate(int descriptor, off_t bytes) noexcept {
  if (fails_to_write(descriptor)) return -1;
  return next<int(int, off_t)>("ftruncate")(descriptor, bytes);
}
int ftruncate64(int descriptor, off64_t bytes) noexcept {
  if (fails_to_write(descriptor)) return -1;
  return next<int(int, off64_t)>("ftruncate64")(descriptor, bytes);
}
int fsync(int descriptor) {
  if (fails_to_write(descriptor)) return -1;
  return next<int(int)>("fsync")(descriptor);
}
int fdatasync(int descriptor) {
  if (fails_to_write(descriptor)) return -1;
  return next<int(int)>("fdatasync")(descriptor);
}

int mkdir(const char* path, mode_t mode) noexcept {
  if (fails_to_make(path)) return -1;
  return next<int(const char*, mode_t)>("mkdir")(path, mode);
}
int link(const char* from, const char* to) noexcept {
  if (fails_to_make(to)) return -1;
  return next<int(const char*, const char*)>("link")(from, to);
}
int rename(const char* from, const char* to) noexcept {
  count_make(to);
  return next<int(const char*, const char*)>("rename")(from, to);
}
int unlink(const char* path) noexcept {
  count_make(path);
  return next<int(const char*)>("unlink")(path);
}
// renameat2 has no function in every libc, so the store makes the call itself.
long syscall(long number, ...) noexcept {
  va_list rest;
  va_start(rest, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(rest, long);
  va_end(rest);
  if (number == SYS_renameat2) count_make(reinterpret_cast<const char*>(arguments[3]));
  return next<long(long, ...)>("syscall")(number, arguments[0], arguments[1], arguments[2],
                                          arguments[3], arguments[4], arguments[5]);
}

void* mmap(void* at, size_t bytes, int protection, int flags, int descriptor,
           off_t offset) noexcept {
  return map_as("mmap", at, bytes, protection, flags, descriptor, offset);
}
void* mmap64(void* at, size_t bytes, int protection, int flags, int descriptor,
             off64_t offset) noexcept {
  return map_as("mmap64", at, bytes, protection, flags, descriptor, offset);
}

int statfs(const char* path, struct statfs* status) noexcept {
  const int result = next<int(const char*, struct statfs*)>("statfs")(path, status);
  if (result == 0 && faults.file_system != 0 && is_under_root(path)) {
    status->f_type = static_cast<decltype(status->f_type)>(faults.file_system);
  }
  return result;
}

}  // extern "C"
