// The `kiln` program: reads the command line, runs one command, turns failures into one sentence
// and an exit code.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

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
    "  KILN_DB     the store, as --db        KILN_PACK   a read-only store under it, as --pack\n"
    "  KILN_NVRTC  the libnvrtc.so to use    KILN_JOBS   compiles at once, as --jobs\n"
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
  add_doctor(app, common, chosen);
  app.footer(kEpilogue + exit_code_help());
}

// The parser's own complaint about a misspelt command is "a subcommand is required".
ExitCode report_usage(const CLI::App& app, const CLI::ParseError& error) {
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    commands.push_back(command->get_name());
  }
  const std::vector<CLI::App*> named = app.get_subcommands();
  if (named.empty()) {
    for (const std::string& word : app.remaining()) {
      if (word.rfind('-', 0) == 0) continue;
      const std::string guess = nearest(word, commands);
      report_failure(
          fmt::format("there is no command \"{}\"{}", word,
                      guess.empty() ? "." : fmt::format("; did you mean \"{}\"?", guess)),
          fmt::format("Commands: {}.", joined(commands)));
      return ExitCode::usage;
    }
    if (app.remaining().empty()) {
      report_failure("a command is missing.", fmt::format("Commands: {}.", joined(commands)));
      return ExitCode::usage;
    }
  }
  report_failure(error.what(), named.empty()
                                   ? "`kiln --help` lists commands and options."
                                   : fmt::format("`kiln {} --help` lists the options and examples.",
                                                 named.front()->get_name()));
  return ExitCode::usage;
}

ExitCode run(int argc, char** argv) {
  CLI::App app(
      "Kernels specialised with NVRTC for the GPU that is there, tuned, kept in one file.");
  Common common;
  Chosen chosen;
  describe(app, common, chosen);
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
}  // namespace kiln::cli

int main(int argc, char** argv) {
  const kiln::cli::ExitCode code = kiln::cli::run(argc, argv);
  // A reader that went away (`kiln ls | head`) or a full disk must not look like success.
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (lost && code == kiln::cli::ExitCode::ok) {
    kiln::cli::print_error("kiln: the output could not be written; it is not whole.\n");
    return 1;
  }
  return static_cast<int>(code);
}
