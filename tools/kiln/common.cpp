// The shared parts of the commands: options, output, the store with its warnings, names.
#include "tools/kiln/common.h"

#include <fmt/format.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "runtime/workload.h"
#include "tools/kiln/text.h"

namespace kiln::cli {
namespace {

// "did you mean" first, then everything there is.
Failure unknown_name(const std::string& what, const std::string& name,
                     const std::vector<std::string>& known) {
  const std::string guess = nearest(name, known);
  const std::string hint = guess.empty() ? "." : fmt::format("; did you mean \"{}\"?", guess);
  return Failure(ExitCode::usage, fmt::format("no {} is called \"{}\"{}", what, name, hint),
                 fmt::format("Known {}s: {}.", what, joined(known)));
}

}  // namespace

// --- options ------------------------------------------------------------------------------------

void add_common_options(CLI::App& app, Common& common) {
  const char* group = "Common options";
  app.add_option("--db", common.db, "The store (default: KILN_DB, else the user's cache folder)")
      ->type_name("PATH")
      ->group(group);
  app.add_option("--pack", common.pack, "A read-only store under it (default: KILN_PACK)")
      ->type_name("PATH")
      ->group(group);
  app.add_flag("--json", common.json, "Print JSON and nothing else on stdout")->group(group);
  app.add_option("--jobs", common.jobs, "Compiles at once (default: from cores and free memory)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024))
      ->group(group);
}

CLI::App* add_command(CLI::App& app, Common& common, Chosen& chosen, const std::string& name,
                      const std::string& summary, const std::string& examples, Run run) {
  CLI::App* command = app.add_subcommand(name, summary);
  add_common_options(*command, common);
  command->footer("Examples:\n" + examples);
  command->final_callback([&chosen, run = std::move(run)] { chosen.run = run; });
  return command;
}

// --- output -------------------------------------------------------------------------------------

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void print_json(const Json& value) {
  // Text of files and drivers may hold any bytes; what is not UTF-8 is replaced, never fatal.
  print(value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void note(std::string_view sentence) { print_error(fmt::format("kiln: {}\n", sentence)); }

void warn(std::string_view sentence) { print_error(fmt::format("kiln: warning: {}\n", sentence)); }

void report_failure(std::string_view sentence, std::string_view next_step) {
  std::fflush(stdout);
  print_error(fmt::format("kiln: {}\n", sentence));
  if (!next_step.empty()) print_error(fmt::format("  {}\n", next_step));
}

// --- store --------------------------------------------------------------------------------------

OpenStore::OpenStore(const Common& common, StoreUse use) {
  cache::StoreOptions options;
  options.path = common.db;
  options.pack = common.pack;
  options.mode = use == StoreUse::write ? cache::StoreOptions::Mode::read_write
                                        : cache::StoreOptions::Mode::read_only;
  store_ = cache::Store::open(options);
  report_warnings();
  // A store in memory is for who asks for it by name: it is gone when the command ends.
  const cache::StorePlace place = store_place(common);
  const bool was_named = !common.db.empty() || std::getenv("KILN_DB") != nullptr;
  if (place.path == ":memory:" && !was_named && use == StoreUse::write) {
    throw Failure(ExitCode::store, fmt::format("there is no place for the store: {}.", place.why),
                  "Name a file with --db PATH or KILN_DB.");
  }
  const cache::StoreInfo info = store_->info();
  const bool fell_back = info.path == ":memory:" && place.path != ":memory:";
  if (use == StoreUse::write && (fell_back || !info.writable)) {
    throw Failure(
        ExitCode::store,
        fmt::format("the store {} cannot be written, so the results would be lost.", place.path),
        "Name a file in a folder that you may write with --db PATH or KILN_DB; `kiln "
        "doctor` says more.");
  }
}

OpenStore::~OpenStore() { report_warnings(); }

void OpenStore::report_warnings() {
  const std::vector<std::string> warnings = store_->warnings();
  for (; reported_ < warnings.size(); ++reported_) warn(warnings[reported_]);
}

cache::StorePlace store_place(const Common& common) {
  if (!common.db.empty()) return {common.db, "from --db"};
  return cache::default_store_place();
}

bool store_file_exists(const Common& common) {
  const std::string path = store_place(common).path;
  std::error_code ignored;
  return path == ":memory:" || std::filesystem::exists(path, ignored);
}

std::string db_argument(const Common& common) {
  return common.db.empty() ? "" : fmt::format(" --db {}", common.db);
}

// --- names --------------------------------------------------------------------------------------

std::vector<std::string> op_names() {
  std::vector<std::string> names;
  for (const templates::Op* op : templates::ops()) names.push_back(op->name);
  return names;
}

std::vector<std::string> gpu_slugs() {
  std::vector<std::string> slugs;
  for (const Gpu& gpu : gpu_table()) slugs.push_back(gpu.slug);
  return slugs;
}

const templates::Op& resolve_op(const std::string& name) {
  const templates::Op* op = templates::find_op(name);
  if (op == nullptr) throw unknown_name("op", name, op_names());
  return *op;
}

void resolve_ops(const std::vector<std::string>& names) {
  for (const std::string& name : names) resolve_op(name);
}

const Gpu& resolve_gpu(const std::string& slug) {
  try {
    return find_gpu(slug);
  } catch (const Error&) {
    std::vector<std::string> known = gpu_slugs();
    throw unknown_name("GPU", slug, known);
  }
}

std::string resolve_arch(const std::string& arch) {
  std::string digits = arch.rfind("sm_", 0) == 0 ? arch.substr(3) : arch;
  std::erase(digits, '.');
  const bool is_number = digits.size() >= 2 && digits.size() <= 3 &&
                         digits.find_first_not_of("0123456789") == std::string::npos;
  if (!is_number) {
    throw Failure(
        ExitCode::usage,
        fmt::format("\"{}\" is not an architecture; expected sm_80, sm_86 or alike.", arch),
        "`kiln ops` lists them.");
  }
  return "sm_" + digits;
}

templates::Sizes usual_shape(const templates::Op& op) {
  const std::vector<templates::Sizes> shapes =
      op.model_shapes == nullptr ? std::vector<templates::Sizes>{}
                                 : op.model_shapes(runtime::kDefaultTensorParallel);
  if (shapes.empty()) {
    throw Failure(ExitCode::usage, fmt::format("{} has no usual shape.", op.name),
                  "Give one with --shape JSON.");
  }
  return shapes.front();
}

ExampleCall example_call() {
  if (templates::ops().empty()) return {"OP", "{}", "{}"};
  const templates::Op& op = *templates::ops().front();
  const std::vector<templates::Sizes> buckets = templates::all_buckets(op);
  return {op.name, templates::shape_json(op, usual_shape(op)).dump(),
          templates::dynamic_json(op, buckets[buckets.size() / 2]).dump()};
}

runtime::DeviceInfo require_device(const std::string& id) {
  if (id.rfind("sim:", 0) == 0) {
    throw Failure(ExitCode::no_device,
                  fmt::format("\"{}\": this build has no simulator; expected cuda:N.", id),
                  fmt::format("To rank for that card without a device: `kiln build --gpu {}`.",
                              id.substr(4)));
  }
  const std::string wanted = id.empty() || id == "cuda" ? "cuda:0" : id;
  const runtime::DeviceList list = runtime::list_devices();
  for (const runtime::DeviceInfo& info : list.devices) {
    if (info.id == wanted) return info;
  }
  if (list.devices.empty()) {
    throw Failure(ExitCode::no_device,
                  fmt::format("there is no device {} here: {}", wanted, list.problem),
                  next_step_of(Status::no_driver));
  }
  std::vector<std::string> known;
  for (const runtime::DeviceInfo& info : list.devices) {
    known.push_back(fmt::format("{} ({})", info.id, info.name));
  }
  throw Failure(ExitCode::no_device, fmt::format("there is no device \"{}\" here.", wanted),
                fmt::format("Devices: {}.", joined(known)));
}

Json object_argument(const std::string& text, const std::string& what) {
  const Json value = parse_json(text, what);
  if (!value.is_object()) {
    throw Failure(ExitCode::usage,
                  fmt::format("{} is {}, but a JSON object was expected.", what, value.dump()));
  }
  return value;
}

std::string read_text_file(const std::string& path, const std::string& what) {
  std::ostringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
    return text.str();
  }
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path)) {
    throw Failure(ExitCode::usage, fmt::format("the {} file \"{}\" cannot be read.", what, path));
  }
  text << file.rdbuf();
  return text.str();
}

}  // namespace kiln::cli
