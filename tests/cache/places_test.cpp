// Where the store goes when nobody names a place: the first that can be written, said once.
#include "cache/place.h"
#include "tests/cache/fixture.h"

namespace kiln::cache {
namespace {

// A home that can be made unusable without permissions, which root would pass over: a file stands
// where its folder should be.
class PlacesTest : public StoreTest {
 protected:
  PlacesTest()
      : db_("KILN_DB", nullptr),
        xdg_("XDG_CACHE_HOME", nullptr),
        home_("HOME", (folder_ + "/home").c_str()),
        local_("KILN_LOCAL", folder_.c_str()) {}

  void spoil_home() { write_file(folder_ + "/home", "a file"); }
  std::string local() const { return folder_ + "/kiln-" + std::to_string(::geteuid()); }
  std::string home_store() const { return folder_ + "/home/.cache/kiln/kiln.db"; }

 private:
  ScopedEnvironment db_;
  ScopedEnvironment xdg_;
  ScopedEnvironment home_;
  ScopedEnvironment local_;
};

TEST_F(PlacesTest, FirstThatCanBeWrittenIsTaken) {
  auto store = Store::open({});
  EXPECT_EQ(store->info().path, home_store());
  EXPECT_TRUE(store->warnings().empty());
  EXPECT_FALSE(std::filesystem::exists(local()));
}

TEST_F(PlacesTest, C53FolderOfThisMachineServesWhenHomeCannotBeWritten) {
  spoil_home();
  {
    auto store = Store::open({});
    EXPECT_EQ(store->info().path, local() + "/kiln.db");
    ASSERT_EQ(store->warnings().size(), 1u);
    const std::string warning = store->warnings()[0];
    EXPECT_EQ(warning.rfind("the store is " + local() + "/kiln.db: " + home_store(), 0), 0u)
        << warning;
    EXPECT_NE(warning.find("name a place with KILN_DB"), std::string::npos) << warning;
    EXPECT_TRUE(store->put(sample_result("a")));
    EXPECT_EQ(store->trouble(), "");
  }
  struct stat status;
  ASSERT_EQ(::stat(local().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0700u);
  EXPECT_TRUE(
      Store::open({.mode = StoreOptions::Mode::read_only})->find_decision(sample_problem(), kA100));
}

TEST_F(PlacesTest, HomeUnsetMeansTheFolderOfThisMachine) {
  const ScopedEnvironment home("HOME", nullptr);
  auto store = Store::open({});
  EXPECT_EQ(store->info().path, local() + "/kiln.db");
  ASSERT_EQ(store->warnings().size(), 1u);
  EXPECT_NE(store->warnings()[0].find("nor HOME names a place"), std::string::npos);
}

TEST_F(PlacesTest, FolderThatOthersMayWriteIsSkipped) {
  spoil_home();
  std::filesystem::create_directory(local());
  std::filesystem::permissions(local(), std::filesystem::perms(0777));
  auto store = Store::open({});
  EXPECT_EQ(store->info().path, ":memory:");
  ASSERT_EQ(store->warnings().size(), 1u);
  EXPECT_NE(store->warnings()[0].find(local() + " may be written by other users"),
            std::string::npos)
      << store->warnings()[0];
  EXPECT_TRUE(store->put(sample_result("a")));
  EXPECT_TRUE(std::filesystem::is_empty(local()));
}

TEST_F(PlacesTest, LinkInPlaceOfTheFolderIsSkipped) {
  spoil_home();
  std::filesystem::create_directory(folder_ + "/elsewhere");
  std::filesystem::create_directory_symlink(folder_ + "/elsewhere", local());
  EXPECT_EQ(Store::open({})->info().path, ":memory:");
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/elsewhere"));
}

TEST_F(PlacesTest, OneMessageForTheWholeChain) {
  spoil_home();
  const ScopedEnvironment xdg("XDG_CACHE_HOME", (folder_ + "/home/xdg").c_str());
  const ScopedEnvironment local("KILN_LOCAL", (folder_ + "/home").c_str());
  auto store = Store::open({});
  EXPECT_EQ(store->info().path, ":memory:");
  ASSERT_EQ(store->warnings().size(), 1u);
  for (const std::string part :
       {"/home/xdg/kiln/kiln.db", "/home/.cache/kiln/kiln.db", "/home/kiln-"}) {
    EXPECT_NE(store->warnings()[0].find(folder_ + part), std::string::npos) << store->warnings()[0];
  }
}

TEST_F(PlacesTest, NamedPlaceIsNotLeftForAnotherFile) {
  spoil_home();
  const std::string named = folder_ + "/home/named.db";
  {
    const ScopedEnvironment db("KILN_DB", named.c_str());
    EXPECT_EQ(Store::open({})->info().path, ":memory:");
  }
  EXPECT_EQ(Store::open({.path = named})->info().path, ":memory:");
  EXPECT_FALSE(std::filesystem::exists(local()));
}

TEST_F(PlacesTest, StoreThatCannotBeWrittenIsReadUnderTheOneOfThisMachine) {
  ASSERT_TRUE(Store::open({})->put(sample_result("a")));
  const std::filesystem::path home_folder = std::filesystem::path(home_store()).parent_path();
  for (std::filesystem::path folder = home_folder; folder != folder_;
       folder = folder.parent_path()) {
    std::filesystem::permissions(folder, std::filesystem::perms(0555));
  }
  std::filesystem::permissions(home_store(), std::filesystem::perms(0444));
  std::filesystem::permissions(folder_, std::filesystem::perms(0777));
  const pid_t child = start_child([&] {
    if (::geteuid() == 0 && ::seteuid(65534) != 0) return 0;  // nobody: permissions count again
    auto store = Store::open({});
    const bool good = store->info().path == local() + "/kiln.db" &&
                      store->find_decision(sample_problem(), kA100) &&
                      store->warnings().size() == 1 && store->put(sample_result("b", 32)) &&
                      store->find_decision(sample_problem(32), kA100);
    return good ? 0 : 1;
  });
  EXPECT_EQ(wait_for(child), 0);
  std::filesystem::permissions(home_folder, std::filesystem::perms(0700));
}

}  // namespace
}  // namespace kiln::cache
