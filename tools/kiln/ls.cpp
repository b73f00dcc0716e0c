// `kiln ls`: what the store and its pack have decided, one row for each problem and GPU.
#include <fmt/format.h>

#include <algorithm>

#include "tools/kiln/commands.h"
#include "tools/kiln/decisions.h"
#include "tools/kiln/table.h"
#include "tools/kiln/text.h"

namespace kiln::cli {
namespace {

struct LsOptions {
  std::vector<std::string> ops;
  std::vector<std::string> gpus;
};

Json rows_json(const std::vector<cache::DecisionRow>& rows) {
  Json list = Json::array();
  for (const cache::DecisionRow& row : rows) {
    const cache::Decision& decision = row.decision;
    list.push_back({{"op", decision.problem.op},
                    {"problem", problem_json(decision.problem)},
                    {"gpu", decision.gpu_label},
                    {"config", stored_json(decision.config)},
                    {"kind", cache::kind_name(decision.kind)},
                    {"time_ns", known_number(decision.time_ns)},
                    {"verified", cache::verified_json(row.verified)}});
  }
  return list;
}

void print_rows(const std::vector<cache::DecisionRow>& rows) {
  Table table({{"OP"},
               {"PROBLEM"},
               {"GPU"},
               {"KIND"},
               {"CONFIG"},
               {"TIME", Align::right},
               {"VS DEFAULT", Align::right},
               {"VERIFIED"}});
  for (const cache::DecisionRow& row : rows) {
    const cache::Decision& decision = row.decision;
    const char* verified =
        row.verified == cache::Verified::none ? "no" : cache::verified_name(row.verified);
    table.add({decision.problem.op, problem_text(decision.problem), decision.gpu_label,
               cache::kind_name(decision.kind), short_json(stored_json(decision.config)),
               time_text(decision.time_ns), ratio_text(decision.default_time_ns, decision.time_ns),
               row.failure.empty() ? verified : "FAILED"});
  }
  print(table.text());
}

ExitCode run_ls(const LsOptions& options, const Common& common) {
  OpenStore store(common, StoreUse::read);
  const DecisionFilter filter = decision_filter(*store, options.ops, options.gpus);
  const std::vector<cache::DecisionRow> rows = find_decisions(*store, filter);
  if (common.form() == OutputForm::json) {
    print_json(rows_json(rows));
  } else if (rows.empty() && store_file_exists(common)) {
    note(fmt::format("no decision matches in {}; `kiln tune` or `kiln build` makes them.",
                     store_place(common).path));
  } else if (!rows.empty()) {
    print_rows(rows);
  }
  return store.code_of_reading();
}

}  // namespace

void add_ls(CLI::App& app, Common& common, Chosen& chosen) {
  auto options = std::make_shared<LsOptions>();
  CLI::App* command = add_command(app, common, chosen, "ls", "List the decisions of the store",
                                  "  kiln ls\n"
                                  "  kiln ls --gpu rtx-3090\n"
                                  "  kiln ls --json --db other.db\n",
                                  [options, &common] { return run_ls(*options, common); });
  command->add_option("--op", options->ops, "Only this op; may be repeated")->type_name("NAME");
  command->add_option("--gpu", options->gpus, "Only this GPU; may be repeated")->type_name("SLUG");
}

}  // namespace kiln::cli
