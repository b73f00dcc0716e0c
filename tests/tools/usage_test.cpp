// The command line as such: help, names with suggestions, exit codes, one line per mistake.
#include <algorithm>
#include <regex>
#include <set>
#include <sstream>

#include "tests/tools/cli.h"

namespace kiln::cli {
namespace {

const std::vector<std::string> kCommands = {
    "tune",     "build",  "ops",    "devices", "ls",   "show", "explain", "verify", "bench",
    "workload", "export", "import", "merge",   "diff", "pin",  "forget",  "gc",     "doctor"};

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

TEST_F(Usage, MisspeltLimitsAreAnsweredBeforeADeviceIsAskedFor) {
  for (const char* verb : {"tune", "bench"}) {
    const Result result = run({verb, "--limits", "rtx-3909"});
    EXPECT_EQ(result.code, code(ExitCode::usage)) << result;
    EXPECT_NE(result.err.find("did you mean \"rtx-3090\"?"), std::string::npos) << result;
  }
}

TEST_F(Usage, MisspeltOpSuggestsTheNearestAndListsAll) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"tune", "--op", misspelt_op()},
        {"build", "--op", misspelt_op()},
        {"ls", "--op", misspelt_op()},
        {"show", misspelt_op()},
        {"explain", misspelt_op()},
        {"verify", "--op", misspelt_op()},
        {"export", "--op", misspelt_op()},
        {"pin", misspelt_op()},
        {"forget", "--op", misspelt_op()},
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
        {"pin", templates::ops().front()->name, "--gpu", "rtx-3090"},
        {"forget"},
        {"show", templates::ops().front()->name, "nonsense"},
        {"show", templates::ops().front()->name, "--arch", "sm_80"},
        {"explain", templates::ops().front()->name, "--shape", "{"},
        {"explain", templates::ops().front()->name, "--shape", "[]"},
        {"explain", templates::ops().front()->name, "--sizes", "{\"no_such_size\": 1}"},
        {"gc", "--budget", "plenty"},
        {"bench", "--shape", "{}"},
        {"bench", "--workload", path("absent.json")},
        {"bench", "--op", templates::ops().front()->name, "--workload", "-", "--sizes", "{}"}}) {
    const Result result = run(arguments);
    EXPECT_EQ(result.code, code(ExitCode::usage)) << arguments.back() << "\n" << result;
    EXPECT_EQ(result.err.rfind("kiln: ", 0), 0U) << result;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n') <= 2, true) << result;
    EXPECT_EQ(result.out, "") << result;
  }
}

TEST_F(Usage, EmptyValueIsNamed) {
  const std::string op = templates::ops().front()->name;
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"ls", "--db", ""},
                                                    {"ls", "--pack", ""},
                                                    {"ls", "--op", ""},
                                                    {"ls", "--gpu", ""},
                                                    {"tune", "--device", ""},
                                                    {"tune", "--budget", ""},
                                                    {"tune", "--limits", ""},
                                                    {"tune", "--jobs", ""},
                                                    {"build", "--gpu", ""},
                                                    {"build", "--op", ""},
                                                    {"build", "--workload", ""},
                                                    {"verify", "--device", ""},
                                                    {"bench", "--shape", ""},
                                                    {"bench", "--op", op, "--sizes", ""},
                                                    {"explain", op, "--gpu", ""},
                                                    {"show", op, "--source", "--config", ""},
                                                    {"ops", "--arch", ""}}) {
    const Result result = run(arguments);
    EXPECT_EQ(result.code, code(ExitCode::usage)) << arguments[arguments.size() - 2] << "\n"
                                                  << result;
    EXPECT_EQ(result.err.rfind("kiln: " + arguments[arguments.size() - 2] + ": ", 0), 0U) << result;
    EXPECT_NE(result.err.find("empty"), std::string::npos) << result;
    EXPECT_EQ(result.out, "") << result;
  }
}

TEST_F(Usage, EqualsSignWithoutAValueDoesNotTakeTheNextWord) {
  const Result result = run({"--db=", "ls"});
  EXPECT_EQ(result.code, code(ExitCode::usage)) << result;
  EXPECT_EQ(result.err.rfind("kiln: --db: ", 0), 0U) << result;
}

TEST_F(Usage, UnknownOptionIsNamedOnceAndHelpIsPointedTo) {
  const Result result = run({"ls", "--bogus", "3"});
  EXPECT_EQ(result.code, code(ExitCode::usage)) << result;
  EXPECT_EQ(result.err,
            "kiln: ls has no option \"--bogus\".\n  `kiln ls --help` lists the options and "
            "examples.\n");
  EXPECT_EQ(run({"--bogus", "ls"}).err,
            "kiln: there is no option \"--bogus\".\n  `kiln --help` lists commands and options.\n");
  const Result near = run({"tune", "--budge", "3s"});
  EXPECT_NE(near.err.find("did you mean \"--budget\"?"), std::string::npos) << near;
  const Result word = run({"ls", "extra"});
  EXPECT_EQ(word.code, code(ExitCode::usage)) << word;
  EXPECT_EQ(word.err.rfind("kiln: ls takes no \"extra\".", 0), 0U) << word;
}

TEST_F(Usage, MistakesAreToldOnce) {
  for (const auto& [arguments, part] :
       {std::pair<std::vector<std::string>, std::string>{{"tune", "--jobs", "0"}, "--jobs"},
        {{"tune", "--jobs", "many"}, "--jobs"},
        {{"ls", "--db"}, "--db"},
        {{"explain", templates::ops().front()->name, "--shape", "{"}, "line 1"},
        {{"show"}, "op is required"}}) {
    const Result result = run(arguments);
    const std::string sentence = result.err.substr(0, result.err.find('\n'));
    EXPECT_NE(sentence.find(part), std::string::npos) << result;
    EXPECT_EQ(sentence.find(part), sentence.rfind(part)) << result;
  }
}

TEST_F(Usage, NamesFromOutsideAreEscaped) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"ls", "--op", "a\nb\x1b[2J"},
        {"ls", "--gpu", "a\nb\x1b[2J"},
        {"a\nb\x1b[2J"},
        {"ls", "--a\nb\x1b[2J"},
        {"ops", "--arch", "a\nb\x1b[2J"},
        {"tune", "--device", "a\nb\x1b[2J"},
        {"tune", "--budget", "a\nb\x1b[2J"},
        {"build", "--workload", "a\nb\x1b[2J"}}) {
    const Result result = run(arguments);
    EXPECT_NE(result.code, 0) << result;
    EXPECT_NE(result.err.find("a\\nb\\u001b[2J"), std::string::npos) << result;
    EXPECT_EQ(result.err.find('\x1b'), std::string::npos) << result;
  }
  const Result not_utf8 = run({"ls", "--op", "\xff"});
  EXPECT_EQ(not_utf8.code, code(ExitCode::usage)) << not_utf8;
  EXPECT_NE(not_utf8.err.find("no op is called \"\xef\xbf\xbd\""), std::string::npos) << not_utf8;
}

// What the library and the program read, by their sources.
std::set<std::string> variables_of_the_code() {
  const std::regex read("(?:getenv|environment)\\(\"([A-Z_]+)\"\\)");
  std::set<std::string> names = {"CUDA_HOME", "CUDA_PATH"};  // read in a loop over both
  for (const char* folder : {"jit", "cache", "templates", "runtime", "tuner", "tools"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(
             std::filesystem::path(KILN_SOURCE_FOLDER) / folder)) {
      if (entry.path().extension() != ".cpp") continue;
      const std::string text = read_file(entry.path());
      for (std::sregex_iterator it(text.begin(), text.end(), read), end; it != end; ++it) {
        names.insert((*it)[1]);
      }
    }
  }
  return names;
}

// First words of the lines that begin with `prefix`, after the heading.
std::multiset<std::string> first_words(const std::string& text, const std::string& heading,
                                       const std::string& prefix) {
  std::multiset<std::string> words;
  std::istringstream lines(text.substr(text.find(heading) + heading.size()));
  std::string line;
  while (std::getline(lines, line) && !(line.empty() && !words.empty())) {
    if (line.rfind(prefix, 0) != 0) continue;
    const size_t end = line.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", prefix.size());
    const std::string word = line.substr(prefix.size(), end - prefix.size());
    if (!word.empty()) words.insert(word);
  }
  return words;
}

TEST_F(Usage, HelpAndReadmeListEveryVariableOfTheCodeOnce) {
  const std::set<std::string> names = variables_of_the_code();
  EXPECT_TRUE(names.contains("KILN_DB") && names.contains("TERM"));
  const std::multiset<std::string> once(names.begin(), names.end());
  EXPECT_EQ(first_words(run({"--help"}).out, "Environment:\n", "  "), once);
  const std::string readme = read_file(std::filesystem::path(KILN_SOURCE_FOLDER) / "README.md");
  EXPECT_EQ(first_words(readme, "## Environment\n", "| `"), once);
}

TEST_F(Usage, CommonOptionsMayStandBeforeOrAfterTheCommand) {
  environment.erase("KILN_DB");
  store_seed(path("other.db"), make_seed("rtx-3090"));
  EXPECT_EQ(run({"--json", "--db", path("other.db"), "ls"}).json().size(), 1U);
  EXPECT_EQ(run({"ls", "--json", "--db", path("other.db")}).json().size(), 1U);
}

}  // namespace
}  // namespace kiln::cli
