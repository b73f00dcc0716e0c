// `kiln pin`: decides by hand. A pin is read before every other kind, and no tuning replaces it.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/limits.h"
#include "runtime/plan_record.h"
#include "tools/kiln/commands.h"
#include "tools/kiln/decisions.h"
#include "tools/kiln/table.h"
#include "tools/kiln/target.h"
#include "tools/kiln/text.h"

namespace kiln::cli {
namespace {

struct PinArguments {
  std::string op;
  std::string config;
  std::string shape;
  std::string sizes;
  std::string gpu;
  std::string device;
  std::string reason;
  bool remove = false;
};

// What the command line names: the problems, on one GPU class.
struct Pinned {
  const templates::Op& op;
  templates::Sizes fixed;
  Target target;
  std::vector<cache::Problem> problems;

  std::string gpu_class() const { return gpu_class_key(target.gpu); }
};

Pinned what_to_pin(const PinArguments& arguments, cache::Store& store) {
  const templates::Op& op = resolve_op(arguments.op);
  const templates::Sizes fixed =
      arguments.shape.empty()
          ? usual_shape(op)
          : templates::parse_shape(op, object_argument(arguments.shape, "--shape"));
  Pinned pinned{op, fixed, choose_target(arguments.gpu, arguments.device, store), {}};
  if (arguments.sizes.empty()) {
    for (const templates::Sizes& bucket : templates::all_buckets(op)) {
      pinned.problems.push_back(runtime::problem_of(op, fixed, bucket));
    }
  } else {
    pinned.problems.push_back(runtime::problem_of(
        op, fixed, templates::nearest_bucket(op, bucket_sizes(op, arguments.sizes))));
  }
  return pinned;
}

void refuse_contradictions(const PinArguments& arguments) {
  if (!arguments.gpu.empty() && !arguments.device.empty()) {
    throw Failure(ExitCode::usage, "--gpu and --device both name the GPU.", "Give one of them.");
  }
  if (arguments.remove && !arguments.config.empty()) {
    throw Failure(ExitCode::usage, "--remove takes the pins away, so it does not go with --config.",
                  "To replace a pin, pin the other config.");
  }
  if (!arguments.remove && arguments.config.empty()) {
    throw Failure(
        ExitCode::usage, "--config is missing: the config to pin.",
        fmt::format("`kiln show {}` has configs to choose from; --remove takes pins away.",
                    arguments.op));
  }
}

templates::Config legal_config(const PinArguments& arguments, const Pinned& pinned) {
  const Gpu& gpu = pinned.target.gpu;
  const templates::Config config = templates::parse_config(
      pinned.op, pinned.fixed, gpu, object_argument(arguments.config, "--config"));
  const auto broken = runtime::limit_broken(pinned.op.plan(pinned.fixed, config, gpu), gpu);
  if (!broken) return config;
  throw Failure(ExitCode::usage,
                fmt::format("{} cannot run that config on {}: {}.", pinned.op.name,
                            pinned.target.label, broken->detail),
                fmt::format("`kiln show {}` has configs to choose from.", pinned.op.name));
}

std::vector<cache::DecisionRow> pins(cache::Store& store, const Pinned& pinned) {
  std::vector<cache::DecisionRow> rows;
  for (const cache::Problem& problem : pinned.problems) {
    if (auto row = store.find_decision(problem, pinned.gpu_class(), cache::DecisionKind::pinned)) {
      rows.push_back(std::move(*row));
    }
  }
  return rows;
}

// Of a plan that the store does not have the pin says nothing: it is made when it is prepared.
Hash128 known_plan(cache::Store& store, const Pinned& pinned, const templates::Config& config) {
  runtime::TodaysPlans plans(pinned.target.gpu);
  const Hash128 id = plans.plan(pinned.op, pinned.fixed, config, pinned.target.gpu.sm()).id;
  return store.find_plan(id) ? id : Hash128{};
}

void require_kept(bool kept, OpenStore& store) {
  store.require_sound();
  if (kept) return;
  throw Failure(ExitCode::store, "the pins could not be written.", "The warnings say why.");
}

void put_pins(const PinArguments& arguments, const Pinned& pinned, OpenStore& store) {
  const templates::Config config = legal_config(arguments, pinned);
  cache::TuningResult result;
  result.decision.gpu_class = pinned.gpu_class();
  result.decision.gpu_label = pinned.target.label;
  result.decision.config = canonical_json(templates::config_json(config));
  result.decision.plan = known_plan(*store, pinned, config);
  result.decision.kind = cache::DecisionKind::pinned;
  result.decision.reason = arguments.reason.empty() ? "pinned by hand" : arguments.reason;
  for (const cache::Problem& problem : pinned.problems) {
    result.decision.problem = problem;
    require_kept(store->put(result), store);
  }
}

void remove_pins(const std::vector<cache::DecisionRow>& rows, OpenStore& store) {
  const std::vector<std::string> packs = store->info().packs;
  for (const cache::DecisionRow& row : rows) {
    if (std::find(packs.begin(), packs.end(), row.layer) == packs.end()) continue;
    throw Failure(
        ExitCode::failed,
        fmt::format("the pin of {} {} is in the pack {}, which is never changed.",
                    row.decision.problem.op, problem_text(row.decision.problem), row.layer),
        "Pin another config here, or leave the pack out. Nothing was removed.");
  }
  for (const cache::DecisionRow& row : rows) {
    const cache::Decision& decision = row.decision;
    require_kept(store->forget(decision.problem, decision.gpu_class, cache::DecisionKind::pinned),
                 store);
  }
}

void show(const std::vector<cache::DecisionRow>& rows, const Common& common) {
  Json list = Json::array();
  Table table({{"OP"}, {"PROBLEM"}, {"GPU"}, {"CONFIG"}, {"VERIFIED"}});
  for (const cache::DecisionRow& row : rows) {
    const cache::Decision& decision = row.decision;
    list.push_back({{"op", decision.problem.op},
                    {"problem", problem_json(decision.problem)},
                    {"gpu", decision.gpu_label},
                    {"config", stored_json(decision.config)},
                    {"reason", decision.reason},
                    {"verified", cache::verified_json(row.verified)}});
    const char* verified =
        row.verified == cache::Verified::none ? "no" : cache::verified_name(row.verified);
    table.add({decision.problem.op, problem_text(decision.problem), decision.gpu_label,
               short_json(stored_json(decision.config)),
               row.failure.empty() ? verified : "FAILED"});
  }
  if (common.form() == OutputForm::json) {
    print_json(list);
  } else {
    print(table.text());
  }
}

ExitCode run_pin(const PinArguments& arguments, const Common& common) {
  resolve_op(arguments.op);
  refuse_contradictions(arguments);
  OpenStore store(common, StoreUse::write);
  const Pinned pinned = what_to_pin(arguments, *store);
  if (arguments.remove) {
    const std::vector<cache::DecisionRow> rows = pins(*store, pinned);
    if (rows.empty()) {
      throw Failure(
          ExitCode::failed,
          fmt::format("{} has no pin for {} there.", pinned.op.name, pinned.target.label),
          fmt::format("`kiln ls --op {}` lists the decisions with their kind.", pinned.op.name));
    }
    remove_pins(rows, store);
    show(rows, common);
    const size_t left = pins(*store, pinned).size();
    if (left > 0) {
      throw Failure(ExitCode::failed,
                    fmt::format("removed here, but a pack beneath has {} pins there.", left),
                    "Pin another config here, or leave the pack out.");
    }
    note(fmt::format("{} pins removed.", rows.size()));
    return ExitCode::ok;
  }
  put_pins(arguments, pinned, store);
  const std::vector<cache::DecisionRow> rows = pins(*store, pinned);
  show(rows, common);
  const bool all_proven = std::all_of(rows.begin(), rows.end(), [](const cache::DecisionRow& row) {
    return row.verified != cache::Verified::none;
  });
  note(
      fmt::format("{} buckets are pinned{}", rows.size(),
                  all_proven ? "." : "; not all are proven: `kiln verify` does that on the card."));
  return ExitCode::ok;
}

}  // namespace

void add_pin(CLI::App& app, Common& common, Chosen& chosen) {
  auto arguments = std::make_shared<PinArguments>();
  const ExampleCall example = example_call();
  CLI::App* command = add_command(
      app, common, chosen, "pin", "Decide a config by hand, before all that tuning decides",
      fmt::format("  kiln pin {0} --gpu rtx-3090 --config '{{...}}' --reason 'ticket 12'\n"
                  "  kiln pin {0} --gpu rtx-3090 --config '{{...}}' --sizes '{1}'\n"
                  "  kiln pin {0} --gpu rtx-3090 --remove\n"
                  "Without --sizes every bucket of the shape is pinned. Exit code 1 when there is "
                  "no pin to remove.\n",
                  example.op, example.sizes),
      [arguments, &common] { return run_pin(*arguments, common); });
  command->add_option("op", arguments->op, "Name of the op")->type_name("OP")->required();
  command->add_option("--config", arguments->config, "The config, as `kiln show` has them")
      ->type_name("JSON");
  command
      ->add_option("--shape", arguments->shape,
                   "Its fixed sizes (default: the first shape of the model)")
      ->type_name("JSON");
  command
      ->add_option("--sizes", arguments->sizes,
                   "Sizes of a call: only its bucket (default: every bucket)")
      ->type_name("JSON");
  command
      ->add_option("--gpu", arguments->gpu,
                   "The GPU (default: the device here, else the store's only one)")
      ->type_name("SLUG");
  command->add_option("--device", arguments->device, "The GPU of this device")->type_name("ID");
  command->add_option("--reason", arguments->reason, "Why, for who reads it later")
      ->type_name("TEXT");
  command->add_flag("--remove", arguments->remove, "Take the pins away");
}

}  // namespace kiln::cli
