// How fast the simulator executes on one host thread, with its checker off and on: warp
// instructions and mma.sync per second, for each op's default config at a small case, for the
// tile_gemm of tests/sim/kernels, and for unrolled loops of typical instructions. Prints one table.
// Usage: sim_bench [seconds for each figure [op shape sizes]]
// With an op, a shape and the sizes of its bucket (JSON, as for kiln bench): the measured call of
// these alone, by the op's default config, in milliseconds.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <memory>
#include <sstream>

#include "runtime/sim/arena.h"
#include "runtime/sim/checker.h"
#include "runtime/sim/decode.h"
#include "runtime/sim/execute.h"
#include "runtime/sim/views.h"
#include "tuner/tensors.h"

namespace kiln::runtime::sim {
namespace {

constexpr const char* kIsa = "compute_80";

// One launch that can be repeated.
struct Work {
  std::string name;
  std::shared_ptr<const Program> program;
  Size3 grid, block;
  std::vector<uint64_t> params;
  int64_t dynamic_shared_bytes = 0;
  Subject subject;
};

std::shared_ptr<const Program> program_of(Arena& arena, std::string ptx, const std::string& entry) {
  const auto module = std::make_shared<const Module>(parse_ptx(std::move(ptx)));
  SymbolAddresses addresses;
  for (const Variable& variable : module->variables) {
    if (variable.space == Space::shared) continue;
    const uint64_t address = arena.allocate(std::max<int64_t>(variable.bytes, 1));
    arena.fill(address, 0, std::max<int64_t>(variable.bytes, 1));
    if (!variable.content.empty()) {
      arena.copy_in(address, variable.content.data(),
                    static_cast<int64_t>(variable.content.size()));
    }
    addresses[variable.name] = address;
  }
  return decode(module, entry, addresses);
}

uint64_t upload(Arena& arena, const std::vector<std::byte>& content) {
  const auto bytes = static_cast<int64_t>(content.size());
  const uint64_t address = arena.allocate(bytes);
  arena.copy_in(address, content.data(), bytes);
  return address;
}

// --- the ops

// The kernels of a call by the op's default config.
std::vector<Work> op_works(Arena& arena, jit::Compiler& compiler, const templates::Kit& kit,
                           const templates::Sizes& shape, const templates::Case& call) {
  const templates::Op& op = *kit.op;
  const Gpu gpu = find_gpu("a100-sxm4-80gb");
  const std::vector<tuner::TensorPlan> tensors = tuner::tensor_plans(op, call);
  std::map<std::string, DevicePtr> pointers;
  for (const tuner::TensorPlan& tensor : tensors) {
    pointers[tensor.arg->name] = tensor.arg->kind == templates::ArgKind::output
                                     ? arena.allocate(tensor.bytes())
                                     : upload(arena, tuner::host_contents(kit, call, tensor));
  }
  const templates::Config config = op.default_config(shape);
  const templates::LaunchPlan plan = op.plan(shape, config, gpu);
  const templates::Sizes symbols = tuner::extent_symbols(op, call);
  tuner::Workspace workspace{.bytes = plan.workspace_bytes.value(symbols)};
  workspace.pointer = arena.allocate(workspace.bytes);
  const std::vector<uint64_t> params =
      tuner::pack_arguments(op, call, tensors, pointers, workspace);
  std::vector<Work> works;
  for (const templates::KernelLaunch& launch : plan.kernels) {
    const jit::Binary binary = compiler.compile(templates::kernel_source(op, launch), kIsa,
                                                templates::compile_options(launch));
    const auto extent = [&](const templates::Extent& of) {
      return static_cast<uint32_t>(of.value(symbols));
    };
    works.push_back({.name = fmt::format("{}, {}", launch.entry, call.name),
                     .program = program_of(arena, binary.image, launch.entry),
                     .grid = {extent(launch.grid_x), extent(launch.grid_y), extent(launch.grid_z)},
                     .block = {static_cast<uint32_t>(launch.threads), 1, 1},
                     .params = params,
                     .dynamic_shared_bytes = launch.dynamic_smem_bytes,
                     .subject = checker_subject({&op, shape, templates::config_json(config).dump()},
                                                launch.entry, std::as_bytes(std::span(params)))});
  }
  return works;
}

// --- tile_gemm

jit::SourceFile read_kernel(const std::string& name) {
  std::ifstream file(std::string(KILN_SIM_KERNELS) + "/" + name);
  std::stringstream text;
  text << file.rdbuf();
  return {"tests/sim/kernels/" + name, text.str()};
}

View view_of(const char* name, uint64_t begin, int64_t bytes) {
  return {.name = name, .begin = begin, .dims = {bytes}, .strides_bytes = {1}};
}

Work tile_gemm(Arena& arena, jit::Compiler& compiler) {
  constexpr int64_t kRows = 128, kColumns = 64, kDepth = 512;
  const jit::KernelSource source{.main = read_kernel("tile_gemm.cu"),
                                 .headers = {read_kernel("common.cuh")},
                                 .constants = {},
                                 .entry = "tile_gemm"};
  const int64_t a_bytes = 2 * kRows * kDepth;
  const int64_t b_bytes = 2 * kColumns * kDepth;
  const int64_t c_bytes = 4 * kRows * kColumns;
  const std::vector<std::byte> ones(static_cast<size_t>(a_bytes), std::byte{0x3f});
  const uint64_t a = upload(arena, ones);
  const uint64_t b = upload(arena, {ones.begin(), ones.begin() + b_bytes});
  const uint64_t c = arena.allocate(c_bytes);
  Work work{.name = fmt::format("tile_gemm, {} x {} x {}", kRows, kColumns, kDepth),
            .program = program_of(arena, compiler.compile(source, kIsa, {}).image, "tile_gemm"),
            .grid = {kRows / 32, kColumns / 16, 1},
            .block = {64, 1, 1},
            .params = {a, b, c, kColumns, kDepth}};
  work.subject.views = {view_of("a", a, a_bytes), view_of("b", b, b_bytes),
                        view_of("c", c, c_bytes)};
  work.subject.views.back().may_write = true;
  return work;
}

// --- loops of one instruction

struct Loop {
  const char* name;
  const char* text;  // #: 0 to 7, so that neighbours are independent; #00: an offset
};
// Four warps; %in and %out have 16 bytes for each thread and more behind them, %own is 16 bytes of
// shared memory of its own, which are written; %swizzled is such a place in rows of 128 bytes, with
// the low bits of the row's number mixed into the column.
constexpr Loop kLoops[] = {
    {"fma.rn.f32", "fma.rn.f32 %f#, %f#, %f8, %f9;"},
    {"lop3.b32", "lop3.b32 %x#, %x#, %x8, %x9, 0x96;"},
    {"ld.global.v4 of an input", "ld.global.v4.b32 {%x0, %x1, %x2, %x3}, [%in+#00];"},
    {"ld.global.v4 of what may be written", "ld.global.v4.b32 {%x0, %x1, %x2, %x3}, [%out+#00];"},
    {"st.global.v4", "st.global.v4.b32 [%out+#00], {%x0, %x1, %x2, %x3};"},
    {"ld.shared.v4", "ld.shared.v4.b32 {%x0, %x1, %x2, %x3}, [%own];"},
    {"st.shared.v4", "st.shared.v4.b32 [%own], {%x0, %x1, %x2, %x3};"},
    {"ld.shared.v4, swizzled", "ld.shared.v4.b32 {%x0, %x1, %x2, %x3}, [%swizzled];"},
    {"st.shared.v4, swizzled", "st.shared.v4.b32 [%swizzled], {%x0, %x1, %x2, %x3};"},
    {"cp.async.cg with commit and wait",
     "cp.async.cg.shared.global [%own], [%in+#00], 16; cp.async.commit_group; "
     "cp.async.wait_group 0;"},
    {"ldmatrix.x4", "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%x0, %x1, %x2, %x3}, [%own];"},
    {"mma.sync.m16n8k16 bf16",
     "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, "
     "{%x0, %x1, %x2, %x3}, {%x4, %x5}, {%f4, %f5, %f6, %f7};"},
};

Work loop_work(Arena& arena, const Loop& loop) {
  constexpr int kThreads = 128, kUnrolled = 32, kTurns = 64;
  constexpr int64_t kBytes = kThreads * 16 + 800;  // and the largest offset
  std::string body;
  for (int i = 0; i < kUnrolled; ++i) {
    std::string line = loop.text;
    for (size_t at; (at = line.find("#00")) != std::string::npos;)
      line.replace(at, 3, std::to_string(i % 8 * 112));
    for (size_t at; (at = line.find('#')) != std::string::npos;)
      line.replace(at, 1, std::to_string(i % 8));
    body += "  " + line + "\n";
  }
  std::string text = fmt::format(R"(.version 7.8
.target sm_80
.address_size 64
.visible .entry loop(.param .u64 in, .param .u64 out)
{{
  .shared .align 16 .b8 tile[{0}];
  .reg .pred %more;
  .reg .b32 %x<10>, %thread, %turn, %own, %swizzled;
  .reg .f32 %f<10>;
  .reg .b64 %in, %out, %offset;
  ld.param.u64 %in, [in];
  ld.param.u64 %out, [out];
  mov.u32 %thread, %tid.x;
  mul.wide.u32 %offset, %thread, 16;
  add.u64 %in, %in, %offset;
  add.u64 %out, %out, %offset;
  mov.u32 %own, tile;
  mad.lo.u32 %own, %thread, 16, %own;
  shr.u32 %turn, %thread, 3;
  and.b32 %turn, %turn, 7;
  xor.b32 %swizzled, %thread, %turn;
  mul.lo.u32 %swizzled, %swizzled, 16;
  mov.u32 %turn, tile;
  add.u32 %swizzled, %swizzled, %turn;
)",
                                 kThreads * 16);
  for (int i = 0; i < 10; ++i)
    text += fmt::format("  mov.b32 %x{0}, 0x3f803f80;\n  mov.f32 %f{0}, 0f3F800000;\n", i);
  text += fmt::format(R"(  st.shared.v4.b32 [%own], {{%x0, %x1, %x2, %x3}};
  bar.sync 0;
  mov.u32 %turn, 0;
NEXT:
{}  add.u32 %turn, %turn, 1;
  setp.lt.u32 %more, %turn, {};
  @%more bra NEXT;
  ret;
}}
)",
                      body, kTurns);
  const std::vector<std::byte> zeros(kBytes);
  const uint64_t in = upload(arena, zeros);
  const uint64_t out = upload(arena, zeros);
  Work work{.name = loop.name,
            .program = program_of(arena, std::move(text), "loop"),
            .grid = {1, 1, 1},
            .block = {kThreads, 1, 1},
            .params = {in, out}};
  work.subject.views = {view_of("in", in, kBytes), view_of("out", out, kBytes)};
  work.subject.views.back().may_write = true;
  return work;
}

// --- measuring

enum class Checks { off, on };

struct Figures {
  double ns = 0;  // of one launch, the best of the rounds
  uint64_t instructions = 0;
  uint64_t mmas = 0;
};

ExecuteResult launch_once(Arena& arena, const Work& work, Checks checks) {
  Launch launch;
  launch.program = work.program.get();
  launch.grid = work.grid;
  launch.block = work.block;
  launch.params = std::as_bytes(std::span(work.params));
  launch.dynamic_shared_bytes = work.dynamic_shared_bytes;
  launch.arena = &arena;
  std::unique_ptr<Checker> checker;
  if (checks == Checks::on) {
    checker = std::make_unique<Checker>(arena, launch, work.subject);
    launch.checker = checker.get();
  }
  ExecuteResult result = execute(launch, {.threads = 1});
  if (result.fault.empty() && checker != nullptr) result.fault = checker->summary();
  if (!result.fault.empty()) fail(Status::internal, "{}: {}", work.name, result.fault);
  return result;
}

// Of the thread, which others on the machine disturb less than the wall clock.
double cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

Figures measure(Arena& arena, const Work& work, Checks checks, double seconds) {
  constexpr int kRounds = 20;
  const ExecuteResult first = launch_once(arena, work, checks);
  Figures figures{.ns = 1e18, .instructions = first.instructions, .mmas = first.mmas};
  for (int round = 0; round < kRounds; ++round) {
    const double begin = cpu_ns();
    int launches = 0;
    double took_ns = 0;
    do {
      launch_once(arena, work, checks);
      ++launches;
      took_ns = cpu_ns() - begin;
    } while (took_ns < seconds * 1e9 / kRounds);
    figures.ns = std::min(figures.ns, took_ns / launches);
  }
  return figures;
}

void print(const std::string& name, const Figures& off, const Figures& on) {
  const auto per_instruction = [](const Figures& figures) {
    return figures.ns / static_cast<double>(figures.instructions);
  };
  const auto millions = [](uint64_t count, const Figures& figures) {
    return static_cast<double>(count) * 1e3 / figures.ns;
  };
  const auto mmas = [&](const Figures& figures) {
    return figures.mmas == 0 ? std::string("-")
                             : fmt::format("{:.2f}", millions(figures.mmas, figures));
  };
  fmt::print("| {} | {} | {:.1f} | {:.1f} | {:.0f} | {:.0f} | {} | {} |\n", name, off.instructions,
             millions(off.instructions, off), millions(on.instructions, on), per_instruction(off),
             per_instruction(on), mmas(off), mmas(on));
  std::fflush(stdout);
}

void run(double seconds) {
  Arena arena(int64_t{1} << 30, Marks::on);
  const std::shared_ptr<jit::Compiler> compiler = jit::Compiler::load();
  std::vector<Work> works;
  for (const templates::Kit* kit : templates::kits()) {
    const templates::Sizes shape = kit->op->model_shapes(2).front();
    const templates::Sizes bucket = templates::all_buckets(*kit->op).front();
    for (Work& work :
         op_works(arena, *compiler, *kit, shape, kit->verify_cases(shape, bucket).at(1)))
      works.push_back(std::move(work));
  }
  works.push_back(tile_gemm(arena, *compiler));
  for (const Loop& loop : kLoops) works.push_back(loop_work(arena, loop));
  fmt::print(
      "Of each pair the checker is off, then on. M/s: millions a second on one host thread.\n\n"
      "| kernel | warp instructions | M/s | M/s | ns each | ns each | mma M/s | mma M/s |\n"
      "|---|--:|--:|--:|--:|--:|--:|--:|\n");
  for (const Work& work : works) {
    const Figures off = measure(arena, work, Checks::off, seconds);
    const Figures on = measure(arena, work, Checks::on, seconds);
    print(work.name, off, on);
  }
}

void run_call(double seconds, const std::string& op_name, const std::string& shape_text,
              const std::string& sizes_text) {
  const templates::Op& op = templates::require_op(op_name);
  const templates::Kit& kit = templates::require_kit(op);
  const templates::Sizes shape = templates::parse_shape(op, parse_json(shape_text, "shape"));
  const templates::Sizes sizes = templates::parse_dynamic(op, parse_json(sizes_text, "sizes"));
  Arena arena(int64_t{1} << 30, Marks::on);
  const std::shared_ptr<jit::Compiler> compiler = jit::Compiler::load();
  fmt::print(
      "| kernel | warp instructions | mma | ms | ms with the checker |\n|---|--:|--:|--:|--:|\n");
  for (const Work& work : op_works(arena, *compiler, kit, shape, kit.measured_case(shape, sizes))) {
    const Figures off = measure(arena, work, Checks::off, seconds);
    const Figures on = measure(arena, work, Checks::on, seconds);
    fmt::print("| {} | {} | {} | {:.1f} | {:.1f} |\n", work.name, off.instructions, off.mmas,
               off.ns / 1e6, on.ns / 1e6);
  }
}

}  // namespace
}  // namespace kiln::runtime::sim

int main(int argc, char** argv) {
  try {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 1.5;
    if (argc == 5)
      kiln::runtime::sim::run_call(seconds, argv[2], argv[3], argv[4]);
    else
      kiln::runtime::sim::run(seconds);
  } catch (const kiln::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
