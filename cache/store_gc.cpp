// Keeps the writable file within its budget: the images of binaries go, the longest unused first.
// Who needs one that went compiles it again.
#include <fmt/format.h>

#include <algorithm>

#include "cache/layered_store.h"
#include "cache/rows.h"
#include "jit/base/byte_size.h"
#include "jit/base/environment.h"
#include "jit/base/error.h"

namespace kiln::cache {
namespace {

constexpr int64_t kDaySeconds = 24 * 3600;
constexpr int kImagesPerStep = 64;  // in one transaction, so that other writers get their turn

// Pages that hold something; those that are free are given back to the file system.
int64_t used_bytes(Database& database) {
  return (database.query_integer("PRAGMA page_count") -
          database.query_integer("PRAGMA freelist_count")) *
         database.query_integer("PRAGMA page_size");
}

struct Victim {
  std::string binary;
  int64_t stored_bytes = 0;
  bool in_use = false;
};

// In the order in which they go.
std::vector<Victim> victims(Database& database, int64_t at_most) {
  Statement rows = database.prepare(
      "SELECT i.binary, length(i.data), coalesce(n.rank, 0) > 0 OR i.used_at > ? "
      "FROM images AS i LEFT JOIN "
      "  (SELECT k.binary, max(CASE d.kind WHEN 1 THEN 2 ELSE 1 END) AS rank "
      "   FROM decisions AS d JOIN plan_kernels AS k ON k.plan = d.plan GROUP BY k.binary) AS n "
      "  ON n.binary = i.binary "
      "ORDER BY coalesce(n.rank, 0), i.used_at, i.id LIMIT ?");
  rows.bind(now_seconds() - kDaySeconds, at_most);
  std::vector<Victim> found;
  while (rows.step()) found.push_back({rows.text(0), rows.integer(1), rows.integer(2) == 1});
  return found;
}

// As many victims as it takes to give back `excess_bytes`, told to `report`.
std::vector<Victim> enough_victims(Database& database, int64_t excess_bytes, int64_t at_most,
                                   GcReport& report) {
  std::vector<Victim> enough;
  if (excess_bytes <= 0) return enough;
  for (Victim& victim : victims(database, at_most)) {
    if (excess_bytes <= 0) break;
    excess_bytes -= victim.stored_bytes;
    report.images += 1;
    report.image_bytes += victim.stored_bytes;
    report.images_in_use += victim.in_use ? 1 : 0;
    enough.push_back(std::move(victim));
  }
  return enough;
}

void drop_images(Database& database, const std::vector<Victim>& dropped) {
  for (const Victim& victim : dropped) {
    database.prepare("DELETE FROM images WHERE binary = ?").bind(victim.binary).run();
  }
}

constexpr std::string_view kDeadLeases = "FROM leases WHERE deadline_at < ?";

// No decision and no evidence is about them, and a kernel of theirs has lost its image.
constexpr std::string_view kUnnamedPlans =
    "FROM plans WHERE id NOT IN (SELECT plan FROM decisions UNION SELECT plan FROM verifications "
    "                            UNION SELECT plan FROM timings) "
    "AND EXISTS (SELECT 1 FROM plan_kernels AS k JOIN binaries AS b ON b.key = k.binary "
    "            WHERE k.plan = plans.id AND k.binary NOT IN (SELECT binary FROM images))";

int64_t count_dead_leases(Database& database) {
  Statement row = database.prepare(fmt::format("SELECT count(*) {}", kDeadLeases));
  row.bind(now_seconds());
  return row.step() ? row.integer(0) : 0;
}

int64_t count_unnamed_plans(Database& database) {
  return database.query_integer(fmt::format("SELECT count(*) {}", kUnnamedPlans));
}

void drop_what_nobody_needs(Database& database, GcReport& report) {
  report.leases += count_dead_leases(database);
  database.prepare(fmt::format("DELETE {}", kDeadLeases)).bind(now_seconds()).run();
  report.plans += count_unnamed_plans(database);
  database.prepare(fmt::format("DELETE {}", kUnnamedPlans)).run();
}

}  // namespace

void LayeredStore::read_budget(int64_t given_bytes) {
  budget_bytes_ = given_bytes > 0 ? given_bytes : kUsualBudgetBytes;
  const std::string text = environment("KILN_STORE_BYTES");
  if (given_bytes > 0 || text.empty()) return;
  if (const std::optional<int64_t> bytes = parse_byte_size(text)) {
    budget_bytes_ = *bytes;
  } else {
    warn("budget", fmt::format("KILN_STORE_BYTES is '{}', but a size such as 500MB or 2GiB was "
                               "expected; the store is kept within {} bytes",
                               text, budget_bytes_));
  }
}

void LayeredStore::collect_top(int64_t goal_bytes, Layer::Patience patience, GcReport& report) {
  std::vector<std::string> happened;
  const auto step = [&](const auto& work) {
    GcReport done = report;
    try {
      top_->write([&](Database& database) { work(database, done); }, happened, patience);
      report = done;
      return true;
    } catch (const SqliteError& error) {
      if (error.is_corruption()) note_damage(*top_, error.what(), "so it was not looked through");
      report.problem = error.is_busy() ? fmt::format("another process is writing {}", path_)
                                       : fmt::format("{} failed: {}", path_, error.what());
    } catch (const Unusable& error) {
      report.problem = with_remedy(path_, error);
    }
    return false;
  };
  const auto drop_some = [&](Database& database, GcReport& done) {
    if (done.before_bytes == 0) done.before_bytes = used_bytes(database);
    drop_images(database,
                enough_victims(database, used_bytes(database) - goal_bytes, kImagesPerStep, done));
    done.after_bytes = used_bytes(database);
  };
  for (int64_t images = -1; images != report.images;) {
    images = report.images;
    if (!step(drop_some)) return;
  }
  const auto finish = [&](Database& database, GcReport& done) {
    drop_what_nobody_needs(database, done);
    database.execute("PRAGMA incremental_vacuum");
    done.after_bytes = used_bytes(database);
  };
  if (!step(finish)) return;
  try {
    top_->take_in_log();
  } catch (const SqliteError&) {
    // Whoever writes something of value next is told.
  }
  for (const std::string& sentence : happened) warn(sentence, sentence);
}

GcReport LayeredStore::collect(int64_t budget_bytes, GcMode mode) {
  const std::lock_guard lock(mutex_);
  GcReport report;
  report.budget_bytes = budget_bytes > 0 ? budget_bytes : budget_bytes_;
  const auto look = [&](Database& database) {
    report.before_bytes = used_bytes(database);
    const int64_t excess_bytes = report.before_bytes - report.budget_bytes;
    constexpr int64_t kAll = -1;
    enough_victims(database, excess_bytes, kAll, report);
    report.after_bytes = report.before_bytes - report.image_bytes;
    report.leases = count_dead_leases(database);
    report.plans = count_unnamed_plans(database);
  };
  if (mode == GcMode::look) {
    const std::shared_ptr<Layer> layer = top_ ? top_ : layers_.empty() ? nullptr : layers_.front();
    if (layer && !is_pack(layer->path()) && !read(*layer, look)) report.problem = trouble_;
  } else if (top_) {
    collect_top(report.budget_bytes, Layer::Patience::usual, report);
  } else {
    report.problem = fmt::format("the store {} was opened for reading only", path_);
  }
  if (report.problem.empty() && report.after_bytes > report.budget_bytes) {
    report.problem = fmt::format(
        "what is known about the kernels takes {} bytes without any image, and that stays",
        report.after_bytes);
  }
  return report;
}

void LayeredStore::keep_within_budget() {
  int64_t bytes = 0;
  if (!top_ || !read(*top_, [&](Database& database) { bytes = used_bytes(database); })) return;
  if (bytes <= budget_bytes_) return;
  GcReport report;
  collect_top(budget_bytes_ / 5 * 4, Layer::Patience::none, report);
  if (report.images_in_use == 0) return;
  warn("budget dropped",
       fmt::format("the store {} came to more than its budget of {} bytes, so kernels in use were "
                   "dropped from it and are compiled again when they are needed; raise "
                   "KILN_STORE_BYTES, or look with `kiln gc --dry-run`",
                   path_, budget_bytes_));
}

}  // namespace kiln::cache
