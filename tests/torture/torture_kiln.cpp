// `kiln` with the tuner's toy op, on a disk that fails as KILN_DISK says (disk_shim.h), and with
// one verb more: what a server does.
//   kiln serve DEVICE SCALE...   prepares the toy op with these scales, seals, calls the first one
//   on
//                                a simulated GPU and compares what it computed
// Exit code 0 when the answer is right. stdout: "served, N compiled, M found"; stderr: the log.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/call.h"
#include "templates/op.h"
#include "tests/tuner/toy_op.h"
#include "tools/kiln/program.h"

namespace kiln::testing {
namespace {

constexpr int64_t kRows = 3;
constexpr int64_t kColumns = 40;

struct ToyArgs {
  uint64_t struct_bytes = sizeof(ToyArgs);
  void* x = nullptr;
  int64_t x_stride = kColumns;
  void* y = nullptr;
  int64_t y_stride = kColumns;
  int64_t num_rows = kRows;
  int64_t num_columns = kColumns;
  int64_t limit = kColumns;
};

void require(kiln_status status, const char* what) {
  if (status == KILN_OK) return;
  std::fprintf(stderr, "%s: %s: %s\n", what, kiln_status_name(status), kiln_last_error());
  std::exit(1);
}
#define REQUIRE(call) require((call), #call)

void log_line(void*, kiln_log_level level, const char* line) {
  const char* word = level <= KILN_LOG_ERROR ? "error" : level == KILN_LOG_WARNING ? "warning" : "";
  std::fprintf(stderr, "%s%s%s\n", word, *word == '\0' ? "" : ": ", line);
}

std::string shape_of(const std::string& scale) { return "{\"scale\": " + scale + "}"; }

std::string workload_of(const std::vector<std::string>& scales) {
  std::string ops;
  for (const std::string& scale : scales) {
    ops += (ops.empty() ? "" : ", ") + ("{\"op\": \"toy\", \"shape\": " + shape_of(scale) + "}");
  }
  return "{\"ops\": [" + ops + "]}";
}

int toy_index() {
  int index = 0;
  while (templates::ops()[static_cast<size_t>(index)] != &toy_op()) ++index;
  return index;
}

int serve(const std::string& device, const std::vector<std::string>& scales) {
  kiln_options options{};
  options.size = sizeof options;
  options.device = device.c_str();
  options.log = log_line;
  options.log_level = KILN_LOG_INFO;
  kiln_session* session = nullptr;
  kiln_plan* plan = nullptr;
  REQUIRE(kiln_open(&options, &session));
  REQUIRE(kiln_prepare(session, workload_of(scales).c_str(), nullptr, nullptr));
  REQUIRE(kiln_seal(session));
  REQUIRE(kiln_plan_create(session, "toy", shape_of(scales[0]).c_str(), &plan));
  std::vector<int32_t> x(kRows * kColumns);
  std::vector<int32_t> y(x.size(), -1);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<int32_t>(i) - 50;
  const size_t bytes = x.size() * sizeof x[0];
  ToyArgs args;
  REQUIRE(kiln_memory_allocate(session, bytes, &args.x));
  REQUIRE(kiln_memory_allocate(session, bytes, &args.y));
  REQUIRE(kiln_memory_write(session, args.x, x.data(), bytes));
  REQUIRE(runtime::call_op(plan, toy_index(), &args, nullptr));
  REQUIRE(kiln_synchronize(session, nullptr));
  REQUIRE(kiln_memory_read(session, y.data(), args.y, bytes));
  const int32_t scale = static_cast<int32_t>(std::atoi(scales[0].c_str()));
  for (size_t i = 0; i < x.size() && device.rfind("sim:", 0) == 0; ++i) {
    if (y[i] == x[i] * scale) continue;
    std::fprintf(stderr, "y[%zu] is %d, but %d was expected\n", i, y[i], x[i] * scale);
    return 1;
  }
  kiln_stats stats{};
  stats.size = sizeof stats;
  REQUIRE(kiln_get_stats(session, &stats));
  REQUIRE(kiln_close(session));
  std::printf("served, %llu compiled, %llu found\n",
              static_cast<unsigned long long>(stats.compiles),
              static_cast<unsigned long long>(stats.binary_hits));
  return 0;
}

}  // namespace
}  // namespace kiln::testing

int main(int argc, char** argv) {
  kiln::testing::register_toy();
  if (argc > 3 && std::string_view(argv[1]) == "serve") {
    return kiln::testing::serve(argv[2], {argv + 3, argv + argc});
  }
  return kiln::cli::run_program(argc, argv);
}
