// Every exact instruction form and every program on the simulator against what an H200 gave for the
// same operands (golden.txt, written by simulator_gpu_test).
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "tests/sim/instructions.h"
#include "tests/sim/programs.h"

namespace kiln::runtime::sim {
namespace {

constexpr const char* kSimulated = "sim:a100-sxm4-80gb";

std::map<std::string, std::string> golden_digests() {
  std::ifstream file(KILN_SIM_GOLDEN);
  std::map<std::string, std::string> digests;
  for (std::string line; std::getline(file, line);) {
    const size_t space = line.find(' ');
    digests[line.substr(space + 1)] = line.substr(0, space);
  }
  return digests;
}

TEST(Instructions, GiveTheBitsThatTheGpuGave) {
  const std::map<std::string, std::string> golden = golden_digests();
  const std::unique_ptr<Device> simulator = Device::open(kSimulated);
  for (const InstructionCase& one : instruction_cases()) {
    if (!one.is_exact) continue;
    const std::string name = instruction_name(one);
    const auto expected = golden.find(name);
    ASSERT_NE(expected, golden.end()) << name << ": run simulator_gpu_test to add it";
    const std::vector<uint64_t> results = run_instruction(*simulator, one, instruction_inputs(one));
    EXPECT_EQ(instruction_digest(results), expected->second) << name;
  }
}

// With the checker, which has nothing to say about any of them.
TEST(Programs, LeaveTheBytesThatTheGpuLeft) {
  const std::map<std::string, std::string> golden = golden_digests();
  size_t missing = 0;
  for (const PtxProgram& program : ptx_programs()) {
    // A device of its own: after a report it is of no more use.
    const std::unique_ptr<Device> simulator = Device::open(kSimulated);
    try {
      const std::vector<std::byte> result = run_program(*simulator, program, ProgramChecks::on);
      const auto expected = golden.find(program_golden_name(program));
      if (expected == golden.end()) {
        if (++missing == 1) ADD_FAILURE() << program.name << ": no digest";
        continue;
      }
      EXPECT_EQ(program_digest(result), expected->second) << program.name;
    } catch (const Error& error) {
      ADD_FAILURE() << program.name << ": " << error.what();
    }
  }
  EXPECT_EQ(missing, 0U) << "programs without a digest: run simulator_gpu_test to add them";
}

TEST(Golden, HasNoDigestOfWhatIsNoLongerRun) {
  std::set<std::string> names;
  for (const InstructionCase& one : instruction_cases()) {
    if (one.is_exact) names.insert(instruction_name(one));
  }
  size_t programs = 0;
  for (const PtxProgram& program : ptx_programs()) {
    EXPECT_TRUE(names.insert(program_golden_name(program)).second) << program.name << " twice";
    ++programs;
  }
  EXPECT_GT(programs, 400U);
  for (const auto& [name, digest] : golden_digests()) EXPECT_TRUE(names.contains(name)) << name;
}

}  // namespace
}  // namespace kiln::runtime::sim
