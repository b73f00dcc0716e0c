#include "cache/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include "cache/store.h"
#include "jit/base/error.h"

namespace kiln::cache {
namespace {

// Conventions
//   Keys and digests are 32 hex digits, so that rows can be read and joined by hand.
//   *_at is unix seconds. JSON is canonical (keys sorted, no white space). Durations of evidence
//   are REAL nanoseconds. Links between decisions, plans and binaries cross layers (a decision here
//   may use a plan of a pack), so they are no foreign keys: the store checks them when it writes,
//   and `Store::check` checks them again. `checksum` columns are XXH3 digests of the record; a row
//   whose checksum does not hold is read as if it were absent.
constexpr const char* kSchema = R"sql(
-- Names of the stored enums, for views and for people. The numbers are those of store.h.
CREATE TABLE decision_kinds (kind INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;
INSERT INTO decision_kinds VALUES
  (1, 'pinned'), (2, 'measured'), (3, 'borrowed'), (4, 'predicted'), (5, 'default');
CREATE TABLE verification_levels (level INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;
INSERT INTO verification_levels VALUES (0, 'none'), (1, 'simulator'), (2, 'device');

-- Facts about the file itself, for example when and by which version of Kiln it was made.
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;

-- 1. What is asked.

-- One row for each static shape and bucket of dynamic sizes that anything is known about.
CREATE TABLE problems (
  id INTEGER PRIMARY KEY,
  op TEXT NOT NULL,
  op_version INTEGER NOT NULL,
  shape TEXT NOT NULL,               -- canonical JSON of the static sizes, dtypes and layouts
  bucket TEXT NOT NULL,              -- canonical JSON of the bucket of the dynamic sizes
  UNIQUE (op, op_version, shape, bucket)
) STRICT;

-- One row for each set of limits that decides what is legal and fast (not for each product name).
CREATE TABLE gpu_classes (
  id INTEGER PRIMARY KEY,
  key TEXT NOT NULL UNIQUE,          -- canonical JSON of the limits
  label TEXT NOT NULL                -- slug of a product of the class, for people
) STRICT;

-- 2. What is decided.

-- This problem on this GPU class uses this config. Kinds stand side by side; the best one is read.
-- Stable: two runs that decide the same write the same bytes here, the evidence is apart.
CREATE TABLE decisions (
  problem INTEGER NOT NULL REFERENCES problems (id),
  gpu_class INTEGER NOT NULL REFERENCES gpu_classes (id),
  kind INTEGER NOT NULL REFERENCES decision_kinds (kind),
  config TEXT NOT NULL,              -- canonical JSON
  plan TEXT NOT NULL,                -- plans.id in this file or in a layer below
  checksum TEXT NOT NULL,
  PRIMARY KEY (problem, gpu_class, kind)
) STRICT, WITHOUT ROWID;

-- Why a decision was taken.
CREATE TABLE decision_reasons (
  problem INTEGER NOT NULL,
  gpu_class INTEGER NOT NULL,
  kind INTEGER NOT NULL,
  gpu_label TEXT NOT NULL,           -- the product it was decided for or on
  reason TEXT NOT NULL,
  is_partial INTEGER NOT NULL CHECK (is_partial IN (0, 1)),  -- 1: time ran out, not all were tried
  limits TEXT NOT NULL,              -- slug of --limits under which a stand-in measured it, or ""
  tie_group TEXT NOT NULL,           -- JSON array of the configs within the noise
  time_ns REAL NOT NULL,             -- 0: not known
  default_time_ns REAL NOT NULL,     -- 0: not known
  decided_at INTEGER NOT NULL,
  PRIMARY KEY (problem, gpu_class, kind),
  FOREIGN KEY (problem, gpu_class, kind)
    REFERENCES decisions (problem, gpu_class, kind) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- What a config means on an arch: kernels launched in order, of one binary each.
CREATE TABLE plans (
  id TEXT PRIMARY KEY CHECK (length(id) = 32),
  op TEXT NOT NULL,
  op_version INTEGER NOT NULL,
  shape TEXT NOT NULL,
  config TEXT NOT NULL,
  arch TEXT NOT NULL,                -- "sm_86"
  reduction_signature TEXT NOT NULL, -- plans with the same signature add in the same order
  packed_layout TEXT NOT NULL,       -- tag of the weight layout; "": the checkpoint's own
  checksum TEXT NOT NULL,            -- of this row and of its plan_kernels
  created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE plan_kernels (
  plan TEXT NOT NULL REFERENCES plans (id) ON DELETE CASCADE,
  ordinal INTEGER NOT NULL,          -- 0, 1, ...: order of the launches
  binary TEXT NOT NULL,              -- binaries.key in this file or in a layer below
  entry TEXT NOT NULL,
  threads INTEGER NOT NULL,
  dynamic_smem_bytes INTEGER NOT NULL,
  PRIMARY KEY (plan, ordinal)
) STRICT, WITHOUT ROWID;
CREATE INDEX plan_kernels_by_binary ON plan_kernels (binary);

-- The layouts that kiln_pack_weights can make, by tag. plans.packed_layout and the shape of a
-- problem name them.
CREATE TABLE packed_layouts (
  tag TEXT PRIMARY KEY,              -- names the layout and its version
  weight_format TEXT NOT NULL,       -- the checkpoint format it is made from
  description TEXT NOT NULL          -- canonical JSON: tiles, order, scale placement
) STRICT, WITHOUT ROWID;

-- 3. Evidence, level 1: of a binary.

-- Looked up by the hash of source closure + options + arch; the compiler's version is an attribute.
CREATE TABLE binaries (
  key TEXT PRIMARY KEY CHECK (length(key) = 32),
  source_hash TEXT NOT NULL,
  arch TEXT NOT NULL,                -- "sm_86" for a cubin, "compute_80" for PTX
  options TEXT NOT NULL,
  entry TEXT NOT NULL,
  kind INTEGER NOT NULL CHECK (kind IN (0, 1)),  -- 0 cubin, 1 PTX
  registers INTEGER NOT NULL,
  spill_store_bytes INTEGER NOT NULL,
  spill_load_bytes INTEGER NOT NULL,
  stack_bytes INTEGER NOT NULL,
  static_smem_bytes INTEGER NOT NULL,
  log TEXT NOT NULL,
  nvrtc_version TEXT NOT NULL,
  compile_ns INTEGER NOT NULL,
  checksum TEXT NOT NULL,            -- of this row, without the image
  created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The bytes, apart from their description: gc may drop an image and keep what is known about it.
CREATE TABLE images (
  id INTEGER PRIMARY KEY,
  binary TEXT NOT NULL UNIQUE REFERENCES binaries (key) ON DELETE CASCADE,
  codec INTEGER NOT NULL,            -- 1 zstd
  raw_bytes INTEGER NOT NULL,
  checksum TEXT NOT NULL,            -- XXH3 of the raw bytes
  used_at INTEGER NOT NULL,          -- for gc, by the hour
  data BLOB NOT NULL,
  -- 0: it came from elsewhere and was not proven here, so nobody loads it.
  trusted INTEGER NOT NULL DEFAULT 1 CHECK (trusted IN (0, 1))
) STRICT;

-- 4. Evidence, level 2: of a plan on a problem.

-- Does it compute the right thing: one row for each level and card it was tried on. The newest
-- stays, whichever driver it ran with.
CREATE TABLE verifications (
  plan TEXT NOT NULL,                -- names the binaries that ran
  problem INTEGER NOT NULL REFERENCES problems (id),
  verified_by INTEGER NOT NULL REFERENCES verification_levels (level),
  card TEXT NOT NULL,                -- name, or "simulator"
  driver TEXT NOT NULL,              -- version, "" for the simulator
  passed INTEGER NOT NULL CHECK (passed IN (0, 1)),
  tolerance TEXT NOT NULL,
  worst_error REAL,                  -- in units of the tolerance; NULL: not a number
  detail TEXT NOT NULL,
  verified_at INTEGER NOT NULL,
  PRIMARY KEY (problem, plan, verified_by, card)
) STRICT, WITHOUT ROWID;

-- 5. Evidence, level 3: of a plan on a problem and a GPU class.

-- How fast it is: one row for each method, limit and device, the newest stays.
CREATE TABLE timings (
  plan TEXT NOT NULL,
  problem INTEGER NOT NULL REFERENCES problems (id),
  gpu_class INTEGER NOT NULL REFERENCES gpu_classes (id),
  method TEXT NOT NULL,
  limits TEXT NOT NULL,              -- slug of --limits, or ""
  device TEXT NOT NULL,
  time_ns REAL NOT NULL,
  spread_ns REAL NOT NULL,
  rounds INTEGER NOT NULL,
  timed_at INTEGER NOT NULL,
  PRIMARY KEY (problem, gpu_class, plan, method, limits, device)
) STRICT, WITHOUT ROWID;

-- Candidates that did not make it, so that they are not tried again.
CREATE TABLE rejections (
  problem INTEGER NOT NULL REFERENCES problems (id),
  gpu_class INTEGER NOT NULL REFERENCES gpu_classes (id),
  config TEXT NOT NULL,
  plan TEXT NOT NULL,                -- id of the plan that ran, perhaps not in plans; zeros: none
  limits TEXT NOT NULL,              -- slug of --limits that it ran under, or ""
  stage TEXT NOT NULL,
  reason TEXT NOT NULL,
  detail TEXT NOT NULL,
  rejected_at INTEGER NOT NULL,
  PRIMARY KEY (problem, gpu_class, config)
) STRICT, WITHOUT ROWID;

-- 6. What is used.

-- What processes really called, so that it can be tuned.
CREATE TABLE used_sizes (
  problem INTEGER NOT NULL REFERENCES problems (id),
  gpu_class INTEGER NOT NULL REFERENCES gpu_classes (id),
  sessions INTEGER NOT NULL,         -- that called it
  first_used_at INTEGER NOT NULL,
  last_used_at INTEGER NOT NULL,
  PRIMARY KEY (problem, gpu_class)
) STRICT, WITHOUT ROWID;

-- 7. Layers and several users.

-- Things in the layers below this file that are to be read as absent.
CREATE TABLE decision_tombstones (
  problem INTEGER NOT NULL REFERENCES problems (id),
  gpu_class INTEGER NOT NULL REFERENCES gpu_classes (id),
  reason TEXT NOT NULL,
  hidden_at INTEGER NOT NULL,
  PRIMARY KEY (problem, gpu_class)
) STRICT, WITHOUT ROWID;
CREATE TABLE binary_tombstones (
  binary TEXT PRIMARY KEY,
  reason TEXT NOT NULL,
  hidden_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Who is compiling or tuning what. A holder that is dead, or past its deadline, is overtaken.
CREATE TABLE leases (
  key TEXT PRIMARY KEY,              -- a binary key, or a problem and a GPU class
  holder_host TEXT NOT NULL,
  holder_boot_id TEXT NOT NULL,      -- a pid means something on one boot of one host only
  holder_pid INTEGER NOT NULL,
  holder_started_at INTEGER NOT NULL,-- start of the process, against reuse of the pid
  taken_at INTEGER NOT NULL,
  heartbeat_at INTEGER NOT NULL,
  deadline_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- 8. Views for people. They hold nothing, so they belong to no version: who opens the file for
-- writing brings them up to date.

-- A plan is verified on a problem at the best level that it passed, and not at all while the newest
-- row of some card says that it failed. Store::find_decision() says the same of all layers.
CREATE VIEW verified_plans AS
  SELECT v.problem, v.plan, l.name AS verified
  FROM (SELECT problem, plan, CASE WHEN min(passed) = 0 THEN 0 ELSE max(verified_by) END AS level
        FROM verifications GROUP BY problem, plan) AS v
  JOIN verification_levels AS l ON l.level = v.level AND l.level > 0;

-- What serves a problem on a GPU, as Store::list_decisions() says it of all layers: the best kind
-- that did not fail verification, else the best kind with its failure. Whether its kernels are still
-- those of the source is for a session to find out.
CREATE VIEW winners AS
  SELECT p.op, json_patch(p.shape, p.bucket) AS problem, r.gpu_label AS gpu, d.config,
         k.name AS kind, round(nullif(r.time_ns, 0) / 1000, 3) AS time_us, v.verified,
         datetime(r.decided_at, 'unixepoch') AS decided_at, r.reason,
         (SELECT f.card || ': ' || f.detail FROM verifications AS f
          WHERE f.problem = d.problem AND f.plan = d.plan AND f.passed = 0
          ORDER BY f.card LIMIT 1) AS failure
  FROM decisions AS d
  JOIN decision_reasons AS r USING (problem, gpu_class, kind)
  JOIN problems AS p ON p.id = d.problem
  JOIN decision_kinds AS k ON k.kind = d.kind
  LEFT JOIN verified_plans AS v ON v.problem = d.problem AND v.plan = d.plan
  WHERE d.kind = (SELECT o.kind FROM decisions AS o
                  WHERE o.problem = d.problem AND o.gpu_class = d.gpu_class
                  ORDER BY EXISTS (SELECT 1 FROM verifications AS f
                                   WHERE f.problem = o.problem AND f.plan = o.plan
                                     AND f.passed = 0), o.kind
                  LIMIT 1)
  ORDER BY p.op, r.gpu_label, p.shape, p.bucket;

-- Everything that was timed, fastest first.
CREATE VIEW candidates AS
  SELECT p.op, json_patch(p.shape, p.bucket) AS problem, g.label AS gpu, plans.config,
         round(t.time_ns / 1000, 3) AS time_us, round(t.spread_ns / 1000, 3) AS spread_us,
         t.rounds, t.method, t.limits, v.verified, t.device,
         datetime(t.timed_at, 'unixepoch') AS timed_at
  FROM timings AS t
  JOIN problems AS p ON p.id = t.problem
  JOIN gpu_classes AS g ON g.id = t.gpu_class
  LEFT JOIN plans ON plans.id = t.plan
  LEFT JOIN verified_plans AS v ON v.problem = t.problem AND v.plan = t.plan
  ORDER BY p.op, g.label, p.shape, p.bucket, t.limits, t.time_ns;

CREATE VIEW rejects AS
  SELECT p.op, json_patch(p.shape, p.bucket) AS problem, g.label AS gpu, r.config, r.stage,
         r.reason, r.detail
  FROM rejections AS r
  JOIN problems AS p ON p.id = r.problem
  JOIN gpu_classes AS g ON g.id = r.gpu_class
  ORDER BY p.op, g.label, p.shape, p.bucket, r.stage, r.reason;

-- One row for each binary and plan that launches it.
CREATE VIEW kernels AS
  SELECT plans.op, plans.shape, plans.config, b.arch, k.ordinal, b.entry, k.threads,
         k.dynamic_smem_bytes, b.static_smem_bytes, b.registers,
         b.spill_store_bytes + b.spill_load_bytes AS spill_bytes, i.raw_bytes AS image_bytes,
         length(i.data) AS stored_bytes, i.trusted, b.nvrtc_version, b.key AS binary
  FROM binaries AS b
  LEFT JOIN images AS i ON i.binary = b.key
  LEFT JOIN plan_kernels AS k ON k.binary = b.key
  LEFT JOIN plans ON plans.id = k.plan
  ORDER BY plans.op, b.arch, plans.shape, plans.config, k.ordinal;
)sql";

// Version 1 is the first. A new version adds its step here, changes kSchema to what the step leads
// to, and adds a dump of the version before to tests/cache/stores/. A step never changes. A column
// comes last in its table, because that is where ALTER TABLE puts it.
constexpr Migration kMigrations[] = {
    // Images that were imported are told apart, and the sizes that were used are kept. No code
    // ever read `packs`: a path in a file that comes from elsewhere would not be trusted.
    {2, R"sql(
ALTER TABLE images ADD COLUMN trusted INTEGER NOT NULL DEFAULT 1 CHECK (trusted IN (0, 1));
CREATE TABLE used_sizes (
  problem INTEGER NOT NULL REFERENCES problems (id),
  gpu_class INTEGER NOT NULL REFERENCES gpu_classes (id),
  sessions INTEGER NOT NULL,
  first_used_at INTEGER NOT NULL,
  last_used_at INTEGER NOT NULL,
  PRIMARY KEY (problem, gpu_class)
) STRICT, WITHOUT ROWID;
DROP TABLE packs;
)sql"},
};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Name of each schema object of these types to the SQL that made it.
std::map<std::string, std::string> objects_of(Database& database, std::string_view types) {
  std::map<std::string, std::string> objects;
  Statement rows = database.prepare(
      fmt::format("SELECT name, sql FROM sqlite_schema WHERE type IN ({}) AND sql IS NOT NULL "
                  "AND name NOT LIKE 'sqlite_%'",
                  types));
  while (rows.step()) objects.emplace(rows.text(0), rows.text(1));
  return objects;
}

std::map<std::string, std::string> tables_and_indexes_of(Database& database) {
  return objects_of(database, "'table', 'index'");
}

std::map<std::string, std::string> views_of(Database& database) {
  return objects_of(database, "'view'");
}

// Without comments.
std::map<std::string, std::string> tables_of(Database& database) {
  std::map<std::string, std::string> tables = tables_and_indexes_of(database);
  for (auto& [name, sql] : tables) sql = normalised_sql(sql);
  return tables;
}

// What a new store has.
struct ExpectedObjects {
  std::map<std::string, std::string> tables;
  std::map<std::string, std::string> views;
};
const ExpectedObjects& expected_objects() {
  static const auto expected = [] {
    Database scratch(":memory:", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX);
    create_schema(scratch);
    return ExpectedObjects{.tables = tables_of(scratch), .views = views_of(scratch)};
  }();
  return expected;
}

}  // namespace

const char* schema_sql() { return kSchema; }

std::string normalised_sql(std::string_view sql) {
  std::string result;
  bool gap = false;  // white space or a comment since the last character
  const auto add = [&](std::string_view text) {
    if (gap && !result.empty() && is_word(result.back()) && is_word(text.front())) result += ' ';
    gap = false;
    result += text;
  };
  for (size_t at = 0; at < sql.size();) {
    const char c = sql[at];
    size_t end = at + 1;
    if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      gap = true;
    } else if (sql.substr(at, 2) == "--") {
      end = std::min(sql.find('\n', at), sql.size());
      gap = true;
    } else if (sql.substr(at, 2) == "/*") {
      const size_t close = sql.find("*/", at + 2);
      end = close == sql.npos ? sql.size() : close + 2;
      gap = true;
    } else if (c == '\'' || c == '"' || c == '`' || c == '[') {
      // A doubled quote inside reads as the end of one text and the start of the next.
      const size_t close = sql.find(c == '[' ? ']' : c, at + 1);
      end = close == sql.npos ? sql.size() : close + 1;
      add(sql.substr(at, end - at));
    } else {
      add(sql.substr(at, 1));
    }
    at = end;
  }
  return result;
}

std::string schema_structure() {
  std::string all;
  for (const auto& [name, sql] : expected_objects().tables) all += sql + ";\n";
  return all;
}

void create_schema(Database& database) {
  database.execute(kSchema);
  database.prepare("INSERT INTO meta VALUES ('created_at', strftime('%s', 'now'))").run();
  database.execute(fmt::format("PRAGMA application_id = {}; PRAGMA user_version = {}",
                               kApplicationId, kSchemaVersion));
}

void refresh_views(Database& database) {
  const std::map<std::string, std::string> views = views_of(database);
  for (const auto& [name, sql] : expected_objects().views) {
    const auto found = views.find(name);
    if (found == views.end()) {
      // A table of that name is the user's own.
      if (tables_and_indexes_of(database).contains(name)) continue;
    } else {
      if (normalised_sql(found->second) == normalised_sql(sql)) continue;
      database.execute("DROP VIEW " + name);
    }
    database.execute(sql);
  }
}

std::span<const Migration> schema_migrations() { return kMigrations; }

void migrate(Database& database, std::span<const Migration> steps) {
  Transaction transaction(database);
  int64_t version = database.query_integer("PRAGMA user_version");
  for (const Migration& step : steps) {
    if (step.to <= version) continue;
    if (step.to != version + 1) break;
    database.execute(step.sql);
    database.execute(fmt::format("PRAGMA user_version = {}", step.to));
    version = step.to;
  }
  if (!steps.empty() && version != steps.back().to) {
    fail(Status::store_error, "no step leads from store version {} to version {}", version,
         steps.back().to);
  }
  transaction.commit();
}

namespace {

// All that is read until its end is of one moment.
class Snapshot {
 public:
  explicit Snapshot(Database& database) : database_(database) { database_.execute("BEGIN"); }
  Snapshot(const Snapshot&) = delete;
  ~Snapshot() {
    // A statement that failed may have ended the transaction already.
    if (sqlite3_get_autocommit(database_.handle()) == 0) database_.execute("ROLLBACK");
  }

 private:
  Database& database_;
};

}  // namespace

FileKind classify(Database& database) {
  // Somebody else may be making the tables just now.
  const Snapshot snapshot(database);
  const int64_t application = database.query_integer("PRAGMA application_id");
  const int64_t version = database.query_integer("PRAGMA user_version");
  const std::map<std::string, std::string> tables = tables_of(database);
  if (application == 0 && version == 0 && tables.empty()) return FileKind::fresh;
  if (application != kApplicationId) return FileKind::foreign;
  if (version > kSchemaVersion) return FileKind::newer;
  if (version < kSchemaVersion) return FileKind::older;
  for (const auto& [name, sql] : expected_objects().tables) {
    const auto found = tables.find(name);
    if (found == tables.end() || found->second != sql) return FileKind::defective;
  }
  return FileKind::current;
}

}  // namespace kiln::cache
