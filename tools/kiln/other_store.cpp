#include "tools/kiln/other_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "jit/base/file_descriptor.h"
#include "runtime/import_check.h"
#include "tools/kiln/decisions.h"
#include "tools/kiln/table.h"
#include "tools/kiln/text.h"

namespace kiln::cli {
namespace {

using cache::MergeOutcome;
using cache::MergeReport;
using cache::MergeRow;

void require_file(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) return;
  throw Failure(ExitCode::usage, fmt::format("there is no file {}.", in_quotes(path)),
                "Name a store, or the file of a `kiln export`.");
}

// A text that only looks like one fails where it is read.
bool begins_as_a_store(const std::string& path) {
  const FileDescriptor file{open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
  std::array<char, 6> start = {};
  const ssize_t got = read(file.get(), start.data(), start.size());
  return std::string_view(start.data(), got > 0 ? static_cast<size_t>(got) : 0) == "SQLite";
}

std::string upper(std::string text) {
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return text;
}

Json rows_json(const MergeReport& report) {
  Json list = Json::array();
  for (const MergeRow& row : report.rows) {
    const bool is_decision = row.record == MergeRow::Record::decision;
    list.push_back({{"record", cache::record_name(row.record)},
                    {"op", row.problem.op},
                    {"problem", row.problem.op.empty() ? Json() : problem_json(row.problem)},
                    {"gpu", row.gpu_label},
                    {"kind", is_decision ? Json(cache::kind_name(row.kind)) : Json()},
                    {"name", is_decision ? stored_json(row.name) : Json(row.name)},
                    {"outcome", cache::outcome_name(row.outcome)},
                    {"reason", row.reason}});
  }
  return list;
}

void print_rows(const MergeReport& report) {
  Table table({{"OUTCOME"}, {"RECORD"}, {"OP"}, {"PROBLEM"}, {"GPU"}, {"NAME"}, {"REASON"}});
  for (const MergeRow& row : report.rows) {
    const bool is_decision = row.record == MergeRow::Record::decision;
    table.add({upper(cache::outcome_name(row.outcome)),
               is_decision ? cache::kind_name(row.kind) : cache::record_name(row.record),
               row.problem.op, row.problem.op.empty() ? "" : problem_text(row.problem),
               row.gpu_label, is_decision ? short_json(stored_json(row.name)) : row.name,
               row.reason});
  }
  if (!table.empty()) print(table.text());
}

void say_counts(const MergeReport& report, const TakeOver& options) {
  note(fmt::format("{}: {} taken, {} kept, {} dropped, {} refused.",
                   options.dry_run ? "would be merged" : "merged",
                   report.decisions(MergeOutcome::taken), report.decisions(MergeOutcome::kept),
                   report.decisions(MergeOutcome::dropped), report.refused()));
  const int64_t older = report.verifications.older + report.timings.older + report.rejections.older;
  note(
      fmt::format("with them: {} plans, {} kernels, {} verifications, {} timings, {} rejections; "
                  "{} pieces of evidence were here, or are older than what is.",
                  report.plans.taken, report.images.taken, report.verifications.taken,
                  report.timings.taken, report.rejections.taken, older));
  std::vector<std::string> waiting;
  if (report.verifications_left_out > 0) {
    waiting.push_back(
        fmt::format("{} verifications are not taken over", report.verifications_left_out));
  }
  if (report.images_untrusted > 0) {
    waiting.push_back(
        fmt::format("{} kernels run nowhere before they are proven", report.images_untrusted));
  }
  if (waiting.empty()) return;
  note(fmt::format("{}: `kiln verify` proves the configs here.", joined(waiting, ", and ")));
}

}  // namespace

cache::StoreContents read_store_file(const std::string& path, cache::Images images) {
  require_file(path);
  const std::unique_ptr<cache::Store> store =
      cache::Store::open({.path = path, .pack = ":", .mode = cache::StoreOptions::Mode::read_only});
  const auto require_sound = [&] {
    const std::string trouble = store->trouble();
    if (trouble.empty()) return;
    for (const std::string& warning : store->warnings()) warn(warning);
    throw Failure(ExitCode::store, fmt::format("{} cannot be read: {}.", path, trouble),
                  fmt::format("Get a sound copy of it; `kiln doctor --db {}` says more.", path));
  };
  require_sound();
  for (const std::string& defect : store->check()) warn(defect);
  cache::StoreContents contents = cache::contents_of(*store, {.images = images});
  require_sound();
  for (const std::string& warning : store->warnings()) warn(warning);
  return contents;
}

cache::StoreContents read_export(const std::string& path) {
  const cache::ImportLimits limits;
  const std::string text = read_text_file(path, "FILE", static_cast<size_t>(limits.text_bytes));
  try {
    return cache::from_json(text, limits);
  } catch (const Error& error) {
    std::string why = error.what();
    if (why.ends_with('.')) why.pop_back();
    throw Failure(ExitCode::failed,
                  fmt::format("{} is no Kiln export: {}.",
                              path == "-" ? "standard input" : in_quotes(path), why),
                  "`kiln export` writes one; `kiln merge` takes a store file.");
  }
}

cache::StoreContents read_contents(const std::string& path) {
  if (path == "-") return read_export(path);
  require_file(path);
  return begins_as_a_store(path) ? read_store_file(path, cache::Images::without)
                                 : read_export(path);
}

void add_take_over_options(CLI::App& command, TakeOver& options) {
  command.add_flag("--trust", options.trust,
                   "Load its kernels and believe its verifications as they are");
  command.add_flag("--pins", options.pins, "Let a newer pin replace one that is here");
  command.add_flag("--dry-run", options.dry_run, "Say what would become of it, and write nothing");
}

ExitCode take_over(cache::StoreContents contents, const TakeOver& options, const Common& common) {
  OpenStore store(common, options.dry_run ? StoreUse::read : StoreUse::write);
  std::vector<MergeRow> refused = runtime::drop_refused(contents);
  MergeReport report =
      store->absorb(contents, {.trust = options.trust ? cache::Trust::any : cache::Trust::needed,
                               .pins = options.pins ? cache::Pins::replace : cache::Pins::keep,
                               .mode = options.dry_run ? cache::MergeOptions::Mode::dry_run
                                                       : cache::MergeOptions::Mode::write});
  report.rows.insert(report.rows.end(), std::make_move_iterator(refused.begin()),
                     std::make_move_iterator(refused.end()));
  if (!report.written) {
    store.require_sound();
    throw lost_results("nothing was taken over.");
  }
  if (common.form() == OutputForm::json) {
    print_json(rows_json(report));
  } else {
    print_rows(report);
  }
  say_counts(report, options);
  if (options.dry_run) return store.code_of_reading();
  store.require_sound();
  if (report.took_nothing() && report.refused() > 0) {
    throw Failure(ExitCode::failed, "nothing could be taken over.",
                  "The last column says why each record was refused.");
  }
  return ExitCode::ok;
}

}  // namespace kiln::cli
