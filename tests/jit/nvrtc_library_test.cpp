#include "jit/nvrtc_library.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/stat.h>

#include "tests/jit/jit_testing.h"

namespace kiln::jit {
namespace {

namespace fs = std::filesystem;

// A folder with a pretended NVRTC 98.1 or 99.7.
class Toolkit {
 public:
  explicit Toolkit(int major) : major_(major) {
    const char* library = major == 98 ? KILN_FAKE_NVRTC_98 : KILN_FAKE_NVRTC_99;
    fs::copy_file(library, path() / fmt::format("libnvrtc.so.{}", major));
  }

  // The builtins need only load, so the pretended library serves as well.
  Toolkit& with_builtins(const std::string& version) {
    fs::copy_file(KILN_FAKE_NVRTC_98, path() / ("libnvrtc-builtins.so." + version));
    return *this;
  }

  fs::path path() const { return folder_.path(); }
  std::string library() const {
    return fs::canonical(path() / fmt::format("libnvrtc.so.{}", major_)).string();
  }

 private:
  TemporaryFolder folder_;
  int major_;
};

NvrtcPlaces folders(std::initializer_list<fs::path> paths) {
  NvrtcPlaces places;
  for (const fs::path& path : paths) places.folders.emplace_back("a test", path.string());
  return places;
}

TEST(NvrtcSearch, TakesTheNewestOfSeveral) {
  Toolkit old(98), recent(99);
  old.with_builtins("98.1");
  recent.with_builtins("99.7");
  const NvrtcLibrary library = load_nvrtc(folders({old.path(), recent.path()}), 0);
  EXPECT_EQ(library.version(), "99.7");
  EXPECT_EQ(library.path, recent.library());
  EXPECT_EQ(library.archs, (std::vector<int>{80, 86}));
}

TEST(NvrtcSearch, C129cPassesOverWhatTheDriverCouldNotLoad) {
  Toolkit old(98), recent(99);
  old.with_builtins("98.1");
  recent.with_builtins("99.7");
  EXPECT_EQ(load_nvrtc(folders({recent.path(), old.path()}), 98).version(), "98.1");
  const Caught caught = error_of([&] { load_nvrtc(folders({recent.path()}), 97); });
  EXPECT_EQ(caught.status, Status::no_compiler);
  EXPECT_TRUE(caught.says("a driver of CUDA 97")) << caught.text;
}

bool is_open(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (handle != nullptr) dlclose(handle);
  return handle != nullptr;
}

TEST(NvrtcSearch, OpensNoneThatIsOlderThanOneThatWorks) {
  Toolkit old(98), recent(99);
  old.with_builtins("98.1");
  recent.with_builtins("99.7");
  load_nvrtc(folders({old.path(), recent.path()}), 0);
  EXPECT_TRUE(is_open(recent.library()));
  EXPECT_FALSE(is_open(old.library()));
}

TEST(NvrtcSearch, OpensNoneThatIsNewerThanTheDriver) {
  Toolkit old(98), recent(99);
  old.with_builtins("98.1");
  recent.with_builtins("99.7");
  load_nvrtc(folders({recent.path(), old.path()}), 98);
  EXPECT_TRUE(is_open(old.library()));
  EXPECT_FALSE(is_open(recent.library()));
}

TEST(NvrtcSearch, FileNameThatPromisesTooMuchHidesNoNewerOne) {
  Toolkit boasting(98), recent(99);
  boasting.with_builtins("98.1");
  fs::rename(boasting.library(), boasting.path() / "libnvrtc.so.99.9.1");
  recent.with_builtins("99.7");
  EXPECT_EQ(load_nvrtc(folders({boasting.path(), recent.path()}), 0).version(), "99.7");
  EXPECT_EQ(load_nvrtc(folders({boasting.path()}), 0).version(), "98.1");
}

TEST(NvrtcSearch, OneThatIsTooNewForTheDriverIsNamedWithBothVersions) {
  Toolkit recent(99);
  recent.with_builtins("99.7");
  const Caught caught = error_of([&] { load_nvrtc(folders({recent.path()}), 97); });
  EXPECT_TRUE(caught.says(recent.library())) << caught.text;
  EXPECT_TRUE(caught.says("it is of CUDA 99, and the driver, of CUDA 97,")) << caught.text;
  EXPECT_TRUE(caught.says("CUDA toolkit 97 or a newer driver")) << caught.text;
}

TEST(NvrtcForced, IsTakenWhateverTheDriver) {
  Toolkit recent(99);
  recent.with_builtins("99.7");
  NvrtcPlaces places;
  places.forced = recent.library();
  EXPECT_EQ(load_nvrtc(places, 97).version(), "99.7");
}

void host_handler(int) {}

TEST(NvrtcSignals, ACompileLeavesTheHostsHandlers) {
  Toolkit toolkit(99);
  toolkit.with_builtins("99.7");
  struct sigaction host {
  }, before_int{}, before_term{};
  host.sa_handler = host_handler;
  sigaction(SIGINT, &host, &before_int);
  sigaction(SIGTERM, &host, &before_term);
  load_nvrtc(folders({toolkit.path()}), 0).functions.compile_program(nullptr, 0, nullptr);
  struct sigaction after_int {
  }, after_term{};
  sigaction(SIGINT, &before_int, &after_int);
  sigaction(SIGTERM, &before_term, &after_term);
  EXPECT_EQ(after_int.sa_handler, host_handler);
  EXPECT_EQ(after_term.sa_handler, host_handler);
}

TEST(NvrtcSearch, PassesOverAnUnusableOne) {
  Toolkit old(98), recent(99);
  old.with_builtins("98.1");
  EXPECT_EQ(load_nvrtc(folders({recent.path(), old.path()}), 0).version(), "98.1");
}

TEST(NvrtcSearch, FindsEachFileOnce) {
  Toolkit toolkit(98);
  toolkit.with_builtins("98.1");
  fs::create_symlink(toolkit.library(), toolkit.path() / "libnvrtc.so");
  EXPECT_EQ(find_nvrtc(folders({toolkit.path(), toolkit.path()})).size(), 1u);
}

TEST(NvrtcSearch, IgnoresFilesThatOnlyLookAlike) {
  const TemporaryFolder folder;
  folder.write("libnvrtc.alt.so.13", "x");
  folder.write("libnvrtc.so.old", "x");
  folder.write("libnvrtc-builtins.so.13.0", "x");
  EXPECT_TRUE(find_nvrtc(folders({folder.path()})).empty());
}

TEST(NvrtcBuiltins, C129aOfAnotherVersionAreRefusedWithBothVersionsAndPaths) {
  Toolkit toolkit(99);
  toolkit.with_builtins("99.6");
  const Caught caught = error_of([&] { load_nvrtc(folders({toolkit.path()}), 0); });
  EXPECT_EQ(caught.status, Status::no_compiler);
  EXPECT_TRUE(caught.says("NVRTC 99.7 at " + toolkit.library())) << caught.text;
  EXPECT_TRUE(caught.says("builtins 99.6 at " + fs::canonical(toolkit.path()).string()))
      << caught.text;
}

TEST(NvrtcBuiltins, C120MissingOnesAreNamed) {
  Toolkit toolkit(99);
  const Caught caught = error_of([&] { load_nvrtc(folders({toolkit.path()}), 0); });
  EXPECT_EQ(caught.status, Status::no_compiler);
  EXPECT_TRUE(caught.says("libnvrtc-builtins.so.99.7")) << caught.text;
}

TEST(NvrtcBuiltins, OfALongerVersionFit) {
  Toolkit toolkit(99);
  toolkit.with_builtins("99.7.41");
  EXPECT_EQ(load_nvrtc(folders({toolkit.path()}), 0).version(), "99.7");
}

TEST(NvrtcForced, IsTheOnlyPlaceTried) {
  Toolkit old(98), recent(99);
  old.with_builtins("98.1");
  recent.with_builtins("99.7");
  NvrtcPlaces places = folders({recent.path()});
  places.forced = old.library();
  EXPECT_EQ(load_nvrtc(places, 0).version(), "98.1");
  places.forced = old.path().string();
  EXPECT_EQ(load_nvrtc(places, 0).version(), "98.1");
}

TEST(NvrtcForced, FileThatIsNoLibraryIsRefusedByName) {
  const TemporaryFolder folder;
  NvrtcPlaces places;
  places.forced = folder.write("libnvrtc.so", "not a library").string();
  const Caught caught = error_of([&] { load_nvrtc(places, 0); });
  EXPECT_EQ(caught.status, Status::no_compiler);
  EXPECT_TRUE(caught.says("libnvrtc.so (from KILN_NVRTC) is not usable")) << caught.text;
}

TEST(NvrtcForced, FolderWithoutLibraryAndMissingFileAreNamed) {
  const TemporaryFolder folder;
  NvrtcPlaces places;
  places.forced = folder.path().string();
  EXPECT_TRUE(error_of([&] { load_nvrtc(places, 0); }).says("holds no libnvrtc.so"));
  places.forced = (folder.path() / "gone.so").string();
  EXPECT_TRUE(error_of([&] { load_nvrtc(places, 0); }).says("gone.so"));
}

// dlopen would wait for a writer.
TEST(NvrtcForced, FifoIsRefused) {
  const TemporaryFolder folder;
  NvrtcPlaces places;
  places.forced = (folder.path() / "libnvrtc.so.99").string();
  ASSERT_EQ(mkfifo(places.forced.c_str(), 0600), 0);
  EXPECT_TRUE(error_of([&] { load_nvrtc(places, 0); }).says("it is not a regular file"));
}

TEST(NvrtcForced, LibraryThatIsNotNvrtcIsRefused) {
  NvrtcPlaces places;
  places.names = {"libc.so.6"};
  const Caught caught = error_of([&] { load_nvrtc(places, 0); });
  EXPECT_TRUE(caught.says("it lacks nvrtcVersion")) << caught.text;
}

TEST(NvrtcSearch, NothingAnywhereListsThePlaces) {
  const TemporaryFolder folder;
  NvrtcPlaces places = folders({folder.path()});
  places.names = {"libnvrtc.so.999"};
  const Caught caught = error_of([&] { load_nvrtc(places, 0); });
  EXPECT_EQ(caught.status, Status::no_compiler);
  EXPECT_TRUE(caught.says("libnvrtc.so.999") && caught.says(folder.path().string()) &&
              caught.says("KILN_NVRTC"))
      << caught.text;
}

// In a fresh process, because a process keeps the compiler it has.
TEST(NvrtcForcedDeathTest, GarbageInTheEnvironmentIsAClearError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("KILN_NVRTC", "/dev/null", 1);
        const Caught caught = error_of([] { Compiler::load(); });
        fmt::print(stderr, "{}: {}\n", status_name(caught.status), caught.text);
        std::_Exit(caught.status == Status::no_compiler ? 3 : 4);
      },
      testing::ExitedWithCode(3), "no_compiler: .*/dev/null .from KILN_NVRTC. is not usable");
}

}  // namespace
}  // namespace kiln::jit
