// The parser of PTX: what it makes of correct text, and that no damaged one does more than fail.
// PTX comes from files that others made, so that damage must not end or hold up the process.
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <random>
#include <sstream>

#include "jit/base/error.h"
#include "jit/compiler.h"
#include "runtime/sim/decode.h"
#include "runtime/sim/ptx.h"

namespace kiln::runtime::sim {
namespace {

constexpr const char* kHeader = ".version 7.8\n.target sm_80\n.address_size 64\n";

Module parse(const std::string& text) { return parse_ptx(kHeader + text); }
Module parse_body(const std::string& body) {
  return parse(".visible .entry kernel(.param .u64 a)\n{\n" + body + "\n}\n");
}
std::shared_ptr<const Program> decode_body(const std::string& body) {
  return decode(std::make_shared<const Module>(parse_body(body)), "kernel", {});
}

// The sentence with which it fails; "" when it does not.
template <class Action>
std::string refusal(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}
std::string parse_error(const std::string& text) {
  return refusal([&] { parse(text); });
}
std::string body_error(const std::string& body) {
  return refusal([&] { decode_body(body); });
}
void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
}

std::string repeated(const std::string& text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

// --- correct text

TEST(Ptx, StatementsKnowTheirNameOperandsLineAndSource) {
  const Module module = parse(
      ".file 1 \"a.cu\"\n.file 2 \"b.cuh\"\n"
      ".visible .entry kernel(.param .u64 .ptr .global .align 16 a, .param .align 8 .b8 b[24])\n"
      "{\n.reg .pred %p<2>;\n.reg .b32 %r<4>;\n.reg .b64 %d<2>;\n"
      ".loc 1 7 3\n$L_top:\n@!%p1 ld.global.v2.u32 {%r1, _}, [%d1+-8];\n"
      ".loc 2 9 1, function_name $L_info, inlined_at 1 12 5\n"
      "shfl.sync.idx.b32 %r2|%p0, %r1, 0x1f, %r3, -1;\nbra.uni $L_top;\n}\n");
  ASSERT_EQ(module.functions.size(), 1u);
  const Function& kernel = *module.find("kernel");
  EXPECT_TRUE(kernel.is_entry);
  EXPECT_EQ(module.target, "sm_80");
  EXPECT_EQ(module.files.at(2), "b.cuh");
  ASSERT_EQ(kernel.params.size(), 2u);
  EXPECT_EQ(kernel.params[0].align, 16);
  EXPECT_EQ(kernel.params[1].bytes, 24);
  EXPECT_EQ(kernel.registers.size(), 8u);
  EXPECT_EQ(kernel.labels.at("$L_top"), 0u);
  ASSERT_EQ(kernel.statements.size(), 3u);

  const Statement& load = kernel.statements[0];
  EXPECT_EQ(load.text, "@!%p1 ld.global.v2.u32 {%r1, _}, [%d1+-8];");
  EXPECT_EQ(load.name, (std::vector<std::string_view>{"ld", "global", "v2", "u32"}));
  EXPECT_EQ(load.guard, 1);
  EXPECT_TRUE(load.guard_negated);
  EXPECT_EQ(load.where.line, 7);
  ASSERT_EQ(load.operands.size(), 2u);
  EXPECT_EQ(load.operands[0].kind, Operand::Kind::group);
  EXPECT_EQ(load.operands[0].parts[1].kind, Operand::Kind::sink);
  EXPECT_EQ(load.operands[1].kind, Operand::Kind::address);
  EXPECT_EQ(load.operands[1].reg, 7);
  EXPECT_EQ(load.operands[1].offset, -8);

  const Statement& shuffle = kernel.statements[1];
  EXPECT_EQ(shuffle.where.file, 2);
  EXPECT_EQ(shuffle.where.caller_line, 12);
  EXPECT_EQ(shuffle.operands[0].parts.size(), 2u);
  EXPECT_EQ(shuffle.operands[2].bits, 0x1fu);
  EXPECT_EQ(shuffle.operands[4].bits, ~uint64_t{0});
  EXPECT_EQ(kernel.statements[2].operands[0].name, "$L_top");
}

TEST(Ptx, VariablesHaveSizeAlignmentAndContent) {
  const Module module = parse(
      ".global .align 4 .b8 text[4] = {65, 66, 0x43};\n"
      ".const .f32 half = 0f3F000000;\n"
      ".global .u64 table[2] = {0, generic(text)+2};\n"
      ".extern .shared .align 16 .b8 more[];\n"
      ".shared .v4 .f32 tile[8][2], other;\n");
  ASSERT_EQ(module.variables.size(), 6u);
  EXPECT_EQ(module.variables[0].bytes, 4);
  EXPECT_EQ(module.variables[0].content, "ABC");
  EXPECT_EQ(module.variables[1].space, Space::constant);
  float half = 0;
  std::memcpy(&half, module.variables[1].content.data(), sizeof half);
  EXPECT_EQ(half, 0.5F);
  ASSERT_EQ(module.variables[2].relocations.size(), 1u);
  EXPECT_EQ(module.variables[2].relocations[0].offset, 8);
  EXPECT_EQ(module.variables[2].relocations[0].addend, 2);
  EXPECT_EQ(module.variables[3].bytes, 0);
  EXPECT_EQ(module.variables[3].align, 16);
  EXPECT_EQ(module.variables[4].bytes, 256);
  EXPECT_EQ(module.variables[4].align, 16);
  EXPECT_EQ(module.variables[5].name, "other");
}

TEST(Ptx, NumbersOfEveryForm) {
  const Module module = parse_body(
      ".reg .b64 %d<2>;\n"
      "mov.b64 %d0, 017;\nmov.b64 %d0, 0b101;\nmov.b64 %d0, 0xFFU;\nmov.b64 %d0, -9;\n"
      "mov.f64 %d0, 0d3FF0000000000000;\nmov.f64 %d0, -1.5e-3;\nmov.f64 %d0, 0f7FA00000;\n");
  const std::vector<Statement>& all = module.functions[0].statements;
  const auto bits = [&](size_t i) { return all[i].operands[1].bits; };
  EXPECT_EQ(bits(0), 15u);
  EXPECT_EQ(bits(1), 5u);
  EXPECT_EQ(bits(2), 255u);
  EXPECT_EQ(bits(3), static_cast<uint64_t>(-9));
  EXPECT_EQ(std::bit_cast<double>(bits(4)), 1.0);
  EXPECT_EQ(std::bit_cast<double>(bits(5)), -1.5e-3);
  EXPECT_EQ(bits(6), 0x7ff4000000000000u);  // a signalling NaN keeps its payload
}

TEST(Ptx, AModuleOfFewCharactersKeepsItsTextWhenItMoves) {
  Module first = parse_ptx(".entry a(){b;}");
  const std::string_view name = first.functions[0].statements[0].name[0];
  const Module second = std::move(first);
  EXPECT_EQ(name.data(), second.text.data() + 11);
}

TEST(Ptx, InnerRegistersHideOuterOnes) {
  const Module module =
      parse_body(".reg .b32 %r<2>;\n{\n.reg .b32 %r<2>;\nmov.b32 %r1, 0;\n}\nmov.b32 %r1, 0;\n");
  EXPECT_EQ(module.functions[0].statements[0].operands[0].reg, 3);
  EXPECT_EQ(module.functions[0].statements[1].operands[0].reg, 1);
}

// --- errors

TEST(Ptx, TextThatEndsTooEarlyIsAnError) {
  for (const char* text : {".section",
                           ".section .debug_str",
                           ".section .debug_str {",
                           ".entry",
                           ".entry k(",
                           ".entry k(.param",
                           ".entry k()",
                           ".entry k() {",
                           ".entry k() { .reg",
                           ".entry k() { .reg .b32",
                           ".entry k() { .reg .b32 %r<",
                           ".entry k() { .loc",
                           ".entry k() { ld.global.u32 {",
                           ".entry k() { ld.global.u32 [",
                           ".entry k() { @",
                           ".entry k() { bra",
                           ".entry k() { L:",
                           ".entry k() { L: .branchtargets",
                           ".entry k() .maxntid",
                           ".global",
                           ".global .u32",
                           ".global .u32 x",
                           ".global .u32 x[",
                           ".global .u32 x[4] = {",
                           ".file",
                           ".file 1"}) {
    EXPECT_NE(parse_error(text), "") << text;
  }
}

TEST(Ptx, CommentsAndTextsThatNeverEndAreErrorsOrTheEnd) {
  EXPECT_EQ(parse_error("/* and so on"), "");
  EXPECT_EQ(parse_error("/*/ still a comment */"), "");
  EXPECT_EQ(parse_error("/*"), "");
  EXPECT_NE(parse_error(".file 1 \"abc"), "");
  EXPECT_NE(parse_error(".file 1 abc"), "");
}

TEST(Ptx, DeepNestingIsAnError) {
  constexpr int kDepth = 2'000'000;
  const std::string open = repeated("{", kDepth);
  expect_part(parse_error(".global .u32 x[4] = " + open), "nested more than");
  expect_part(parse_error(".entry k() " + open), "nested more than");
  expect_part(parse_error(".entry k() { ld.global.u32 " + open), "nested more than");
  expect_part(parse_error(".entry k() { setp " + repeated("!", kDepth)), "nested more than");
  expect_part(parse_error(".entry k() { call " + repeated("(", kDepth)), "nested more than");
}

TEST(Ptx, SizesThatNothingHasAreErrors) {
  expect_part(body_error(".reg .b32 %r<2000000000>;"), "registers");
  expect_part(body_error(".reg .b32 %r<-1>;"), "registers");
  expect_part(body_error(".local .b8 x[1000000000];"), "local memory");
  expect_part(body_error(".shared .b8 x[1000000000];"), "shared memory");
  expect_part(body_error(".shared .b8 x[4294967296][4294967296];"), "shared memory");
  expect_part(parse_error(".global .b64 x[0x7fffffffffffffff];"), "global memory");
  expect_part(parse_error(".global .b8 x[-5];"), "-5");
  expect_part(parse_error(".const .b8 x[70000];"), "constant memory");
  expect_part(parse_error(".entry k(.param .b8 x[100000]) { ret; }"), "parameter memory");
  expect_part(parse_error(".global .b8 x[1.5];"), "an integer");
}

TEST(Ptx, TypesAndAlignmentsThatNothingHasAreErrors) {
  expect_part(parse_error(".shared .thing x;"), ".thing");
  expect_part(parse_error(".shared x;"), "not supported");
  expect_part(parse_error(".shared .b12 x;"), ".b12");
  for (const char* align : {"0", "-4", "3", "1048576"})
    expect_part(parse_error(fmt::format(".shared .align {} .b8 x[4];", align)), "power of two");
  expect_part(body_error(".reg .b128 %q<2>;"), "b128");
  expect_part(body_error(".reg .v4 .b32 %q<2>;"), "vector registers");
}

TEST(Ptx, InitialValuesHaveToFit) {
  expect_part(parse_error(".global .b8 x[2] = {1, 2, 3};"), "given 3 bytes and has 2");
  expect_part(parse_error(".global .b128 x = 1;"), "no initial values");
  expect_part(parse_error(".global .u32 y;\n.global .u32 x = y;"), "needs 8 bytes");
  expect_part(parse_error(".global .u16 x = 1.5;"), "does not fit");
}

TEST(Ptx, AGuardHasToBeAPredicate) {
  expect_part(body_error(".reg .b32 %r<2>;\n@%r1 ret;"), "a predicate");
  expect_part(body_error("@%p1 ret;"), "a predicate");
}

TEST(Ptx, ANumberIsReadAsAWhole) {
  for (const char* number : {"0x", "08", "12abc", "0f3F", "99999999999999999999", "1.2.3"}) {
    expect_part(body_error(fmt::format(".reg .b64 %d<2>;\nmov.b64 %d0, {};", number)),
                "is not a number");
  }
}

TEST(Ptx, ACallNeedsAName) {
  expect_part(body_error("call;"), "does not say what it calls");
  expect_part(body_error("call.uni (%r0);"), "named functions");
}

TEST(Ptx, CallsThatMultiplyAreRefused) {
  std::string text;
  for (int level = 0; level < 12; ++level) {
    text += fmt::format(".func f{}() {{ {} ret; }}\n", level,
                        level == 0 ? "" : repeated(fmt::format("call f{};\n", level - 1), 30));
  }
  text += ".entry kernel() { call f11; ret; }\n";
  expect_part(refusal([&] { decode(std::make_shared<const Module>(parse(text)), "kernel", {}); }),
              "becomes a copy");
}

TEST(Ptx, ABarrierHasItsOperandsAndNoMore) {
  const std::string registers = ".reg .b32 %r<2>;\n.reg .pred %p<2>;\n";
  for (const char* legal :
       {"bar.sync 0;", "bar.sync 0, 32;", "bar.arrive 1, 64;", "barrier.cta.sync.aligned 0, 32;",
        "bar.red.popc.u32 %r0, 0, %p1;", "bar.red.and.pred %p0, 0, 64, !%p1;"}) {
    EXPECT_EQ(body_error(registers + legal), "") << legal;
  }
  expect_part(body_error("bar.sync 0, 32, 5;"), "it has 3 operands, expected 1 to 2");
  expect_part(body_error("bar.sync;"), "expected 1 to 2");
  expect_part(body_error("bar.arrive 0;"), "how many threads");
  expect_part(body_error("bar.arrive 0, 32, 5;"), "it has 3 operands");
  expect_part(body_error(registers + "bar.red.popc.u32 %r0, 0;"), "expected 3 to 4");
  expect_part(body_error(registers + "bar.red.popc.u32 %r0, 0, 32, %p1, %p1;"), "expected 3 to 4");
}

// --- damaged text of real kernels

std::string read_kernel(const std::string& name) {
  std::ifstream file(std::string(KILN_SIM_KERNELS) + "/" + name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

const std::vector<jit::Binary>& kernels() {
  static const std::vector<jit::Binary> binaries = [] {
    const std::shared_ptr<jit::Compiler> compiler = jit::Compiler::load();
    std::vector<jit::Binary> result;
    for (const std::string name : {"tile_gemm", "grid_sum"}) {
      const jit::KernelSource source{
          .main = {"tests/sim/kernels/" + name + ".cu", read_kernel(name + ".cu")},
          .headers = {{"tests/sim/kernels/common.cuh", read_kernel("common.cuh")}},
          .entry = name};
      result.push_back(compiler->compile(source, "compute_80", {}));
    }
    return result;
  }();
  return binaries;
}

std::shared_ptr<const Program> decode_all(std::string text, const std::string& entry) {
  const auto module = std::make_shared<const Module>(parse_ptx(std::move(text)));
  SymbolAddresses addresses;
  for (const Variable& variable : module->variables) addresses[variable.name] = 4096;
  return decode(module, entry, addresses);
}

// Anything but an Error ends the test, as do a crash and a hang.
void try_out(std::string text, const std::string& entry) {
  try {
    decode_all(std::move(text), entry);
  } catch (const Error&) {
  }
}

TEST(DamagedPtx, RealKernelsAreTakenAsTheyAre) {
  for (const jit::Binary& kernel : kernels()) {
    EXPECT_GT(decode_all(kernel.image, kernel.entry)->code.size(), 20u) << kernel.entry;
  }
}

TEST(DamagedPtx, EveryTruncationOnlyFails) {
  for (const jit::Binary& kernel : kernels()) {
    const size_t step = kernel.image.size() / 500 + 1;
    for (size_t bytes = 0; bytes < kernel.image.size(); bytes += step)
      try_out(kernel.image.substr(0, bytes), kernel.entry);
  }
}

// Pieces that change the meaning of what is around them.
constexpr const char* kPieces[] = {
    "{", "}",    "(",       ")",        "[",      "]",           "<",    ">",  ";",
    ",", "|",    "!",       "@",        "-",      "\"",          "/*",   ":",  ".",
    "%", "%r1",  "_",       ".reg",     ".align", ".param",      ".loc", "0x", "-1",
    "=", "call", "brx.idx", "bar.sync", ".b128",  "99999999999", ".pred"};

TEST(DamagedPtx, RandomDamageOnlyFails) {
  constexpr uint32_t kSeed = 20260415;
  constexpr int kDamages = 1500;
  std::mt19937 random(kSeed);
  for (const jit::Binary& kernel : kernels()) {
    for (int i = 0; i < kDamages; ++i) {
      std::string text = kernel.image;
      const auto below = [&](size_t bound) { return random() % std::max<size_t>(bound, 1); };
      for (size_t damages = 1 + below(3); damages > 0; --damages) {
        const size_t at = below(text.size());
        const std::string piece = kPieces[below(std::size(kPieces))];
        switch (below(5)) {
          case 0:
            text[at] = static_cast<char>(random());
            break;
          case 1:
            text.erase(at, 1 + below(40));
            break;
          case 2:
            text.insert(at, piece);
            break;
          case 3:
            text.replace(at, std::min<size_t>(text.size() - at, 1 + below(6)), piece);
            break;
          default:
            text.insert(at, text.substr(below(text.size()), below(200)));
        }
      }
      SCOPED_TRACE(fmt::format("{}, seed {}, damage {}", kernel.entry, kSeed, i));
      try_out(std::move(text), kernel.entry);
    }
  }
}

}  // namespace
}  // namespace kiln::runtime::sim
