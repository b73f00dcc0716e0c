// The shared parts of the commands: options, output, the store with its warnings, names.
#include "tools/kiln/common.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "jit/base/file_descriptor.h"
#include "runtime/workload.h"
#include "tools/kiln/text.h"

namespace kiln::cli {
namespace {

// "did you mean" first, then everything there is.
Failure unknown_name(const std::string& what, const std::string& name,
                     const std::vector<std::string>& known) {
  return Failure(
      ExitCode::usage,
      fmt::format("no {} is called {}{}", what, in_quotes(name), did_you_mean(name, known)),
      fmt::format("Known {}s: {}.", what, joined(known)));
}

}  // namespace

void add_common_options(CLI::App& app, Common& common) {
  const char* group = "Common options";
  app.add_option("--db", common.db, "The store (default: KILN_DB, else the user's cache folder)")
      ->type_name("PATH")
      ->group(group);
  app.add_option("--pack", common.pack, "Read-only stores under it, as in KILN_PACK (the default)")
      ->type_name("PATH")
      ->group(group);
  app.add_flag("--json", common.json, "Print JSON and nothing else on stdout")->group(group);
  app.add_option("--jobs", common.jobs, "Compiles at once (default: from cores and free memory)")
      ->type_name("N")
      ->check(CLI::Range(1, 256))
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

void print(std::string_view text) {
  const std::string safe = printable(text);
  std::fwrite(safe.data(), 1, safe.size(), stdout);
}

void print_json(const Json& value) {
  // Text of files and drivers may hold any bytes; what is not UTF-8 is replaced, never fatal.
  print(value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void note(std::string_view sentence) {
  print_error(fmt::format("kiln: {}\n", printable(sentence)));
}

void warn(std::string_view sentence) {
  print_error(fmt::format("kiln: warning: {}\n", printable(sentence)));
}

void report_failure(std::string_view sentence, std::string_view next_step) {
  print_error(fmt::format("kiln: {}\n", printable(sentence)));
  if (!next_step.empty()) print_error(fmt::format("  {}\n", printable(next_step)));
}

Failure lost_results(std::string sentence) {
  return Failure(ExitCode::store, std::move(sentence),
                 "Keep other programs off that file and run the same command again; `kiln doctor` "
                 "checks the store.");
}

OpenStore::OpenStore(const Common& common, StoreUse use) {
  const cache::StorePlace place = store_place(common);
  if (use == StoreUse::write && place.path == kInMemory) {
    throw Failure(
        ExitCode::store,
        fmt::format("the store would be in memory ({}), so the results would be lost when "
                    "this command ends.",
                    place.why),
        "Name a file with --db PATH or KILN_DB.");
  }
  cache::StoreOptions options;
  options.path = common.db;
  options.pack = common.pack;
  options.mode = use == StoreUse::write ? cache::StoreOptions::Mode::read_write
                                        : cache::StoreOptions::Mode::read_only;
  store_ = cache::Store::open(options);
  report_warnings();
  const cache::StoreInfo info = store_->info();
  if (use == StoreUse::write && (info.path == kInMemory || !info.writable)) {
    throw Failure(
        ExitCode::store,
        fmt::format("the store {} cannot be written, so the results would be lost.", place.path),
        "Name a file in a folder that you may write with --db PATH or KILN_DB; `kiln "
        "doctor` says more.");
  }
}

OpenStore::~OpenStore() { close(); }

void OpenStore::close() {
  if (store_ == nullptr) return;
  report_warnings();
  store_.reset();
}

void OpenStore::require_sound() {
  report_warnings();
  const std::string trouble = store_->trouble();
  if (trouble.empty()) return;
  throw lost_results(fmt::format("what this command found out may be lost: {}.", trouble));
}

ExitCode OpenStore::code_of_reading() {
  report_warnings();
  return store_->trouble().empty() ? ExitCode::ok : ExitCode::store;
}

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
  return path == kInMemory || std::filesystem::exists(path, ignored);
}

std::string db_argument(const Common& common) {
  return common.db.empty() ? "" : fmt::format(" --db {}", common.db);
}

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
        fmt::format("{} is not an architecture; expected sm_80, sm_86 or alike.", in_quotes(arch)),
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
  if (id.starts_with(runtime::kSimulatedPrefix)) {
    const std::string slug = id.substr(runtime::kSimulatedPrefix.size());
    const std::vector<std::string> slugs = gpu_slugs();
    try {
      find_gpu(slug);
    } catch (const Error&) {
      throw Failure(ExitCode::no_device,
                    fmt::format("no GPU that can be simulated is called {}{}", in_quotes(slug),
                                did_you_mean(slug, slugs)),
                    fmt::format("Known GPUs: {}.", joined(slugs)));
    }
    return runtime::Device::open(id)->info();
  }
  const std::string wanted = id.empty() || id == "cuda" ? "cuda:0" : id;
  const runtime::DeviceList list = runtime::list_devices();
  for (const runtime::DeviceInfo& info : list.devices) {
    if (info.id == wanted) return info;
  }
  if (list.devices.empty()) {
    throw Failure(ExitCode::no_device,
                  fmt::format("there is no device {} here: {}", in_quotes(wanted), list.problem),
                  next_step_of(Status::no_driver));
  }
  std::vector<std::string> known;
  for (const runtime::DeviceInfo& info : list.devices) {
    known.push_back(fmt::format("{} ({})", info.id, info.name));
  }
  throw Failure(ExitCode::no_device, fmt::format("there is no device {} here.", in_quotes(wanted)),
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

std::string read_text_file(const std::string& path, const std::string& what, size_t most_bytes) {
  const bool is_stdin = path == "-";
  const std::string name = is_stdin ? "standard input" : "the file " + in_quotes(path);
  const auto refuse = [&](const std::string& why) {
    return Failure(ExitCode::usage, fmt::format("{}: {} {}.", what, name, why),
                   is_stdin ? "" : "Name a regular file, or - to read standard input.");
  };
  // Opening a FIFO would wait for its writer, and a device may never end.
  const FileDescriptor file{is_stdin ? dup(STDIN_FILENO)
                                     : open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
  struct stat status = {};
  if (file.get() < 0 || fstat(file.get(), &status) != 0) {
    throw refuse(fmt::format("cannot be read: {}", std::strerror(errno)));
  }
  if (!is_stdin && !S_ISREG(status.st_mode)) throw refuse("is not a regular file");

  std::string text;
  std::array<char, 65536> part;
  for (;;) {
    const ssize_t got = read(file.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw refuse(fmt::format("cannot be read: {}", std::strerror(errno)));
    if (got == 0) break;
    text.append(part.data(), static_cast<size_t>(got));
    if (text.size() > most_bytes) {
      throw refuse(fmt::format("is longer than {} bytes ({} MiB)", most_bytes, most_bytes >> 20U));
    }
  }
  if (text.empty()) throw refuse("is empty");
  return text;
}

}  // namespace kiln::cli
