#include "jit/base/error.h"

#include <gtest/gtest.h>

#include <set>

namespace kiln {
namespace {

TEST(Error, EveryStatusHasItsOwnName) {
  std::set<std::string> names;
  for (int status = 0; status <= 15; ++status)
    names.insert(status_name(static_cast<Status>(status)));
  EXPECT_EQ(names.size(), 16u);
  EXPECT_EQ(names.count("unknown"), 0u);
  EXPECT_STREQ(status_name(static_cast<Status>(99)), "unknown");
}

TEST(Error, FailCarriesStatusAndSentence) {
  try {
    fail(Status::not_found, "No {} of {} here.", "op", 7);
    FAIL() << "fail returned";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::not_found);
    EXPECT_STREQ(error.what(), "No op of 7 here.");
  }
}

}  // namespace
}  // namespace kiln
