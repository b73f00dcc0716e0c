// `kiln gc`: makes the store small enough, and clears away what was left beside it.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "cache/files.h"
#include "jit/base/byte_size.h"
#include "tools/kiln/commands.h"
#include "tools/kiln/text.h"

namespace kiln::cli {
namespace {

namespace fs = std::filesystem;

struct GcArguments {
  std::string budget;
  bool dry_run = false;
};

struct Leaving {
  std::string path;
  int64_t bytes = 0;
};

// Damaged stores that were put aside, and drafts that nobody has touched for an hour: whoever makes
// one is done or dead by then.
std::vector<Leaving> leavings_of(const std::string& store) {
  const std::string name = fs::path(store).filename().string();
  const auto hour_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  std::vector<Leaving> found;
  std::error_code error;
  for (fs::directory_iterator entry(fs::path(store).parent_path(), error), end;
       !error && entry != end; entry.increment(error)) {
    std::error_code unknown;
    const std::string file = entry->path().filename().string();
    const bool is_damaged = file.starts_with(name + ".corrupt-");
    const bool is_draft =
        file.starts_with(name + ".draft-") && entry->last_write_time(unknown) < hour_ago;
    if ((!is_damaged && !is_draft) || !entry->is_regular_file(unknown)) continue;
    found.push_back({entry->path().string(), static_cast<int64_t>(entry->file_size(unknown))});
  }
  std::sort(found.begin(), found.end(),
            [](const Leaving& a, const Leaving& b) { return a.path < b.path; });
  return found;
}

int64_t budget_bytes(const GcArguments& arguments) {
  if (arguments.budget.empty()) return 0;
  const std::optional<int64_t> bytes = parse_byte_size(arguments.budget);
  if (bytes) return *bytes;
  throw Failure(ExitCode::usage,
                fmt::format("{} is not a size; expected a number above 0 with KB, MB, GB, KiB, MiB "
                            "or GiB, for example 500MB.",
                            in_quotes(arguments.budget)));
}

Json report_json(const cache::GcReport& report, const std::string& path,
                 const std::vector<Leaving>& leavings, const GcArguments& arguments) {
  Json files = Json::array();
  for (const Leaving& file : leavings)
    files.push_back({{"path", file.path}, {"bytes", file.bytes}});
  return {{"path", path},
          {"dry_run", arguments.dry_run},
          {"budget_bytes", report.budget_bytes},
          {"before_bytes", report.before_bytes},
          {"after_bytes", report.after_bytes},
          {"images", report.images},
          {"image_bytes", report.image_bytes},
          {"images_in_use", report.images_in_use},
          {"plans", report.plans},
          {"leases", report.leases},
          {"files", files},
          {"problem", report.problem.empty() ? Json() : Json(report.problem)}};
}

void print_report(const cache::GcReport& report, const std::vector<Leaving>& leavings,
                  const GcArguments& arguments) {
  const auto size = [](int64_t bytes) { return bytes_text(static_cast<double>(bytes)); };
  const char* verb = arguments.dry_run ? "would be dropped" : "dropped";
  print(fmt::format("The store holds {}; the budget is {}.\n", size(report.before_bytes),
                    size(report.budget_bytes)));
  print(fmt::format("  {:>6}  images {} ({}), {} of them in use\n", report.images, verb,
                    size(report.image_bytes), report.images_in_use));
  print(fmt::format("  {:>6}  plans that nobody names {}\n", report.plans, verb));
  print(fmt::format("  {:>6}  dead leases {}\n", report.leases, verb));
  print(fmt::format("  {:>6}  files beside it {}\n", leavings.size(), verb));
  for (const Leaving& file : leavings) {
    print(fmt::format("          {} ({})\n", file.path, size(file.bytes)));
  }
  print(fmt::format("It {} {}.\n", arguments.dry_run ? "would then hold about" : "holds",
                    size(report.after_bytes)));
}

ExitCode run_gc(const GcArguments& arguments, const Common& common) {
  const int64_t budget = budget_bytes(arguments);
  const cache::StorePlace place = store_place(common);
  if (!store_file_exists(common)) {
    throw Failure(ExitCode::failed, fmt::format("there is no store at {}.", place.path),
                  "`kiln tune` or `kiln build` makes one.");
  }
  OpenStore store(common, arguments.dry_run ? StoreUse::read : StoreUse::write);
  const cache::GcMode mode = arguments.dry_run ? cache::GcMode::look : cache::GcMode::collect;
  const cache::GcReport report = store->collect(budget, mode);
  const std::string path = cache::absolute_path(place.path);
  const std::vector<Leaving> leavings = leavings_of(path);
  std::string not_removed;
  for (const Leaving& file : leavings) {
    std::error_code error;
    if (!arguments.dry_run && !fs::remove(file.path, error) && error) {
      not_removed = fmt::format("{} cannot be removed ({})", file.path, error.message());
    }
  }
  if (common.form() == OutputForm::json) {
    print_json(report_json(report, path, leavings, arguments));
  } else {
    print_report(report, leavings, arguments);
  }
  const std::string& problem = report.problem.empty() ? not_removed : report.problem;
  if (!problem.empty()) {
    throw Failure(ExitCode::store, fmt::format("not all was cleared away: {}.", problem),
                  "Run it again when nobody else uses the store, or give a larger --budget.");
  }
  return store.code_of_reading();
}

}  // namespace

void add_gc(CLI::App& app, Common& common, Chosen& chosen) {
  auto arguments = std::make_shared<GcArguments>();
  CLI::App* command = add_command(
      app, common, chosen, "gc", "Make the store fit a budget of bytes, oldest kernels first",
      "  kiln gc --dry-run\n"
      "  kiln gc --budget 500MB\n"
      "Drops compiled kernels, which are compiled again when they are needed: first those that no "
      "decision\nuses, those of pinned decisions last. Decisions, times and verifications stay, "
      "and "
      "packs are never\nchanged. Also removes <store>.corrupt-* and old <store>.draft-*. Exit code "
      "6 when the store cannot\nbe made that small.\n",
      [arguments, &common] { return run_gc(*arguments, common); });
  command
      ->add_option("--budget", arguments->budget,
                   "What it may hold: 500MB, 2GiB (default: KILN_STORE_BYTES, else 2GiB)")
      ->type_name("SIZE");
  command->add_flag("--dry-run", arguments->dry_run, "Say what would go and change nothing");
}

}  // namespace kiln::cli
