// `kiln verify`: runs the configs that serve the device's class, and those that failed before,
// against their oracles there.
#include <fmt/format.h>

#include <algorithm>

#include "tools/kiln/commands.h"
#include "tools/kiln/decisions.h"
#include "tools/kiln/progress.h"
#include "tools/kiln/table.h"
#include "tools/kiln/text.h"
#include "tuner/tuner.h"

namespace kiln::cli {
namespace {

struct VerifyArguments {
  std::string device;
  std::vector<std::string> ops;
  std::string hang_timeout;
};

const char* outcome_text(const tuner::VerifyRow& row) {
  switch (row.outcome) {
    case tuner::VerifyOutcome::passed:
      return "passed";
    case tuner::VerifyOutcome::failed:
      return "failed";
    case tuner::VerifyOutcome::unproven:
      return "unproven";
  }
  return "unproven";
}

int64_t count_of(const std::vector<tuner::VerifyRow>& rows, tuner::VerifyOutcome outcome) {
  return std::count_if(rows.begin(), rows.end(),
                       [&](const tuner::VerifyRow& row) { return row.outcome == outcome; });
}

Json rows_json(const std::vector<tuner::VerifyRow>& rows) {
  Json list = Json::array();
  for (const tuner::VerifyRow& row : rows) {
    list.push_back({{"op", row.problem.op},
                    {"problem", problem_json(row.problem)},
                    {"config", stored_json(row.config)},
                    {"kind", cache::kind_name(row.kind)},
                    {"passed", row.passed},
                    {"outcome", outcome_text(row)},
                    {"detail", row.detail}});
  }
  return list;
}

void print_rows(const std::vector<tuner::VerifyRow>& rows) {
  Table table({{"OP"}, {"PROBLEM"}, {"CONFIG"}, {"KIND"}, {"RESULT"}, {"DETAIL"}});
  for (const tuner::VerifyRow& row : rows) {
    table.add({row.problem.op, problem_text(row.problem), short_json(stored_json(row.config)),
               cache::kind_name(row.kind),
               row.outcome == tuner::VerifyOutcome::failed ? "FAILED" : outcome_text(row),
               row.detail});
  }
  if (!table.empty()) print(table.text());
}

double hang_timeout_s(const std::string& text) {
  constexpr double kLeast = 1e-3;
  const double seconds = parse_duration_s(text);
  if (seconds >= kLeast) return seconds;
  throw Failure(ExitCode::usage,
                fmt::format("a hang timeout of {} ends every launch; at least 1ms.", text),
                "Leave --hang-timeout out for 3 s.");
}

ExitCode run_verify(const VerifyArguments& arguments, const Common& common) {
  resolve_ops(arguments.ops);
  tuner::VerifyOptions options;
  options.ops = arguments.ops;
  if (!arguments.hang_timeout.empty())
    options.hang_timeout_s = hang_timeout_s(arguments.hang_timeout);
  const runtime::DeviceInfo device = require_device(arguments.device);
  options.device = device.id;
  OpenStore store(common, StoreUse::write);
  Progress progress;
  options.log = [&](const std::string& line) { progress.line(line); };
  const std::vector<tuner::VerifyRow> rows = tuner::verify(*store, options);
  progress.finish();

  if (common.form() == OutputForm::json) {
    print_json(rows_json(rows));
  } else {
    print_rows(rows);
  }
  if (rows.empty()) {
    throw Failure(ExitCode::failed,
                  fmt::format("nothing to verify: {} has no decision{} for {} ({}).",
                              store_place(common).path,
                              arguments.ops.empty() ? "" : " of " + joined(arguments.ops, " or "),
                              device.id, device.name),
                  "`kiln tune` makes them here, `kiln build --gpu SLUG` elsewhere; `kiln ls` shows "
                  "which GPUs the store knows.");
  }
  store.require_sound();
  const int64_t failed = count_of(rows, tuner::VerifyOutcome::failed);
  const int64_t unproven = count_of(rows, tuner::VerifyOutcome::unproven);
  if (failed > 0) {
    throw Failure(ExitCode::not_verified,
                  fmt::format("{} of {} stored configs failed on {} ({}).", failed, rows.size(),
                              device.id, device.name),
                  fmt::format("Those serve no session: the next sound decision does, or else the "
                              "default. `kiln tune{}` decides anew.",
                              db_argument(common)));
  }
  if (unproven > 0) {
    throw Failure(
        ExitCode::failed,
        fmt::format("{} of {} stored configs could not be proven on {} ({}); none failed.",
                    unproven, rows.size(), device.id, device.name),
        fmt::format("The last column says why. `kiln tune{}` decides stale ones anew.",
                    db_argument(common)));
  }
  note(fmt::format("{} of {} stored configs passed on {} ({}).", rows.size(), rows.size(),
                   device.id, device.name));
  return ExitCode::ok;
}

}  // namespace

void add_verify(CLI::App& app, Common& common, Chosen& chosen) {
  auto arguments = std::make_shared<VerifyArguments>();
  CLI::App* command = add_command(
      app, common, chosen, "verify", "Prove the configs that serve a device against their oracles",
      "  kiln verify\n"
      "  kiln verify --device cuda:1\n"
      "  kiln verify --device sim:rtx-3090\n"
      "  kiln verify --db shipped.db --json\n"
      "What failed before runs again, so that a mended driver can clear it.\n"
      "Exit code 0 when all pass, 5 when one fails, 3 without a device.\n",
      [arguments, &common] { return run_verify(*arguments, common); });
  command
      ->add_option("--device", arguments->device,
                   "The device, sim:rtx-3090 for a simulated one (default: cuda:0)")
      ->type_name("ID");
  command->add_option("--op", arguments->ops, "Only this op; may be repeated")->type_name("NAME");
  command
      ->add_option(
          "--hang-timeout", arguments->hang_timeout,
          "How long a launch may take on a GPU: 3s (default), more under a tool that slows it; "
          "simulated ones have 5 minutes at least")
      ->type_name("TIME");
}

}  // namespace kiln::cli
