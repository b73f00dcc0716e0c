// libkiln.so as a stranger meets it: what it exports, that the checked-in C headers are what the
// descriptions say, and that it loads and answers on a machine without a driver. Kiln is not linked
// here but opened with dlopen.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "runtime/abi/kiln.h"

namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "popen failed";
  std::string text;
  std::array<char, 4096> buffer;
  while (size_t count = fread(buffer.data(), 1, buffer.size(), pipe))
    text.append(buffer.data(), count);
  EXPECT_EQ(pclose(pipe), 0) << command;
  return text;
}

TEST(Library, C57ExportsOnlyItsInterface) {
  std::istringstream symbols(output_of("nm -D --defined-only --format=posix " KILN_LIBRARY));
  int functions = 0;
  for (std::string line; std::getline(symbols, line);) {
    const std::string name = line.substr(0, line.find(' '));
    const std::string bare = name.substr(0, name.find('@'));
    if (bare == "KILN_1") continue;  // the version itself
    EXPECT_EQ(bare.rfind("kiln_", 0), 0u) << line;
    ++functions;
  }
  EXPECT_GE(functions, 18);
}

TEST(Library, GeneratedFilesAreUpToDate) {
  std::string folder = (std::filesystem::temp_directory_path() / "kiln-gen-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  output_of(std::string(KILN_GEN_OPS) + " " + folder);
  for (const char* name : {"/kiln_ops.h", "/generated_ops.cpp"}) {
    EXPECT_TRUE(read_file(folder + name) == read_file(KILN_ABI_FOLDER + std::string(name)))
        << "run: kiln_gen_ops runtime/abi (differs: " << name << ")";
  }
  std::filesystem::remove_all(folder);
}

class DriverlessTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("KILN_LIBCUDA", "/nonexistent/libcuda.so.1", 1);
    library_ = dlopen(KILN_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
  }
  template <typename Function>
  Function* find(const char* name) {
    auto* found = reinterpret_cast<Function*>(dlsym(library_, name));
    EXPECT_NE(found, nullptr) << name;
    return found;
  }

  void* library_ = nullptr;
};
#define KILN_FIND(name) find<decltype(name)>(#name)

TEST_F(DriverlessTest, OpenSaysWhatIsMissing) {
  kiln_session* session = reinterpret_cast<kiln_session*>(1);
  EXPECT_EQ(KILN_FIND(kiln_open)(nullptr, &session), KILN_NO_DRIVER);
  EXPECT_EQ(session, nullptr);
  const std::string sentence = KILN_FIND(kiln_last_error)();
  EXPECT_NE(sentence.find("/nonexistent/libcuda.so.1"), std::string::npos) << sentence;
}

TEST_F(DriverlessTest, QuestionsThatNeedNoDeviceAreAnswered) {
  EXPECT_STREQ(KILN_FIND(kiln_version)(), KILN_EXPECTED_VERSION);
  EXPECT_STREQ(KILN_FIND(kiln_status_name)(KILN_OK), "KILN_OK");
  EXPECT_STREQ(KILN_FIND(kiln_status_name)(KILN_INTERNAL), "KILN_INTERNAL");
  EXPECT_STREQ(KILN_FIND(kiln_status_name)(static_cast<kiln_status>(99)), "unknown status");
  uint8_t first[16] = {};
  uint8_t second[16] = {};
  EXPECT_EQ(KILN_FIND(kiln_abi_hash)(first), KILN_OK);
  EXPECT_EQ(KILN_FIND(kiln_abi_hash)(second), KILN_OK);
  EXPECT_EQ(std::memcmp(first, second, sizeof first), 0);
  std::string sentence_of_new_thread = "not asked";
  std::thread([&] { sentence_of_new_thread = KILN_FIND(kiln_last_error)(); }).join();
  EXPECT_EQ(sentence_of_new_thread, "");
}

TEST_F(DriverlessTest, C88LibraryNeedsNoCudaLibraries) {
  const std::string needed = output_of("readelf -d " KILN_LIBRARY);
  EXPECT_EQ(needed.find("libcuda"), std::string::npos);
  EXPECT_EQ(needed.find("nvrtc"), std::string::npos);
  EXPECT_EQ(needed.find("sqlite"), std::string::npos);
  EXPECT_NE(needed.find("[libkiln.so."), std::string::npos) << needed;
}

}  // namespace
