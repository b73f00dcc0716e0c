// Reads the command line, runs one command, turns failures into one sentence and an exit code.
#include "tools/kiln/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>

#include "tools/kiln/commands.h"
#include "tools/kiln/text.h"

namespace kiln::cli {
namespace {

constexpr const char* kVersion = KILN_VERSION;

std::string exit_code_help() {
  std::string text = "Exit codes:\n";
  for (const ExitCodeRow& row : exit_codes()) {
    text += fmt::format("  {:>3}  {}\n", static_cast<int>(row.code), row.meaning);
  }
  return text;
}

constexpr const char* kEpilogue =
    "Start here:\n"
    "  kiln tune                        tune for the GPU of this machine\n"
    "  kiln build --gpu rtx-3090        no GPU here: rank and compile for a named one\n"
    "  kiln ls                          what the store has decided\n"
    "  kiln COMMAND --help              options and examples of a command\n"
    "\n"
    "Environment:\n"
    "  KILN_DB          the store, as --db\n"
    "  KILN_PACK        read-only stores under it, separated by ':'; a folder stands for its *.db\n"
    "  KILN_LOCAL       the folder for a store when no other place can be written: /var/tmp\n"
    "  KILN_STORE_BYTES what the store may hold before the longest unused kernels go: 2GiB\n"
    "  KILN_NVRTC       the libnvrtc.so to use, or its folder\n"
    "  KILN_LIBCUDA     the CUDA driver library\n"
    "  KILN_LIBNVML     the library that reports clocks and throttling while tuning\n"
    "  KILN_SIM_CHECK   0: a simulated GPU only executes and checks nothing; `tune` and\n"
    "                   `verify` check all the same\n"
    "  KILN_SIM_HOST    base: a simulated GPU uses nothing of this processor beyond SSE2\n"
    "  KILN_JOBS        compiles at once, as --jobs\n"
    "  CUDA_HOME        a CUDA toolkit, searched for NVRTC\n"
    "  CUDA_PATH        another one\n"
    "  LD_LIBRARY_PATH  the loader's first folders; the newest NVRTC wins wherever it lies\n"
    "  XDG_CACHE_HOME   the user's cache folder, for the store\n"
    "  HOME             the user's folder, for a store in its .cache\n"
    "  TERM             \"dumb\": lines instead of a progress bar\n"
    "\n";

void describe(CLI::App& app, Common& common, Chosen& chosen) {
  app.name("kiln");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("kiln ") + kVersion);
  add_common_options(app, common);
  add_tune(app, common, chosen);
  add_build(app, common, chosen);
  add_ops(app, common, chosen);
  add_devices(app, common, chosen);
  add_ls(app, common, chosen);
  add_show(app, common, chosen);
  add_explain(app, common, chosen);
  add_verify(app, common, chosen);
  add_bench(app, common, chosen);
  add_workload(app, common, chosen);
  add_export(app, common, chosen);
  add_import(app, common, chosen);
  add_merge(app, common, chosen);
  add_diff(app, common, chosen);
  add_pin(app, common, chosen);
  add_forget(app, common, chosen);
  add_gc(app, common, chosen);
  add_doctor(app, common, chosen);
  app.footer(kEpilogue + exit_code_help());
}

// The parser takes an empty value for what it is; a script with an unset variable never means it.
void refuse_empty_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_expected_max() == 0) continue;  // a flag
    const std::string all = option->get_type_name();
    const std::string type = all.substr(0, all.find(':'));  // without what checks add to it
    const auto refuse = [type](std::string& value) {
      return value.empty() ? fmt::format("the value is empty; expected {}.", type) : std::string();
    };
    option->transform(CLI::Validator(refuse, ""));  // goes before the option's other checks
  }
  for (CLI::App* command : app.get_subcommands(nullptr)) refuse_empty_values(*command);
}

bool is_option(const std::string& word) { return word.rfind('-', 0) == 0; }

// What was given to `app` alone and is not known to it.
std::optional<std::string> unknown_word(const CLI::App& app, bool (*wanted)(const std::string&)) {
  const std::vector<std::string> words = app.remaining();
  const auto found = std::find_if(words.begin(), words.end(), wanted);
  return found == words.end() ? std::nullopt : std::optional(*found);
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

ExitCode report_usage(const CLI::App& app, const CLI::ParseError& error) {
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    commands.push_back(command->get_name());
  }
  const std::string all_commands = fmt::format("Commands: {}.", joined(commands));
  const std::vector<CLI::App*> named = app.get_subcommands();
  const auto is_command = [](const std::string& word) { return !is_option(word); };
  if (named.empty()) {
    // The parser's own complaint about a misspelt command is "a subcommand is required".
    if (const auto word = unknown_word(app, is_command)) {
      report_failure(
          fmt::format("there is no command {}{}", in_quotes(*word), did_you_mean(*word, commands)),
          all_commands);
      return ExitCode::usage;
    }
    if (app.remaining().empty() && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
      report_failure("a command is missing.", all_commands);
      return ExitCode::usage;
    }
  }
  const std::string help = "`kiln --help` lists commands and options.";
  if (const auto option = unknown_word(app, is_option)) {
    report_failure(fmt::format("there is no option {}{}", in_quotes(*option),
                               did_you_mean(*option, option_names(app))),
                   help);
    return ExitCode::usage;
  }
  if (named.empty()) {
    report_failure(error.what(), help);
    return ExitCode::usage;
  }
  const CLI::App& command = *named.front();
  const std::string command_help =
      fmt::format("`kiln {} --help` lists the options and examples.", command.get_name());
  if (const auto option = unknown_word(command, is_option)) {
    report_failure(fmt::format("{} has no option {}{}", command.get_name(), in_quotes(*option),
                               did_you_mean(*option, option_names(command))),
                   command_help);
  } else if (const auto word = unknown_word(command, is_command)) {
    report_failure(fmt::format("{} takes no {}.", command.get_name(), in_quotes(*word)),
                   command_help);
  } else {
    report_failure(error.what(), command_help);
  }
  return ExitCode::usage;
}

// "--db=": the parser would take the next word as the value.
std::optional<std::string> option_without_value(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("--", 0) == 0 && word.find('=') == word.size() - 1) {
      return word.substr(0, word.size() - 1);
    }
  }
  return std::nullopt;
}

ExitCode run(int argc, char** argv) {
  CLI::App app(
      "Kernels specialised with NVRTC for the GPU that is there, tuned, kept in one file.");
  Common common;
  Chosen chosen;
  describe(app, common, chosen);
  refuse_empty_values(app);
  if (const auto option = option_without_value(argc, argv)) {
    report_failure(fmt::format("{}: the value is empty.", *option),
                   "`kiln --help` lists commands and options.");
    return ExitCode::usage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    app.exit(help);
    return ExitCode::ok;
  } catch (const CLI::ParseError& error) {
    return report_usage(app, error);
  }
  // The library's compile pools, those of child processes included, read this one variable.
  if (common.jobs > 0) setenv("KILN_JOBS", std::to_string(common.jobs).c_str(), 1);

  try {
    return chosen.run();
  } catch (const Failure& failure) {
    report_failure(failure.what(), failure.next_step());
    return failure.code();
  } catch (const Error& error) {
    report_failure(error.what(), next_step_of(error.status()));
    return exit_code_of(error.status());
  } catch (const std::exception& error) {
    report_failure(fmt::format("unexpected failure: {}", error.what()),
                   next_step_of(Status::internal));
    return ExitCode::failed;
  }
}

}  // namespace

int run_program(int argc, char** argv) {
  // A file that may not grow any more is a failed write, not the end of the program.
  std::signal(SIGXFSZ, SIG_IGN);
  const ExitCode code = run(argc, argv);
  // A reader that went away (`kiln ls | head`) or a full disk must not look like success.
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (lost && code == ExitCode::ok) {
    print_error("kiln: the output could not be written; it is not whole.\n");
    return static_cast<int>(ExitCode::failed);
  }
  return static_cast<int>(code);
}

}  // namespace kiln::cli
