// What belongs to the host process stays as it was, whatever a function of kiln.h answers: errno,
// locale, signals, floating-point modes, umask, folders, limits, descriptors, the current CUDA
// context; and nothing is printed. A function that libkiln.so exports and the table lacks fails the
// test.
#include <cuda.h>
#include <dirent.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <array>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/runtime/library_functions.h"
#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

constexpr int kErrno = 1234;
constexpr int kSignals = 65;
constexpr unsigned kFlagsOfMxcsr = 0x3f;  // what arithmetic leaves there

struct Descriptor {
  std::string target;
  int flags = 0;
  bool operator==(const Descriptor&) const = default;
};

std::map<int, Descriptor> open_descriptors() {
  std::map<int, Descriptor> found;
  DIR* folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    const int number = std::atoi(entry->d_name);
    if (entry->d_name[0] == '.' || number == dirfd(folder)) continue;
    char target[4096] = "";
    const std::string link = "/proc/self/fd/" + std::to_string(number);
    if (readlink(link.c_str(), target, sizeof target - 1) < 0) continue;
    found[number] = {target, fcntl(number, F_GETFD)};
  }
  closedir(folder);
  return found;
}

// Everything as text by name, so that a difference says what it is about.
std::map<std::string, std::string> surroundings() {
  std::map<std::string, std::string> all;
  const int error = errno;
  all["errno"] = std::to_string(error);
  all["locale"] = setlocale(LC_ALL, nullptr);
  all["locale of the thread"] = fmt::format("{}", static_cast<void*>(uselocale(nullptr)));
  for (int number = 1; number < kSignals; ++number) {
    struct sigaction action = {};
    if (sigaction(number, nullptr, &action) != 0) continue;
    all[fmt::format("handler of signal {}", number)] =
        fmt::format("{} {:#x}", reinterpret_cast<void*>(action.sa_handler), action.sa_flags);
  }
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  std::string mask;
  for (int number = 1; number < kSignals; ++number) {
    mask += sigismember(&blocked, number) == 1 ? '1' : '0';
  }
  all["blocked signals"] = mask;
  stack_t stack = {};
  sigaltstack(nullptr, &stack);
  all["signal stack"] = fmt::format("{} {} {}", stack.ss_sp, stack.ss_size, stack.ss_flags);
  all["floating-point modes"] = fmt::format("{:#x}", _mm_getcsr() & ~kFlagsOfMxcsr);
  uint16_t x87 = 0;
  asm volatile("fnstcw %0" : "=m"(x87));
  all["x87 control word"] = fmt::format("{:#x}", x87);
  const mode_t old_umask = umask(0);
  umask(old_umask);
  all["umask"] = fmt::format("{:o}", old_umask);
  char folder[4096] = "";
  all["working folder"] = getcwd(folder, sizeof folder) != nullptr ? folder : "none";
  for (int limit = 0; limit < RLIM_NLIMITS; ++limit) {
    rlimit value = {};
    getrlimit(static_cast<__rlimit_resource>(limit), &value);
    all[fmt::format("limit {}", limit)] = fmt::format("{} {}", value.rlim_cur, value.rlim_max);
  }
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    all["variable " + text.substr(0, text.find('='))] = text;
  }
  all["current context"] =
      fmt::format("device {}, {} deep", fake_cuda_current_device(), fake_cuda_context_depth());
  errno = error;
  return all;
}

// stdout and stderr of this process, caught while this lives.
class Output {
 public:
  Output() : caught_(memfd_create("output", MFD_CLOEXEC)) {
    for (const int number : {STDOUT_FILENO, STDERR_FILENO}) {
      saved_[static_cast<size_t>(number)] = fcntl(number, F_DUPFD_CLOEXEC, 0);
      dup2(caught_, number);
    }
  }
  ~Output() {
    for (const int number : {STDOUT_FILENO, STDERR_FILENO}) {
      dup2(saved_[static_cast<size_t>(number)], number);
      close(saved_[static_cast<size_t>(number)]);
    }
    close(caught_);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  bool is_empty() const { return lseek(caught_, 0, SEEK_END) == 0; }

 private:
  int caught_;
  std::array<int, 3> saved_ = {};
};

struct Subject {
  kiln_session* session = nullptr;  // prepared, not sealed
  kiln_plan* plan = nullptr;        // of combine_topk_swa
  void* memory = nullptr;           // 256 bytes
};

constexpr const char* kCombineWorkload =
    R"({"ops": [{"op": "combine_topk_swa", "shape": {"ratio": 2, "top_k": 512}}]})";
constexpr const char* kStagedWorkload =
    R"({"ops": [{"op": "staged_rows", "shape": {"format": "plain", "width": 64}}]})";
// Of a shape that the store does not hold, while there is no compiler.
constexpr const char* kLackingWorkload =
    R"({"ops": [{"op": "staged_rows", "shape": {"format": "plain", "width": 65}}]})";

kiln_status ok(bool holds) { return holds ? KILN_OK : KILN_INTERNAL; }

using Call = std::function<kiln_status(const Subject&)>;
struct Row {
  std::string function;
  Call succeed;
  Call refuse;  // empty: it cannot fail
};

// The subject has no plan of it.
void add_other_op(std::vector<Row>& rows, const templates::Op& op) {
  rows.push_back({"kiln_" + op.name, nullptr,
                  [&op](const Subject& on) { return call_exported(op, on.plan); }});
  rows.push_back({"kiln_" + op.name + "_workspace", nullptr,
                  [&op](const Subject& on) { return call_exported_workspace(op, on.plan); }});
}

// A session that is opened here is closed by the same row, so that descriptors can be compared.
kiln_status open_and_close(const char* device, const char* store) {
  kiln_options options{};
  options.size = sizeof options;
  options.device = device;
  options.store = store;
  kiln_session* session = nullptr;
  const kiln_status status = kiln_open(&options, &session);
  if (status != KILN_OK) return status;
  return kiln_close(session);
}

const Row kFixedRows[] = {
    {"kiln_status_name", [](const Subject&) { return ok(*kiln_status_name(KILN_OK) == 'K'); },
     nullptr},
    {"kiln_last_error", [](const Subject&) { return ok(kiln_last_error() != nullptr); }, nullptr},
    {"kiln_version", [](const Subject&) { return ok(*kiln_version() != '\0'); }, nullptr},
    {"kiln_abi_hash",
     [](const Subject&) {
       uint8_t hash[16];
       return kiln_abi_hash(hash);
     },
     [](const Subject&) { return kiln_abi_hash(nullptr); }},
    {"kiln_tensor_bytes",
     [](const Subject&) {
       uint64_t bytes = 0;
       return kiln_tensor_bytes("pack_weights", R"({"format": "e4m3"})",
                                R"({"num_rows": 288, "in_features": 288})", "packed", &bytes);
     },
     [](const Subject&) {
       uint64_t bytes = 0;
       return kiln_tensor_bytes("pack_weights", "{", nullptr, "packed", &bytes);
     }},
    {"kiln_open", [](const Subject&) { return open_and_close("cuda:1", ":memory:"); },
     [](const Subject&) { return open_and_close("cuda:7", ":memory:"); }},
    {"kiln_prepare",
     [](const Subject& on) { return kiln_prepare(on.session, kStagedWorkload, nullptr, nullptr); },
     [](const Subject& on) {
       return kiln_prepare(on.session, kLackingWorkload, nullptr, nullptr);
     }},
    {"kiln_prepare_start",
     [](const Subject& on) {
       return kiln_prepare_start(on.session, kStagedWorkload, nullptr, nullptr);
     },
     [](const Subject& on) {
       return kiln_prepare_start(on.session, kLackingWorkload, nullptr, nullptr);
     }},
    {"kiln_prepare_wait",
     [](const Subject& on) {
       kiln_prepare_start(on.session, kStagedWorkload, nullptr, nullptr);
       return kiln_prepare_wait(on.session, -1);
     },
     [](const Subject& on) { return kiln_prepare_wait(on.session, -1); }},
    {"kiln_seal", [](const Subject& on) { return kiln_seal(on.session); },
     [](const Subject&) { return kiln_seal(nullptr); }},
    {"kiln_plan_create",
     [](const Subject& on) {
       kiln_plan* plan = nullptr;
       return kiln_plan_create(on.session, "combine_topk_swa", kCombineShape, &plan);
     },
     [](const Subject& on) {
       kiln_plan* plan = nullptr;
       return kiln_plan_create(on.session, "no_such_op", kCombineShape, &plan);
     }},
    {"kiln_plan_destroy", [](const Subject& on) { return kiln_plan_destroy(on.plan); },
     [](const Subject& on) {
       kiln_plan_destroy(on.plan);
       return kiln_plan_destroy(on.plan);
     }},
    {"kiln_op_supported",
     [](const Subject& on) {
       return kiln_op_supported(on.session, "combine_topk_swa", kCombineShape, nullptr, 0, nullptr);
     },
     [](const Subject& on) {
       return kiln_op_supported(on.session, "staged_rows", R"({"format": "plain", "width": 66})",
                                nullptr, 0, nullptr);
     }},
    {"kiln_explain",
     [](const Subject& on) {
       return kiln_explain(on.session, "combine_topk_swa", kCombineShape, nullptr, nullptr, 0,
                           nullptr);
     },
     [](const Subject& on) {
       return kiln_explain(on.session, "combine_topk_swa", "[]", nullptr, nullptr, 0, nullptr);
     }},
    {"kiln_get_stats",
     [](const Subject& on) {
       kiln_stats stats{};
       stats.size = sizeof stats;
       return kiln_get_stats(on.session, &stats);
     },
     [](const Subject& on) { return kiln_get_stats(on.session, nullptr); }},
    {"kiln_get_digests",
     [](const Subject& on) {
       kiln_digests digests{};
       digests.size = sizeof digests;
       return kiln_get_digests(on.session, &digests);
     },
     [](const Subject& on) { return kiln_get_digests(on.session, nullptr); }},
    {"kiln_get_workload",
     [](const Subject& on) { return kiln_get_workload(on.session, nullptr, 0, nullptr); },
     [](const Subject&) { return kiln_get_workload(nullptr, nullptr, 0, nullptr); }},
    {"kiln_memory_allocate",
     [](const Subject& on) {
       void* memory = nullptr;
       return kiln_memory_allocate(on.session, 256, &memory);
     },
     [](const Subject& on) {
       void* memory = nullptr;
       return kiln_memory_allocate(on.session, size_t{1} << 60, &memory);
     }},
    {"kiln_memory_free", [](const Subject& on) { return kiln_memory_free(on.session, on.memory); },
     [](const Subject& on) {
       return kiln_memory_free(on.session, static_cast<char*>(on.memory) + 1);
     }},
    {"kiln_memory_write",
     [](const Subject& on) { return kiln_memory_write(on.session, on.memory, "text", 4); },
     [](const Subject& on) { return kiln_memory_write(on.session, on.memory, "text", 1 << 20); }},
    {"kiln_memory_read",
     [](const Subject& on) {
       char text[4];
       return kiln_memory_read(on.session, text, on.memory, sizeof text);
     },
     [](const Subject& on) { return kiln_memory_read(on.session, nullptr, on.memory, 4); }},
    {"kiln_synchronize", [](const Subject& on) { return kiln_synchronize(on.session, nullptr); },
     [](const Subject& on) {
       fake_cuda_fail_times("cuStreamSynchronize", CUDA_ERROR_UNKNOWN, 0, 1);
       return kiln_synchronize(on.session, nullptr);
     }},
    {"kiln_combine_topk_swa",
     [](const Subject& on) {
       const kiln_combine_topk_swa_args args = combine_args(8);
       return kiln_combine_topk_swa(on.plan, &args, nullptr);
     },
     [](const Subject& on) {
       const kiln_combine_topk_swa_args args = combine_args(-1);
       return kiln_combine_topk_swa(on.plan, &args, nullptr);
     }},
    {"kiln_combine_topk_swa_workspace",
     [](const Subject& on) {
       const kiln_combine_topk_swa_args args = combine_args(8);
       uint64_t bytes = 0;
       return kiln_combine_topk_swa_workspace(on.plan, &args, &bytes);
     },
     [](const Subject& on) {
       const kiln_combine_topk_swa_args args = combine_args(-1);
       uint64_t bytes = 0;
       return kiln_combine_topk_swa_workspace(on.plan, &args, &bytes);
     }},
    {"kiln_close", [](const Subject& on) { return kiln_close(on.session); },
     [](const Subject& on) {
       kiln_close(on.session);
       return kiln_close(on.session);
     }},
};

const std::vector<Row>& all_rows() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> all(std::begin(kFixedRows), std::end(kFixedRows));
    for (const templates::Op* op : other_ops()) add_other_op(all, *op);
    return all;
  }();
  return rows;
}

void handler(int) {}
void handler_with_details(int, siginfo_t*, void*) {}

// A host process that has made everything its own. Undone at the end.
class Host {
 public:
  explicit Host(const std::string& folder) : locale_(setlocale(LC_ALL, nullptr)) {
    for (const char* name : {"de_DE.UTF-8", "fr_FR.UTF-8", "C.UTF-8"}) {
      if (setlocale(LC_ALL, name) != nullptr) break;
    }
    for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTERM, SIGUSR1, SIGPIPE}) {
      struct sigaction action = {};
      action.sa_handler = handler;
      if (number == SIGSEGV || number == SIGFPE) {
        action.sa_sigaction = handler_with_details;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
      }
      sigaction(number, &action, &actions_[number]);
    }
    sigset_t some;
    sigemptyset(&some);
    sigaddset(&some, SIGUSR2);
    sigaddset(&some, SIGRTMIN + 3);
    pthread_sigmask(SIG_BLOCK, &some, &mask_);
    stack_t stack = {};
    stack.ss_sp = own_stack_.data();
    stack.ss_size = own_stack_.size();
    sigaltstack(&stack, &stack_);
    mxcsr_ = _mm_getcsr();
    _mm_setcsr((mxcsr_ & ~kFlagsOfMxcsr) | 0x8040 | _MM_ROUND_UP);  // subnormals count as zero
    asm volatile("fnstcw %0" : "=m"(x87_));
    const auto single = static_cast<uint16_t>((x87_ & ~0x0300) | 0x0400);
    asm volatile("fldcw %0" : : "m"(single));
    umask_ = umask(027);
    EXPECT_NE(getcwd(folder_, sizeof folder_), nullptr);
    EXPECT_EQ(chdir(folder.c_str()), 0);
  }
  ~Host() {
    EXPECT_EQ(chdir(folder_), 0);
    umask(umask_);
    asm volatile("fldcw %0" : : "m"(x87_));
    _mm_setcsr(mxcsr_);
    sigaltstack(&stack_, nullptr);
    pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
    for (const auto& [number, action] : actions_) sigaction(number, &action, nullptr);
    setlocale(LC_ALL, locale_.c_str());
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

 private:
  std::string locale_;
  std::map<int, struct sigaction> actions_;
  sigset_t mask_ = {};
  std::array<char, 65536> own_stack_ = {};
  stack_t stack_ = {};
  unsigned mxcsr_ = 0;
  uint16_t x87_ = 0;
  mode_t umask_ = 0;
  char folder_[4096] = "";
};

class Surroundings : public RuntimeTest {
 protected:
  // Makes the call and says what it changed; "" when nothing.
  std::string changes_of(const std::function<kiln_status()>& call, kiln_status* status) {
    std::map<std::string, std::string> before;
    std::map<std::string, std::string> after;
    std::map<int, Descriptor> files_before;
    std::map<int, Descriptor> files_after;
    bool is_silent = false;
    {
      const Output output;
      files_before = open_descriptors();
      errno = kErrno;
      before = surroundings();
      *status = call();
      after = surroundings();
      files_after = open_descriptors();
      is_silent = output.is_empty();
    }
    std::string changes = is_silent ? "" : "something was printed\n";
    for (const auto& [name, value] : before) {
      if (after[name] != value) changes += name + ": " + value + " became " + after[name] + "\n";
    }
    for (const auto& [name, value] : after) {
      if (!before.contains(name)) changes += name + ": new, " + value + "\n";
    }
    const auto is_the_stores = [&](const Descriptor& file) {
      return file.target.rfind(store_path_, 0) == 0;
    };
    for (const auto& [number, file] : files_before) {
      if (is_the_stores(file)) continue;
      const auto found = files_after.find(number);
      if (found == files_after.end() || !(found->second == file)) {
        changes += fmt::format("descriptor {} ({}) is not what it was\n", number, file.target);
      }
    }
    // The store may open and close its files; no child inherits them, and nothing else is opened.
    for (const auto& [number, file] : files_after) {
      if (files_before.contains(number)) continue;
      if (!is_the_stores(file) || (file.flags & FD_CLOEXEC) == 0) {
        changes += fmt::format("descriptor {} ({}) is new\n", number, file.target);
      }
    }
    return changes;
  }

  Subject subject() {
    Subject on;
    on.session = open();
    EXPECT_OK(kiln_prepare(on.session, kCombineWorkload, nullptr, nullptr));
    on.plan = plan(on.session, "combine_topk_swa", kCombineShape);
    EXPECT_OK(kiln_memory_allocate(on.session, 256, &on.memory));
    return on;
  }

  void expect_left_alone(const Row& row, const Call& call, bool succeeds) {
    if (call == nullptr) return;
    const Subject on = subject();
    kiln_status status = KILN_INTERNAL;
    EXPECT_EQ(changes_of([&] { return call(on); }, &status), "")
        << row.function << (succeeds ? " that succeeds" : " that fails");
    EXPECT_EQ(status == KILN_OK, succeeds)
        << row.function << ": " << kiln_status_name(status) << ": " << kiln_last_error();
    kiln_close(on.session);
  }
};

TEST_F(Surroundings, EveryFunctionLeavesThemAlone) {
  open();  // what a first session of a process loads stays loaded
  const auto files = open_descriptors();
  const Host host(folder_.file(""));
  for (const bool has_context : {false, true}) {
    std::unique_ptr<CurrentContext> context;
    if (has_context) context = std::make_unique<CurrentContext>();
    for (const Row& row : all_rows()) {
      expect_left_alone(row, row.succeed, true);
      expect_left_alone(row, row.refuse, false);
    }
  }
}

// The test of the test.
TEST_F(Surroundings, ChangesAreSeen) {
  const Host host(folder_.file(""));
  kiln_status status = KILN_OK;
  const auto expect_seen = [&](const char* what, const std::function<void()>& change) {
    const std::string changes = changes_of(
        [&] {
          change();
          return KILN_OK;
        },
        &status);
    expect_contains(changes, what);
    EXPECT_EQ(changes.find('\n'), changes.size() - 1) << changes;
  };
  expect_seen("errno", [] { errno = 5; });
  expect_seen("locale", [] { setlocale(LC_NUMERIC, "C"); });
  expect_seen("handler of signal 15", [] { ::signal(SIGTERM, SIG_IGN); });
  expect_seen("blocked signals", [] {
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, nullptr);
  });
  expect_seen("floating-point modes", [] { _MM_SET_ROUNDING_MODE(_MM_ROUND_DOWN); });
  expect_seen("umask", [] { umask(0); });
  expect_seen("working folder", [] { EXPECT_EQ(chdir("/"), 0); });
  expect_seen("variable KILN_SEEN", [] { setenv("KILN_SEEN", "1", 1); });
  unsetenv("KILN_SEEN");
  expect_seen("printed", [] { EXPECT_EQ(::write(STDERR_FILENO, "x", 1), 1); });
  int opened = -1;
  expect_seen("is new", [&] { opened = ::open("/dev/null", O_RDONLY); });
  expect_seen("is not what it was", [&] { ::close(opened); });
  CUcontext context = nullptr;
  expect_seen("current context", [&] {
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxPushCurrent(context);
  });
  cuCtxPopCurrent(&context);
  cuDevicePrimaryCtxRelease(0);
}

TEST_F(Surroundings, ClosedSessionsLeaveNoDescriptor) {
  const auto before = open_descriptors();
  for (int round = 0; round < 3; ++round) {
    kiln_session* session = open(round == 1 ? "cuda:1" : "cuda:0");
    ASSERT_OK(kiln_prepare(session, kCombineWorkload, nullptr, nullptr));
    ASSERT_OK(kiln_close(session));
  }
  EXPECT_EQ(open_descriptors(), before);
}

// The simulator changes rounding modes while it runs, and NVRTC is known to touch signals.
TEST_F(Surroundings, CompilingAndSimulatingLeaveThemAlone) {
  unsetenv("KILN_NVRTC");
  try {
    jit::Compiler::load();
  } catch (const Error&) {
    GTEST_SKIP() << "no NVRTC on this machine";
  }
  fake_cuda_set_driver_version(97000);
  store_path_ = folder_.file("cold.db");
  const Host host(folder_.file(""));
  for (const char* device : {"cuda:0", "sim:rtx-3090"}) {
    kiln_session* session = nullptr;
    kiln_plan* plan = nullptr;
    kiln_status status = KILN_INTERNAL;
    const auto expect_silence = [&](const char* what, const std::function<kiln_status()>& call) {
      EXPECT_EQ(changes_of(call, &status), "") << what << " on " << device;
      EXPECT_EQ(status, KILN_OK) << what << " on " << device << ": " << kiln_last_error();
    };
    expect_silence("opening", [&] {
      kiln_options options{};
      options.size = sizeof options;
      options.device = device;
      options.store = store_path_.c_str();
      return kiln_open(&options, &session);
    });
    ASSERT_NE(session, nullptr);
    expect_silence("compiling",
                   [&] { return kiln_prepare(session, kCombineWorkload, nullptr, nullptr); });
    expect_silence("planning", [&] {
      return kiln_plan_create(session, "combine_topk_swa", kCombineShape, &plan);
    });
    void* memory = nullptr;
    ASSERT_OK(kiln_memory_allocate(session, 1 << 20, &memory));
    const std::vector<int32_t> zeros((1 << 20) / sizeof(int32_t));
    ASSERT_OK(kiln_memory_write(session, memory, zeros.data(), 1 << 20));
    const auto at = [&](size_t offset) {
      return reinterpret_cast<int32_t*>(static_cast<char*>(memory) + offset);
    };
    kiln_combine_topk_swa_args args = combine_args(2);
    args.topk = at(0);
    args.query_start_loc = at(1 << 16);
    args.seq_lens = at(2 << 16);
    args.gather_lens = at(3 << 16);
    args.idx = at(4 << 16);
    args.len = at(8 << 16);
    expect_silence("calling", [&] { return kiln_combine_topk_swa(plan, &args, nullptr); });
    expect_silence("waiting", [&] { return kiln_synchronize(session, nullptr); });
    expect_silence("closing", [&] { return kiln_close(session); });
  }
}

TEST_F(Surroundings, TheTableHasEveryFunctionOfTheLibrary) {
  std::set<std::string> rows;
  for (const Row& row : all_rows()) rows.insert(row.function);
  EXPECT_EQ(rows, library_functions());
}

}  // namespace
}  // namespace kiln::runtime
