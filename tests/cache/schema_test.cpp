// The file format: its marks in the header, older and newer versions, other programs' files, and
// migration in steps.
#include "cache/schema.h"

#include <map>

#include "cache/layer.h"
#include "jit/base/error.h"
#include "tests/cache/fixture.h"

namespace kiln::cache {
namespace {

class SchemaTest : public ::testing::Test {
 protected:
  Database database_{":memory:", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE};
};

TEST_F(SchemaTest, FreshThenCurrent) {
  EXPECT_EQ(classify(database_), FileKind::fresh);
  create_schema(database_);
  EXPECT_EQ(classify(database_), FileKind::current);
  EXPECT_EQ(database_.query_integer("PRAGMA user_version"), kSchemaVersion);
  EXPECT_EQ(database_.query_integer("PRAGMA application_id"), kApplicationId);
}

TEST_F(SchemaTest, UsersOwnTableAndIndexAreNoDefect) {
  create_schema(database_);
  database_.execute("CREATE TABLE notes (text); CREATE INDEX mine ON plans (op)");
  EXPECT_EQ(classify(database_), FileKind::current);
}

TEST_F(SchemaTest, MissingOrOtherTableIsADefect) {
  create_schema(database_);
  database_.execute("DROP TABLE leases");
  EXPECT_EQ(classify(database_), FileKind::defective);
  database_.execute("CREATE TABLE leases (key TEXT)");
  EXPECT_EQ(classify(database_), FileKind::defective);
}

TEST_F(SchemaTest, OtherCommentsAndLayoutAreNoDefect) {
  std::string sql = schema_sql();
  const std::string comment = "-- plans.id in this file or in a layer below";
  ASSERT_NE(sql.find(comment), std::string::npos);
  sql.replace(sql.find(comment), comment.size(), "-- said in other words; /* ' */");
  const std::string layout = "  op_version INTEGER NOT NULL,\n";
  ASSERT_NE(sql.find(layout), std::string::npos);
  sql.replace(sql.find(layout), layout.size(), "\top_version  INTEGER /* as is */ NOT NULL,");
  database_.execute(sql);
  database_.execute("PRAGMA application_id = " + std::to_string(kApplicationId));
  database_.execute("PRAGMA user_version = " + std::to_string(kSchemaVersion));
  EXPECT_EQ(classify(database_), FileKind::current);
}

TEST_F(SchemaTest, NormalisedSqlKeepsWordsAndQuotedTexts) {
  EXPECT_EQ(normalised_sql("a  INTEGER -- x\n NOT/* y */NULL , b"), "a INTEGER NOT NULL,b");
  EXPECT_EQ(normalised_sql("'a -- b' , \"c /* d\""), "'a -- b',\"c /* d\"");
  EXPECT_EQ(normalised_sql("'it''s  -- so' -- end"), "'it''s  -- so'");
  EXPECT_NE(normalised_sql("a INTEGER"), normalised_sql("a TEXT"));
}

// Whoever changes a table makes a new kSchemaVersion with a migration step, and then this hash.
TEST_F(SchemaTest, TablesOfAVersionNeverChange) {
  EXPECT_EQ(kSchemaVersion, 2);
  EXPECT_EQ(hash_text(schema_structure()).hex(), "359b55788b16b262a395ec3b71cb5c8a")
      << schema_structure();
}

TEST_F(SchemaTest, OtherProgramsOlderAndNewerFilesAreTold) {
  database_.execute("CREATE TABLE bookmarks (url TEXT)");
  EXPECT_EQ(classify(database_), FileKind::foreign);
  database_.execute("PRAGMA user_version = 1");
  EXPECT_EQ(classify(database_), FileKind::foreign);
  database_.execute("PRAGMA application_id = " + std::to_string(kApplicationId));
  database_.execute("PRAGMA user_version = " + std::to_string(kSchemaVersion + 1));
  EXPECT_EQ(classify(database_), FileKind::newer);
  database_.execute("PRAGMA user_version = " + std::to_string(kSchemaVersion - 1));
  EXPECT_EQ(classify(database_), FileKind::older);
}

TEST_F(SchemaTest, MigrationGoesStepByStepFromWhereTheFileIs) {
  database_.execute("PRAGMA user_version = 5; CREATE TABLE log (step)");
  const Migration steps[] = {{5, "INSERT INTO log VALUES (5)"},
                             {6, "INSERT INTO log VALUES (6); ALTER TABLE log ADD COLUMN more"},
                             {7, "INSERT INTO log VALUES (7, 'x')"}};
  migrate(database_, steps);
  EXPECT_EQ(database_.query_integer("PRAGMA user_version"), 7);
  EXPECT_EQ(database_.query_text("SELECT group_concat(step) FROM log"), "6,7");
}

TEST_F(SchemaTest, FailedMigrationLeavesTheFileAsItWas) {
  database_.execute("PRAGMA user_version = 5; CREATE TABLE log (step)");
  const Migration broken[] = {{6, "INSERT INTO log VALUES (6)"},
                              {7, "INSERT INTO nowhere VALUES (7)"}};
  EXPECT_THROW(migrate(database_, broken), SqliteError);
  const Migration gap[] = {{6, "INSERT INTO log VALUES (6)"}, {8, "INSERT INTO log VALUES (8)"}};
  EXPECT_THROW(migrate(database_, gap), Error);
  EXPECT_EQ(database_.query_integer("PRAGMA user_version"), 5);
  EXPECT_EQ(database_.query_integer("SELECT count(*) FROM log"), 0);
}

TEST_F(SchemaTest, StepsThatLeadNowhereMakeTheFileUnusable) {
  database_.execute("PRAGMA user_version = 5; CREATE TABLE log (step)");
  const Migration gap[] = {{8, "INSERT INTO log VALUES (8)"}};
  EXPECT_THROW(migrate_store("kiln.db", database_, gap), Unusable);
  const Migration broken[] = {{6, "INSERT INTO nowhere VALUES (6)"}};
  EXPECT_THROW(migrate_store("kiln.db", database_, broken), Unusable);
  EXPECT_EQ(database_.query_integer("PRAGMA user_version"), 5);
}

TEST_F(SchemaTest, EveryStepFromVersionOneOnExists) {
  int version = 1;
  for (const Migration& step : schema_migrations()) EXPECT_EQ(step.to, ++version);
  EXPECT_EQ(version, kSchemaVersion);
}

// A dump of every version that was, each with a row in every table.
class OlderSchemaTest : public StoreTest, public ::testing::WithParamInterface<int> {
 protected:
  OlderSchemaTest() {
    sql(read_file(std::string(KILN_STORES) + "/v" + std::to_string(GetParam()) + ".sql"));
  }

  std::vector<std::string> tables() {
    return sql("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'");
  }
  // The columns that a table has, as SQL takes them.
  std::string columns_of(const std::string& table) {
    return sql("SELECT group_concat(name) FROM pragma_table_info('" + table + "')").at(0);
  }
  std::vector<std::string> rows_of(const std::string& table, const std::string& columns) {
    // Opening for writing notes when.
    const std::string kept = table == "meta" ? " WHERE key <> 'opened_at'" : "";
    return sql("SELECT " + columns + " FROM " + table + kept + " ORDER BY " + columns);
  }
};
INSTANTIATE_TEST_SUITE_P(EveryVersion, OlderSchemaTest, ::testing::Range(1, kSchemaVersion));

TEST_P(OlderSchemaTest, IsMigratedWithItsRows) {
  ASSERT_EQ(sql("PRAGMA user_version"), std::vector{std::to_string(GetParam())});
  struct Contents {
    std::string columns;
    std::vector<std::string> rows;
  };
  std::map<std::string, Contents> before;
  for (const std::string& table : tables()) {
    if (table == "packs") continue;  // until version 2, and never read
    const std::string columns = columns_of(table);
    before[table] = {columns, rows_of(table, columns)};
    EXPECT_FALSE(before[table].rows.empty()) << table << " has no row in the dump";
  }
  {
    auto store = open();
    EXPECT_TRUE(store->warnings().empty()) << store->warnings().at(0);
    EXPECT_TRUE(store->check().empty()) << store->check().at(0);
  }
  EXPECT_EQ(sql("PRAGMA user_version"), std::vector{std::to_string(kSchemaVersion)});
  for (const auto& [table, contents] : before) {
    EXPECT_EQ(rows_of(table, contents.columns), contents.rows) << table;
  }
  Database migrated(path_, SQLITE_OPEN_READONLY);
  EXPECT_EQ(classify(migrated), FileKind::current);
}

TEST_P(OlderSchemaTest, RecordsAreReadAndWrittenAfterwards) {
  auto store = open();
  const std::vector<DecisionRow> decisions = store->list_decisions();
  ASSERT_EQ(decisions.size(), 1u);
  EXPECT_EQ(decisions[0].verified, Verified::device);
  const Decision& decision = decisions[0].decision;
  const auto plan = store->find_plan(decision.plan);
  ASSERT_TRUE(plan);
  EXPECT_TRUE(store->find_binary(plan->kernels.at(0).binary));
  EXPECT_EQ(store->timings(decision.problem, decision.gpu_class).size(), 1u);
  EXPECT_EQ(store->rejections(decision.problem, decision.gpu_class).size(), 1u);
  EXPECT_TRUE(store->put(sample_result("a")));
  EXPECT_TRUE(store->warnings().empty());
}

TEST_P(OlderSchemaTest, ReaderLeavesItAndNamesAWriter) {
  const std::string before = read_file(path_);
  const auto store = open(StoreOptions::Mode::read_only);
  ASSERT_EQ(store->warnings().size(), 1u);
  EXPECT_NE(store->warnings()[0].find("kiln build --db"), std::string::npos);
  EXPECT_EQ(read_file(path_), before);
}

TEST_F(SchemaTest, NumbersOfTheStoredEnumsAreThoseOfTheHeader) {
  create_schema(database_);
  for (const DecisionKind kind :
       {DecisionKind::pinned, DecisionKind::measured, DecisionKind::borrowed,
        DecisionKind::predicted, DecisionKind::fallback}) {
    EXPECT_EQ(database_.query_text("SELECT name FROM decision_kinds WHERE kind = " +
                                   std::to_string(static_cast<int>(kind))),
              kind_name(kind));
  }
  for (const Verified level : {Verified::none, Verified::simulator, Verified::device}) {
    EXPECT_EQ(database_.query_text("SELECT name FROM verification_levels WHERE level = " +
                                   std::to_string(static_cast<int>(level))),
              verified_name(level));
  }
}

TEST_F(StoreTest, StoreOfANewerSchemaIsLeftAloneAndMemoryServes) {
  ASSERT_TRUE(open()->put(sample_result("a")));
  sql("PRAGMA journal_mode = DELETE; PRAGMA user_version = 99");
  const std::string before = read_file(path_);
  const auto files = files_in_folder();
  {
    auto store = open();
    ASSERT_EQ(store->warnings().size(), 1u);
    EXPECT_NE(store->warnings()[0].find("99"), std::string::npos);
    EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
    EXPECT_EQ(store->info().path, ":memory:");
    EXPECT_TRUE(store->put(sample_result("b")));
    EXPECT_TRUE(store->find_decision(sample_problem(), kA100));
  }
  {
    auto store = open(StoreOptions::Mode::read_only);
    EXPECT_EQ(store->warnings().size(), 1u);
    EXPECT_FALSE(store->find_decision(sample_problem(), kA100));
  }
  EXPECT_EQ(read_file(path_), before);
  EXPECT_EQ(files_in_folder(), files);
}

TEST_F(StoreTest, OlderStoreThatNoStepBringsUpToDateIsLeftAloneAndMemoryServes) {
  ASSERT_TRUE(open()->put(sample_result("a")));
  sql("PRAGMA user_version = 0");
  {
    auto store = open();
    ASSERT_EQ(store->warnings().size(), 1u);
    EXPECT_NE(store->warnings()[0].find("older schema"), std::string::npos);
    EXPECT_TRUE(store->put(sample_result("b")));
    EXPECT_EQ(store->info().path, ":memory:");
  }
  EXPECT_EQ(count_files_with(".corrupt"), 0u);
  EXPECT_EQ(sql("SELECT count(*) FROM decisions"), std::vector<std::string>{"1"});
}

TEST_F(StoreTest, DatabaseOfAnotherProgramIsLeftAloneAndMemoryServes) {
  for (const char* mark : {"0", "1234"}) {
    path_ = folder_ + "/places" + mark + ".sqlite";
    sql(std::string("CREATE TABLE bookmarks (url); INSERT INTO bookmarks VALUES ('x');") +
        "PRAGMA application_id = " + mark);
    const std::string before = read_file(path_);
    {
      auto store = open();
      EXPECT_EQ(store->warnings().size(), 1u);
      EXPECT_TRUE(store->put(sample_result("a")));
    }
    EXPECT_EQ(read_file(path_), before);
    EXPECT_EQ(count_files_with(".corrupt"), 0u);
  }
}

}  // namespace
}  // namespace kiln::cache
