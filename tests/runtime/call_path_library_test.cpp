// What call_path_test shows of the runtime's objects, shown of a libkiln.so as others load it: that
// of the build, or with KILN_CALL_PATH_LIBRARY an installed one.
#include <fmt/format.h>
#include <sys/wait.h>

#include <fstream>
#include <iterator>

#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

class CallPathOfLibrary : public RuntimeTest {};

TEST_F(CallPathOfLibrary, PreparedCallsAllocateLockAndAskNothing) {
  const char* named = std::getenv("KILN_CALL_PATH_LIBRARY");
  const std::string library = named != nullptr ? named : KILN_LIBRARY;
  const std::string output = folder_.file("output");
  const std::string command =
      fmt::format("LD_PRELOAD='{}' KILN_DB='{}' KILN_FAKE_CUDA_RECORD=0 '{}' '{}' > '{}' 2>&1",
                  KILN_CALL_PATH_SHIM, store_path_, KILN_CALL_PATH_PROGRAM, library, output);
  const int status = std::system(command.c_str());
  std::ifstream file(output);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  ASSERT_TRUE(WIFEXITED(status)) << text;
  if (WEXITSTATUS(status) == 77) {
    GTEST_SKIP() << "this kernel or its container has no strict seccomp mode";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0) << text;
  expect_contains(text, "16000 calls in 8 threads: no allocation");
}

}  // namespace
}  // namespace kiln::runtime
