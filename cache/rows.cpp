#include "cache/rows.h"

#include <algorithm>
#include <ctime>

#include "cache/lease_rows.h"
#include "jit/base/error.h"
#include "jit/base/json.h"

namespace kiln::cache {
namespace {

// Digests of the records that decide what is launched, so that a flipped bit is a miss and never
// another launch.

std::string decision_checksum(const Decision& decision) {
  return HashRecord()
      .field("op", decision.problem.op)
      .field("op_version", decision.problem.op_version)
      .field("shape", decision.problem.shape)
      .field("bucket", decision.problem.bucket)
      .field("gpu_class", decision.gpu_class)
      .field("kind", static_cast<int64_t>(decision.kind))
      .field("config", decision.config)
      .field("plan", decision.plan.hex())
      .hash()
      .hex();
}

std::string plan_checksum(const PlanRecord& plan) {
  HashRecord record;
  record.field("id", plan.id.hex())
      .field("op", plan.op)
      .field("op_version", plan.op_version)
      .field("shape", plan.shape)
      .field("config", plan.config)
      .field("arch", plan.arch)
      .field("reduction_signature", plan.reduction_signature)
      .field("packed_layout", plan.packed_layout);
  for (const PlanRecord::Kernel& kernel : plan.kernels) {
    record.field("binary", kernel.binary.hex())
        .field("entry", kernel.entry)
        .field("threads", kernel.threads)
        .field("dynamic_smem_bytes", kernel.dynamic_smem_bytes);
  }
  return record.hash().hex();
}

std::string binary_checksum(const jit::Binary& binary) {
  return HashRecord()
      .field("key", binary.key.hex())
      .field("source_hash", binary.source_hash.hex())
      .field("arch", binary.arch)
      .field("options", binary.options)
      .field("entry", binary.entry)
      .field("kind", static_cast<int64_t>(binary.kind))
      .field("registers", binary.resources.registers)
      .field("spill_store_bytes", binary.resources.spill_store_bytes)
      .field("spill_load_bytes", binary.resources.spill_load_bytes)
      .field("stack_bytes", binary.resources.stack_bytes)
      .field("static_smem_bytes", binary.resources.static_smem_bytes)
      .hash()
      .hex();
}

// A key that is not 32 hex digits reads as zero: the checksum of its row does not hold then.
Hash128 hash_or_zero(const std::string& hex) { return parse_hash(hex).value_or(Hash128{}); }

bool is_enough(int64_t trusted, Trust trust) { return trust == Trust::any || trusted == 1; }

Problem read_problem(const Statement& row, int first_column) {
  return {row.text(first_column), static_cast<int>(row.integer(first_column + 1)),
          row.text(first_column + 2), row.text(first_column + 3)};
}

std::string tie_group_text(const std::vector<std::string>& configs) {
  return Json(configs).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<std::string> parse_tie_group(const std::string& text) {
  std::vector<std::string> configs;
  const Json array = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!array.is_array()) return configs;
  for (const Json& config : array) {
    if (config.is_string()) configs.push_back(config.get<std::string>());
  }
  return configs;
}

int64_t problem_id(Database& database, const Problem& problem) {
  database
      .prepare(
          "INSERT INTO problems (op, op_version, shape, bucket) VALUES (?, ?, ?, ?) "
          "ON CONFLICT DO NOTHING")
      .bind(problem.op, problem.op_version, problem.shape, problem.bucket)
      .run();
  Statement row = database.prepare(
      "SELECT id FROM problems WHERE op = ? AND op_version = ? AND shape = ? AND bucket = ?");
  row.bind(problem.op, problem.op_version, problem.shape, problem.bucket);
  if (!row.step()) database.fail(SQLITE_CORRUPT);
  return row.integer(0);
}

int64_t gpu_class_id(Database& database, std::string_view key, std::string_view label) {
  database
      .prepare(
          "INSERT INTO gpu_classes (key, label) VALUES (?, ?) "
          "ON CONFLICT (key) DO UPDATE SET label = excluded.label WHERE label = ''")
      .bind(key, label)
      .run();
  Statement row = database.prepare("SELECT id FROM gpu_classes WHERE key = ?");
  row.bind(key);
  if (!row.step()) database.fail(SQLITE_CORRUPT);
  return row.integer(0);
}

// Of evidence to write. What is found now is the newest, also by a clock that was set back.
struct Date {
  explicit Date(int64_t given) : seconds(given == 0 ? now_seconds() : given), is_now(given == 0) {}
  int64_t seconds;
  int is_now;  // 1: it replaces what is there whatever its date
};

constexpr std::string_view kSelectDecisions =
    "SELECT p.op, p.op_version, p.shape, p.bucket, g.key, d.kind, d.config, d.plan, d.checksum, "
    "       r.gpu_label, r.reason, r.tie_group, r.time_ns, r.default_time_ns, r.decided_at, "
    "       r.is_partial, r.limits "
    "FROM decisions AS d "
    "JOIN problems AS p ON p.id = d.problem "
    "JOIN gpu_classes AS g ON g.id = d.gpu_class "
    "JOIN decision_reasons AS r USING (problem, gpu_class, kind) ";

Found<Decision> read_decision(const Statement& row) {
  Decision decision;
  decision.problem = read_problem(row, 0);
  decision.gpu_class = row.text(4);
  decision.kind = static_cast<DecisionKind>(row.integer(5));
  decision.config = row.text(6);
  decision.plan = hash_or_zero(row.text(7));
  const bool intact = row.text(8) == decision_checksum(decision);
  decision.gpu_label = row.text(9);
  decision.reason = row.text(10);
  decision.tie_group = parse_tie_group(row.text(11));
  decision.time_ns = row.real(12);
  decision.default_time_ns = row.real(13);
  decision.decided_at = row.integer(14);
  decision.scope = row.integer(15) == 0 ? Decision::Scope::all : Decision::Scope::part;
  decision.limits = row.text(16);
  return {std::move(decision), !intact};
}

}  // namespace

int64_t now_seconds() { return static_cast<int64_t>(std::time(nullptr)); }

std::vector<Found<Decision>> read_decisions(Database& database, const Problem& problem,
                                            std::string_view gpu_class) {
  Statement rows = database.prepare(
      std::string(kSelectDecisions) +
      "WHERE p.op = ? AND p.op_version = ? AND p.shape = ? AND p.bucket = ? AND g.key = ?");
  rows.bind(problem.op, problem.op_version, problem.shape, problem.bucket, gpu_class);
  std::vector<Found<Decision>> decisions;
  while (rows.step()) decisions.push_back(read_decision(rows));
  return decisions;
}

std::vector<Found<Decision>> read_all_decisions(Database& database) {
  Statement rows = database.prepare(kSelectDecisions);
  std::vector<Found<Decision>> decisions;
  while (rows.step()) decisions.push_back(read_decision(rows));
  return decisions;
}

bool hides_decision(Database& database, const Problem& problem, std::string_view gpu_class) {
  Statement row = database.prepare(
      "SELECT 1 FROM decision_tombstones AS t "
      "JOIN problems AS p ON p.id = t.problem JOIN gpu_classes AS g ON g.id = t.gpu_class "
      "WHERE p.op = ? AND p.op_version = ? AND p.shape = ? AND p.bucket = ? AND g.key = ?");
  row.bind(problem.op, problem.op_version, problem.shape, problem.bucket, gpu_class);
  return row.step();
}

std::vector<std::pair<Problem, std::string>> hidden_decisions(Database& database) {
  Statement rows = database.prepare(
      "SELECT p.op, p.op_version, p.shape, p.bucket, g.key FROM decision_tombstones AS t "
      "JOIN problems AS p ON p.id = t.problem JOIN gpu_classes AS g ON g.id = t.gpu_class");
  std::vector<std::pair<Problem, std::string>> hidden;
  while (rows.step()) hidden.emplace_back(read_problem(rows, 0), rows.text(4));
  return hidden;
}

bool hides_binary(Database& database, const Hash128& key) {
  return database.prepare("SELECT 1 FROM binary_tombstones WHERE binary = ?")
      .bind(key.hex())
      .step();
}

bool has_plan(Database& database, const Hash128& id) {
  return database.prepare("SELECT 1 FROM plans WHERE id = ?").bind(id.hex()).step();
}

bool has_description(Database& database, const Hash128& key) {
  return database.prepare("SELECT 1 FROM binaries WHERE key = ?").bind(key.hex()).step();
}

bool has_image(Database& database, const Hash128& key, Trust trust) {
  Statement row = database.prepare("SELECT trusted FROM images WHERE binary = ?");
  row.bind(key.hex());
  return row.step() && is_enough(row.integer(0), trust);
}

Found<PlanRecord> read_plan(Database& database, const Hash128& id) {
  Statement row = database.prepare(
      "SELECT op, op_version, shape, config, arch, reduction_signature, packed_layout, checksum "
      "FROM plans WHERE id = ?");
  row.bind(id.hex());
  if (!row.step()) return {};
  PlanRecord plan;
  plan.id = id;
  plan.op = row.text(0);
  plan.op_version = static_cast<int>(row.integer(1));
  plan.shape = row.text(2);
  plan.config = row.text(3);
  plan.arch = row.text(4);
  plan.reduction_signature = row.text(5);
  plan.packed_layout = row.text(6);
  const std::string checksum = row.text(7);
  Statement kernels = database.prepare(
      "SELECT binary, entry, threads, dynamic_smem_bytes FROM plan_kernels WHERE plan = ? "
      "ORDER BY ordinal");
  kernels.bind(id.hex());
  while (kernels.step()) {
    plan.kernels.push_back({hash_or_zero(kernels.text(0)), kernels.text(1),
                            static_cast<int>(kernels.integer(2)), kernels.integer(3)});
  }
  if (plan_checksum(plan) != checksum) return {.record = std::nullopt, .damaged = true};
  return {.record = std::move(plan), .damaged = false};
}

Found<jit::Binary> read_description(Database& database, const Hash128& key) {
  Statement row = database.prepare(
      "SELECT source_hash, arch, options, entry, kind, registers, spill_store_bytes, "
      "       spill_load_bytes, stack_bytes, static_smem_bytes, log, nvrtc_version, compile_ns, "
      "       checksum FROM binaries WHERE key = ?");
  row.bind(key.hex());
  if (!row.step()) return {};
  jit::Binary binary;
  binary.key = key;
  binary.source_hash = hash_or_zero(row.text(0));
  binary.arch = row.text(1);
  binary.options = row.text(2);
  binary.entry = row.text(3);
  binary.kind = static_cast<jit::BinaryKind>(row.integer(4));
  binary.resources = {.registers = static_cast<int>(row.integer(5)),
                      .spill_store_bytes = row.integer(6),
                      .spill_load_bytes = row.integer(7),
                      .stack_bytes = row.integer(8),
                      .static_smem_bytes = row.integer(9)};
  binary.log = row.text(10);
  binary.nvrtc_version = row.text(11);
  binary.compile_ns = row.integer(12);
  if (row.text(13) != binary_checksum(binary)) return {.record = std::nullopt, .damaged = true};
  return {.record = std::move(binary), .damaged = false};
}

Found<jit::Binary> read_binary(Database& database, const Hash128& key, Trust trust) {
  Statement row = database.prepare(
      "SELECT codec, raw_bytes, checksum, data, trusted FROM images WHERE binary = ?");
  row.bind(key.hex());
  if (!row.step() || !is_enough(row.integer(4), trust)) return {};
  Found<jit::Binary> found = read_description(database, key);
  if (!found.record) return found;
  std::optional<std::string> image =
      unpack_image(row.integer(0), row.integer(1), hash_or_zero(row.text(2)), row.bytes(3));
  if (!image) return {.record = std::nullopt, .damaged = true};
  found.record->image = std::move(*image);
  return found;
}

std::vector<BinaryRow> read_binary_rows(Database& database) {
  Statement rows = database.prepare(
      "SELECT b.key, (SELECT p.op FROM plan_kernels AS k JOIN plans AS p ON p.id = k.plan "
      "               WHERE k.binary = b.key LIMIT 1), "
      "       b.arch, b.entry, b.kind, b.registers, b.spill_store_bytes + b.spill_load_bytes, "
      "       i.raw_bytes, length(i.data), i.trusted "
      "FROM binaries AS b JOIN images AS i ON i.binary = b.key ORDER BY b.key");
  std::vector<BinaryRow> binaries;
  while (rows.step()) {
    BinaryRow binary;
    binary.key = hash_or_zero(rows.text(0));
    binary.op = rows.text(1);
    binary.arch = rows.text(2);
    binary.entry = rows.text(3);
    binary.kind = static_cast<jit::BinaryKind>(rows.integer(4));
    binary.registers = static_cast<int>(rows.integer(5));
    binary.spill_bytes = rows.integer(6);
    binary.image_bytes = rows.integer(7);
    binary.stored_bytes = rows.integer(8);
    binary.trusted = rows.integer(9) == 1;
    binaries.push_back(std::move(binary));
  }
  return binaries;
}

std::vector<Problem> read_problems(Database& database) {
  Statement rows = database.prepare("SELECT op, op_version, shape, bucket FROM problems");
  std::vector<Problem> problems;
  while (rows.step()) problems.push_back(read_problem(rows, 0));
  return problems;
}

std::vector<std::string> read_gpu_classes(Database& database, const Problem& problem) {
  Statement rows = database.prepare(
      "SELECT g.key FROM (SELECT problem, gpu_class FROM decisions "
      "                   UNION SELECT problem, gpu_class FROM timings "
      "                   UNION SELECT problem, gpu_class FROM rejections) AS known "
      "JOIN problems AS p ON p.id = known.problem JOIN gpu_classes AS g ON g.id = known.gpu_class "
      "WHERE p.op = ? AND p.op_version = ? AND p.shape = ? AND p.bucket = ?");
  rows.bind(problem.op, problem.op_version, problem.shape, problem.bucket);
  std::vector<std::string> keys;
  while (rows.step()) keys.push_back(rows.text(0));
  return keys;
}

std::vector<Verification> read_verifications(Database& database, const Problem& problem) {
  Statement rows = database.prepare(
      "SELECT v.plan, v.verified_by, v.passed, v.detail, v.tolerance, v.worst_error, v.card, "
      "       v.driver, v.verified_at "
      "FROM verifications AS v JOIN problems AS p ON p.id = v.problem "
      "WHERE p.op = ? AND p.op_version = ? AND p.shape = ? AND p.bucket = ? "
      "ORDER BY v.plan, v.verified_by DESC, v.card");
  rows.bind(problem.op, problem.op_version, problem.shape, problem.bucket);
  std::vector<Verification> verifications;
  while (rows.step()) {
    verifications.push_back({.plan = hash_or_zero(rows.text(0)),
                             .problem = problem,
                             .by = static_cast<Verified>(rows.integer(1)),
                             .passed = rows.integer(2) == 1,
                             .detail = rows.text(3),
                             .tolerance = rows.text(4),
                             .worst_error = rows.real(5),
                             .card = rows.text(6),
                             .driver = rows.text(7),
                             .verified_at = rows.integer(8)});
  }
  return verifications;
}

std::vector<Timing> read_timings(Database& database, const Problem& problem,
                                 std::string_view gpu_class) {
  Statement rows = database.prepare(
      "SELECT t.plan, t.time_ns, t.spread_ns, t.rounds, t.method, t.limits, t.device, "
      "       t.timed_at FROM timings AS t "
      "JOIN problems AS p ON p.id = t.problem JOIN gpu_classes AS g ON g.id = t.gpu_class "
      "WHERE p.op = ? AND p.op_version = ? AND p.shape = ? AND p.bucket = ? AND g.key = ? "
      "ORDER BY t.time_ns, t.plan");
  rows.bind(problem.op, problem.op_version, problem.shape, problem.bucket, gpu_class);
  std::vector<Timing> timings;
  while (rows.step()) {
    timings.push_back({.plan = hash_or_zero(rows.text(0)),
                       .problem = problem,
                       .gpu_class = std::string(gpu_class),
                       .time_ns = rows.real(1),
                       .spread_ns = rows.real(2),
                       .rounds = static_cast<int>(rows.integer(3)),
                       .method = rows.text(4),
                       .limits = rows.text(5),
                       .device = rows.text(6),
                       .timed_at = rows.integer(7)});
  }
  return timings;
}

std::vector<Rejection> read_rejections(Database& database, const Problem& problem,
                                       std::string_view gpu_class) {
  Statement rows = database.prepare(
      "SELECT r.config, r.plan, r.limits, r.stage, r.reason, r.detail, r.rejected_at "
      "FROM rejections AS r "
      "JOIN problems AS p ON p.id = r.problem JOIN gpu_classes AS g ON g.id = r.gpu_class "
      "WHERE p.op = ? AND p.op_version = ? AND p.shape = ? AND p.bucket = ? AND g.key = ? "
      "ORDER BY r.config");
  rows.bind(problem.op, problem.op_version, problem.shape, problem.bucket, gpu_class);
  std::vector<Rejection> rejections;
  while (rows.step()) {
    rejections.push_back({.problem = problem,
                          .gpu_class = std::string(gpu_class),
                          .config = rows.text(0),
                          .plan = hash_or_zero(rows.text(1)),
                          .limits = rows.text(2),
                          .stage = rows.text(3),
                          .reason = rows.text(4),
                          .detail = rows.text(5),
                          .rejected_at = rows.integer(6)});
  }
  return rejections;
}

void write_description(Database& database, const jit::Binary& binary) {
  // Written over what is there, so that a damaged row is healed by the next compile.
  database
      .prepare(
          "INSERT INTO binaries (key, source_hash, arch, options, entry, kind, registers, "
          "  spill_store_bytes, spill_load_bytes, stack_bytes, static_smem_bytes, log, "
          "  nvrtc_version, compile_ns, checksum, created_at) "
          "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
          "ON CONFLICT (key) DO UPDATE SET source_hash = excluded.source_hash, "
          "  arch = excluded.arch, options = excluded.options, entry = excluded.entry, "
          "  kind = excluded.kind, registers = excluded.registers, "
          "  spill_store_bytes = excluded.spill_store_bytes, "
          "  spill_load_bytes = excluded.spill_load_bytes, stack_bytes = excluded.stack_bytes, "
          "  static_smem_bytes = excluded.static_smem_bytes, log = excluded.log, "
          "  nvrtc_version = excluded.nvrtc_version, compile_ns = excluded.compile_ns, "
          "  checksum = excluded.checksum")
      .bind(binary.key.hex(), binary.source_hash.hex(), binary.arch, binary.options, binary.entry,
            static_cast<int64_t>(binary.kind), binary.resources.registers,
            binary.resources.spill_store_bytes, binary.resources.spill_load_bytes,
            binary.resources.stack_bytes, binary.resources.static_smem_bytes, binary.log,
            binary.nvrtc_version, binary.compile_ns, binary_checksum(binary), now_seconds())
      .run();
}

void write_binary(Database& database, const jit::Binary& binary, const PackedImage& image,
                  ImageOrigin origin) {
  write_description(database, binary);
  database
      .prepare(
          "INSERT INTO images (binary, codec, raw_bytes, checksum, used_at, data, trusted) "
          "VALUES (?1, ?2, ?3, ?4, ?5, ?7, ?6) "
          "ON CONFLICT (binary) DO UPDATE SET codec = excluded.codec, "
          "  raw_bytes = excluded.raw_bytes, checksum = excluded.checksum, "
          "  used_at = excluded.used_at, data = excluded.data, trusted = excluded.trusted")
      .bind(binary.key.hex(), static_cast<int64_t>(image.codec), image.raw_bytes,
            image.checksum.hex(), now_seconds(), origin == ImageOrigin::compiled ? 1 : 0)
      .bind_blob(image.data)
      .run();
  // What is loaded from now on nobody has to make any more.
  if (origin == ImageOrigin::compiled) delete_lease_of_binary(database, binary.key);
}

void write_plan(Database& database, const PlanRecord& plan) {
  const std::string id = plan.id.hex();
  database
      .prepare(
          "INSERT INTO plans (id, op, op_version, shape, config, arch, reduction_signature, "
          "  packed_layout, checksum, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
          "ON CONFLICT (id) DO UPDATE SET op = excluded.op, op_version = excluded.op_version, "
          "  shape = excluded.shape, config = excluded.config, arch = excluded.arch, "
          "  reduction_signature = excluded.reduction_signature, "
          "  packed_layout = excluded.packed_layout, checksum = excluded.checksum")
      .bind(id, plan.op, plan.op_version, plan.shape, plan.config, plan.arch,
            plan.reduction_signature, plan.packed_layout, plan_checksum(plan), now_seconds())
      .run();
  database.prepare("DELETE FROM plan_kernels WHERE plan = ?").bind(id).run();
  for (size_t ordinal = 0; ordinal < plan.kernels.size(); ++ordinal) {
    const PlanRecord::Kernel& kernel = plan.kernels[ordinal];
    database
        .prepare(
            "INSERT INTO plan_kernels (plan, ordinal, binary, entry, threads, dynamic_smem_bytes) "
            "VALUES (?, ?, ?, ?, ?, ?)")
        .bind(id, static_cast<int64_t>(ordinal), kernel.binary.hex(), kernel.entry, kernel.threads,
              kernel.dynamic_smem_bytes)
        .run();
  }
}

std::vector<Hash128> images_used_before(Database& database, const std::vector<Hash128>& binaries,
                                        int64_t seconds) {
  std::vector<Hash128> found;
  for (const Hash128& key : binaries) {
    Statement row = database.prepare("SELECT 1 FROM images WHERE binary = ? AND used_at < ?");
    if (row.bind(key.hex(), seconds).step()) found.push_back(key);
  }
  return found;
}

void write_used_now(Database& database, const Hash128& binary) {
  database.prepare("UPDATE images SET used_at = ? WHERE binary = ?")
      .bind(now_seconds(), binary.hex())
      .run();
}

void write_verification(Database& database, const Verification& verification) {
  const Date date(verification.verified_at);
  const int64_t problem = problem_id(database, verification.problem);
  database
      .prepare(
          "INSERT INTO verifications (plan, problem, verified_by, card, driver, passed, tolerance, "
          "  worst_error, detail, verified_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
          "ON CONFLICT (problem, plan, verified_by, card) DO UPDATE SET driver = excluded.driver, "
          "  passed = excluded.passed, tolerance = excluded.tolerance, "
          "  worst_error = excluded.worst_error, detail = excluded.detail, "
          "  verified_at = max(excluded.verified_at, verified_at) "
          "  WHERE excluded.verified_at >= verified_at OR ?")
      .bind(verification.plan.hex(), problem, static_cast<int64_t>(verification.by),
            verification.card, verification.driver, verification.passed ? 1 : 0,
            verification.tolerance, verification.worst_error, verification.detail, date.seconds,
            date.is_now)
      .run();
}

void write_timing(Database& database, const Timing& timing) {
  const Date date(timing.timed_at);
  const int64_t problem = problem_id(database, timing.problem);
  const int64_t gpu_class = gpu_class_id(database, timing.gpu_class, "");
  database
      .prepare(
          "INSERT INTO timings (plan, problem, gpu_class, method, limits, device, "
          "  time_ns, spread_ns, rounds, timed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
          "ON CONFLICT (problem, gpu_class, plan, method, limits, device) DO UPDATE SET "
          "  time_ns = excluded.time_ns, spread_ns = excluded.spread_ns, "
          "  rounds = excluded.rounds, timed_at = max(excluded.timed_at, timed_at) "
          "  WHERE excluded.timed_at >= timed_at OR ?")
      .bind(timing.plan.hex(), problem, gpu_class, timing.method, timing.limits, timing.device,
            timing.time_ns, timing.spread_ns, timing.rounds, date.seconds, date.is_now)
      .run();
}

void write_rejection(Database& database, const Rejection& rejection) {
  const Date date(rejection.rejected_at);
  const int64_t problem = problem_id(database, rejection.problem);
  const int64_t gpu_class = gpu_class_id(database, rejection.gpu_class, "");
  database
      .prepare(
          "INSERT INTO rejections (problem, gpu_class, config, plan, limits, stage, reason, "
          "  detail, rejected_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
          "ON CONFLICT (problem, gpu_class, config) DO UPDATE SET plan = excluded.plan, "
          "  limits = excluded.limits, stage = excluded.stage, reason = excluded.reason, "
          "  detail = excluded.detail, rejected_at = max(excluded.rejected_at, rejected_at) "
          "  WHERE excluded.rejected_at >= rejected_at OR ?")
      .bind(problem, gpu_class, rejection.config, rejection.plan.hex(), rejection.limits,
            rejection.stage, rejection.reason, rejection.detail, date.seconds, date.is_now)
      .run();
}

void write_decision(Database& database, const Decision& decision, int64_t newest_at) {
  const int64_t problem = problem_id(database, decision.problem);
  const int64_t gpu_class = gpu_class_id(database, decision.gpu_class, decision.gpu_label);
  const auto kind = static_cast<int64_t>(decision.kind);
  {
    Statement stored = database.prepare(
        "SELECT decided_at FROM decision_reasons "
        "WHERE problem = ? AND gpu_class = ? AND kind = ?");
    // Somebody else may have written it since the layers were read.
    if (stored.bind(problem, gpu_class, kind).step()) {
      newest_at = std::max(newest_at, stored.integer(0));
    }
  }
  // What is decided now is the newest, also by a clock that was set back.
  const int64_t decided_at =
      decision.decided_at == 0 ? std::max(now_seconds(), newest_at + 1) : decision.decided_at;
  if (decided_at < newest_at) {
    fail(
        Status::store_error,
        "the store has a newer {} decision for {} {} {} (of {} unix seconds) than this one (of {})",
        kind_name(decision.kind), decision.problem.op, decision.problem.shape,
        decision.problem.bucket, newest_at, decided_at);
  }
  database
      .prepare(
          "INSERT INTO decisions (problem, gpu_class, kind, config, plan, checksum) "
          "VALUES (?, ?, ?, ?, ?, ?) "
          "ON CONFLICT (problem, gpu_class, kind) DO UPDATE SET config = excluded.config, "
          "  plan = excluded.plan, checksum = excluded.checksum")
      .bind(problem, gpu_class, kind, decision.config, decision.plan.hex(),
            decision_checksum(decision))
      .run();
  database
      .prepare(
          "INSERT OR REPLACE INTO decision_reasons (problem, gpu_class, kind, gpu_label, reason, "
          "  is_partial, limits, tie_group, time_ns, default_time_ns, decided_at) "
          "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
      .bind(problem, gpu_class, kind, decision.gpu_label, decision.reason,
            decision.scope == Decision::Scope::part ? 1 : 0, decision.limits,
            tie_group_text(decision.tie_group), decision.time_ns, decision.default_time_ns,
            decided_at)
      .run();
  // What is decided for is not rejected any more.
  database.prepare("DELETE FROM rejections WHERE problem = ? AND gpu_class = ? AND config = ?")
      .bind(problem, gpu_class, decision.config)
      .run();
}

void delete_decisions(Database& database, const Problem& problem, std::string_view gpu_class) {
  database
      .prepare(
          "DELETE FROM decisions WHERE "
          "problem = (SELECT id FROM problems "
          "           WHERE op = ? AND op_version = ? AND shape = ? AND bucket = ?) "
          "AND gpu_class = (SELECT id FROM gpu_classes WHERE key = ?)")
      .bind(problem.op, problem.op_version, problem.shape, problem.bucket, gpu_class)
      .run();
}

void delete_decision(Database& database, const Problem& problem, std::string_view gpu_class,
                     DecisionKind kind) {
  database
      .prepare(
          "DELETE FROM decisions WHERE "
          "problem = (SELECT id FROM problems "
          "           WHERE op = ? AND op_version = ? AND shape = ? AND bucket = ?) "
          "AND gpu_class = (SELECT id FROM gpu_classes WHERE key = ?) AND kind = ?")
      .bind(problem.op, problem.op_version, problem.shape, problem.bucket, gpu_class,
            static_cast<int64_t>(kind))
      .run();
}

void write_decision_tombstone(Database& database, const Problem& problem,
                              std::string_view gpu_class, std::string_view reason) {
  database
      .prepare(
          "INSERT OR REPLACE INTO decision_tombstones (problem, gpu_class, reason, hidden_at) "
          "VALUES (?, ?, ?, ?)")
      .bind(problem_id(database, problem), gpu_class_id(database, gpu_class, ""), reason,
            now_seconds())
      .run();
}

std::vector<UsedSize> read_used_sizes(Database& database) {
  Statement row = database.prepare(
      "SELECT p.op, p.op_version, p.shape, p.bucket, g.key, g.label, u.sessions, u.first_used_at, "
      "       u.last_used_at "
      "FROM used_sizes AS u JOIN problems AS p ON p.id = u.problem "
      "JOIN gpu_classes AS g ON g.id = u.gpu_class");
  std::vector<UsedSize> used;
  while (row.step()) {
    used.push_back({.problem = read_problem(row, 0),
                    .gpu_class = row.text(4),
                    .gpu_label = row.text(5),
                    .sessions = row.integer(6),
                    .first_used_at = row.integer(7),
                    .last_used_at = row.integer(8)});
  }
  return used;
}

void write_used_size(Database& database, const Problem& problem, std::string_view gpu_class,
                     std::string_view gpu_label) {
  const int64_t now = now_seconds();
  database
      .prepare(
          "INSERT INTO used_sizes (problem, gpu_class, sessions, first_used_at, last_used_at) "
          "VALUES (?, ?, 1, ?, ?) "
          "ON CONFLICT (problem, gpu_class) DO UPDATE SET sessions = sessions + 1, "
          "last_used_at = max(last_used_at, excluded.last_used_at)")
      .bind(problem_id(database, problem), gpu_class_id(database, gpu_class, gpu_label), now, now)
      .run();
}

}  // namespace kiln::cache
