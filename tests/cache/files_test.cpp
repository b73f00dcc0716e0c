// A finished file gets its name by every way that a file system may have, and never replaces one.
#include "cache/files.h"

#include <cerrno>

#include "jit/base/error.h"
#include "tests/cache/fixture.h"

namespace kiln::cache {
namespace {

class PublishTest : public StoreTest {
 protected:
  std::string draft(const std::string& bytes) {
    const std::string name = make_draft(path_);
    EXPECT_NE(name, "");
    write_file(name, bytes);
    std::filesystem::permissions(name, std::filesystem::perms(0644));
    return name;
  }
};

TEST_F(PublishTest, EachWayGivesTheFileItsName) {
  for (const PublishWay way : kPublishWays) {
    SCOPED_TRACE(static_cast<int>(way));
    const std::string bytes = std::string(3 << 20, 'x') + "end";
    const Published published = publish_file(draft(bytes), path_, {&way, 1});
    EXPECT_EQ(published.error, 0);
    EXPECT_EQ(published.folder_error, 0);
    EXPECT_EQ(read_file(path_), bytes);
    struct stat status;
    ASSERT_EQ(::stat(path_.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777u, 0644u);
    EXPECT_EQ(files_in_folder(), std::vector<std::string>{"kiln.db"});
    std::filesystem::remove(path_);
  }
}

TEST_F(PublishTest, NoWayReplacesAFile) {
  write_file(path_, "mine");
  for (const PublishWay way : kPublishWays) {
    SCOPED_TRACE(static_cast<int>(way));
    const std::string name = draft("other");
    EXPECT_EQ(publish_file(name, path_, {&way, 1}).error, EEXIST);
    EXPECT_EQ(read_file(path_), "mine");
    EXPECT_EQ(read_file(name), "other");
  }
}

// A folder that may be written but not read cannot be synchronised.
TEST_F(PublishTest, FolderThatCannotBeSynchronisedIsToldApartFromAFailure) {
  constexpr uid_t kNobody = 65534;
  const std::string closed = folder_ + "/closed";
  std::filesystem::create_directory(closed);
  std::filesystem::permissions(folder_, std::filesystem::perms(0711));
  std::filesystem::permissions(closed, std::filesystem::perms(0300));
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(closed.c_str(), kNobody, kNobody), 0);
  }
  const pid_t child = start_child([&] {
    if (::geteuid() == 0 && ::seteuid(kNobody) != 0) return 1;
    const std::string name = make_draft(closed + "/a");
    const Published published = publish_file(name, closed + "/a");
    if (published.error != 0 || published.folder_error != EACCES) return 2;
    if (!file_id(closed + "/a") || file_id(name)) return 3;

    auto store = Store::open({.path = ":memory:"});
    if (!store->put(sample_result("a"))) return 4;
    try {
      store->make_pack(closed + "/b.pack");
    } catch (const Error&) {
      return 5;
    }
    if (!file_id(closed + "/b.pack") || store->warnings().size() != 1) return 6;
    return store->warnings()[0].find("cannot be synchronised") != std::string::npos ? 0 : 7;
  });
  EXPECT_EQ(wait_for(child), 0);
  std::filesystem::permissions(closed, std::filesystem::perms(0700));
}

TEST_F(PublishTest, DraftsDoNotMeet) {
  EXPECT_NE(make_draft(path_), make_draft(path_));
  EXPECT_EQ(make_draft(folder_ + "/nowhere/kiln.db"), "");
}

}  // namespace
}  // namespace kiln::cache
