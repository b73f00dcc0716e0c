// `kiln forget`: drops decisions, so that what they were made for is decided anew. Those of a pack
// are hidden, because a pack is never changed.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "tools/kiln/commands.h"
#include "tools/kiln/decisions.h"
#include "tools/kiln/table.h"
#include "tools/kiln/text.h"

namespace kiln::cli {
namespace {

struct ForgetArguments {
  std::vector<std::string> ops;
  std::vector<std::string> gpus;
  std::string kind;
  bool dry_run = false;
};

std::optional<cache::DecisionKind> resolve_kind(const std::string& name) {
  if (name.empty()) return std::nullopt;
  std::vector<std::string> known;
  for (const cache::DecisionKind kind : cache::kDecisionKinds) {
    if (name == cache::kind_name(kind)) return kind;
    known.emplace_back(cache::kind_name(kind));
  }
  throw Failure(ExitCode::usage,
                fmt::format("no kind is called {}{}", in_quotes(name), did_you_mean(name, known)),
                fmt::format("Kinds: {}.", joined(known)));
}

// Every decision that matches, of one problem and GPU one after the other.
std::vector<cache::DecisionRow> matching(cache::Store& store, const DecisionFilter& filter,
                                         const std::optional<cache::DecisionKind>& kind) {
  std::vector<cache::DecisionRow> rows;
  for (const cache::DecisionRow& best : find_decisions(store, filter)) {
    for (cache::DecisionRow& row :
         store.decisions(best.decision.problem, best.decision.gpu_class)) {
      if (!kind || row.decision.kind == *kind) rows.push_back(std::move(row));
    }
  }
  return rows;
}

bool is_in_pack(const cache::DecisionRow& row, const std::vector<std::string>& packs) {
  return std::find(packs.begin(), packs.end(), row.layer) != packs.end();
}

void refuse_kind_of_pack(const std::vector<cache::DecisionRow>& rows,
                         const std::vector<std::string>& packs) {
  for (const cache::DecisionRow& row : rows) {
    if (!is_in_pack(row, packs)) continue;
    throw Failure(
        ExitCode::failed,
        fmt::format("the {} decision for {} {} is in the pack {}, and of a pack only all kinds of "
                    "a problem can be hidden.",
                    cache::kind_name(row.decision.kind), row.decision.problem.op,
                    problem_text(row.decision.problem), row.layer),
        "Leave --kind or the pack out. Nothing was forgotten.");
  }
}

void forget(const std::vector<cache::DecisionRow>& rows,
            const std::optional<cache::DecisionKind>& kind, OpenStore& store) {
  for (const cache::DecisionRow& row : rows) {
    const cache::Decision& decision = row.decision;
    bool done = kind ? store->forget(decision.problem, decision.gpu_class, *kind)
                     : store->forget(decision.problem, decision.gpu_class);
    // What is still there lies in a pack.
    if (done && !kind && store->find_decision(decision.problem, decision.gpu_class)) {
      done = store->hide(decision.problem, decision.gpu_class, "kiln forget");
    }
    store.require_sound();
    if (done) continue;
    throw Failure(ExitCode::store, "not all could be forgotten.", "The warnings say why.");
  }
}

void show(const std::vector<cache::DecisionRow>& rows, const std::vector<std::string>& packs,
          const Common& common) {
  Json list = Json::array();
  Table table({{"OP"}, {"PROBLEM"}, {"GPU"}, {"KIND"}, {"CONFIG"}, {"HOW"}, {"FILE"}});
  for (const cache::DecisionRow& row : rows) {
    const cache::Decision& decision = row.decision;
    const char* how = is_in_pack(row, packs) ? "hidden" : "deleted";
    list.push_back({{"op", decision.problem.op},
                    {"problem", problem_json(decision.problem)},
                    {"gpu", decision.gpu_label},
                    {"kind", cache::kind_name(decision.kind)},
                    {"config", stored_json(decision.config)},
                    {"how", how},
                    {"layer", row.layer}});
    table.add({decision.problem.op, problem_text(decision.problem), decision.gpu_label,
               cache::kind_name(decision.kind), short_json(stored_json(decision.config)), how,
               row.layer});
  }
  if (common.form() == OutputForm::json) {
    print_json(list);
  } else {
    print(table.text());
  }
}

ExitCode run_forget(const ForgetArguments& arguments, const Common& common) {
  resolve_ops(arguments.ops);
  const std::optional<cache::DecisionKind> kind = resolve_kind(arguments.kind);
  if (arguments.ops.empty() && arguments.gpus.empty() && !kind) {
    throw Failure(ExitCode::usage, "nothing says what to forget.",
                  "Name it with --op, --gpu or --kind; to begin a new store, move the file away.");
  }
  OpenStore store(common, arguments.dry_run ? StoreUse::read : StoreUse::write);
  const std::vector<cache::DecisionRow> rows =
      matching(*store, decision_filter(*store, arguments.ops, arguments.gpus), kind);
  if (rows.empty()) {
    throw Failure(ExitCode::failed,
                  fmt::format("no decision matches in {}.", store_place(common).path),
                  "`kiln ls` lists them.");
  }
  const std::vector<std::string> packs = store->info().packs;
  if (kind) refuse_kind_of_pack(rows, packs);
  if (!arguments.dry_run) forget(rows, kind, store);
  show(rows, packs, common);
  if (kind && !arguments.dry_run) {
    const auto left =
        matching(*store, decision_filter(*store, arguments.ops, arguments.gpus), kind);
    refuse_kind_of_pack(left, packs);
  }
  note(fmt::format("{} decisions {}forgotten.", rows.size(), arguments.dry_run ? "would be " : ""));
  return ExitCode::ok;
}

}  // namespace

void add_forget(CLI::App& app, Common& common, Chosen& chosen) {
  auto arguments = std::make_shared<ForgetArguments>();
  const std::string op = example_call().op;
  CLI::App* command = add_command(
      app, common, chosen, "forget", "Drop decisions, and hide those of a pack",
      fmt::format("  kiln forget --op {0} --dry-run\n"
                  "  kiln forget --op {0} --gpu rtx-3090\n"
                  "  kiln forget --kind predicted\n"
                  "Times, verifications and kernels stay. A hidden decision of a pack stays hidden "
                  "until this store\ndecides the problem itself. Exit code 1 when nothing "
                  "matches.\n",
                  op),
      [arguments, &common] { return run_forget(*arguments, common); });
  command->add_option("--op", arguments->ops, "Only this op; may be repeated")->type_name("NAME");
  command->add_option("--gpu", arguments->gpus, "Only this GPU; may be repeated")
      ->type_name("SLUG");
  command
      ->add_option("--kind", arguments->kind,
                   "Only this kind: pinned, measured, borrowed, predicted, default")
      ->type_name("KIND");
  command->add_flag("--dry-run", arguments->dry_run, "Say what would go and change nothing");
}

}  // namespace kiln::cli
