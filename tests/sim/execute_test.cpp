// How warps, lanes and CTAs take turns: divergence and where lanes meet again, barriers, calls,
// polling, and how a launch ends that cannot go on.
#include <fmt/format.h>

#include <string>

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

}  // namespace
}  // namespace kiln::runtime::sim
