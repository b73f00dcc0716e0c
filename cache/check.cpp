#include "cache/check.h"

#include <fmt/format.h>

#include "cache/rows.h"

namespace kiln::cache {
namespace {

// Texts that must be JSON, and the row they are of.
struct JsonColumn {
  const char* table;
  const char* column;
};
constexpr JsonColumn kJsonColumns[] = {
    {"problems", "shape"},
    {"problems", "bucket"},
    {"gpu_classes", "key"},
    {"decisions", "config"},
    {"decision_reasons", "tie_group"},
    {"plans", "shape"},
    {"plans", "config"},
    {"rejections", "config"},
    {"packed_layouts", "description"},
};

void check_pages(Database& database, const std::string& path, std::vector<std::string>& defects) {
  Statement integrity = database.prepare("PRAGMA integrity_check(100)");
  while (integrity.step()) {
    if (integrity.text(0) != "ok")
      defects.push_back(fmt::format("{}: {}", path, integrity.text(0)));
  }
}

void check_links(Database& database, const std::string& path, std::vector<std::string>& defects) {
  Statement links = database.prepare("PRAGMA foreign_key_check");
  while (links.step()) {
    defects.push_back(fmt::format("{}: a row of table {} refers to a row of {} that is not there",
                                  path, links.text(0), links.text(2)));
  }
}

void check_json(Database& database, const std::string& path, std::vector<std::string>& defects) {
  for (const JsonColumn& column : kJsonColumns) {
    Statement rows = database.prepare(
        fmt::format("SELECT {0} FROM {1} WHERE NOT json_valid({0})", column.column, column.table));
    while (rows.step()) {
      defects.push_back(fmt::format("{}: {} of table {} is not JSON: '{}'", path, column.column,
                                    column.table, rows.text(0).substr(0, 200)));
    }
  }
}

std::vector<std::string> keys(Database& database, std::string_view sql) {
  Statement rows = database.prepare(sql);
  std::vector<std::string> result;
  while (rows.step()) result.push_back(rows.text(0));
  return result;
}

void check_records(Database& database, const std::string& path, std::vector<std::string>& defects) {
  for (const std::string& key :
       keys(database, "SELECT b.key FROM binaries AS b JOIN images AS i ON i.binary = b.key")) {
    const std::optional<Hash128> hash = parse_hash(key);
    if (!hash || read_binary(database, *hash).damaged) {
      defects.push_back(fmt::format("{}: the checksum of binary {} does not hold", path, key));
    }
  }
  for (const std::string& key : keys(database, "SELECT id FROM plans")) {
    const std::optional<Hash128> hash = parse_hash(key);
    if (!hash || read_plan(database, *hash).damaged) {
      defects.push_back(fmt::format("{}: the checksum of plan {} does not hold", path, key));
    }
  }
  for (const Found<Decision>& decision : read_all_decisions(database)) {
    if (!decision.damaged) continue;
    const Decision& record = *decision.record;
    defects.push_back(fmt::format("{}: the checksum of the {} decision for {} {} {} does not hold",
                                  path, kind_name(record.kind), record.problem.op,
                                  record.problem.shape, record.problem.bucket));
  }
  const int64_t without_reason = database.query_integer(
      "SELECT count(*) FROM decisions LEFT JOIN decision_reasons AS r "
      "USING (problem, gpu_class, kind) WHERE r.reason IS NULL");
  if (without_reason > 0) {
    defects.push_back(fmt::format("{}: {} decisions have no reason", path, without_reason));
  }
}

std::vector<Reference> references(Database& database, std::string_view sql) {
  Statement rows = database.prepare(sql);
  std::vector<Reference> result;
  while (rows.step()) {
    result.push_back({parse_hash(rows.text(0)).value_or(Hash128{}), rows.text(1)});
  }
  return result;
}

}  // namespace

FileCheck check_file(Database& database, const std::string& path) {
  FileCheck check;
  check_pages(database, path, check.defects);
  check.is_whole = check.defects.empty();
  check_links(database, path, check.defects);
  check_json(database, path, check.defects);
  check_records(database, path, check.defects);
  return check;
}

std::vector<Reference> referenced_plans(Database& database) {
  return references(database,
                    "SELECT plan, 'a decision for ' || p.op || ' ' || p.shape || ' ' || p.bucket "
                    "FROM decisions JOIN problems AS p ON p.id = problem "
                    "WHERE plan <> '00000000000000000000000000000000' "
                    "UNION SELECT plan, 'a verification' FROM verifications "
                    "UNION SELECT plan, 'a timing' FROM timings");
}

std::vector<Reference> referenced_binaries(Database& database) {
  return references(database, "SELECT binary, 'plan ' || plan FROM plan_kernels");
}

}  // namespace kiln::cache
