// Dumps need neither a store, nor NVRTC, nor a device.
#include "tools/kiln/source.h"

#include <fmt/format.h>

#include "tools/kiln/text.h"

namespace kiln::cli {
namespace {

// The GPU whose limits the plan is made for: the named one, else the table's first of that
// architecture.
const Gpu& choose_gpu(const std::string& slug, const std::string& arch) {
  if (!slug.empty()) {
    const Gpu& gpu = resolve_gpu(slug);
    if (!arch.empty() && gpu.arch() != resolve_arch(arch)) {
      throw Failure(ExitCode::usage, fmt::format("{} is {}, not {}.", gpu.slug, gpu.arch(), arch),
                    "Give --gpu or --arch, not both.");
    }
    return gpu;
  }
  const std::string wanted = arch.empty() ? gpu_table().front().arch() : resolve_arch(arch);
  std::vector<std::string> known;
  for (const Gpu& gpu : gpu_table()) {
    if (gpu.arch() == wanted) return gpu;
    if (known.empty() || known.back() != gpu.arch()) known.push_back(gpu.arch());
  }
  throw Failure(ExitCode::usage,
                fmt::format("no GPU of the architecture {} is in the table.", wanted),
                fmt::format("Known: {}.", joined(known)));
}

// Axes that are left out keep the default's value.
templates::Config choose_config(const templates::Op& op, const templates::Sizes& fixed,
                                const Gpu& gpu, const std::string& text) {
  const templates::Config preferred = op.default_config(fixed);
  if (text.empty()) return preferred;
  Json config = templates::config_json(preferred);
  const Json changes = object_argument(text, "--config");
  for (const auto& [axis, value] : changes.items()) {
    if (config.contains(axis)) continue;
    std::vector<std::string> axes;
    for (const auto& [known, default_value] : config.items()) axes.push_back(known);
    throw Failure(ExitCode::usage,
                  fmt::format("{} has no config axis {}.", op.name, in_quotes(axis)),
                  fmt::format("Axes: {}.", joined(axes)));
  }
  config.update(changes);
  try {
    return templates::parse_config(op, fixed, gpu, config);
  } catch (const Error& error) {
    if (error.status() != Status::unsupported) throw;
    throw Failure(ExitCode::usage, fmt::format("{}.", error.what()),
                  "Change another axis with it, or leave --config out for the default.");
  }
}

}  // namespace

void add_source_options(CLI::App& command, CLI::Option* source, SourceArguments& arguments) {
  const char* group = "With --source";
  command.add_option("--arch", arguments.arch, "For this architecture (default: sm_80)")
      ->type_name("ARCH")
      ->group(group)
      ->needs(source);
  command.add_option("--shape", arguments.shape, "Fixed sizes (default: the model's first)")
      ->type_name("JSON")
      ->group(group)
      ->needs(source);
  command.add_option("--config", arguments.config, "Axes other than the default config's")
      ->type_name("JSON")
      ->group(group)
      ->needs(source);
  command.add_option("--kernel", arguments.kernel, "Entry, where a call launches several kernels")
      ->type_name("NAME")
      ->group(group)
      ->needs(source);
}

ExitCode show_source(const templates::Op& op, const SourceArguments& arguments,
                     const std::string& gpu_slug, const Common& common) {
  const Gpu& gpu = choose_gpu(gpu_slug, arguments.arch);
  const templates::Sizes fixed =
      arguments.shape.empty()
          ? usual_shape(op)
          : templates::parse_shape(op, object_argument(arguments.shape, "--shape"));
  const templates::Config config = choose_config(op, fixed, gpu, arguments.config);
  const templates::LaunchPlan plan = op.plan(fixed, config, gpu);

  std::vector<std::string> entries;
  Json kernels = Json::array();
  for (const templates::KernelLaunch& launch : plan.kernels) {
    entries.push_back(launch.entry);
    if (!arguments.kernel.empty() && arguments.kernel != launch.entry) continue;
    const jit::KernelSource source = templates::kernel_source(op, launch);
    const jit::CompileOptions options = templates::compile_options(launch);
    kernels.push_back({{"entry", launch.entry},
                       {"file", source.main.path},
                       {"key", jit::binary_key(source, gpu.arch(), options).hex()},
                       {"source", jit::dump_source(source)}});
  }
  if (kernels.empty()) {
    throw Failure(
        ExitCode::usage,
        fmt::format("{} launches no kernel called {}.", op.name, in_quotes(arguments.kernel)),
        fmt::format("Kernels: {}.", joined(entries)));
  }
  if (common.form() == OutputForm::json) {
    print_json({{"op", op.name},
                {"shape", templates::shape_json(op, fixed)},
                {"config", templates::config_json(config)},
                {"arch", gpu.arch()},
                {"kernels", kernels}});
    return ExitCode::ok;
  }
  if (kernels.size() > 1) {
    throw Failure(ExitCode::usage,
                  fmt::format("a call of {} launches {} kernels; name one with --kernel.", op.name,
                              kernels.size()),
                  fmt::format("Kernels: {}.", joined(entries)));
  }
  print(kernels.front()["source"].get<std::string>());
  return ExitCode::ok;
}

}  // namespace kiln::cli
