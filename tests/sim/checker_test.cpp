// Each kind of fault is planted and found, and what is right beside it is not reported.
#include <algorithm>

#include "jit/base/error.h"
#include "tests/sim/memory_testing.h"

namespace kiln::runtime::sim {
namespace {

using Kind = Report::Kind;

// %r8: the thread's word of a tile in shared memory; %r9: that of its neighbour in the warp; %r10:
// the same place in the next warp. %d10: the thread's word of the first parameter.
constexpr std::string_view kTile =
    ".shared .align 16 .b8 tile[4096];\nmov.u32 %r20, tile;\nmad.lo.u32 %r8, %r0, 4, %r20;\n"
    "xor.b32 %r21, %r0, 1;\nmad.lo.u32 %r9, %r21, 4, %r20;\n"
    "xor.b32 %r21, %r0, 32;\nmad.lo.u32 %r10, %r21, 4, %r20;\n"
    "mad.wide.u32 %d10, %r0, 4, %d0;\n";

class CheckerTest : public MemoryTest {
 protected:
  Outcome tile(const std::string& body, std::vector<uint64_t> params = {}) {
    return run(std::string(kTile) + body, std::move(params));
  }
  void expect_clean(const std::string& body, std::vector<uint64_t> params = {}) {
    const Outcome outcome = tile(body, std::move(params));
    EXPECT_TRUE(outcome.is_clean()) << body << outcome.text();
  }
  // Of two that race, either may come first: then both may be reported.
  Report expect_found(Kind kind, const std::string& body, std::vector<uint64_t> params = {}) {
    const Outcome outcome = tile(body, std::move(params));
    EXPECT_EQ(outcome.fault, "");
    EXPECT_TRUE(outcome.has(kind)) << body << outcome.text();
    return outcome.of(kind);
  }
  Report expect_one(Kind kind, const std::string& body, std::vector<uint64_t> params = {}) {
    const Outcome outcome = tile(body, std::move(params));
    EXPECT_EQ(outcome.fault, "");
    EXPECT_EQ(outcome.reports.size(), 1u) << body << outcome.text();
    EXPECT_TRUE(outcome.has(kind)) << body << outcome.text();
    return outcome.of(kind);
  }
};

// --- views

class Views : public CheckerTest {
 protected:
  // 3 rows of 5 floats, 32 bytes apart, in the middle of an allocation.
  void SetUp() override {
    memory_ = upload(std::vector<float>(256, 1.0f));
    views_ = {{.name = "x",
               .begin = memory_ + 256,
               .element_bytes = 4,
               .dims = {3, 5},
               .strides_bytes = {32, 4},
               .may_write = true}};
  }
  std::string load(int64_t offset, const char* type = "u32") {
    return fmt::format("ld.global.{} %r11, [%d0+{}];\n", type, 256 + offset);
  }
  uint64_t memory_ = 0;
};

TEST_F(Views, EveryElementIsInside) {
  std::string body;
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 5; ++column) body += load(row * 32 + column * 4);
  }
  body += "ld.global.v4.u32 {%r11, %r12, %r13, %r14}, [%d0+320];\n" + load(82, "u8");
  expect_clean(body, {memory_});
}

TEST_F(Views, BesideTheRowsIsOutside) {
  for (const int64_t offset : {-4, 20, 28, 52, 84, 96}) {
    const Report report = expect_one(Kind::outside, load(offset), {memory_});
    EXPECT_EQ(report.argument, "x");
    EXPECT_EQ(report.offset, offset);
    EXPECT_EQ(report.element, offset / 4);
    EXPECT_EQ(report.bytes, 4);
    EXPECT_EQ(report.what, "reads 4 bytes outside of `x`");
  }
}

TEST_F(Views, AnAccessLiesInOneRowAsAWhole) {
  const std::string vector = "ld.global.v4.u32 {%r11, %r12, %r13, %r14}, [%d0+272];\n";
  EXPECT_EQ(expect_one(Kind::outside, vector, {memory_}).offset, 16);
}

TEST_F(Views, OfAWideAccessTheLaneOutsideIsNamed) {
  views_ = {
      {.name = "x", .begin = memory_, .element_bytes = 4, .dims = {30}, .strides_bytes = {4}}};
  block_ = 64;
  views_[0].dims = {62};
  const Report report = expect_one(Kind::outside, "ld.global.u32 %r11, [%d10];\n", {memory_});
  EXPECT_EQ(report.thread.x, 62u);
  EXPECT_EQ(report.element, 62);
}

TEST_F(Views, TheNearestOneIsNamed) {
  views_.push_back(
      {.name = "y", .begin = memory_ + 512, .element_bytes = 2, .dims = {4}, .strides_bytes = {2}});
  EXPECT_EQ(expect_one(Kind::outside, load(256 - 4), {memory_}).argument, "y");
  EXPECT_EQ(expect_one(Kind::outside, load(256 + 8), {memory_}).offset, 8);
}

TEST_F(Views, AnInputIsNotWritten) {
  views_[0].may_write = false;
  const Report report =
      expect_one(Kind::write_to_input, "st.global.u32 [%d0+260], %r0;\n", {memory_});
  EXPECT_EQ(report.what, "writes 4 bytes of the input `x`");
  EXPECT_EQ(report.element, 1);
  expect_one(Kind::write_to_input, "red.global.add.u32 [%d0+260], 1;\n", {memory_});
}

TEST_F(Views, AnOutputIsNotRead) {
  views_[0].may_read = false;
  EXPECT_EQ(expect_one(Kind::read_of_output, load(0), {memory_}).what,
            "reads 4 bytes of the output `x` that this call has not written");
  expect_one(Kind::read_of_output, "red.global.add.u32 [%d0+256], 1;\n", {memory_});
  expect_one(Kind::read_of_output, "st.global.u32 [%d0+256], 1;\nld.global.u64 %d11, [%d0+256];\n",
             {memory_});
  expect_clean("st.global.u32 [%d0+260], 1;\n", {memory_});
}

TEST_F(Views, WhatTheCallItselfWroteOfAnOutputIsRead) {
  views_[0].may_read = false;
  block_ = 1;
  const std::string zero = "st.global.u32 [%d0+256], 0;\n";
  const std::string add = "red.global.add.u32 [%d0+256], 1;\n";
  expect_clean(zero + add + add + load(0), {memory_});
  expect_clean(add + load(0), {memory_});  // the next launch of the same call

  const std::vector<uint32_t> poison{0x5a5a5a5a};
  arena_.copy_in(memory_ + 256, poison.data(), 4);
  expect_one(Kind::read_of_output, add, {memory_});

  expect_clean(zero, {memory_});
  call_mark_ += 2;  // the next call finds what is left of the last one
  expect_one(Kind::read_of_output, load(0), {memory_});
  expect_clean(zero + load(0), {memory_});
}

TEST_F(Views, AnotherViewMayPermitWhatAnOutputDoesNot) {
  views_[0].may_read = false;
  views_.push_back({.name = "y",
                    .begin = memory_ + 256,
                    .element_bytes = 4,
                    .dims = {3, 5},
                    .strides_bytes = {32, 4}});
  expect_clean(load(0), {memory_});
}

TEST_F(Views, WithoutATensorNothingMayBeTouched) {
  const Checker none(arena_, Launch{}, Subject{.op = "op"});
  views_ = {{.name = "x", .begin = 0, .dims = {0}, .strides_bytes = {1}}};
  expect_one(Kind::outside, load(0), {memory_});
}

TEST_F(Views, ReadOnlyAndWritableViewsMayOverlap) {
  views_[0].may_write = false;
  views_.push_back({.name = "y",
                    .begin = memory_ + 256,
                    .element_bytes = 4,
                    .dims = {2},
                    .strides_bytes = {4},
                    .may_write = true});
  expect_clean("st.global.u32 [%d0+260], 1;\n", {memory_});
  expect_one(Kind::write_to_input, "st.global.u32 [%d0+264], 1;\n", {memory_});
}

TEST_F(Views, TransposedBroadcastReversedAndOverlappingOnes) {
  // Element (i, j) at 4 i + 16 j; 4 copies of one row; three elements backwards; windows of 4 that
  // begin every 2 elements.
  views_ = {
      {.name = "t", .begin = memory_, .element_bytes = 4, .dims = {2, 3}, .strides_bytes = {4, 16}},
      {.name = "b",
       .begin = memory_ + 64,
       .element_bytes = 4,
       .dims = {4, 3},
       .strides_bytes = {0, 4}},
      {.name = "r", .begin = memory_ + 136, .element_bytes = 4, .dims = {3}, .strides_bytes = {-4}},
      {.name = "w",
       .begin = memory_ + 192,
       .element_bytes = 4,
       .dims = {3, 4},
       .strides_bytes = {8, 4}}};
  const std::vector<int> inside = {0, 4, 16, 20, 32, 36, 64, 68, 72, 128, 132, 136};
  for (int offset = 0; offset < 256; offset += 4) {
    const bool is_inside = std::find(inside.begin(), inside.end(), offset) != inside.end() ||
                           (offset >= 192 && offset < 224);
    const Outcome outcome = tile(load(offset - 256), {memory_});
    EXPECT_EQ(outcome.is_clean(), is_inside) << offset;
  }
  expect_clean("ld.global.v4.u32 {%r11, %r12, %r13, %r14}, [%d0+208];\n", {memory_});
}

TEST_F(Views, WithoutAnyAllAllocationsCount) {
  views_.clear();
  expect_clean(load(252) + "st.global.u32 [%d0], 1;\n", {memory_});
}

TEST_F(Views, ThatCannotBeAreRefused) {
  views_[0].strides_bytes = {4};
  EXPECT_THROW(tile(""), Error);
}

// --- bytes that nobody wrote

TEST_F(CheckerTest, GlobalBytesThatNobodyWrote) {
  const uint64_t memory = arena_.allocate(1024);
  arena_.fill(memory, 0, 124);
  const Report report =
      expect_one(Kind::uninitialised_global, "ld.global.u32 %r11, [%d10];\n", {memory});
  EXPECT_EQ(report.thread.x, 31u);
  expect_clean("setp.lt.u32 %p1, %r0, 31;\n@%p1 ld.global.u32 %r11, [%d10];\n", {memory});
  expect_one(Kind::uninitialised_global, "red.global.add.u32 [%d0+512], 1;\n", {memory});
  expect_clean("st.global.u32 [%d10], 1;\nld.global.u32 %r11, [%d10];\n", {memory});
}

TEST_F(CheckerTest, HalfWrittenGlobalWords) {
  const uint64_t memory = arena_.allocate(64);
  expect_one(Kind::uninitialised_global,
             "st.global.u16 [%d0], %r0;\nbar.sync 0;\nld.global.u16 %h1, [%d0];\n"
             "ld.global.u32 %r11, [%d0];\n",
             {memory});
}

TEST_F(CheckerTest, SharedBytesThatNobodyWrote) {
  const Report report =
      expect_one(Kind::uninitialised_shared,
                 "setp.ne.u32 %p1, %r0, 7;\n@%p1 st.shared.u32 [%r8], %r0;\nbar.sync 0;\n"
                 "ld.shared.u32 %r11, [%r8];\n");
  EXPECT_EQ(report.thread.x, 7u);
  EXPECT_EQ(report.space, Space::shared);
  EXPECT_EQ(report.address, 28u);
  expect_one(Kind::uninitialised_shared,
             "st.shared.u16 [%r8], %r0;\nld.shared.u16 %r11, [%r8];\nld.shared.u32 %r11, [%r8];\n");
  expect_one(Kind::uninitialised_shared, "atom.shared.add.u32 %r11, [%r8], 1;\n");
}

TEST_F(CheckerTest, SharedMemoryIsEmptyForEveryBlock) {
  grid_ = 2;
  const Report report = expect_one(Kind::uninitialised_shared,
                                   "setp.eq.u32 %p1, %r1, 0;\n@%p1 st.shared.u32 [%r8], %r0;\n"
                                   "ld.shared.u32 %r11, [%r8];\n");
  EXPECT_EQ(report.block.x, 1u);
}

TEST_F(CheckerTest, LocalBytesThatTheThreadDidNotWrite) {
  const Report report =
      expect_one(Kind::uninitialised_local,
                 ".local .align 8 .b8 own[16];\nsetp.ne.u32 %p1, %r0, 3;\n"
                 "@%p1 st.local.u32 [own+4], %r0;\nld.local.u32 %r11, [own+4];\n");
  EXPECT_EQ(report.thread.x, 3u);
  expect_clean(
      ".local .align 8 .b8 own[16];\nst.local.u64 [own+8], %d0;\nld.local.u32 %r11, [own+12];\n");
}

// --- shared memory

TEST_F(CheckerTest, ReadOfAnotherWarpsWriteNeedsABarrier) {
  block_ = 64;
  // Only the second warp reads, after a barrier that is too early for what the first one writes.
  const Report report =
      expect_found(Kind::shared_race,
                   "st.shared.u32 [%r8], 0;\nbar.sync 0;\nsetp.lt.u32 %p1, %r0, 32;\n"
                   "@%p1 st.shared.u32 [%r8], %r0;\n@!%p1 ld.shared.u32 %r11, [%r10];\n");
  EXPECT_NE(
      report.what.find(report.thread.x == 32 ? "thread (0, 0, 0) wrote" : "thread (32, 0, 0) read"),
      std::string::npos)
      << report.what;
  expect_clean("st.shared.u32 [%r8], %r0;\nbar.sync 0;\nld.shared.u32 %r11, [%r10];\n");
}

TEST_F(CheckerTest, OverwritingWhatAnotherWarpReadsNeedsABarrier) {
  block_ = 64;
  const std::string fill = "st.shared.u32 [%r8], %r0;\nbar.sync 0;\nld.shared.u32 %r11, [%r10];\n";
  expect_found(Kind::shared_race, fill + "st.shared.u32 [%r8], 1;\n");
  expect_clean(fill + "bar.sync 0;\nst.shared.u32 [%r8], 1;\n");
}

TEST_F(CheckerTest, TwoWritesNeedABarrierUnlessTheyAreTheSame) {
  block_ = 64;
  expect_one(Kind::shared_race, "shr.u32 %r11, %r0, 5;\nst.shared.u32 [tile], %r11;\n");
  expect_clean("st.shared.u32 [tile], 5;\n");
  expect_clean(
      "setp.eq.u32 %p1, %r0, 40;\nst.shared.u32 [%r8], 5;\nbar.sync 0;\n"
      "@%p1 st.shared.u32 [tile], 6;\n");
}

TEST_F(CheckerTest, LanesOfOneWarpNeedASynchronisation) {
  const std::string write = "st.shared.u32 [%r8], %r0;\n";
  const std::string read = "ld.shared.u32 %r11, [%r9];\n";
  const Report report = expect_one(Kind::shared_race, write + read);
  EXPECT_NE(report.what.find("bar.warp.sync"), std::string::npos) << report.what;
  expect_clean(write + "bar.warp.sync 0xffffffff;\n" + read);
  expect_clean(write + "bar.sync 0;\n" + read);
  expect_clean(write + "ld.shared.u32 %r11, [%r8];\n");
  expect_one(Kind::shared_race,
             write + "bar.warp.sync 0xffffffff;\n" + read + "st.shared.u32 [%r8], 5;\n");
}

TEST_F(CheckerTest, ShufflesAndVotesOrderNothing) {
  expect_one(Kind::shared_race,
             "st.shared.u32 [%r8], %r0;\nshfl.sync.bfly.b32 %r12, %r0, 1, 31, 0xffffffff;\n"
             "setp.lt.u32 %p1, %r0, 5;\nvote.sync.ballot.b32 %r13, %p1, 0xffffffff;\n"
             "ld.shared.u32 %r11, [%r9];\n");
}

TEST_F(CheckerTest, ASynchronisationOrdersOnlyItsLanes) {
  // Lanes 0 to 15 meet, and 16 to 31; a lane of the other half is not ordered.
  const std::string halves =
      "st.shared.u32 [%r8], %r0;\nsetp.lt.u32 %p1, %r0, 16;\n"
      "mov.u32 %r12, 0xffff0000;\n@%p1 mov.u32 %r12, 0xffff;\nbar.warp.sync %r12;\n";
  expect_clean(halves + "ld.shared.u32 %r11, [%r9];\n");
  expect_one(Kind::shared_race, halves +
                                    "xor.b32 %r21, %r0, 16;\nmad.lo.u32 %r22, %r21, 4, %r20;\n"
                                    "ld.shared.u32 %r11, [%r22];\n");
}

TEST_F(CheckerTest, OrderIsPassedOn) {
  // 0 writes and meets 1, which then meets 2: 2 may read what 0 wrote. 3 may not.
  const std::string chain =
      "setp.eq.u32 %p1, %r0, 0;\nsetp.eq.u32 %p2, %r0, 1;\nsetp.eq.u32 %p3, %r0, 2;\n"
      "@%p1 st.shared.u32 [tile], %r0;\n@%p1 bar.warp.sync 3;\n@%p2 bar.warp.sync 3;\n"
      "@%p2 bar.warp.sync 6;\n@%p3 bar.warp.sync 6;\n";
  expect_clean(chain + "@%p3 ld.shared.u32 %r11, [tile];\n");
  expect_one(Kind::shared_race,
             chain + "setp.eq.u32 %p4, %r0, 3;\n@%p4 ld.shared.u32 %r11, [tile];\n");
}

TEST_F(CheckerTest, LanesOfOneInstructionMayWriteOnlyTheSame) {
  expect_one(Kind::shared_race, "st.shared.u32 [tile], %r0;\n");
  expect_clean("st.shared.u32 [tile], 3;\n");
  expect_one(Kind::shared_race,
             "shr.u32 %r11, %r0, 1;\nmad.lo.u32 %r12, %r11, 2, %r20;\n"
             "st.shared.u16 [%r12], %r0;\n");
}

TEST_F(CheckerTest, NeighbouringBytesOfAWordDoNotRace) {
  expect_clean("add.u32 %r11, %r20, %r0;\nst.shared.u8 [%r11], %r0;\nld.shared.u8 %r12, [%r11];\n");
  expect_clean(
      "mad.lo.u32 %r11, %r0, 2, %r20;\nst.shared.u16 [%r11], %r0;\n"
      "ld.shared.u16 %r12, [%r11];\nst.shared.u16 [%r11], 5;\n");
  expect_one(Kind::shared_race,
             "mad.lo.u32 %r11, %r0, 2, %r20;\nst.shared.u16 [%r11], %r0;\nxor.b32 %r12, %r11, 2;\n"
             "ld.shared.u16 %r12, [%r12];\n");
}

TEST_F(CheckerTest, AtomicsDoNotRaceWithEachOther) {
  block_ = 64;
  const std::string start = "st.shared.u32 [%r8], 0;\nbar.sync 0;\n";
  expect_clean(start +
               "atom.shared.add.u32 %r11, [tile], 1;\nld.volatile.shared.u32 %r12, [tile];\n");
  expect_found(Kind::shared_race,
               start + "red.shared.add.u32 [tile], 1;\nld.shared.u32 %r12, [tile];\n");
}

TEST_F(CheckerTest, WideAndSwizzledAccessesAreSeenGranuleByGranule) {
  block_ = 64;
  // 16 bytes a thread; the other warp reads them in another order.
  const std::string body =
      "mad.lo.u32 %r11, %r0, 16, %r20;\nst.shared.v4.u32 [%r11], {%r0, %r0, %r0, %r0};\n";
  const std::string read =
      "xor.b32 %r12, %r0, 37;\nmad.lo.u32 %r13, %r12, 16, %r20;\n"
      "ld.shared.v2.u64 {%d14, %d15}, [%r13];\n";
  expect_clean(body + "bar.sync 0;\n" + read);
  expect_found(Kind::shared_race, body + "bar.warp.sync 0xffffffff;\n" + read);
}

TEST_F(CheckerTest, LdmatrixIsARead) {
  const std::string write =
      "mad.lo.u32 %r11, %r0, 16, %r20;\nst.shared.v4.u32 [%r11], {%r0, %r0, %r0, %r0};\n"
      "xor.b32 %r12, %r11, 16;\n";
  const std::string read =
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r30, %r31, %r32, %r33}, [%r12];\n";
  expect_one(Kind::shared_race, write + read);
  expect_clean(write + "bar.warp.sync 0xffffffff;\n" + read);
  expect_one(Kind::uninitialised_shared, "mad.lo.u32 %r12, %r0, 16, %r20;\n" + read);
}

TEST_F(CheckerTest, NamedBarriersOrderTheirWarps) {
  block_ = 96;
  // Warps 0 and 1 meet at barrier 1; warp 2 does not.
  const std::string body =
      "st.shared.u32 [%r8], %r0;\nsetp.lt.u32 %p1, %r0, 64;\n@%p1 bar.sync 1, 64;\n";
  expect_clean(body + "@%p1 ld.shared.u32 %r11, [%r10];\n");
  expect_one(Kind::shared_race, body + "@!%p1 ld.shared.u32 %r11, [tile];\n");
}

TEST_F(CheckerTest, AnArrivalGivesOrderAndTakesNone) {
  block_ = 64;
  const std::string body =
      "setp.lt.u32 %p1, %r0, 32;\nst.shared.u32 [%r8], %r0;\n@%p1 bar.arrive 1, 64;\n"
      "@!%p1 bar.sync 1, 64;\n";
  expect_clean(body + "@!%p1 ld.shared.u32 %r11, [%r10];\n");
  expect_found(Kind::shared_race, body +
                                      "@%p1 ld.shared.u32 %r11, [%r10];\n"
                                      "@!%p1 st.shared.u32 [%r8], 77;\n");
}

TEST_F(CheckerTest, AFlagWithFencesOrdersSharedMemory) {
  block_ = 64;
  const auto body = [](const std::string& fence) {
    return "setp.eq.u32 %p1, %r0, 0;\nsetp.eq.u32 %p2, %r0, 32;\n"
           "@%p1 st.shared.u32 [tile+64], 0;\nbar.sync 0;\n"
           "@%p1 st.shared.u32 [tile], 5;\n" +
           fence +
           "@%p1 st.volatile.shared.u32 [tile+64], 1;\n@!%p2 bra done;\n"
           "wait:\nld.volatile.shared.u32 %r11, [tile+64];\nsetp.eq.u32 %p3, %r11, 0;\n"
           "@%p3 bra wait;\n" +
           fence + "ld.shared.u32 %r12, [tile];\ndone:\n";
  };
  expect_clean(body("membar.cta;\n"));
  expect_one(Kind::shared_race, body(""));
}

TEST_F(CheckerTest, ClocksThatRunOutKeepTheOrder) {
  block_ = 64;
  const std::string spin =
      "mov.u32 %r30, 0;\nagain:\nst.shared.u32 [%r8], %r30;\nbar.sync 0;\n"
      "ld.shared.u32 %r11, [%r10];\nbar.sync 0;\nadd.u32 %r30, %r30, 1;\n"
      "setp.lt.u32 %p1, %r30, 40000;\n@%p1 bra again;\n";
  expect_clean(spin);
  expect_found(Kind::shared_race, spin + "st.shared.u32 [%r8], 1;\nld.shared.u32 %r11, [%r10];\n");
}

// --- cp.async

class Async : public CheckerTest {
 protected:
  void SetUp() override { source_ = upload(std::vector<uint32_t>(256, 7)); }
  const std::string copy_ = "cp.async.ca.shared.global [%r8], [%d10], 4;\n";
  const std::string commit_ = "cp.async.commit_group;\n";
  const std::string read_ = "ld.shared.u32 %r11, [%r8];\n";
  uint64_t source_ = 0;
};

TEST_F(Async, DataIsThereAfterTheWait) {
  expect_clean(copy_ + commit_ + "cp.async.wait_group 0;\n" + read_, {source_});
  expect_clean(copy_ + "cp.async.wait_all;\n" + read_, {source_});
}

TEST_F(Async, AReadBeforeTheWaitIsFound) {
  expect_one(Kind::async_pending, copy_ + commit_ + read_, {source_});
  expect_one(Kind::async_pending, copy_ + commit_ + "cp.async.wait_group 1;\n" + read_, {source_});
  expect_one(Kind::async_pending, copy_ + "cp.async.wait_group 0;\n" + read_, {source_});
  expect_one(Kind::async_pending, copy_ + commit_ + "bar.sync 0;\n" + read_, {source_});
}

TEST_F(Async, AWriteBeforeTheWaitIsFound) {
  expect_one(Kind::async_pending, copy_ + commit_ + "st.shared.u32 [%r8], 1;\n", {source_});
  expect_one(Kind::async_pending, copy_ + commit_ + copy_, {source_});
}

TEST_F(Async, OlderGroupsAreThereWhileNewerOnesAreNot) {
  const std::string two = copy_ + commit_ + "cp.async.ca.shared.global [%r8+1024], [%d10], 4;\n" +
                          commit_ + "cp.async.wait_group 1;\n";
  expect_clean(two + read_, {source_});
  expect_one(Kind::async_pending, two + "ld.shared.u32 %r11, [%r8+1024];\n", {source_});
}

TEST_F(Async, OthersNeedABarrierAfterTheWait) {
  const std::string wait = copy_ + commit_ + "cp.async.wait_group 0;\n";
  expect_one(Kind::shared_race, wait + "ld.shared.u32 %r11, [%r9];\n", {source_});
  expect_clean(wait + "bar.sync 0;\nld.shared.u32 %r11, [%r9];\n", {source_});
}

TEST_F(Async, ACopyIntoWhatOthersStillReadIsFound) {
  block_ = 64;
  const std::string read = "st.shared.u32 [%r8], 1;\nbar.sync 0;\nld.shared.u32 %r11, [%r10];\n";
  expect_found(Kind::shared_race, read + copy_, {source_});
  expect_clean(read + "bar.sync 0;\n" + copy_, {source_});
}

TEST_F(Async, TheSourceIsChecked) {
  const uint64_t empty = arena_.allocate(256);
  expect_one(Kind::uninitialised_global, copy_ + "cp.async.wait_all;\n", {empty});
  expect_clean("mov.u32 %r11, 0;\ncp.async.ca.shared.global [%r8], [%d10], 4, %r11;\n", {empty});
}

// --- between CTAs

class Blocks : public CheckerTest {
 protected:
  void SetUp() override {
    grid_ = 3;
    memory_ = upload(std::vector<uint32_t>(256));
    count_ = upload(std::vector<uint32_t>(16));
  }
  // Every block writes its word of the first parameter; the one that comes last reads them all.
  std::string last_block(const std::string& before, const std::string& count,
                         const std::string& after) {
    return "setp.ne.u32 %p1, %r0, 0;\n@%p1 bra done;\nmad.wide.u32 %d11, %r1, 4, %d0;\n"
           "st.global.u32 [%d11], %r1;\n" +
           before + count + "setp.ne.u32 %p2, %r11, 2;\n@%p2 bra done;\n" + after +
           "ld.global.u32 %r12, [%d0];\nld.global.u32 %r13, [%d0+4];\n"
           "ld.global.u32 %r14, [%d0+8];\ndone:\n";
  }
  uint64_t memory_ = 0;
  uint64_t count_ = 0;
};

TEST_F(Blocks, WritesToOnePlaceRace) {
  const Report report = expect_one(Kind::global_race, "st.global.u32 [%d10], %r1;\n", {memory_});
  EXPECT_EQ(report.block.x, 1u);
  EXPECT_NE(report.what.find("block (0, 0, 0) wrote"), std::string::npos) << report.what;
}

TEST_F(Blocks, AReadAndAWriteRaceInBothOrders) {
  expect_one(
      Kind::global_race,
      "setp.eq.u32 %p1, %r1, 0;\n@%p1 st.global.u32 [%d0], 1;\n@!%p1 ld.global.u32 %r11, [%d0];\n",
      {memory_});
  expect_one(
      Kind::global_race,
      "setp.eq.u32 %p1, %r1, 2;\n@!%p1 ld.global.u32 %r11, [%d0];\n@%p1 st.global.u32 [%d0], 1;\n",
      {memory_});
  // Both blocks read; the last reader writes.
  expect_one(Kind::global_race,
             "ld.global.u32 %r11, [%d0];\nsetp.eq.u32 %p1, %r1, 2;\n@%p1 st.global.u32 [%d0], 1;\n",
             {memory_});
}

TEST_F(Blocks, OwnPlacesDoNotRace) {
  expect_clean(
      "mad.lo.u32 %r11, %r1, 32, %r0;\nmad.wide.u32 %d11, %r11, 4, %d0;\n"
      "st.global.u32 [%d11], %r0;\nld.global.u32 %r12, [%d11];\n",
      {memory_});
  // Neighbouring halves of one word.
  expect_clean(
      "mad.wide.u32 %d11, %r1, 2, %d0;\nst.global.u16 [%d11], %r1;\nld.global.u16 %r12, [%d11];\n",
      {memory_});
  expect_clean("ld.global.u32 %r12, [%d0];\n", {memory_});
}

TEST_F(Blocks, NeighbouringBytesOfOneWordDoNotRaceInAnyOrder) {
  block_ = 1;
  const std::string own = "mad.wide.u32 %d11, %r1, 2, %d0;\nadd.u64 %d12, %d0, 2;\n";
  const std::string read = "ld.global.u16 %r12, [%d11];\n";
  const std::string write = "st.global.u16 [%d11], %r1;\n";
  expect_clean(own + read + write, {memory_});
  expect_clean(own + write + read + write, {memory_});
  expect_clean(own + read + write + read + write, {memory_});
  // The bytes that both read are others than those that the second one writes.
  grid_ = 2;
  const std::string first = "setp.eq.u32 %p1, %r1, 0;\n";
  const std::string second_writes = "@!%p1 st.global.u16 [%d12], 5;\n";
  expect_clean(own + first + "ld.global.u16 %r12, [%d0];\n@!%p1 ld.global.u16 %r13, [%d12];\n" +
                   second_writes,
               {memory_});
  expect_clean(own + first + "@!%p1 ld.global.u16 %r13, [%d12];\nld.global.u16 %r12, [%d0];\n" +
                   second_writes,
               {memory_});
  // And one byte of those that it writes.
  expect_one(Kind::global_race,
             own + first + "@%p1 ld.global.u8 %r12, [%d0+3];\n@!%p1 ld.global.u16 %r12, [%d0];\n" +
                 second_writes,
             {memory_});
  expect_one(Kind::global_race,
             own + first + "@%p1 ld.global.u32 %r12, [%d0];\n@!%p1 ld.global.u16 %r12, [%d0];\n" +
                 "@!%p1 ld.global.u16 %r12, [%d12];\n" + second_writes,
             {memory_});
}

TEST_F(Blocks, StrongAccessesToOneHalfAndWeakOnesToTheOtherDoNotMix) {
  block_ = 1;
  grid_ = 2;
  const std::string first = "setp.eq.u32 %p1, %r1, 0;\n";
  const std::string strong = "ld.relaxed.gpu.global.u16 %r12, [%d0];\n";
  const std::string weak = "ld.global.u16 %r12, [%d0+2];\n";
  const std::string other = "@!%p1 st.relaxed.gpu.global.u16 [%d0], %r1;\n";
  expect_clean(first + "@%p1 " + strong + "@%p1 " + weak + other, {memory_});
  expect_clean(first + "@%p1 " + weak + "@%p1 " + strong + other, {memory_});
  expect_clean(first +
                   "@%p1 st.relaxed.gpu.global.u16 [%d0], 1;\n@%p1 st.global.u16 [%d0+2], 1;\n" +
                   "@!%p1 " + strong,
               {memory_});
  // A flag of which the one that writes it reads its own value.
  expect_clean(first + "@%p1 " + strong + "@!%p1 ld.global.u16 %r12, [%d0];\n" + other, {memory_});
  expect_one(Kind::global_race, first + "@%p1 ld.global.u16 %r12, [%d0];\n" + other, {memory_});
}

TEST_F(Blocks, AtomicsDoNotRaceUnlessTheirScopeIsTheBlock) {
  expect_clean("red.global.add.u32 [%d0], 1;\nld.relaxed.gpu.global.u32 %r11, [%d0];\n", {memory_});
  expect_one(Kind::global_race, "red.cta.global.add.u32 [%d0], 1;\n", {memory_});
  expect_one(Kind::global_race, "red.global.add.u32 [%d0], 1;\nld.global.u32 %r11, [%d0];\n",
             {memory_});
}

TEST_F(Blocks, AFenceAndACounterOrder) {
  const std::string count = "atom.global.add.u32 %r11, [%d1], 1;\n";
  expect_clean(last_block("membar.gl;\n", count, "fence.acq_rel.gpu;\n"), {memory_, count_});
}

TEST_F(Blocks, OnManyHostThreadsOrderIsSeenAsWell) {
  host_threads_ = 4;
  grid_ = 64;
  // Every block adds one, in turn: a lock that is handed on with release and acquire.
  expect_clean(
      "setp.ne.u32 %p1, %r0, 0;\n@%p1 bra done;\n"
      "wait:\nld.acquire.gpu.global.u32 %r11, [%d1];\nsetp.ne.u32 %p2, %r11, %r1;\n"
      "@%p2 bra wait;\nld.global.u32 %r12, [%d0];\nadd.u32 %r12, %r12, 1;\n"
      "st.global.u32 [%d0], %r12;\nadd.u32 %r11, %r11, 1;\n"
      "st.release.gpu.global.u32 [%d1], %r11;\ndone:\n"
      "red.global.add.u32 [%d1+4], 1;\n",
      {memory_, count_});
  EXPECT_EQ(download<uint32_t>(memory_, 1)[0], 64u);
  EXPECT_EQ(download<uint32_t>(count_, 2)[1], 64u * 32);
}

TEST_F(Blocks, WithoutOneOfTheFencesThereIsNoOrder) {
  const std::string count = "atom.global.add.u32 %r11, [%d1], 1;\n";
  const auto races = [&](const std::string& before, const std::string& after) {
    arena_.fill(count_, 0, 64);
    return tile(last_block(before, count, after), {memory_, count_}).has(Kind::global_race);
  };
  EXPECT_TRUE(races("", "membar.gl;\n"));
  EXPECT_TRUE(races("membar.gl;\n", ""));
  EXPECT_TRUE(races("membar.cta;\n", "membar.gl;\n"));
  EXPECT_FALSE(races("membar.gl;\n", "membar.gl;\n"));
}

TEST_F(Blocks, ReleaseAndAcquireOrder) {
  expect_clean(last_block("", "atom.acq_rel.gpu.global.add.u32 %r11, [%d1], 1;\n", ""),
               {memory_, count_});
  arena_.fill(count_, 0, 64);
  expect_clean(
      "setp.ne.u32 %p1, %r0, 0;\n@%p1 bra done;\nsetp.eq.u32 %p2, %r1, 0;\n@!%p2 bra read;\n"
      "st.global.u32 [%d0], 5;\nst.release.gpu.global.u32 [%d1], 1;\nbra done;\n"
      "read:\nld.acquire.gpu.global.u32 %r11, [%d1];\nsetp.eq.u32 %p3, %r11, 0;\n"
      "@%p3 bra read;\nld.global.u32 %r12, [%d0];\ndone:\n",
      {memory_, count_});
}

TEST_F(Blocks, WhatIsWrittenAfterTheReleaseIsNotOrdered) {
  const Report report = expect_one(
      Kind::global_race,
      "setp.ne.u32 %p1, %r0, 0;\n@%p1 bra done;\nsetp.eq.u32 %p2, %r1, 0;\n@!%p2 bra read;\n"
      "st.global.u32 [%d0], 5;\nst.release.gpu.global.u32 [%d1], 1;\nst.global.u32 [%d0+4], 5;\n"
      "bra done;\nread:\nld.acquire.gpu.global.u32 %r11, [%d1];\nsetp.eq.u32 %p3, %r11, 0;\n"
      "@%p3 bra read;\nld.global.u32 %r12, [%d0];\nld.global.u32 %r12, [%d0+4];\ndone:\n",
      {memory_, count_});
  EXPECT_EQ(report.address, memory_ + 4);
}

TEST_F(Blocks, PollingUsesUpNoClock) {
  block_ = 1;
  host_threads_ = 1;
  // The second block polls 300,000 times what was released once, and then writes; the third one
  // waits for it, but not so that it would be ordered.
  const auto body = [](int polls) {
    return fmt::format(
        "setp.eq.u32 %p1, %r1, 0;\n@%p1 st.release.gpu.global.u32 [%d1], 1;\n@%p1 bra done;\n"
        "setp.eq.u32 %p1, %r1, 2;\n@%p1 bra third;\nmov.u32 %r12, 0;\n"
        "poll:\nld.acquire.gpu.global.u32 %r11, [%d1];\nadd.u32 %r12, %r12, 1;\n"
        "setp.lt.u32 %p2, %r12, {};\n@%p2 bra poll;\nst.global.u32 [%d0], 1;\n"
        "st.relaxed.gpu.global.u32 [%d1+4], 1;\nbra done;\n"
        "third:\nld.relaxed.gpu.global.u32 %r11, [%d1+4];\nsetp.eq.u32 %p2, %r11, 0;\n"
        "@%p2 bra third;\nld.global.u32 %r11, [%d0];\ndone:\n",
        polls);
  };
  expect_one(Kind::global_race, body(300'000), {memory_, count_});
}

TEST_F(Blocks, AClockThatIsUsedUpIsSaid) {
  block_ = 1;
  grid_ = 2;
  const Outcome outcome = tile(
      "setp.ne.u32 %p1, %r1, 0;\n@%p1 bra done;\nmov.u32 %r12, 0;\n"
      "again:\nst.release.gpu.global.u32 [%d1], 1;\nadd.u32 %r12, %r12, 1;\n"
      "setp.lt.u32 %p2, %r12, 270000;\n@%p2 bra again;\ndone:\nld.shared.u32 %r11, [%r8];\n",
      {memory_, count_});
  EXPECT_NE(outcome.summary.find("its clock was used up"), std::string::npos) << outcome.summary;
}

TEST_F(Blocks, WhatAFenceReleasedReachesEveryAddressItIsGivenTo) {
  // The first block hands on by two addresses, one of which the second block uses between.
  block_ = 1;
  const auto body = [](const std::string& address) {
    return "setp.eq.u32 %p1, %r1, 0;\nsetp.eq.u32 %p2, %r1, 1;\n@%p1 bra first;\n@%p2 bra second;\n"
           "third:\nld.acquire.gpu.global.u32 %r11, [%d1+" +
           address +
           "];\nsetp.lt.u32 %p3, %r11, 2;\n@%p3 bra third;\nld.global.u32 %r12, [%d0];\n"
           "ld.global.u32 %r12, [%d0+4];\nbra done;\n"
           "first:\nst.global.u32 [%d0], 5;\nmembar.gl;\nred.global.add.u32 [%d1], 1;\n"
           "red.global.add.u32 [%d1+4], 1;\nbra done;\n"
           "second:\nst.global.u32 [%d0+4], 5;\nmembar.gl;\nred.global.add.u32 [%d1], 1;\n"
           "red.global.add.u32 [%d1+4], 1;\ndone:\n";
  };
  expect_clean(body("0"), {memory_, count_});
  arena_.fill(count_, 0, 64);
  expect_clean(body("4"), {memory_, count_});
}

TEST_F(Blocks, AKernelBoundaryOrders) {
  expect_clean("mad.wide.u32 %d11, %r1, 4, %d0;\nst.global.u32 [%d11], %r1;\n", {memory_});
  expect_clean(
      "sub.u32 %r11, 2, %r1;\nmad.wide.u32 %d11, %r11, 4, %d0;\nst.global.u32 [%d11], %r1;\n",
      {memory_});
}

TEST_F(Blocks, TheReadOnlyPathDoesNotSeeWritesOfTheSameLaunch) {
  const std::string own = "mad.wide.u32 %d11, %r1, 4, %d0;\nst.global.u32 [%d11], 1;\n";
  expect_one(Kind::stale_read, own + "ld.global.nc.u32 %r11, [%d11];\n", {memory_});
  expect_clean(own + "ld.global.nc.u32 %r11, [%d1];\n", {memory_, count_});
  grid_ = 1;
  expect_one(Kind::stale_read, own + "ld.global.nc.u32 %r11, [%d11];\n", {memory_});
  expect_clean(own + "ld.global.nc.u32 %r11, [%d11+4];\n", {memory_});
}

// --- barriers and reports

TEST_F(CheckerTest, LanesOfAWarpMeetAtOneBarrier) {
  expect_found(Kind::divergent_barrier,
               "setp.lt.u32 %p1, %r0, 16;\n@%p1 bra first;\nbar.sync 0;\nbra done;\n"
               "first:\nbar.sync 0;\nadd.u32 %r11, %r0, 1;\ndone:\n");
  block_ = 64;
  expect_clean(
      "setp.lt.u32 %p1, %r0, 32;\n@%p1 bra first;\nbar.sync 0;\nbra done;\n"
      "first:\nbar.sync 0;\nadd.u32 %r11, %r0, 1;\ndone:\n");
  expect_clean("setp.lt.u32 %p1, %r0, 16;\n@%p1 ret;\nbar.sync 0;\n");
}

TEST_F(CheckerTest, AStatementIsReportedOnceAndCountedAlways) {
  block_ = 64;
  const Outcome outcome = tile("ld.shared.u32 %r11, [%r8];\nld.shared.u32 %r12, [%r8];\n");
  EXPECT_EQ(outcome.reports.size(), 2u);
  EXPECT_EQ(outcome.found, 128u);
}

TEST_F(CheckerTest, TwentyReportsAreEnough) {
  std::string body;
  for (int i = 0; i < 30; ++i) body += "ld.shared.u32 %r11, [%r8];\n";
  const Outcome outcome = tile(body);
  EXPECT_EQ(outcome.reports.size(), 20u);
  EXPECT_EQ(outcome.found, 30u * 32);
}

TEST_F(CheckerTest, AReportNamesEverything) {
  grid_ = 2;
  const uint64_t memory = upload(std::vector<uint32_t>(64));
  views_ = {
      {.name = "topk", .begin = memory, .element_bytes = 4, .dims = {31}, .strides_bytes = {4}}};
  const Report report = expect_one(
      Kind::outside,
      ".loc 1 40 1\nsetp.eq.u32 %p1, %r1, 1;\n"
      ".loc 1 12 5, function_name $L, inlined_at 1 41 7\n@%p1 ld.global.u32 %r11, [%d10];\n",
      {memory});
  const std::string text = describe(report, [](const std::string& file, int line) {
    return fmt::format("    line {} of {};", line, file);
  });
  EXPECT_EQ(text, fmt::format("reads 4 bytes outside of `topk`\n"
                              "  op        op\n"
                              "  kernel    kernel\n"
                              "  config    {{}}\n"
                              "  at        kernel.cu:12\n"
                              "              line 12 of kernel.cu;\n"
                              "  called at kernel.cu:41\n"
                              "              line 41 of kernel.cu;\n"
                              "  PTX       line {}: @%p1 ld.global.u32 %r11, [%d10];\n"
                              "  block     (1, 0, 0), thread (31, 0, 0)\n"
                              "  address   {:#x} of global memory, 4 bytes\n"
                              "  argument  topk, byte offset 124, element 31",
                              report.ptx_line, memory + 124));
}

TEST_F(CheckerTest, NeedsAnArenaWithMarks) {
  Arena plain(kCapacity, Marks::off);
  EXPECT_THROW(Checker(plain, Launch{}, {}), Error);
}

TEST_F(CheckerTest, AFaultNamesTheNearestArgument) {
  const uint64_t memory = upload(std::vector<uint32_t>(32));
  views_ = {
      {.name = "topk", .begin = memory, .element_bytes = 4, .dims = {32}, .strides_bytes = {4}}};
  const Outcome outcome = tile("ld.global.u32 %r11, [%d10+4];\n", {memory});
  EXPECT_NE(outcome.fault.find("topk, byte offset 128, element 32"), std::string::npos)
      << outcome.fault;
}

}  // namespace
}  // namespace kiln::runtime::sim
