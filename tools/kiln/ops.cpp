// `kiln ops`: which ops there are, and on which architectures they run (the coverage table).
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "jit/compiler.h"
#include "tools/kiln/commands.h"
#include "tools/kiln/table.h"
#include "tools/kiln/text.h"

namespace kiln::cli {
namespace {

struct OpsOptions {
  std::string arch;
};

// Compute capabilities that Kiln knows limits for, and those that this machine's NVRTC can compile.
std::set<int> known_ccs() {
  std::set<int> ccs;
  for (const Gpu& gpu : gpu_table()) ccs.insert(gpu.cc());
  try {
    for (const int cc : jit::Compiler::load()->supported_archs()) ccs.insert(cc);
  } catch (const Error&) {
    // Without NVRTC the table alone answers; `kiln doctor` says why there is none.
  }
  return ccs;
}

std::vector<int> ccs_of(const templates::Op& op, const std::set<int>& known) {
  std::vector<int> ccs;
  std::copy_if(known.begin(), known.end(), std::back_inserter(ccs),
               [&](int cc) { return cc >= op.min_cc; });
  return ccs;
}

std::string element_types(const templates::Op& op) {
  std::vector<std::string> names;
  for (const templates::Arg& arg : op.args) {
    const std::string name = templates::dtype_name(arg.dtype);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return joined(names, " ");
}

void print_table(const std::vector<const templates::Op*>& ops, const std::set<int>& shown,
                 const std::set<int>& known) {
  std::vector<Column> columns = {{"OP"}, {"VERSION", Align::right}, {"TYPES"}};
  for (const int cc : shown) columns.push_back({fmt::format("sm_{}", cc)});
  Table table(columns);
  for (const templates::Op* op : ops) {
    const std::vector<int> ccs = ccs_of(*op, known);
    std::vector<std::string> cells = {op->name, std::to_string(op->version), element_types(*op)};
    for (const int cc : shown) {
      cells.push_back(std::find(ccs.begin(), ccs.end(), cc) != ccs.end() ? "yes" : "no");
    }
    table.add(cells);
  }
  print(table.text());
  print("\n");
  for (const templates::Op* op : ops) print(fmt::format("{}: {}\n", op->name, op->summary));
}

ExitCode run_ops(const OpsOptions& options, const Common& common) {
  const std::set<int> known = known_ccs();
  std::set<int> shown = known;
  if (!options.arch.empty()) {
    const std::string arch = resolve_arch(options.arch);
    const int cc = std::stoi(arch.substr(3));
    if (!known.contains(cc)) {
      std::vector<std::string> names;
      for (const int each : known) names.push_back(fmt::format("sm_{}", each));
      throw Failure(ExitCode::usage, fmt::format("the architecture {} is not known here.", arch),
                    fmt::format("Known: {}.", joined(names)));
    }
    shown = {cc};
  }

  // With --arch, JSON lists the ops that run there; the table keeps the others, marked "no".
  std::vector<const templates::Op*> ops(templates::ops().begin(), templates::ops().end());
  if (common.form() == OutputForm::table) {
    std::erase_if(shown, [&](int cc) {
      return options.arch.empty() &&
             std::none_of(ops.begin(), ops.end(), [&](const auto* op) { return cc >= op->min_cc; });
    });
    print_table(ops, shown, known);
    return ExitCode::ok;
  }
  Json list = Json::array();
  for (const templates::Op* op : ops) {
    Json archs = Json::array();
    for (const int cc : ccs_of(*op, known)) archs.push_back(fmt::format("sm_{}", cc));
    const bool runs = options.arch.empty() || *shown.begin() >= op->min_cc;
    if (runs) list.push_back({{"name", op->name}, {"version", op->version}, {"archs", archs}});
  }
  print_json(list);
  return ExitCode::ok;
}

}  // namespace

void add_ops(CLI::App& app, Common& common, Chosen& chosen) {
  auto options = std::make_shared<OpsOptions>();
  CLI::App* command = add_command(app, common, chosen, "ops", "List the ops and where they run",
                                  "  kiln ops\n"
                                  "  kiln ops --arch sm_86\n"
                                  "  kiln ops --json\n",
                                  [options, &common] { return run_ops(*options, common); });
  command->add_option("--arch", options->arch, "Only this architecture, for example sm_86")
      ->type_name("ARCH");
}

}  // namespace kiln::cli
