// `kiln tune` and `kiln build`. Tuning needs a device; building ranks for named GPUs by the
// analytic model and never touches the driver, so it runs anywhere. Without a device, tune does
// what build does. With --pack, build puts what it made for the named GPUs into packs to ship.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "cache/files.h"
#include "cache/pack.h"
#include "runtime/workload.h"
#include "tools/kiln/commands.h"
#include "tools/kiln/decisions.h"
#include "tools/kiln/interrupt.h"
#include "tools/kiln/progress.h"
#include "tools/kiln/table.h"
#include "tools/kiln/text.h"
#include "tuner/tuner.h"

namespace kiln::cli {
namespace {

// What `tune` on a machine without a GPU and `build` without --gpu rank for: one card of each
// architecture.
const std::vector<std::string> kDefaultGpus = {"a100-sxm4-80gb", "rtx-3090"};

constexpr int kMostConfigs = 1000000;
constexpr int kBuildShortlist = 6;  // what is only ranked is not worth long compiling

struct TuneArguments {
  std::vector<std::string> gpus;
  std::string device;
  std::vector<std::string> ops;
  std::string workload;
  std::string budget;
  std::string limits;
  std::string pack;  // of build: where the packs go
  int tries = tuner::TuneOptions{}.tries;
  int shortlist = kBuildShortlist;  // without a device
  bool again = false;
  bool invariant = false;
};

enum class Verb { tune, build };

std::vector<std::string> slugs_of(const std::vector<std::string>& names) {
  std::vector<std::string> slugs;
  for (const std::string& name : names) {
    const std::string& slug = resolve_gpu(name).slug;  // an alias stands for its row
    if (std::find(slugs.begin(), slugs.end(), slug) == slugs.end()) slugs.push_back(slug);
  }
  return slugs;
}

void refuse_contradictions(const TuneArguments& arguments, Verb verb) {
  if (verb == Verb::build && !arguments.device.empty()) {
    throw Failure(ExitCode::usage, "build never uses a device.",
                  "To tune on one: `kiln tune --device ID`.");
  }
  if (!arguments.gpus.empty() && !arguments.device.empty()) {
    throw Failure(
        ExitCode::usage,
        "--gpu names cards to rank for without a device, so it does not go with --device.",
        "To measure on this device as another card would have to run: --limits SLUG.");
  }
}

// "cuda:N", or "" for ranking by the model.
std::string choose_device(const TuneArguments& arguments, Verb verb) {
  if (verb == Verb::build) return "";
  if (!arguments.device.empty()) return require_device(arguments.device).id;
  if (!arguments.gpus.empty()) {
    note(
        "--gpu names cards to rank for; a device of this machine is not used. To tune on it, leave "
        "--gpu out.");
    return "";
  }
  const runtime::DeviceList list = runtime::list_devices();
  if (!list.devices.empty()) return list.devices.front().id;
  note(fmt::format("no GPU here ({}); ranking for {} instead.", list.problem,
                   joined(kDefaultGpus, " and ")));
  return "";
}

tuner::TuneOptions tune_options(const TuneArguments& arguments, const std::string& workload,
                                Verb verb) {
  refuse_contradictions(arguments, verb);
  resolve_ops(arguments.ops);

  tuner::TuneOptions options;
  options.ops = arguments.ops;
  const std::vector<std::string> gpus = slugs_of(arguments.gpus);
  if (!arguments.limits.empty()) options.limits = resolve_gpu(arguments.limits).slug;
  if (!arguments.budget.empty()) {
    options.budget_s = parse_duration_s(arguments.budget);
    if (options.budget_s == 0) {
      throw Failure(ExitCode::usage, "a budget of 0 leaves no time to do anything.",
                    "Leave --budget out to work without a limit.");
    }
  }
  options.workload = workload;
  options.tries = arguments.tries;
  if (!workload.empty())
    runtime::parse_workload(workload);  // mistakes are answered before any work
  options.redo = arguments.again ? tuner::TuneOptions::Redo::again : tuner::TuneOptions::Redo::keep;
  if (arguments.invariant) options.invariance = tuner::TuneOptions::Invariance::all_sizes;
  options.device = choose_device(arguments, verb);
  if (options.device.empty()) {
    options.gpus = gpus.empty() ? kDefaultGpus : gpus;
    options.shortlist = arguments.shortlist;
  }
  if (options.device.empty() && !options.limits.empty()) {
    throw Failure(ExitCode::usage, "--limits is for measuring on a device, and there is none.",
                  fmt::format("To rank for that card: `kiln build --gpu {}`.", options.limits));
  }
  return options;
}

// A pack that build makes, and the GPUs that it is for.
struct WantedPack {
  std::string path;
  std::vector<std::string> gpus;
  cache::PackReport made;
};

// "PATH.db" is one pack for all GPUs; anything else is a folder with one for each architecture,
// because a machine has use for one of them only.
std::vector<WantedPack> wanted_packs(const std::string& place, const std::string& store_path,
                                     const std::vector<std::string>& gpus) {
  namespace fs = std::filesystem;
  std::error_code error;
  const bool is_file = fs::path(place).extension() == ".db" && !fs::is_directory(place, error);
  std::map<std::string, WantedPack> packs;
  for (const std::string& slug : gpus) {
    const std::string path =
        is_file ? place : (fs::path(place) / (find_gpu(slug).arch() + ".db")).string();
    WantedPack& pack = packs[path];
    pack.path = path;
    pack.gpus.push_back(slug);
  }
  std::vector<WantedPack> list;
  for (auto& [path, pack] : packs) {
    // Known before hours of work.
    if (cache::absolute_path(path) == cache::absolute_path(store_path)) {
      throw Failure(
          ExitCode::usage,
          fmt::format("--pack: {} is the store that the build works in.", in_quotes(path)),
          "Give another name.");
    }
    if (cache::file_id(path)) {
      throw Failure(ExitCode::usage, fmt::format("--pack: the file {} exists.", in_quotes(path)),
                    "A pack is never replaced, because others may be reading it: remove it or "
                    "give another name.");
    }
    const fs::path folder = fs::path(path).parent_path();
    error.clear();
    if (!folder.empty()) fs::create_directories(folder, error);  // for all, as the pack is
    if (error) {
      throw Failure(ExitCode::usage,
                    fmt::format("--pack: the folder {} cannot be made: {}.",
                                in_quotes(folder.string()), error.message()),
                    "Name a place that you may write.");
    }
    list.push_back(std::move(pack));
  }
  return list;
}

void make_packs(std::vector<WantedPack>& packs, const tuner::TuneReport& report,
                cache::Store& store) {
  std::set<std::string> ops;
  for (const tuner::ProblemReport& problem : report.problems) ops.insert(problem.problem.op);
  for (WantedPack& pack : packs) {
    cache::PackFilter filter{.ops = {ops.begin(), ops.end()}, .gpu_classes = {}, .archs = {}};
    for (const std::string& slug : pack.gpus) {
      filter.gpu_classes.push_back(gpu_class_key(find_gpu(slug)));
      filter.archs.push_back(find_gpu(slug).arch());
    }
    pack.made = cache::make_pack_of(store, filter, pack.path);
    note(fmt::format("the pack {} is made: {} decisions and {} kernels for {}.", pack.path,
                     pack.made.decisions, pack.made.kernels, joined(pack.gpus, " and ")));
    if (pack.made.missing_kernels > 0) {
      warn(
          fmt::format("{} kernels of {} are not in the store, so who has the pack alone compiles "
                      "them; `kiln build --again` makes them anew",
                      pack.made.missing_kernels, pack.path));
    }
  }
}

Json packs_json(const std::vector<WantedPack>& packs) {
  Json list = Json::array();
  for (const WantedPack& pack : packs) {
    list.push_back({{"path", pack.path},
                    {"gpus", pack.gpus},
                    {"decisions", pack.made.decisions},
                    {"kernels", pack.made.kernels},
                    {"missing_kernels", pack.made.missing_kernels}});
  }
  return list;
}

// Problems without a winner are told apart by their state: "unsupported", "no memory", "failed:
// ...".
void print_winners(const tuner::TuneReport& report) {
  Table table({{"OP"},
               {"PROBLEM"},
               {"GPU"},
               {"CONFIG"},
               {"KIND"},
               {"TIME", Align::right},
               {"VS DEFAULT", Align::right},
               {"STATE"}});
  for (const tuner::ProblemReport& problem : report.problems) {
    const bool decided = !problem.winner.empty();
    table.add({problem.problem.op, problem_text(problem.problem), problem.gpu,
               decided ? short_json(stored_json(problem.winner)) : "-",
               decided ? cache::kind_name(problem.kind) : "-", time_text(problem.winner_ns),
               ratio_text(problem.default_ns, problem.winner_ns), problem.state_text()});
  }
  if (!table.empty()) print(table.text());
}

void print_rejections(const tuner::TuneReport& report) {
  std::map<std::string, int64_t> total;
  for (const tuner::ProblemReport& problem : report.problems) {
    for (const auto& [reason, count] : problem.rejected) total[reason] += count;
  }
  if (!total.empty()) print("\nRejected candidates, over all problems:\n");
  for (const auto& [reason, count] : total) print(fmt::format("  {:>6}  {}\n", count, reason));
}

void print_next_steps(const tuner::TuneReport& report, const tuner::TuneOptions& options,
                      const std::string& packs, const Common& common) {
  if (report.problems.empty()) return;
  const std::string db = db_argument(common);
  const std::string& op = report.problems.front().problem.op;
  print("\nNext:\n");
  if (!packs.empty()) {
    print(
        fmt::format("  copy {} to the machine with the GPU and name it with KILN_PACK, then there\n"
                    "  kiln verify    prove the packed configs on its card\n",
                    packs));
  } else if (options.device.empty()) {
    print(
        fmt::format("  copy {} to the machine with the GPU and name it with KILN_DB, then there\n"
                    "  kiln verify{}    prove the stored configs on its card\n",
                    store_place(common).path, db));
  } else if (options.device.starts_with(runtime::kSimulatedPrefix)) {
    print(fmt::format("  kiln verify --device {}{}    execute and check the winners again\n",
                      options.device, db));
  } else {
    print(
        fmt::format("  kiln bench{} --op {}    times beside the ceilings of this card\n", db, op));
  }
  print(fmt::format(
      "  kiln ls{}    what each problem uses\n  kiln show {}{}    one op with its evidence\n", db,
      op, db));
}

struct Tally {
  size_t tuned = 0;
  size_t kept = 0;
  size_t failed = 0;
  size_t not_stored = 0;  // of those that failed
  size_t partial = 0;     // decided among what the budget allowed
  size_t other = 0;       // stopped, out of budget, or nothing that this GPU can do
};

Tally tally_of(const tuner::TuneReport& report) {
  using State = tuner::ProblemReport::State;
  Tally tally;
  for (const tuner::ProblemReport& problem : report.problems) {
    switch (problem.state) {
      case State::tuned:
        ++tally.tuned;
        break;
      case State::partial:
        ++tally.partial;
        break;
      case State::kept:
        ++tally.kept;
        break;
      case State::not_stored:
        ++tally.not_stored;
        [[fallthrough]];
      case State::failed:
        ++tally.failed;
        break;
      case State::no_memory:
      case State::budget:
      case State::stopped:
      case State::unsupported:
        ++tally.other;
        break;
    }
  }
  return tally;
}

// Reads the file once more, because what other programs did to it may not show while it is open.
void require_kept(const tuner::TuneReport& report, OpenStore& store, const Common& common) {
  store.require_sound();
  store.close();
  OpenStore reopened(common, StoreUse::read);
  const std::vector<cache::DecisionRow> rows = reopened->list_decisions();
  const auto is_there = [&](const tuner::ProblemReport& problem) {
    return problem.winner.empty() ||
           std::any_of(rows.begin(), rows.end(), [&](const cache::DecisionRow& row) {
             return row.decision.problem == problem.problem;
           });
  };
  const bool all = std::all_of(report.problems.begin(), report.problems.end(), is_there);
  if (all && reopened->trouble().empty()) return;
  throw lost_results(
      fmt::format("what was decided is not in {} any more: it was changed meanwhile.",
                  store_place(common).path));
}

ExitCode say_how_it_ended(const tuner::TuneReport& report, OpenStore& store, const Common& common) {
  const Tally tally = tally_of(report);
  note(
      fmt::format("{} problems in {}: {} decided now, {} in part, {} kept from before, {} "
                  "failed, {} left.",
                  report.problems.size(), seconds_text(report.wall_s), tally.tuned, tally.partial,
                  tally.kept, tally.failed, tally.other));
  require_kept(report, store, common);
  if (tally.not_stored > 0) {
    throw Failure(ExitCode::store,
                  fmt::format("{} problems were decided, but not kept.", tally.not_stored),
                  "The warnings say why; `--db PATH` or KILN_DB names another file.");
  }
  if (report.end == tuner::TuneReport::End::stopped) {
    note("stopped; what was finished is stored. Run the same command again to resume.");
    return ExitCode::interrupted;
  }
  if (report.end == tuner::TuneReport::End::budget) {
    note("the budget is spent; what was finished is stored. Run the same command again to go on.");
  }
  if (tally.failed > 0) {
    throw Failure(ExitCode::failed, fmt::format("{} problems failed.", tally.failed),
                  "The table's last column says why; the op's default config serves them.");
  }
  if (tally.kept > 0 && tally.kept == report.problems.size()) {
    note("nothing was left to do; --again decides anew.");
  }
  return ExitCode::ok;
}

ExitCode run_tune(const TuneArguments& arguments, const Common& common, Verb verb) {
  // Read before Ctrl-C is caught, so that it ends a program that waits for its standard input.
  const std::string workload =
      arguments.workload.empty() ? "" : read_text_file(arguments.workload, "--workload");
  const InterruptGuard interrupt;
  tuner::TuneOptions options = tune_options(arguments, workload, verb);
  std::vector<WantedPack> packs;
  if (!arguments.pack.empty()) {
    packs = wanted_packs(arguments.pack, store_place(common).path, options.gpus);
  }
  OpenStore store(common, StoreUse::write);
  note(fmt::format("{} {}; the store is {}.", options.device.empty() ? "ranking for" : "tuning on",
                   options.device.empty() ? joined(options.gpus, " and ") : options.device,
                   store_place(common).path));

  Progress progress;
  options.stop = &interrupt.flag();
  options.log = [&](const std::string& line) { progress.line(line); };
  options.progress = [&](int done, int total, const std::string& what, double eta_s) {
    progress.update(done, total, what, eta_s);
  };
  const tuner::TuneReport report = tuner::tune(*store, options);
  progress.finish();
  // Half a pack would pass for a whole one.
  const bool is_complete = report.end == tuner::TuneReport::End::finished;
  if (is_complete) {
    make_packs(packs, report, *store);
  } else if (!packs.empty()) {
    note("no pack is made, because the build is not complete; the same command goes on.");
    packs.clear();
  }

  if (common.form() == OutputForm::json) {
    Json json = report.json();
    if (!arguments.pack.empty()) json["packs"] = packs_json(packs);
    print_json(json);
  } else {
    print_winners(report);
    print_rejections(report);
    if (store->trouble().empty()) {
      print_next_steps(report, options, is_complete ? arguments.pack : "", common);
    }
  }
  return say_how_it_ended(report, store, common);
}

void add_shared_options(CLI::App& command, TuneArguments& arguments) {
  command.add_option("--gpu", arguments.gpus, "Rank for this GPU; may be repeated")
      ->type_name("SLUG");
  command
      .add_option("--device", arguments.device,
                  "The device to tune on, for example cuda:0 or sim:rtx-3090")
      ->type_name("ID");
  command.add_option("--op", arguments.ops, "Only this op; may be repeated")->type_name("NAME");
  command
      .add_option("--workload", arguments.workload,
                  "JSON of ops, shapes and sizes, as for kiln_prepare; - for standard input "
                  "(default: the model's)")
      ->type_name("FILE");
  command
      .add_option("--budget", arguments.budget,
                  "Time to spend: 30s, 5m, 1h30m; a bare number is seconds")
      ->type_name("TIME");
  command.add_option("--limits", arguments.limits, "Measure as this GPU would have to run it")
      ->type_name("SLUG");
  command.add_flag("--again", arguments.again, "Decide anew what has been decided before");
  command.add_flag("--invariant", arguments.invariant,
                   "Per shape only kernels that add in one order, so that a row's result does not "
                   "depend on how many rows the call has");
}

}  // namespace

void add_tune(CLI::App& app, Common& common, Chosen& chosen) {
  auto arguments = std::make_shared<TuneArguments>();
  CLI::App* command = add_command(
      app, common, chosen, "tune", "Prove and measure candidates on the GPU here, keep the winners",
      "  kiln tune\n"
      "  kiln tune --device cuda:1 --budget 5m\n"
      "  kiln tune --limits rtx-3090\n"
      "  kiln tune --device sim:rtx-3090\n"
      "Ctrl-C ends cleanly; the same command resumes. Without a GPU it does what `kiln build` "
      "does.\n",
      [arguments, &common] { return run_tune(*arguments, common, Verb::tune); });
  add_shared_options(*command, *arguments);
  command
      ->add_option(
          "--tries", arguments->tries,
          "Configs to verify and time for a problem, those first that the model puts first; "
          "0: all")
      ->type_name("COUNT")
      ->check(CLI::Range(0, kMostConfigs))
      ->capture_default_str();
}

void add_build(CLI::App& app, Common& common, Chosen& chosen) {
  auto arguments = std::make_shared<TuneArguments>();
  CLI::App* command = add_command(
      app, common, chosen, "build", "Without a GPU: compile, rank by the model, keep the best",
      "  kiln build\n"
      "  kiln build --gpu rtx-3090 --gpu a40\n"
      "  kiln build --gpu a100-sxm4-80gb --gpu rtx-3090 --pack packs\n"
      "With --pack, packs/sm_80.db and packs/sm_86.db are files to ship: named by KILN_PACK on "
      "the\n"
      "machine with the GPU, `kiln verify` proves them there. Never touches a driver.\n",
      [arguments, &common] { return run_tune(*arguments, common, Verb::build); });
  add_shared_options(*command, *arguments);
  // The stores beneath are those of KILN_PACK, or of `kiln --pack PATH build`.
  command->remove_option(command->get_option("--pack"));
  command
      ->add_option("--pack", arguments->pack,
                   "Make packs of what these GPUs need: PATH.db one for all, else a new or old "
                   "folder with one for each architecture")
      ->type_name("PATH");
  // Answered with a sentence of their own, but not offered.
  for (const char* of_tune : {"--device", "--limits"}) command->get_option(of_tune)->group("");
  command
      ->add_option("--shortlist", arguments->shortlist,
                   "Configs to compile for a problem, those first that the model puts first by "
                   "their launch alone; 0: all")
      ->type_name("COUNT")
      ->check(CLI::Range(0, kMostConfigs))
      ->capture_default_str();
}

}  // namespace kiln::cli
