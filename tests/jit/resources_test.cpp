#include "jit/resources.h"

#include "tests/jit/jit_testing.h"

namespace kiln::jit {
namespace {

constexpr const char* kLog =
    "ptxas info    : 4 bytes gmem\n"
    "ptxas info    : Compiling entry function 'other' for 'sm_80'\n"
    "ptxas info    : Function properties for other\n"
    "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    "ptxas info    : Used 8 registers, used 0 barriers, 360 bytes cmem[0]\n"
    "ptxas info    : Compiling entry function 'kernel' for 'sm_80'\n"
    "ptxas info    : Function properties for kernel\n"
    "    272 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
    "ptxas info    : Used 242 registers, used 1 barriers, 288 bytes cumulative stack size, 1024 "
    "bytes "
    "smem, 364 bytes cmem[0]\n";

TEST(ResourcesFromLog, ReadsTheLinesOfTheEntry) {
  const auto resources = resources_from_log(kLog, "kernel");
  ASSERT_TRUE(resources);
  EXPECT_EQ(resources->registers, 242);
  EXPECT_EQ(resources->stack_bytes, 288);
  EXPECT_EQ(resources->spill_store_bytes, 4);
  EXPECT_EQ(resources->spill_load_bytes, 12);
  EXPECT_EQ(resources->static_smem_bytes, 1024);
}

TEST(ResourcesFromLog, KeepsOtherEntriesApart) {
  const auto resources = resources_from_log(kLog, "other");
  ASSERT_TRUE(resources);
  EXPECT_EQ(resources->registers, 8);
  EXPECT_EQ(resources->static_smem_bytes, 0);
  EXPECT_EQ(resources->spill_store_bytes, 0);
}

TEST(ResourcesFromLog, NothingWithoutTheLines) {
  EXPECT_FALSE(resources_from_log("", "kernel"));
  EXPECT_FALSE(resources_from_log(kLog, "kern"));
  EXPECT_FALSE(resources_from_log("warning: unused variable\n", "kernel"));
}

TEST(ResourcesFromCubin, NothingFromWhatIsNotACubin) {
  EXPECT_FALSE(resources_from_cubin("", "kernel"));
  EXPECT_FALSE(
      resources_from_cubin("\x7f"
                           "ELF",
                           "kernel"));
  EXPECT_FALSE(resources_from_cubin(std::string(4096, '\xff'), "kernel"));
  EXPECT_TRUE(entries_of_cubin(std::string(4096, '\xff')).empty());
}

TEST(EntriesOfPtx, AreTheNamesOfTheKernels) {
  EXPECT_EQ(entries_of_ptx(".visible .entry one(\n.param .u64 p)\n{ }\n.visible .entry two()\n{}"),
            (std::vector<std::string>{"one", "two"}));
  EXPECT_TRUE(entries_of_ptx(".visible .func f()").empty());
}

}  // namespace
}  // namespace kiln::jit
