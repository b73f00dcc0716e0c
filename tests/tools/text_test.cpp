// The parts below the commands: numbers, durations, nearest names, tables.
#include "tools/kiln/text.h"

#include <gtest/gtest.h>

#include "tools/kiln/exit_codes.h"
#include "tools/kiln/table.h"

namespace kiln::cli {
namespace {

TEST(Text, TimesHaveUnits) {
  EXPECT_EQ(time_text(0), "-");
  EXPECT_EQ(time_text(812), "812 ns");
  EXPECT_EQ(time_text(4310), "4.31 us");
  EXPECT_EQ(time_text(1.2e6), "1.20 ms");
  EXPECT_EQ(seconds_text(80), "1m20s");
  EXPECT_EQ(seconds_text(7500), "2h05m");
}

TEST(Text, BytesHaveUnits) {
  EXPECT_EQ(bytes_text(512), "512 B");
  EXPECT_EQ(bytes_text(99 * 1024), "99.0 KiB");
  EXPECT_EQ(bytes_text(40.0 * 1024 * 1024), "40.0 MiB");
}

TEST(Text, DurationsAreReadWithTheirUnits) {
  EXPECT_EQ(parse_duration_s("30s"), 30);
  EXPECT_EQ(parse_duration_s("5m"), 300);
  EXPECT_EQ(parse_duration_s("1h30m"), 5400);
  EXPECT_EQ(parse_duration_s("500ms"), 0.5);
  EXPECT_EQ(parse_duration_s("7d"), 7 * 86400);
  EXPECT_EQ(parse_duration_s("90"), 90);
  for (const char* bad : {"", "soon", "5 m", "-3s", "3x", "1e999s", "s"}) {
    EXPECT_THROW(parse_duration_s(bad), Failure) << bad;
  }
}

TEST(Text, NearestNameForgivesTypingMistakesAndShortForms) {
  const std::vector<std::string> known = {"a100-sxm4-80gb", "rtx-3090", "rtx-3090-ti", "a40"};
  EXPECT_EQ(nearest("rtx3090", known), "rtx-3090");
  EXPECT_EQ(nearest("RTX-3090-TI", known), "rtx-3090-ti");
  EXPECT_EQ(nearest("sxm4", known), "a100-sxm4-80gb");
  EXPECT_EQ(nearest("something-else", known), "");
}

TEST(Text, DamagedJsonOfTheStoreStaysReadable) {
  EXPECT_EQ(short_json(stored_json("{\"b\":2,\"a\":\"f1\"}")), "a=f1 b=2");
  EXPECT_EQ(short_json(stored_json("{}")), "-");
  EXPECT_EQ(short_json(stored_json("{broken")), "{broken");
}

TEST(Table, ColumnsAreAsWideAsTheirWidestCell) {
  Table table({{"NAME"}, {"N", Align::right}});
  table.add({"a", "1"});
  table.add({"longer", "1000"});
  EXPECT_EQ(table.text(),
            "NAME       N\n"
            "------  ----\n"
            "a          1\n"
            "longer  1000\n");
}

TEST(ExitCodes, EveryStatusHasACodeOfTheTable) {
  for (int status = 0; status <= static_cast<int>(Status::internal); ++status) {
    const ExitCode code = exit_code_of(static_cast<Status>(status));
    EXPECT_EQ(code == ExitCode::ok, status == 0) << status;
    bool listed = false;
    for (const ExitCodeRow& row : exit_codes()) listed |= row.code == code;
    EXPECT_TRUE(listed) << status;
  }
}

}  // namespace
}  // namespace kiln::cli
