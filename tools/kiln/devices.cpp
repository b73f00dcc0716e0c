// `kiln devices`: the devices that the driver reports, and the GPUs that Kiln can rank for by name.
#include <fmt/format.h>

#include "tools/kiln/commands.h"
#include "tools/kiln/table.h"
#include "tools/kiln/text.h"

namespace kiln::cli {
namespace {

Json limits_json(const Gpu& gpu) {
  return {
      {"arch", gpu.arch()},
      {"sm_count", gpu.sm_count},
      {"smem_per_sm_bytes", gpu.smem_per_sm_bytes},
      {"smem_per_cta_optin_bytes", gpu.smem_per_cta_optin_bytes},
      {"max_warps_per_sm", gpu.max_warps_per_sm},
      {"max_ctas_per_sm", gpu.max_ctas_per_sm},
      {"l2_bytes", gpu.l2_bytes},
      {"dram_bytes", gpu.dram_bytes},
      {"dram_gb_per_s", gpu.dram_gb_per_s},
  };
}

std::vector<Column> limit_columns(std::vector<Column> first) {
  for (const Column& column :
       {Column{"ARCH"}, Column{"SMS", Align::right}, Column{"SMEM/SM", Align::right},
        Column{"SMEM/CTA", Align::right}, Column{"L2", Align::right},
        Column{"MEMORY", Align::right}, Column{"GB/S", Align::right}}) {
    first.push_back(column);
  }
  return first;
}

std::vector<std::string> with_limits(std::vector<std::string> cells, const Gpu& gpu) {
  const auto bytes = [](int64_t value) { return bytes_text(static_cast<double>(value)); };
  for (const std::string& cell :
       {gpu.arch(), std::to_string(gpu.sm_count), bytes(gpu.smem_per_sm_bytes),
        bytes(gpu.smem_per_cta_optin_bytes), bytes(gpu.l2_bytes), bytes(gpu.dram_bytes),
        fmt::format("{:.0f}", gpu.dram_gb_per_s)}) {
    cells.push_back(cell);
  }
  return cells;
}

Json devices_json(const runtime::DeviceList& list) {
  Json devices = Json::array();
  for (const runtime::DeviceInfo& info : list.devices) {
    Json device = limits_json(info.gpu);
    device["id"] = info.id;
    device["name"] = info.name;
    device["driver"] = info.driver;
    device["gpu"] = info.match.empty() ? Json() : Json(info.match);
    devices.push_back(device);
  }
  Json gpus = Json::array();
  for (const Gpu& gpu : gpu_table()) {
    Json row = limits_json(gpu);
    row["gpu"] = gpu.slug;
    row["name"] = gpu.name;
    row["aliases"] = gpu.aliases;
    gpus.push_back(row);
  }
  return {{"devices", devices},
          {"problem", list.problem.empty() ? Json() : Json(list.problem)},
          {"gpus", gpus}};
}

void print_tables(const runtime::DeviceList& list) {
  if (list.devices.empty()) {
    print(fmt::format("Devices of this machine: none. {}\n", list.problem));
  } else {
    Table devices(limit_columns({{"DEVICE"}, {"NAME"}, {"GPU"}}));
    for (const runtime::DeviceInfo& info : list.devices) {
      devices.add(with_limits(
          {info.id, info.name, info.match.empty() ? "not in the table" : info.match}, info.gpu));
    }
    print(fmt::format("Devices of this machine (driver {}):\n{}", list.devices.front().driver,
                      devices.text()));
  }
  Table gpus(limit_columns({{"GPU"}, {"NAME"}, {"ALSO CALLED"}}));
  for (const Gpu& gpu : gpu_table()) {
    gpus.add(with_limits({gpu.slug, gpu.name, joined(gpu.aliases)}, gpu));
  }
  print(fmt::format(
      "\nGPUs by name, for --gpu NAME, --limits NAME and, simulated, --device sim:NAME:\n{}",
      gpus.text()));
}

ExitCode run_devices(const Common& common) {
  const runtime::DeviceList list = runtime::list_devices();
  if (common.form() == OutputForm::json) {
    print_json(devices_json(list));
  } else {
    print_tables(list);
  }
  return ExitCode::ok;
}

}  // namespace

void add_devices(CLI::App& app, Common& common, Chosen& chosen) {
  add_command(app, common, chosen, "devices", "List the devices here and the GPUs known by name",
              "  kiln devices\n"
              "  kiln devices --json\n",
              [&common] { return run_devices(common); });
}

}  // namespace kiln::cli
