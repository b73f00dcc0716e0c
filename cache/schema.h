// The tables of a store file, their version, and the way from an older version to this one.
// schema.cpp is the manual of the file format: every table and column is explained there, in SQL.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "cache/sqlite.h"

namespace kiln::cache {

// In the file header (PRAGMA application_id): "KILN". Tells our files from other programs' SQLite
// files.
inline constexpr int32_t kApplicationId = 0x4b494c4e;

// The whole current schema.
const char* schema_sql();

// SQL without its comments, and with white space only where it keeps two words apart: what two
// statements of the same meaning but of other comments and layout have in common.
std::string normalised_sql(std::string_view sql);

// The normalised SQL of the tables and indexes of the current version, by name. A file whose tables
// are not these is defective, so a change here needs a new version and a migration step.
std::string schema_structure();

// Makes an empty database a store of the current version. The caller holds a transaction.
void create_schema(Database& database);

// Makes the views those of this build. Views of other names stay. The caller holds a transaction.
void refresh_views(Database& database);

// One step of the file format. `sql` takes a file of version `to - 1` to version `to`.
struct Migration {
  int to;
  const char* sql;
};
std::span<const Migration> schema_migrations();

// Takes the file from its version to the last of `steps`, one step after the other, all or nothing.
// Fails with store_error when a step is missing.
void migrate(Database& database, std::span<const Migration> steps);

enum class FileKind {
  fresh,      // no table yet
  current,    // a store of this version
  older,      // a store of an earlier version: migrate
  newer,      // a store of a later version: leave it alone
  foreign,    // some other program's database: leave it alone
  defective,  // says that it is a store of this version, but its tables are not as they were made
};
FileKind classify(Database& database);

}  // namespace kiln::cache
