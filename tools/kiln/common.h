// What every command shares: the common options, the store, names resolved with suggestions,
// output. Results go to stdout (a table, or JSON and nothing else); all talk goes to stderr.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cache/store.h"
#include "jit/base/gpu.h"
#include "jit/base/json.h"
#include "runtime/device.h"
#include "templates/op.h"
#include "tools/kiln/exit_codes.h"

namespace kiln::cli {

enum class OutputForm { table, json };

// Options that every command takes, before or after its name.
struct Common {
  std::string db;
  std::string pack;
  bool json = false;
  int jobs = 0;  // compiles at once; 0: from cores and free memory

  OutputForm form() const { return json ? OutputForm::json : OutputForm::table; }
};

// The command chosen by the parser; it runs after parsing, so that its failures are not usage
// errors.
using Run = std::function<ExitCode()>;
struct Chosen {
  Run run;
};

void add_common_options(CLI::App& app, Common& common);
// A subcommand with the common options and its examples, whose run() is chosen when it is named.
CLI::App* add_command(CLI::App& app, Common& common, Chosen& chosen, const std::string& name,
                      const std::string& summary, const std::string& examples, Run run);

void print(std::string_view text);     // stdout
void print_json(const Json& value);    // stdout, indented, with a newline
void note(std::string_view sentence);  // "kiln: ..." on stderr
void warn(std::string_view sentence);  // "kiln: warning: ..." on stderr
void report_failure(std::string_view sentence, std::string_view next_step);

inline constexpr std::string_view kInMemory = ":memory:";  // a store that ends with the command

// What is thrown when a store lost what a command wrote into it.
Failure lost_results(std::string sentence);

enum class StoreUse { read, write };

// The store of this command line. Its warnings go to stderr, those of a later moment when it
// closes. With StoreUse::write a store that cannot be written is a failure before any work is done.
class OpenStore {
 public:
  OpenStore(const Common& common, StoreUse use);
  ~OpenStore();
  OpenStore(const OpenStore&) = delete;
  OpenStore& operator=(const OpenStore&) = delete;

  cache::Store& operator*() { return *store_; }
  cache::Store* operator->() { return store_.get(); }

  // After the work of a command that writes: fails when what was written is not there.
  void require_sound();
  void close();  // says the last warnings
  // Of a command that only reads: `store` when the store could not be read to the end.
  ExitCode code_of_reading();

 private:
  void report_warnings();

  std::unique_ptr<cache::Store> store_;
  size_t reported_ = 0;
};

// Where the store lies and who said so: "--db", or what default_store_place() says.
cache::StorePlace store_place(const Common& common);
bool store_file_exists(const Common& common);
// " --db PATH" when the store was named on the command line, to be put into commands to type next.
std::string db_argument(const Common& common);

// Unknown names fail with usage: the nearest known one, and the list.
const templates::Op& resolve_op(const std::string& name);
void resolve_ops(const std::vector<std::string>& names);
const Gpu& resolve_gpu(const std::string& slug);
std::string resolve_arch(const std::string& arch);  // "sm_80", "80", "8.0" -> "sm_80"
std::vector<std::string> op_names();
std::vector<std::string> gpu_slugs();

// A call of an op that exists, for examples in help texts: they can be typed as they stand.
struct ExampleCall {
  std::string op;
  std::string shape;
  std::string sizes;
};
ExampleCall example_call();
// Fixed sizes of the model that the op is for, where the command line gives none.
templates::Sizes usual_shape(const templates::Op& op);

// The device of that id ("" is "cuda:0"); fails with no_device and the list, or why there is none.
runtime::DeviceInfo require_device(const std::string& id);

// A JSON object given on the command line; `what` is the option: "--shape".
Json object_argument(const std::string& text, const std::string& what);
// A regular file, or standard input when `path` is "-"; not empty. `what` is the option:
// "--workload".
inline constexpr size_t kMostArgumentBytes = size_t{1} << 20;
std::string read_text_file(const std::string& path, const std::string& what,
                           size_t most_bytes = kMostArgumentBytes);

}  // namespace kiln::cli
