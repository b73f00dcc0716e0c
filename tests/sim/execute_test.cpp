// How warps, lanes and CTAs take turns: divergence and where lanes meet again, barriers, calls,
// polling, and how a launch ends that cannot go on.
#include <fmt/format.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <string>

#include "tests/limited_new.h"
#include "tests/sim/memory_testing.h"

namespace kiln::runtime::sim {
namespace {

class ExecuteTest : public MemoryTest {
 protected:
  // Every thread stores %r10 to its word of the first parameter; the checker has nothing to say.
  std::vector<uint32_t> results(const std::string& body) {
    const size_t count = size_t{grid_} * block_;
    const uint64_t out = upload(std::vector<uint32_t>(count, 0xdead));
    last_ = run(body +
                    "mov.u32 %r60, %ntid.x;\nmad.lo.u32 %r61, %r1, %r60, %r0;\n"
                    "mad.wide.u32 %d30, %r61, 4, %d0;\nst.global.u32 [%d30], %r10;\n",
                {out, upload(std::vector<uint32_t>(64))});
    EXPECT_TRUE(last_.is_clean()) << body << last_.text();
    return download<uint32_t>(out, count);
  }
  void expect_all(const std::string& body, uint32_t value) {
    const std::vector<uint32_t> got = results(body);
    EXPECT_EQ(got, std::vector<uint32_t>(got.size(), value)) << body;
  }
  void expect_fault(const std::string& body, const std::string& words) {
    const Outcome outcome = run(body);
    EXPECT_NE(outcome.fault.find(words), std::string::npos) << body << outcome.fault;
  }
  Outcome last_;
};

// Keeps the lanes of %p1 busy for `instructions`, far longer than a turn of a part of a warp.
std::string keep_busy(int instructions) {
  return fmt::format(
      "@!%p1 bra rested;\nmov.u32 %r50, 0;\nbusy:\nadd.u32 %r50, %r50, 1;\n"
      "setp.lt.u32 %p7, %r50, {};\n@%p7 bra busy;\nrested:\n",
      instructions / 3);
}

// --- lanes that come late

TEST_F(ExecuteTest, ALaneThatComesLateToABarrierIsNoDivergence) {
  block_ = 64;
  const std::string late = "setp.eq.u32 %p1, %r0, 0;\n" + keep_busy(9000);
  expect_all(late + "bar.sync 0;\nmov.u32 %r10, 7;\n", 7);
  expect_all(late + "setp.lt.u32 %p2, %r0, 40;\nbar.red.popc.u32 %r10, 0, %p2;\n", 40);
  expect_all(late + "bar.sync 1, 64;\nmov.u32 %r10, 7;\n", 7);
}

TEST_F(ExecuteTest, ALaneThatComesLateToLdmatrixIsWaitedFor) {
  expect_all(
      "setp.eq.u32 %p1, %r0, 0;\n.shared .align 16 .b8 tile[512];\nmov.u32 %r20, tile;\n"
      "mad.lo.u32 %r21, %r0, 16, %r20;\nmov.u32 %r22, 5;\n"
      "st.shared.v4.u32 [%r21], {%r22, %r22, %r22, %r22};\nbar.warp.sync 0xffffffff;\n" +
          keep_busy(9000) +
          "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r21];\n",
      5);
}

// --- barriers

TEST_F(ExecuteTest, ABarrierWithACountCountsWholeWarps) {
  // Exited lanes count, and lanes that never were.
  block_ = 64;
  const std::vector<uint32_t> half =
      results("setp.ge.u32 %p1, %r0, 48;\n@%p1 ret;\nbar.sync 1, 64;\nmov.u32 %r10, 3;\n");
  EXPECT_EQ(half[47], 3u);
  EXPECT_EQ(half[48], 0xdeadu);
  block_ = 48;
  expect_all("bar.sync 1, 64;\nmov.u32 %r10, 3;\n", 3);
}

TEST_F(ExecuteTest, LanesThatExitLaterLetTheirWarpArrive) {
  block_ = 64;
  const std::vector<uint32_t> got = results(
      "setp.lt.u32 %p1, %r0, 16;\n@!%p1 bra meets;\nmov.u32 %r50, 0;\nbusy:\n"
      "add.u32 %r50, %r50, 1;\nsetp.lt.u32 %p7, %r50, 3000;\n@%p7 bra busy;\nret;\n"
      "meets:\nbar.sync 1, 64;\nmov.u32 %r10, 3;\n");
  EXPECT_EQ(got[15], 0xdeadu);
  EXPECT_EQ(got[16], 3u);
}

TEST_F(ExecuteTest, AProducerThatExitsHasArrived) {
  block_ = 64;
  const std::vector<uint32_t> got = results(
      "setp.lt.u32 %p1, %r0, 32;\n@%p1 bar.arrive 1, 64;\n@%p1 ret;\nbar.sync 1, 64;\n"
      "mov.u32 %r10, 3;\n");
  EXPECT_EQ(got[32], 3u);
}

TEST_F(ExecuteTest, AWarpOfWhichAPartArrivesHasNotArrived) {
  block_ = 64;
  expect_fault(
      "setp.lt.u32 %p1, %r0, 16;\n@%p1 bra other;\nbar.sync 1, 64;\nret;\nother:\nbar.sync 2, "
      "64;\n",
      "all threads of the block wait for others");
}

TEST_F(ExecuteTest, OtherWarpsMayComeToTheNextRoundOfABarrier) {
  // Three warps, two a round: the third one meets whoever comes twice.
  block_ = 96;
  expect_all("setp.lt.u32 %p1, %r0, 32;\nbar.sync 1, 64;\n@%p1 bar.sync 1, 64;\nmov.u32 %r10, 3;\n",
             3);
}

TEST_F(ExecuteTest, BarriersReduce) {
  block_ = 64;
  const std::string few =
      "setp.lt.u32 %p2, %r0, 5;\nsetp.lt.u32 %p3, %r0, 64;\n"
      "setp.gt.u32 %p4, %r0, 64;\nmov.u32 %r10, 0;\n";
  expect_all(few + "bar.red.popc.u32 %r10, 0, %p2;\n", 5);
  expect_all(few + "bar.red.popc.u32 %r10, 0, !%p2;\n", 59);
  expect_all(few + "bar.red.and.pred %p5, 0, %p2;\n@%p5 mov.u32 %r10, 1;\n", 0);
  expect_all(few + "bar.red.and.pred %p5, 0, %p3;\n@%p5 mov.u32 %r10, 1;\n", 1);
  expect_all(few + "bar.red.or.pred %p5, 0, %p2;\n@%p5 mov.u32 %r10, 1;\n", 1);
  expect_all(few + "bar.red.or.pred %p5, 0, %p4;\n@%p5 mov.u32 %r10, 1;\n", 0);
  expect_all(few + "barrier.red.popc.u32 %r10, 3, 64, %p2;\n", 5);
  expect_fault(
      "setp.lt.u32 %p1, %r0, 32;\n@%p1 bar.arrive 1, 64;\n"
      "@!%p1 bar.red.popc.u32 %r10, 1, 64, %p1;\n",
      "barrier 1 is used by a reduction and by something else");
}

TEST_F(ExecuteTest, TheBarrierThatIsNotAlignedMayBeReachedFromTwoPlaces) {
  block_ = 64;
  expect_all(
      "setp.lt.u32 %p1, %r0, 16;\n@%p1 bra other;\nbarrier.sync 0;\nmov.u32 %r10, 4;\nbra met;\n"
      "other:\nbarrier.sync 0;\nmov.u32 %r10, 4;\nmet:\n",
      4);
}

// --- lanes that come apart and meet

TEST_F(ExecuteTest, LanesMeetBehindABranch) {
  expect_all(
      "setp.lt.u32 %p1, %r0, 7;\n@%p1 bra few;\nmov.u32 %r11, 1;\nmov.u32 %r11, 2;\nbra met;\n"
      "few:\nmov.u32 %r11, 3;\nmet:\nactivemask.b32 %r10;\n",
      0xffffffff);
  // Behind a loop whose lanes leave it one after the other as well.
  expect_all(
      "mov.u32 %r11, 0;\nagain:\nadd.u32 %r11, %r11, 1;\nsetp.lt.u32 %p1, %r11, %r0;\n"
      "@%p1 bra again;\nactivemask.b32 %r10;\n",
      0xffffffff);
}

TEST_F(ExecuteTest, LanesMeetAtWarpSyncsOfTwoPlaces) {
  const std::vector<uint32_t> got = results(
      ".shared .align 4 .b8 tile[64];\nmov.u32 %r20, tile;\nand.b32 %r21, %r0, 15;\n"
      "mad.lo.u32 %r21, %r21, 4, %r20;\nmov.u32 %r10, 0;\nsetp.ge.u32 %p1, %r0, 16;\n"
      "@%p1 bra reads;\nmul.lo.u32 %r22, %r0, 3;\nst.shared.u32 [%r21], %r22;\n"
      "bar.warp.sync 0xffffffff;\nbra done;\n"
      "reads:\nbar.warp.sync 0xffffffff;\nld.shared.u32 %r10, [%r21];\ndone:\n");
  for (uint32_t lane = 16; lane < 32; ++lane) EXPECT_EQ(got[lane], 3 * (lane - 16));
}

TEST_F(ExecuteTest, ALockIsHandedFromLaneToLane) {
  expect_all(
      ".shared .align 8 .b8 lock[8];\nsetp.eq.u32 %p1, %r0, 0;\n@%p1 st.shared.u32 [lock], 0;\n"
      "@%p1 st.shared.u32 [lock+4], 0;\nbar.sync 0;\n"
      "again:\natom.shared.cas.b32 %r11, [lock], 0, 1;\nsetp.ne.u32 %p2, %r11, 0;\n"
      "@%p2 bra again;\nld.volatile.shared.u32 %r12, [lock+4];\nadd.u32 %r12, %r12, 1;\n"
      "st.volatile.shared.u32 [lock+4], %r12;\natom.shared.exch.b32 %r11, [lock], 0;\n"
      "bar.sync 0;\nld.shared.u32 %r10, [lock+4];\n",
      32);
}

TEST_F(ExecuteTest, AnIndexedBranchTakesEveryLaneToItsPlace) {
  const std::string body =
      "and.b32 %r11, %r0, 3;\ntable: .branchtargets zero, one, two, zero;\nbrx.idx %r11, table;\n"
      "zero:\nmov.u32 %r10, 10;\nbra met;\none:\nmov.u32 %r10, 11;\nbra met;\n"
      "two:\nmov.u32 %r10, 12;\nmet:\n";
  const std::vector<uint32_t> got = results(body);
  for (uint32_t lane = 0; lane < 32; ++lane)
    EXPECT_EQ(got[lane], lane % 4 == 3 ? 10 : 10 + lane % 4);
  expect_fault("table: .branchtargets a, b;\nbrx.idx %r0, table;\na:\nb:\n",
               "an indexed branch takes entry 2 of 2");
}

TEST_F(ExecuteTest, CallsGiveResultsAndMayDiverge) {
  functions_ =
      ".func (.param .b32 y) f(.param .b32 x)\n{\n.reg .pred %p<2>;\n.reg .b32 %r<4>;\n"
      "ld.param.u32 %r1, [x];\nsetp.lt.u32 %p1, %r1, 8;\n@%p1 bra small;\n"
      "add.u32 %r2, %r1, 100;\nst.param.b32 [y], %r2;\nret;\n"
      "small:\nmul.lo.u32 %r2, %r1, 2;\nst.param.b32 [y], %r2;\nret;\n}\n";
  const std::vector<uint32_t> got = results(
      ".param .b32 x0;\n.param .b32 y0;\nst.param.b32 [x0], %r0;\ncall.uni (y0), f, (x0);\n"
      "ld.param.b32 %r11, [y0];\nst.param.b32 [x0], %r11;\ncall.uni (y0), f, (x0);\n"
      "ld.param.b32 %r10, [y0];\n");
  const auto f = [](uint32_t x) { return x < 8 ? 2 * x : x + 100; };
  for (uint32_t lane = 0; lane < 32; ++lane) EXPECT_EQ(got[lane], f(f(lane)));
}

// --- what the device runtime offers

TEST_F(ExecuteTest, TrapsAndAssertionsEndTheLaunch) {
  expect_fault("setp.eq.u32 %p1, %r0, 5;\n@%p1 trap;\n", "the kernel executed trap");
  functions_ =
      ".extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, "
      ".param .b64 e);\n";
  const std::string message = "x > 0";
  const Outcome outcome =
      run(".param .b64 p0;\n.param .b64 p1;\n.param .b32 p2;\n.param .b64 p3;\n.param .b64 p4;\n"
          "st.param.b64 [p0], %d0;\nst.param.b64 [p1], %d0;\nst.param.b32 [p2], %r0;\n"
          "st.param.b64 [p3], %d0;\nst.param.b64 [p4], %d0;\n"
          "call.uni __assertfail, (p0, p1, p2, p3, p4);\n",
          {upload(std::vector<char>(message.c_str(), message.c_str() + message.size() + 1))});
  EXPECT_NE(outcome.fault.find("the assertion \"x > 0\" failed"), std::string::npos)
      << outcome.fault;
}

TEST_F(ExecuteTest, ClocksGoForward) {
  expect_all(
      "mov.u32 %r11, %clock;\nmov.u64 %d4, %globaltimer;\nmov.u64 %d5, %clock64;\n"
      "mov.u32 %r12, %clock;\nmov.u64 %d6, %globaltimer;\nmov.u64 %d7, %clock64;\n"
      "setp.lt.u32 %p1, %r11, %r12;\nsetp.le.u64 %p2, %d4, %d6;\nsetp.lt.u64 %p3, %d5, %d7;\n"
      "setp.ne.u64 %p4, %d4, 0;\nand.pred %p1, %p1, %p2;\nand.pred %p3, %p3, %p4;\n"
      "and.pred %p1, %p1, %p3;\nselp.u32 %r10, 1, 0, %p1;\n",
      1);
}

// --- CTAs that wait for each other

// The first block waits until the last one has set the word of the second parameter.
std::string wait_for_last(const std::string& poll) {
  return "mov.u32 %r10, 0;\nmov.u32 %r20, %nctaid.x;\nsub.u32 %r20, %r20, 1;\n"
         "setp.eq.u32 %p1, %r1, %r20;\n@%p1 st.volatile.global.u32 [%d1], 9;\n"
         "setp.ne.u32 %p2, %r1, 0;\n@%p2 bra done;\n"
         "wait:\n" +
         poll + "setp.ne.u32 %p3, %r10, 9;\n@%p3 bra wait;\ndone:\n";
}

TEST_F(ExecuteTest, ABlockThatPollsGivesWayToTheOneItWaitsFor) {
  grid_ = 20;
  for (const char* const poll :
       {"ld.volatile.global.u32 %r10, [%d1];\n", "ld.acquire.gpu.global.u32 %r10, [%d1];\n",
        "atom.global.or.b32 %r10, [%d1], 0;\n", "atom.global.cas.b32 %r10, [%d1], 77, 78;\n",
        "nanosleep.u32 100;\nld.relaxed.gpu.global.u32 %r10, [%d1];\n"}) {
    EXPECT_EQ(results(wait_for_last(poll))[0], 9u) << poll;
    EXPECT_LT(last_.instructions, 5'000u) << poll;
  }
  // Without a strong access in the loop it takes a whole slice.
  checks_ = false;
  EXPECT_EQ(results(wait_for_last("ld.global.u32 %r10, [%d1];\n"))[0], 9u);
  EXPECT_GT(last_.instructions, 1'000'000u);
}

TEST_F(ExecuteTest, ABarrierOfTheGridEndsSoon) {
  grid_ = 100;
  block_ = 64;
  std::string body = "mov.u32 %r10, 0;\nsetp.ne.u32 %p1, %r0, 0;\n";
  for (int round = 1; round <= 3; ++round) {
    body += fmt::format(
        "bar.sync 0;\n@%p1 bra met{0};\nmembar.gl;\nred.global.add.u32 [%d1], 1;\n"
        "wait{0}:\nld.acquire.gpu.global.u32 %r11, [%d1];\nsetp.lt.u32 %p2, %r11, {1};\n"
        "@%p2 bra wait{0};\nmet{0}:\nbar.sync 0;\nadd.u32 %r10, %r10, 1;\n",
        round, 100 * round);
  }
  expect_all(body, 3);
  EXPECT_LT(last_.instructions, 100'000u);
  host_threads_ = 4;
  expect_all(body, 3);
}

TEST_F(ExecuteTest, AWarpThatPollsGivesWayToItsBlock) {
  block_ = 64;
  expect_all(
      ".shared .align 4 .b8 flag[4];\nsetp.lt.u32 %p1, %r0, 32;\nsetp.eq.u32 %p2, %r0, 32;\n"
      "@%p2 st.shared.u32 [flag], 0;\nbar.sync 0;\n@%p1 bra wait;\n"
      "mov.u32 %r50, 0;\nbusy:\nadd.u32 %r50, %r50, 1;\nsetp.lt.u32 %p7, %r50, 20000;\n"
      "@%p7 bra busy;\nst.volatile.shared.u32 [flag], 1;\n"
      "wait:\nld.volatile.shared.u32 %r10, [flag];\nsetp.eq.u32 %p3, %r10, 0;\n@%p3 bra wait;\n",
      1);
  EXPECT_LT(last_.instructions, 62'000u);
}

// --- launches that cannot go on

TEST_F(ExecuteTest, TheWatchdogEndsALoopWithoutEnd) {
  limit_ = std::chrono::milliseconds(50);
  for (const char* const body :
       {"again:\nbra again;\n", "again:\nld.volatile.global.u32 %r10, [%d0];\nbra again;\n",
        "again:\nnanosleep.u32 5;\nbra again;\n"}) {
    const Outcome outcome = run(body, {upload(std::vector<uint32_t>(1))});
    EXPECT_NE(outcome.fault.find("did not end in time"), std::string::npos) << outcome.fault;
  }
}

TEST_F(ExecuteTest, MemoryThatTheHostDoesNotHaveEndsTheLaunchAndNotTheHost) {
  const std::string body = ".local .align 8 .b8 own[524288];\nst.local.u32 [own], %r0;\n";
  for (const int host_threads : {1, 4}) {
    host_threads_ = host_threads;
    grid_ = 64;
    most_bytes_at_once = 1 << 19;  // local memory of a CTA is more
    expect_fault(body, "kernel: the simulator could not run it");
    most_bytes_at_once = SIZE_MAX;
  }
}

#if defined(__x86_64__)
TEST_F(ExecuteTest, TheModeOfTheCallerChangesNoResult) {
  grid_ = 16;
  host_threads_ = 4;
  const auto sum_of_subnormals = [&] {
    return results(
        "mov.u32 %r11, 3;\nmov.u32 %r12, 0x3f800000;\nmov.b32 %r13, 0x33000001;\n"
        "add.f32 %r11, %r11, %r11;\nadd.f32 %r12, %r12, %r13;\nadd.u32 %r10, %r11, %r12;\n");
  };
  const std::vector<uint32_t> expected = sum_of_subnormals();
  EXPECT_EQ(expected[0], 6 + 0x3f800000u);
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040 | 0x4000);  // flushes, and rounds up
  const std::vector<uint32_t> got = sum_of_subnormals();
  EXPECT_EQ(_mm_getcsr() & 0xffc0, (before | 0x8040 | 0x4000) & 0xffc0);
  _mm_setcsr(before);
  EXPECT_EQ(got, expected);
}

TEST_F(ExecuteTest, TrapsOfTheCallerAreNotTheKernels) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before & ~0x1f80u);  // every trap is on
  const std::vector<uint32_t> got = results(
      "mov.u32 %r11, 0x7f000000;\nmul.f32 %r10, %r11, %r11;\nmov.u32 %r12, 1;\n"
      "sub.f32 %r13, %r10, %r10;\ndiv.rn.f32 %r13, %r11, %r13;\n");
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(after & 0x1f80u, 0u);
  EXPECT_EQ(got[0], 0x7f800000u);
}
#endif

}  // namespace
}  // namespace kiln::runtime::sim
