// Runs a kernel written in PTX on a small simulated GPU, with or without the checker.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/sim/arena.h"
#include "runtime/sim/checker.h"
#include "runtime/sim/decode.h"
#include "runtime/sim/execute.h"

namespace kiln::runtime::sim {

class MemoryTest : public testing::Test {
 protected:
  static constexpr int64_t kCapacity = int64_t{1} << 30;

  struct Outcome {
    std::string fault;
    std::vector<Report> reports;
    uint64_t found = 0;
    uint64_t instructions = 0;
    std::string summary;

    bool is_clean() const { return fault.empty() && found == 0; }
    std::string text() const {
      std::string all = fault;
      for (const Report& report : reports) all += "\n" + describe(report);
      return all;
    }
    // The report of a kind, or one that says that there is none.
    const Report& of(Report::Kind kind) const {
      static const Report none{.what = "(no such report)"};
      for (const Report& report : reports) {
        if (report.kind == kind) return report;
      }
      return none;
    }
    bool has(Report::Kind kind) const { return of(kind).kernel == "kernel"; }
  };

  template <class T>
  uint64_t upload(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    const uint64_t address = arena_.allocate(bytes);
    arena_.copy_in(address, values.data(), bytes);
    return address;
  }
  template <class T>
  std::vector<T> download(uint64_t address, size_t count) const {
    std::vector<T> values(count);
    arena_.copy_out(values.data(), address, static_cast<int64_t>(count * sizeof(T)));
    return values;
  }

  // `body` is what is between the braces; %p0 to %p7, %h0 to %h15 (16 bits), %r0 to %r63 and %d0 to
  // %d31 exist, %d0 to %d3 hold the four parameters, %r0 holds %tid.x, %r1 %ctaid.x; `more` is
  // dynamic shared memory. `functions_` stands before the kernel.
  Outcome run(std::string_view body, std::vector<uint64_t> params = {}) {
    params.resize(4);
    std::string text =
        ".version 7.8\n.target sm_80\n.address_size 64\n.file 1 \"kernel.cu\"\n"
        ".extern .shared .align 16 .b8 more[];\n" +
        functions_ +
        ".visible .entry kernel(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d)\n{\n"
        ".reg .pred %p<8>;\n.reg .b16 %h<16>;\n.reg .b32 %r<64>;\n.reg .b64 %d<32>;\n"
        "ld.param.u64 %d0, [a];\nld.param.u64 %d1, [b];\n"
        "ld.param.u64 %d2, [c];\nld.param.u64 %d3, [d];\n"
        "mov.u32 %r0, %tid.x;\nmov.u32 %r1, %ctaid.x;\n";
    text += body;
    text += "\nret;\n}\n";
    const auto module = std::make_shared<const Module>(parse_ptx(std::move(text)));
    const std::shared_ptr<const Program> program = decode(module, "kernel", {});
    Launch launch;
    launch.program = program.get();
    launch.grid = {grid_, 1, 1};
    launch.block = {block_, 1, 1};
    launch.params = std::as_bytes(std::span(params));
    launch.dynamic_shared_bytes = dynamic_shared_bytes_;
    launch.arena = &arena_;
    std::unique_ptr<Checker> checker;
    if (checks_) {
      checker = std::make_unique<Checker>(
          arena_, launch,
          Subject{.op = "op",
                  .config = "{}",
                  .bounds = views_.empty() ? Bounds::everything : Bounds::views,
                  .views = views_,
                  .call_mark = call_mark_});
      launch.checker = checker.get();
    }
    Outcome outcome;
    ExecuteResult result = execute(
        launch, {.threads = host_threads_, .resident_ctas = resident_ctas_, .limit = limit_});
    outcome.fault = std::move(result.fault);
    outcome.instructions = result.instructions;
    if (checker != nullptr) {
      outcome.reports = checker->reports();
      outcome.found = checker->found();
      outcome.summary = checker->summary();
    }
    return outcome;
  }

  Arena arena_{kCapacity, Marks::on};
  bool checks_ = true;
  int host_threads_ = 1;
  uint64_t resident_ctas_ = 1024;
  std::chrono::milliseconds limit_{20'000};
  std::string functions_;
  uint32_t grid_ = 1;
  uint32_t block_ = 32;
  int64_t dynamic_shared_bytes_ = 0;
  std::vector<View> views_;  // none: everything may be touched
  uint8_t call_mark_ = kFirstCallMark;
};

}  // namespace kiln::runtime::sim
