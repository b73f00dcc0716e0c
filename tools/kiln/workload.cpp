// `kiln workload`: what sessions on this machine really called, as a workload to tune or prepare.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "runtime/workload.h"
#include "tools/kiln/commands.h"
#include "tools/kiln/decisions.h"
#include "tools/kiln/text.h"

namespace kiln::cli {
namespace {

struct WorkloadOptions {
  std::vector<std::string> ops;
  std::vector<std::string> gpus;
  std::string since;
};

// The shape and bucket of a row, when today's ops have them.
std::optional<runtime::WorkloadItem> item_of(const cache::Problem& problem) {
  const auto all = templates::ops();
  const auto found = std::find_if(all.begin(), all.end(), [&](const templates::Op* op) {
    return op->name == problem.op && op->version == problem.op_version;
  });
  if (found == all.end()) return std::nullopt;
  const templates::Op& op = **found;
  try {
    runtime::WorkloadItem item{
        .op = &op, .fixed = templates::parse_shape(op, parse_json(problem.shape, "shape"))};
    for (const templates::Sizes& bucket : templates::all_buckets(op)) {
      if (templates::bucket_key(op, bucket) == problem.bucket) item.buckets.push_back(bucket);
    }
    if (item.buckets.empty()) return std::nullopt;
    return item;
  } catch (const Error&) {  // a shape that the op had once
    return std::nullopt;
  }
}

ExitCode run_workload(const WorkloadOptions& options, const Common& common) {
  OpenStore store(common, StoreUse::read);
  const DecisionFilter filter = decision_filter(*store, options.ops, options.gpus);
  int64_t since = 0;
  if (!options.since.empty()) {
    since = static_cast<int64_t>(std::time(nullptr)) -
            static_cast<int64_t>(parse_duration_s(options.since));
  }
  std::map<std::pair<std::string, templates::Sizes>, runtime::WorkloadItem> items;
  std::set<std::string> gpus;
  int64_t newest = 0;
  int unknown = 0;
  for (const cache::UsedSize& used : store->used_sizes()) {
    const bool wanted = filter.ops.empty() || std::find(filter.ops.begin(), filter.ops.end(),
                                                        used.problem.op) != filter.ops.end();
    if (!wanted || !filter.lets_through(used.gpu_class, used.gpu_label)) continue;
    if (used.last_used_at < since) continue;
    const std::optional<runtime::WorkloadItem> item = item_of(used.problem);
    if (!item) {
      ++unknown;
      continue;
    }
    const auto [place, is_new] = items.try_emplace({item->op->name, item->fixed}, *item);
    if (!is_new) place->second.buckets.push_back(item->buckets.front());
    gpus.insert(used.gpu_label.empty() ? used.gpu_class : used.gpu_label);
    newest = std::max(newest, used.last_used_at);
  }
  if (unknown > 0) {
    warn(
        fmt::format("{} used sizes are of ops or versions that this build does not have; they are "
                    "left out.",
                    unknown));
  }
  const ExitCode read = store.code_of_reading();
  if (items.empty()) {
    if (read != ExitCode::ok) return read;
    report_failure(fmt::format("no use is recorded in {} that matches.", store_place(common).path),
                   "Sessions record what they called when they are closed by kiln_close; "
                   "`kiln workload` without options lists all of it.");
    return ExitCode::failed;
  }
  std::vector<runtime::WorkloadItem> list;
  for (auto& [key, item] : items) list.push_back(std::move(item));
  print_json(runtime::workload_json(list));
  note(fmt::format("{} shapes, called on {}; last on {}.", list.size(),
                   joined({gpus.begin(), gpus.end()}), date_text(newest)));
  return read;
}

}  // namespace

void add_workload(CLI::App& app, Common& common, Chosen& chosen) {
  auto options = std::make_shared<WorkloadOptions>();
  CLI::App* command =
      add_command(app, common, chosen, "workload",
                  "Print what sessions called, as a workload for `kiln tune --workload`",
                  "  kiln workload\n"
                  "  kiln workload --since 7d | kiln tune --workload -\n"
                  "  kiln workload --gpu rtx-3090 --op linear_fp8\n",
                  [options, &common] { return run_workload(*options, common); });
  command->add_option("--op", options->ops, "Only this op; may be repeated")->type_name("NAME");
  command->add_option("--gpu", options->gpus, "Only what was called on this GPU; may be repeated")
      ->type_name("SLUG");
  command->add_option("--since", options->since, "Only what was called in this last time: 7d, 12h")
      ->type_name("TIME");
}

}  // namespace kiln::cli
