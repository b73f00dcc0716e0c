// Makes a pack of the store: a copy of one file that nobody writes any more.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cache/layered_store.h"
#include "jit/base/error.h"

namespace kiln::cache {
namespace {

// An empty file beside the pack, and what SQLite makes beside that. They are gone at the end.
class Draft {
 public:
  explicit Draft(const std::string& pack) : path_(make_draft(pack)) {}
  Draft(const Draft&) = delete;
  ~Draft() {
    if (path_.empty()) return;
    for (const char* suffix : {"", "-journal", "-wal", "-shm"}) {
      ::unlink((path_ + suffix).c_str());
    }
  }
  const std::string& path() const { return path_; }  // "" with errno when it cannot be made

 private:
  std::string path_;
};

}  // namespace

void LayeredStore::make_pack(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Layer> source = top_ ? top_ : layers_.empty() ? nullptr : layers_.front();
  const auto refuse = [&](std::string_view why) {
    fail(Status::store_error, "the pack {} cannot be made: {}", path, why);
  };
  const auto read_source = [&](const Layer::Work& work) {
    try {
      // VACUUM is a transaction of its own.
      if (source) source->read(work, Layer::Reads::outside_of_transactions);
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
  const Draft draft(path);
  if (draft.path().empty()) refuse(std::strerror(errno));
  read_source([&](Database& database) {
    database.prepare("VACUUM INTO ?").bind(draft.path()).run();
    // Who works on the store and what is called from it are matters of the place where it was.
    Database pack(draft.path(), SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX);
    pack.execute("PRAGMA journal_mode = DELETE; DELETE FROM leases; DELETE FROM used_sizes");
  });
  if (::chmod(draft.path().c_str(), 0644) != 0) refuse(std::strerror(errno));
  const Published published = publish_file(draft.path(), path);
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

}  // namespace kiln::cache
