// Every exact instruction form on the simulator against what an H200 gave for the same operands
// (golden.txt, written by simulator_gpu_test).
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "tests/sim/instructions.h"

namespace kiln::runtime::sim {
namespace {

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
  ASSERT_GT(golden.size(), 500U);
  const std::unique_ptr<Device> simulator = Device::open("sim:a100-sxm4-80gb");
  size_t compared = 0;
  for (const InstructionCase& one : instruction_cases()) {
    if (!one.is_exact) continue;
    const std::string name = instruction_name(one);
    const auto expected = golden.find(name);
    ASSERT_NE(expected, golden.end()) << name << ": run simulator_gpu_test to add it";
    const std::vector<uint64_t> results = run_instruction(*simulator, one, instruction_inputs(one));
    EXPECT_EQ(instruction_digest(results), expected->second) << name;
    ++compared;
  }
  EXPECT_GE(compared, golden.size());
}

}  // namespace
}  // namespace kiln::runtime::sim
