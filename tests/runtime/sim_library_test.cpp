// Which file is taken for the simulator: only one of the same build as the library.
#include "runtime/sim_library.h"

#include <gtest/gtest.h>

#include "jit/base/error.h"
#include "kiln_build_id.h"

namespace kiln::runtime {
namespace {

void expect_refused(const char* path, Status status, const std::vector<std::string>& parts) {
  try {
    load_simulator(path);
    ADD_FAILURE() << path << " was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), status) << error.what();
    for (const std::string& part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "\"" << part << "\" is not in: " << error.what();
  }
}

TEST(SimLibrary, TheOneOfThisBuildIsTaken) { EXPECT_NE(load_simulator(KILN_SIM_LIBRARY), nullptr); }

TEST(SimLibrary, OneOfAnotherBuildIsRefusedByName) {
  expect_refused(KILN_OTHER_SIMULATOR, Status::unsupported,
                 {KILN_OTHER_SIMULATOR, "0.0.9-other", kBuildId});
}

TEST(SimLibrary, OneThatNamesNoBuildIsRefused) {
  expect_refused(KILN_NAMELESS_SIMULATOR, Status::unsupported,
                 {KILN_NAMELESS_SIMULATOR, "an earlier one", kBuildId});
}

TEST(SimLibrary, WhatIsNoSimulatorIsRefused) {
  expect_refused("/nonexistent/libkiln_sim.so", Status::unsupported, {"could not be loaded"});
  expect_refused("libm.so.6", Status::unsupported, {"no kiln_sim_open"});
}

}  // namespace
}  // namespace kiln::runtime
