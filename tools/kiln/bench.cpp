// `kiln bench`: times beside the ceilings and the floor of the same run.
#include <fmt/format.h>

#include "runtime/workload.h"
#include "tools/kiln/commands.h"
#include "tools/kiln/decisions.h"
#include "tools/kiln/progress.h"
#include "tools/kiln/table.h"
#include "tools/kiln/text.h"
#include "tuner/tuner.h"

namespace kiln::cli {
namespace {

struct BenchArguments {
  std::string device;
  std::vector<std::string> ops;
  std::string workload;
  std::string shape;
  std::string sizes;
  std::string limits;
};

Json rows_json(const std::vector<tuner::BenchRow>& rows) {
  Json list = Json::array();
  for (const tuner::BenchRow& row : rows) {
    list.push_back(
        {{"op", row.op},
         {"shape", stored_json(row.shape)},
         {"sizes", stored_json(row.sizes)},
         {"config", stored_json(row.config)},
         {"kind", row.kind},
         {"time_ns", known_number(row.time_ns)},
         {"default_ns", known_number(row.default_ns)},
         {"bytes", row.bytes},
         {"ceiling_gb_per_s", known_number(row.ceiling_gb_per_s)},
         {"bus_bytes", row.bus_bytes},
         {"ceiling_bus_gb_per_s", known_number(row.ceiling_bus_gb_per_s)},
         {"mma_operations", row.mma_operations},
         {"ceiling_tflop_per_s", known_number(row.ceiling_tflop_per_s)},
         {"floor_ns", known_number(row.floor_ns)},
         {"floor_ratio", row.time_ns > 0 ? known_number(row.floor_ns / row.time_ns) : Json()},
         {"launch_ns", known_number(row.launch_ns)},
         {"problem", row.problem.empty() ? Json() : Json(row.problem)}});
  }
  return list;
}

std::string sizes_text(const tuner::BenchRow& row) {
  const std::string shape = short_json(stored_json(row.shape));
  return row.sizes.empty() ? shape : shape + ", " + short_json(stored_json(row.sizes));
}

void print_rows(const std::vector<tuner::BenchRow>& rows) {
  Table table({{"OP"},
               {"SHAPE"},
               {"KIND"},
               {"TIME", Align::right},
               {"DEFAULT", Align::right},
               {"BYTES", Align::right},
               {"CEILING", Align::right},
               {"BUS CEILING", Align::right},
               {"MMA CEILING", Align::right},
               {"FLOOR", Align::right},
               {"FLOOR/TIME", Align::right},
               {"LAUNCH", Align::right}});
  for (const tuner::BenchRow& row : rows) {
    const bool knows_ratio = row.floor_ns > 0 && row.time_ns > 0;
    table.add(
        {row.op, sizes_text(row), row.kind, time_text(row.time_ns), time_text(row.default_ns),
         bytes_text(row.bytes),
         row.ceiling_gb_per_s > 0 ? fmt::format("{:.0f} GB/s", row.ceiling_gb_per_s) : "-",
         row.ceiling_bus_gb_per_s > 0 ? fmt::format("{:.1f} GB/s", row.ceiling_bus_gb_per_s) : "-",
         row.ceiling_tflop_per_s > 0 ? fmt::format("{:.0f} TFLOP/s", row.ceiling_tflop_per_s) : "-",
         time_text(row.floor_ns),
         knows_ratio ? fmt::format("{:.2f}", row.floor_ns / row.time_ns) : "-",
         time_text(row.launch_ns)});
  }
  print(table.text());
  print(
      "\nCEILING: measured in this run for the op's mix of reads and writes.  BUS CEILING: copies "
      "from pinned\nmemory of the host, in this run, for ops that read it.  MMA CEILING: mma.sync "
      "from registers, in this\nrun.  FLOOR: the longest of bytes, bytes over the bus and "
      "operations at their ceilings.  LAUNCH: an\nempty kernel, timed the same way.\n");
}

ExitCode run_bench(const BenchArguments& arguments, const Common& common) {
  resolve_ops(arguments.ops);
  if (!arguments.shape.empty() && arguments.ops.size() != 1) {
    throw Failure(ExitCode::usage, "--shape belongs to one op.", "Name it with --op NAME.");
  }
  if (!arguments.sizes.empty() && arguments.ops.size() != 1) {
    throw Failure(ExitCode::usage, "--sizes belongs to one op.", "Name it with --op NAME.");
  }
  if (!arguments.workload.empty() && !(arguments.shape.empty() && arguments.sizes.empty())) {
    throw Failure(ExitCode::usage, "--workload says shapes and sizes itself.",
                  "Leave --shape and --sizes out.");
  }
  // Mistakes are answered before a device is asked for.
  tuner::BenchOptions options;
  if (!arguments.workload.empty()) {
    options.workload = read_text_file(arguments.workload, "--workload");
    runtime::parse_workload(options.workload);
  }
  if (!arguments.limits.empty()) resolve_gpu(arguments.limits);
  if (!arguments.shape.empty()) {
    templates::parse_shape(resolve_op(arguments.ops.front()),
                           object_argument(arguments.shape, "--shape"));
  }
  if (!arguments.sizes.empty()) {
    templates::parse_dynamic(resolve_op(arguments.ops.front()),
                             object_argument(arguments.sizes, "--sizes"));
  }

  const runtime::DeviceInfo device = require_device(arguments.device);
  if (device.timing == runtime::Timing::none) {
    throw Failure(
        ExitCode::usage,
        fmt::format("{} executes kernels but has no clock; times need a real GPU.", device.id),
        fmt::format("To check results on it: `kiln verify --device {}`.", device.id));
  }
  options.device = device.id;
  options.ops = arguments.ops;
  options.shape = arguments.shape;
  options.sizes = arguments.sizes;
  if (!arguments.limits.empty()) options.limits = resolve_gpu(arguments.limits).slug;
  OpenStore store(common, StoreUse::read);
  Progress progress;
  options.log = [&](const std::string& line) { progress.line(line); };
  const std::vector<tuner::BenchRow> rows = tuner::bench(*store, options);
  progress.finish();

  if (common.form() == OutputForm::json) {
    print_json(rows_json(rows));
  } else if (rows.empty()) {
    note("nothing was measured: no shape of these ops runs on this device.");
  } else {
    print_rows(rows);
  }
  const auto failed = std::find_if(rows.begin(), rows.end(),
                                   [](const tuner::BenchRow& row) { return !row.problem.empty(); });
  if (failed != rows.end()) {
    throw Failure(ExitCode::failed,
                  fmt::format("{} {} was not measured: {}.", failed->op, sizes_text(*failed),
                              failed->problem),
                  "`kiln verify` tells whether its config is right on this device.");
  }
  return store.code_of_reading();
}

}  // namespace

void add_bench(CLI::App& app, Common& common, Chosen& chosen) {
  auto arguments = std::make_shared<BenchArguments>();
  const ExampleCall call = example_call();
  CLI::App* command =
      add_command(app, common, chosen, "bench", "Time the stored configs beside measured ceilings",
                  fmt::format("  kiln bench\n"
                              "  kiln bench --op {} --shape '{}'\n"
                              "  kiln bench --limits rtx-3090\n"
                              "  kiln bench --json > bench.json\n"
                              "`kiln show OP` lists the fields of an op's shape and sizes.\n",
                              call.op, call.shape),
                  [arguments, &common] { return run_bench(*arguments, common); });
  command->add_option("--device", arguments->device, "The device (default: cuda:0)")
      ->type_name("ID");
  command->add_option("--op", arguments->ops, "Only this op; may be repeated")->type_name("NAME");
  command
      ->add_option("--workload", arguments->workload,
                   "JSON of ops, shapes and sizes, as for tune; - for standard input (default: the "
                   "model's)")
      ->type_name("FILE");
  command->add_option("--shape", arguments->shape, "Fixed sizes of one op (default: the model's)")
      ->type_name("JSON");
  command
      ->add_option("--sizes", arguments->sizes, "Dynamic sizes (default: the case of every bucket)")
      ->type_name("JSON");
  command
      ->add_option("--limits", arguments->limits,
                   "Run the configs of this GPU as it would have to run them (after `tune "
                   "--limits`)")
      ->type_name("SLUG");
}

}  // namespace kiln::cli
