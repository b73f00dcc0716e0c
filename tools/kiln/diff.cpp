// `kiln diff`: in which decisions two stores differ.
#include <fmt/format.h>

#include <map>
#include <tuple>

#include "tools/kiln/commands.h"
#include "tools/kiln/decisions.h"
#include "tools/kiln/other_store.h"
#include "tools/kiln/table.h"
#include "tools/kiln/text.h"

namespace kiln::cli {
namespace {

using cache::Decision;

struct DiffOptions {
  std::string a;
  std::string b;
};

struct Difference {
  const Decision* a = nullptr;
  const Decision* b = nullptr;

  const Decision& any() const { return a != nullptr ? *a : *b; }
  const char* state() const {
    if (b == nullptr) return "only in A";
    if (a == nullptr) return "only in B";
    return a->config != b->config ? "other config" : "other kernels";
  }
};

std::vector<Difference> differences(const cache::StoreContents& a, const cache::StoreContents& b) {
  std::map<std::tuple<cache::Problem, std::string, cache::DecisionKind>, Difference> all;
  const auto place = [&](const Decision& decision) -> Difference& {
    return all[{decision.problem, decision.gpu_class, decision.kind}];
  };
  for (const Decision& decision : a.decisions) place(decision).a = &decision;
  for (const Decision& decision : b.decisions) place(decision).b = &decision;
  std::vector<Difference> differences;
  for (const auto& [key, one] : all) {
    const bool is_equal = one.a != nullptr && one.b != nullptr && one.a->config == one.b->config &&
                          one.a->plan == one.b->plan;
    if (!is_equal) differences.push_back(one);
  }
  return differences;
}

std::string label(const Decision& decision) {
  return decision.gpu_label.empty() ? decision.gpu_class : decision.gpu_label;
}

std::string config_text(const Decision* decision) {
  return decision == nullptr ? "" : short_json(stored_json(decision->config));
}

std::string time_of(const Decision* decision) {
  return decision == nullptr ? "" : time_text(decision->time_ns);
}

void print_rows(const std::vector<Difference>& rows) {
  Table table({{"DIFFERENCE"},
               {"OP"},
               {"PROBLEM"},
               {"GPU"},
               {"KIND"},
               {"CONFIG OF A"},
               {"CONFIG OF B"},
               {"TIME IN A", Align::right},
               {"TIME IN B", Align::right}});
  for (const Difference& row : rows) {
    const Decision& decision = row.any();
    table.add({row.state(), decision.problem.op, problem_text(decision.problem), label(decision),
               cache::kind_name(decision.kind), config_text(row.a), config_text(row.b),
               time_of(row.a), time_of(row.b)});
  }
  if (!table.empty()) print(table.text());
}

Json side_json(const Decision* decision) {
  if (decision == nullptr) return nullptr;
  return {{"config", stored_json(decision->config)},
          {"plan", decision->plan.hex()},
          {"time_ns", known_number(decision->time_ns)}};
}

Json rows_json(const std::vector<Difference>& rows) {
  Json list = Json::array();
  for (const Difference& row : rows) {
    const Decision& decision = row.any();
    list.push_back({{"difference", row.state()},
                    {"op", decision.problem.op},
                    {"problem", problem_json(decision.problem)},
                    {"gpu", label(decision)},
                    {"kind", cache::kind_name(decision.kind)},
                    {"a", side_json(row.a)},
                    {"b", side_json(row.b)}});
  }
  return list;
}

ExitCode run_diff(const DiffOptions& options, const Common& common) {
  const cache::StoreContents a = read_contents(options.a);
  cache::StoreContents b;
  std::string name_of_b = options.b;
  if (options.b.empty()) {
    OpenStore store(common, StoreUse::read);
    b = cache::contents_of(*store, {});
    name_of_b = store_place(common).path;
    if (const ExitCode code = store.code_of_reading(); code != ExitCode::ok) return code;
  } else {
    b = read_contents(options.b);
  }
  const std::vector<Difference> rows = differences(a, b);
  if (common.form() == OutputForm::json) {
    print_json(rows_json(rows));
  } else {
    print_rows(rows);
  }
  if (rows.empty()) {
    note(fmt::format("{} and {} decide the same: {} decisions.", options.a, name_of_b,
                     a.decisions.size()));
    return ExitCode::ok;
  }
  note(fmt::format("{} decisions differ between A, {}, and B, {}.", rows.size(), options.a,
                   name_of_b));
  return ExitCode::different;
}

}  // namespace

void add_diff(CLI::App& app, Common& common, Chosen& chosen) {
  auto options = std::make_shared<DiffOptions>();
  CLI::App* command =
      add_command(app, common, chosen, "diff", "In which decisions two stores differ",
                  "  kiln diff other.db\n"
                  "  kiln diff before.json after.json\n"
                  "  kiln diff other.db --json\n"
                  "A file is a store or the text of a `kiln export`.\n"
                  "Exit code 0 when both decide the same, 7 when they differ.\n",
                  [options, &common] { return run_diff(*options, common); });
  command->add_option("A", options->a, "One file")->type_name("FILE")->required();
  command->add_option("B", options->b, "Another (default: the store)")->type_name("FILE");
}

}  // namespace kiln::cli
