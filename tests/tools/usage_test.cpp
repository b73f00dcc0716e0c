// The command line as such: help, names with suggestions, exit codes, one line per mistake.
#include <algorithm>

#include "tests/tools/cli.h"

namespace kiln::cli {
namespace {

const std::vector<std::string> kCommands = {"tune", "build",   "ops",    "devices", "ls",
                                            "show", "explain", "verify", "bench",   "doctor"};

// The first op's name with its last letter gone: what a typing mistake looks like.
std::string misspelt_op() {
  std::string name = templates::ops().front()->name;
  name.pop_back();
  return name;
}

class Usage : public CliTest {};

TEST_F(Usage, HelpListsEveryCommandAndEveryExitCode) {
  const Result result = run({"--help"});
  EXPECT_EQ(result.code, 0) << result;
  for (const std::string& command : kCommands) {
    EXPECT_NE(result.out.find("  " + command + " "), std::string::npos) << command << result;
  }
  for (const ExitCodeRow& row : exit_codes()) {
    EXPECT_NE(result.out.find(fmt::format("{:>3}  {}", code(row.code), row.meaning)),
              std::string::npos)
        << row.meaning << result;
  }
}

TEST_F(Usage, HelpOfEveryCommandHasExamplesAndTheCommonOptions) {
  for (const std::string& command : kCommands) {
    const Result result = run({command, "--help"});
    EXPECT_EQ(result.code, 0) << result;
    EXPECT_NE(result.out.find("Examples:\n  kiln " + command), std::string::npos) << result;
    for (const char* option : {"--db", "--pack", "--json", "--jobs"}) {
      EXPECT_NE(result.out.find(option), std::string::npos) << option << result;
    }
  }
}

TEST_F(Usage, VersionIsPrinted) {
  const Result result = run({"--version"});
  EXPECT_EQ(result.code, 0) << result;
  EXPECT_EQ(result.out, std::string("kiln ") + KILN_VERSION + "\n");
}

TEST_F(Usage, WithoutACommandTheCommandsAreListed) {
  const Result result = run({});
  EXPECT_EQ(result.code, code(ExitCode::usage)) << result;
  for (const std::string& command : kCommands) {
    EXPECT_NE(result.err.find(command), std::string::npos) << result;
  }
}

TEST_F(Usage, MisspeltCommandSuggestsTheNearest) {
  const Result result = run({"exlpain"});
  EXPECT_EQ(result.code, code(ExitCode::usage)) << result;
  EXPECT_NE(result.err.find("kiln: there is no command \"exlpain\"; did you mean \"explain\"?"),
            std::string::npos)
      << result;
}

TEST_F(Usage, MisspeltOpSuggestsTheNearestAndListsAll) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"tune", "--op", misspelt_op()},
        {"build", "--op", misspelt_op()},
        {"ls", "--op", misspelt_op()},
        {"show", misspelt_op()},
        {"explain", misspelt_op()},
        {"verify", "--op", misspelt_op()},
        {"bench", "--op", misspelt_op()}}) {
    const Result result = run(arguments);
    EXPECT_EQ(result.code, code(ExitCode::usage)) << result;
    EXPECT_NE(result.err.find("did you mean \"" + templates::ops().front()->name + "\"?"),
              std::string::npos)
        << result;
    for (const templates::Op* op : templates::ops()) {
      EXPECT_NE(result.err.find(op->name), std::string::npos) << result;
    }
    EXPECT_EQ(result.out, "") << result;
  }
}

TEST_F(Usage, MisspeltGpuSuggestsTheNearest) {
  const Result result = run({"build", "--gpu", "rtx3090"});
  EXPECT_EQ(result.code, code(ExitCode::usage)) << result;
  EXPECT_NE(result.err.find("no GPU is called \"rtx3090\"; did you mean \"rtx-3090\"?"),
            std::string::npos)
      << result;
  EXPECT_NE(result.err.find("a100-sxm4-80gb"), std::string::npos) << result;
}

TEST_F(Usage, MistakesOfOptionsAreOneSentenceAndExitCodeTwo) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"ls", "--no-such-option"},
        {"tune", "--budget", "soon"},
        {"tune", "--budget", "-5s"},
        {"tune", "--budget", "0s"},
        {"tune", "--jobs", "0"},
        {"build", "--workload", path("absent.json")},
        {"build", "--device", "cuda:0"},
        {"build", "--limits", "rtx-3090"},
        {"tune", "--gpu", "rtx-3090", "--device", "cuda:0"},
        {"ops", "--arch", "sm_8x"},
        {"ops", "--arch", "sm_70"},
        {"show"},
        {"show", templates::ops().front()->name, "nonsense"},
        {"show", templates::ops().front()->name, "--arch", "sm_80"},
        {"explain", templates::ops().front()->name, "--shape", "{"},
        {"explain", templates::ops().front()->name, "--shape", "[]"},
        {"explain", templates::ops().front()->name, "--sizes", "{\"no_such_size\": 1}"},
        {"bench", "--shape", "{}"}}) {
    const Result result = run(arguments);
    EXPECT_EQ(result.code, code(ExitCode::usage)) << arguments.back() << "\n" << result;
    EXPECT_EQ(result.err.rfind("kiln: ", 0), 0U) << result;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n') <= 2, true) << result;
    EXPECT_EQ(result.out, "") << result;
  }
}

TEST_F(Usage, CommonOptionsMayStandBeforeOrAfterTheCommand) {
  environment.erase("KILN_DB");
  store_seed(path("other.db"), make_seed("rtx-3090"));
  EXPECT_EQ(run({"--json", "--db", path("other.db"), "ls"}).json().size(), 1U);
  EXPECT_EQ(run({"ls", "--json", "--db", path("other.db")}).json().size(), 1U);
}

}  // namespace
}  // namespace kiln::cli
