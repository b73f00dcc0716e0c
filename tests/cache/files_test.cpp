// A finished file gets its name by every way that a file system may have, and never replaces one.
#include "cache/files.h"

#include <cerrno>

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
    EXPECT_EQ(publish_file(draft(bytes), path_, {&way, 1}), 0);
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
    EXPECT_EQ(publish_file(name, path_, {&way, 1}), EEXIST);
    EXPECT_EQ(read_file(path_), "mine");
    EXPECT_EQ(read_file(name), "other");
  }
}

TEST_F(PublishTest, DraftsDoNotMeet) {
  EXPECT_NE(make_draft(path_), make_draft(path_));
  EXPECT_EQ(make_draft(folder_ + "/nowhere/kiln.db"), "");
}

}  // namespace
}  // namespace kiln::cache
