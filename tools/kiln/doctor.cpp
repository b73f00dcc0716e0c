// `kiln doctor`: everything that a slow or failing start may hang on, looked at without changing
// any of it: the store and its place, NVRTC and its builtins, the driver and the devices, the
// compile pool. A machine without a GPU is healthy: it can build, and the report says what it
// cannot do.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "cache/files.h"
#include "cache/leases.h"
#include "cache/place.h"
#include "jit/compiler.h"
#include "tools/kiln/commands.h"
#include "tools/kiln/table.h"
#include "tools/kiln/text.h"
#include "tuner/device_worker.h"

namespace kiln::cli {
namespace {

struct StoreReport {
  cache::StorePlace place;
  std::vector<cache::PassedOver> passed_over;  // places that come before it
  bool exists = false;
  bool in_memory = false;
  // By the permissions, without a try: doctor leaves the store as it is. All that it may write is
  // one line in the store's .lock, by which the next who opens a damaged store puts it aside.
  bool writable = false;
  cache::StoreInfo info;
  std::map<std::string, int64_t> decisions_by_class;
  std::vector<cache::LeaseRow> leases;
  std::vector<std::string> warnings;
  std::vector<std::string> defects;

  bool sound() const { return writable && warnings.empty() && defects.empty(); }
};

StoreReport examine_store(const Common& common) {
  StoreReport report;
  report.place = store_place(common);
  if (common.db.empty()) report.passed_over = cache::choose_store_place().passed_over;
  report.exists = store_file_exists(common);
  report.in_memory = report.place.path == kInMemory;
  const std::string path = cache::absolute_path(report.place.path);
  report.writable =
      !report.in_memory &&  // what is decided there is lost
      (report.exists ? cache::why_not_writable(path) == 0 : cache::why_not_creatable(path).empty());
  cache::StoreOptions options;
  options.path = report.place.path;  // what was passed over is told by this report
  options.pack = common.pack;
  options.mode = cache::StoreOptions::Mode::read_only;
  if (!report.exists) options.path = kInMemory;  // a pack is still looked at
  const std::unique_ptr<cache::Store> store = cache::Store::open(options);
  report.defects = store->check();
  for (const cache::DecisionRow& row : store->list_decisions()) {
    ++report.decisions_by_class[row.decision.gpu_class];
  }
  report.leases = cache::list_leases(*store);
  report.warnings = store->warnings();
  report.info = store->info();
  return report;
}

const char* work_of(cache::LeaseOf of) { return of == cache::LeaseOf::binary ? "compile" : "tune"; }

Json leases_json(const StoreReport& report) {
  Json leases = Json::array();
  for (const cache::LeaseRow& lease : report.leases) {
    leases.push_back({{"work", work_of(lease.of)},
                      {"key", lease.key.hex()},
                      {"holder", lease.holder},
                      {"age_s", lease.age_s},
                      {"silent_s", lease.silent_s}});
  }
  return leases;
}

// One line for each process and what it does; the others of its kind wait for it.
void print_leases(const StoreReport& report) {
  struct Work {
    int64_t count = 0;
    int64_t age_s = 0;
    int64_t silent_s = 0;
  };
  std::map<std::pair<std::string, cache::LeaseOf>, Work> works;
  for (const cache::LeaseRow& lease : report.leases) {
    Work& work = works[{lease.holder, lease.of}];
    work.silent_s = work.count == 0 ? lease.silent_s : std::min(work.silent_s, lease.silent_s);
    work.age_s = std::max(work.age_s, lease.age_s);
    ++work.count;
  }
  for (const auto& [who, work] : works) {
    const bool compiles = who.second == cache::LeaseOf::binary;
    const std::string what =
        fmt::format("{} {} {}{}", compiles ? "compiling" : "tuning", work.count,
                    compiles ? "kernel" : "shape", work.count == 1 ? "" : "s");
    print(fmt::format("           {} has been {} for {} s, last heard of {} s ago\n", who.first,
                      what, work.age_s, work.silent_s));
  }
}

Json store_json(const StoreReport& report) {
  Json passed_over = Json::array();
  for (const cache::PassedOver& place : report.passed_over) passed_over.push_back(place.why);
  return {{"path", report.place.path},
          {"why", report.place.why},
          {"passed_over", passed_over},
          {"exists", report.exists},
          {"in_memory", report.in_memory},
          {"writable", report.writable},
          {"pack", report.info.packs.empty() ? Json() : Json(report.info.packs.front())},
          {"packs", report.info.packs},
          {"schema_version", report.info.schema_version},
          {"file_bytes", report.info.file_bytes},
          {"wal", report.info.wal},
          {"decisions", report.info.decisions},
          {"binaries", report.info.binaries},
          {"timings", report.info.timings},
          {"leases", leases_json(report)},
          {"warnings", report.warnings},
          {"defects", report.defects},
          {"sound", report.sound()}};
}

void print_store(const StoreReport& report) {
  print(fmt::format("Store      {} ({})\n", report.place.path, report.place.why));
  if (!report.in_memory) {
    for (const cache::PassedOver& place : report.passed_over) {
      print(fmt::format("           passed over: {}\n", place.why));
    }
  }
  if (report.in_memory) {
    print(
        "           IN MEMORY: what is decided is lost when the command ends, so `kiln tune`, "
        "`kiln build`\n           and `kiln verify` refuse it; name a file with --db PATH or "
        "KILN_DB\n");
  } else if (!report.exists) {
    print("           not there yet; `kiln tune` or `kiln build` makes it\n");
  } else {
    print(fmt::format("           {} decisions, {} binaries, {} timings, {}, schema {}{}\n",
                      report.info.decisions, report.info.binaries, report.info.timings,
                      bytes_text(static_cast<double>(report.info.file_bytes)),
                      report.info.schema_version, report.info.wal ? ", WAL" : ""));
  }
  for (const std::string& pack : report.info.packs) {
    print(fmt::format("           over the pack {}\n", pack));
  }
  print_leases(report);
  if (!report.writable && !report.in_memory) {
    print("           CANNOT BE WRITTEN: name another file with --db PATH or KILN_DB\n");
  }
  for (const std::string& warning : report.warnings)
    print(fmt::format("           warning: {}\n", warning));
  for (const std::string& defect : report.defects)
    print(fmt::format("           DEFECT: {}\n", defect));
  if (!report.defects.empty()) {
    print(
        "           records that do not hold are not used: `kiln tune --again` or `kiln build "
        "--again` decides\n           them anew; to begin a new store, move the file away\n");
  }
  if (report.exists && report.sound()) print("           every checksum holds\n");
}

struct CompilerReport {
  std::string version;  // "" when there is none
  std::string path;
  std::string problem;
  std::vector<int> ccs;
  std::vector<jit::NvrtcCandidate> candidates;
  int driver_cuda_major = 0;  // 0: no driver here

  // The driver loads nothing that it makes.
  bool is_too_new(const jit::NvrtcCandidate& candidate) const {
    return candidate.usable && driver_cuda_major > 0 && candidate.path != path &&
           std::atoi(candidate.version.c_str()) > driver_cuda_major;
  }
};

CompilerReport examine_compiler(int driver_cuda_major) {
  CompilerReport report;
  report.driver_cuda_major = driver_cuda_major;
  report.candidates = jit::nvrtc_candidates();
  try {
    const std::shared_ptr<jit::Compiler> compiler = jit::Compiler::load(driver_cuda_major);
    report.version = compiler->version();
    report.path = compiler->library_path();
    report.ccs = compiler->supported_archs();
  } catch (const Error& error) {
    report.problem = error.what();
  }
  return report;
}

Json compiler_json(const CompilerReport& report) {
  Json candidates = Json::array();
  for (const jit::NvrtcCandidate& candidate : report.candidates) {
    candidates.push_back({{"path", candidate.path},
                          {"origin", candidate.origin},
                          {"version", candidate.version.empty() ? Json() : Json(candidate.version)},
                          {"usable", candidate.usable},
                          {"chosen", candidate.path == report.path},
                          {"too_new", report.is_too_new(candidate)},
                          {"why", candidate.why}});
  }
  Json archs = Json::array();
  for (const int cc : report.ccs) archs.push_back(fmt::format("sm_{}", cc));
  return {{"version", report.version.empty() ? Json() : Json(report.version)},
          {"path", report.path.empty() ? Json() : Json(report.path)},
          {"archs", archs},
          {"driver_cuda_major",
           report.driver_cuda_major == 0 ? Json() : Json(report.driver_cuda_major)},
          {"problem", report.problem.empty() ? Json() : Json(report.problem)},
          {"candidates", candidates}};
}

void print_compiler(const CompilerReport& report) {
  if (report.version.empty()) {
    print(fmt::format("NVRTC      NONE: {}\n", report.problem));
  } else {
    print(fmt::format("NVRTC      {} from {}{}\n", report.version, report.path,
                      report.driver_cuda_major == 0
                          ? ""
                          : fmt::format(", for a driver of CUDA {}", report.driver_cuda_major)));
  }
  Table table({{""}, {"VERSION"}, {"FOUND BY"}, {"LIBRARY"}, {"BUILTINS, OR WHY NOT"}});
  for (const jit::NvrtcCandidate& candidate : report.candidates) {
    const bool chosen = candidate.path == report.path;
    table.add({chosen                         ? "chosen"
               : report.is_too_new(candidate) ? "too new"
               : candidate.usable             ? "usable"
                                              : "no",
               candidate.version.empty() ? "-" : candidate.version, candidate.origin,
               candidate.path, candidate.why});
  }
  if (!table.empty()) print(table.text(11));
}

int64_t decisions_for(const runtime::DeviceInfo& info, const StoreReport& store) {
  const auto found = store.decisions_by_class.find(gpu_class_key(info.gpu));
  return found == store.decisions_by_class.end() ? 0 : found->second;
}

Json devices_json(const runtime::DeviceList& list, const StoreReport& store) {
  Json devices = Json::array();
  for (const runtime::DeviceInfo& info : list.devices) {
    devices.push_back({{"id", info.id},
                       {"name", info.name},
                       {"driver", info.driver},
                       {"gpu", info.match.empty() ? Json() : Json(info.match)},
                       {"decisions", decisions_for(info, store)},
                       {"gpu_class", Json::parse(gpu_class_key(info.gpu))}});
  }
  return {{"devices", devices}, {"problem", list.problem.empty() ? Json() : Json(list.problem)}};
}

void print_devices(const runtime::DeviceList& list, const StoreReport& store) {
  if (list.devices.empty()) print(fmt::format("Devices    none: {}\n", list.problem));
  std::string_view label = "Devices";
  for (const runtime::DeviceInfo& info : list.devices) {
    print(fmt::format("{:<10} {} {} (driver {}): {}\n", label, info.id, info.name, info.driver,
                      info.match.empty() ? "no row of the GPU table matches; described by what the "
                                           "driver reports"
                                         : "GPU " + info.match));
    const int64_t decisions = decisions_for(info, store);
    print(decisions > 0 ? fmt::format("           {} decisions for its class\n", decisions)
                        : std::string("           no decision for its class; `kiln tune` makes "
                                      "them\n"));
    label = "";
  }
}

// The tuner's child process, without which nothing runs on a device.
struct WorkerReport {
  std::string path;
  std::string problem;
};

WorkerReport examine_worker() {
  try {
    return {tuner::find_worker(""), ""};
  } catch (const Error& error) {
    return {"", error.what()};
  }
}

// Why no simulated GPU can be opened; "" when one can.
std::string trouble_of_simulator() {
  try {
    runtime::Device::open(std::string(runtime::kSimulatedPrefix) + gpu_table().front().slug);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

struct Abilities {
  bool build = false;   // NVRTC and a store that can be written
  bool tune = false;    // the same with a device and its worker
  bool verify = false;  // a device, its worker, and a store that can be written
  bool bench = false;   // a device and its worker
};

ExitCode verdict(const StoreReport& store, const CompilerReport& compiler) {
  if (!store.sound()) return ExitCode::store;
  return compiler.version.empty() ? ExitCode::no_compiler : ExitCode::ok;
}

void print_abilities(const Abilities& can, const runtime::DeviceList& devices) {
  const auto line = [](std::string_view command, std::string_view answer) {
    print(fmt::format("  {:<8} {}\n", command, answer));
  };
  const bool has_device = !devices.devices.empty();
  const std::string_view works = "works";
  const std::string_view lacking = has_device ? "does not work: see above" : "needs a GPU here";
  const std::string_view simulated =
      has_device ? lacking : "needs a GPU here, or does it by simulation: --device sim:NAME";
  const std::string_view needs = "does not work: it needs NVRTC and a store that can be written";
  print("\nOn this machine:\n");
  const std::string_view untuned =
      !can.build   ? needs
      : has_device ? lacking
                   : "no GPU here: ranks by the model, as build does; --device sim:NAME";
  line("build", can.build ? works : needs);
  line("tune", can.tune ? works : untuned);
  line("verify", can.verify ? works : simulated);
  line("bench", can.bench ? works : lacking);
}

ExitCode run_doctor(const Common& common) {
  const StoreReport store = examine_store(common);
  const runtime::DeviceList devices = runtime::list_devices();
  const CompilerReport compiler =
      examine_compiler(devices.devices.empty() ? 0 : devices.devices.front().cuda_major);
  const WorkerReport worker = examine_worker();
  const jit::PoolSize pool = jit::pool_size();
  const std::string simulator = trouble_of_simulator();

  const bool has_device = !devices.devices.empty();
  Abilities can;
  can.build = !compiler.version.empty() && store.writable;
  can.bench = has_device && worker.problem.empty();
  can.tune = can.build && can.bench;
  can.verify = can.bench && store.writable;
  const ExitCode code = verdict(store, compiler);

  if (common.form() == OutputForm::json) {
    print_json({{"version", KILN_VERSION},
                {"healthy", code == ExitCode::ok},
                {"exit_code", static_cast<int>(code)},
                {"store", store_json(store)},
                {"driver", devices_json(devices, store)},
                {"compiler", compiler_json(compiler)},
                {"worker",
                 {{"path", worker.path.empty() ? Json() : Json(worker.path)},
                  {"problem", worker.problem.empty() ? Json() : Json(worker.problem)}}},
                {"simulator", {{"problem", simulator.empty() ? Json() : Json(simulator)}}},
                {"pool", {{"workers", pool.workers}, {"why", pool.why}}},
                {"can",
                 {{"build", can.build},
                  {"tune", can.tune},
                  {"verify", can.verify},
                  {"bench", can.bench}}}});
    return code;
  }
  print(fmt::format("Kiln       {}\n", KILN_VERSION));
  print_store(store);
  print_compiler(compiler);
  print_devices(devices, store);
  print(fmt::format("Worker     {}\n", worker.problem.empty() ? worker.path : worker.problem));
  print(fmt::format("Simulator  {}\n",
                    simulator.empty() ? "works: --device sim:NAME, see kiln devices" : simulator));
  print(fmt::format("Compiles   {} at once ({})\n", pool.workers, pool.why));
  print_abilities(can, devices);
  return code;
}

}  // namespace

void add_doctor(CLI::App& app, Common& common, Chosen& chosen) {
  add_command(app, common, chosen, "doctor", "Check the store, NVRTC, the driver and the devices",
              "  kiln doctor\n"
              "  kiln doctor --json\n"
              "Exit code 0 when this machine can build; 4 without NVRTC; 6 when the store has a "
              "defect,\ncannot be written or is in memory. A machine without a GPU is healthy.\n",
              [&common] { return run_doctor(common); });
}

}  // namespace kiln::cli
