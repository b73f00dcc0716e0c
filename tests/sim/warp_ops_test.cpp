// shfl, vote, match, redux and their kin, against the formulas of the PTX ISA written lane by lane.
#include <gtest/gtest.h>

#include <random>

#include "jit/base/error.h"
#include "tests/sim/lone_warp.h"

namespace kiln::runtime::sim {
namespace {

constexpr uint32_t kUntouched = 0x5a5a5a5a;
constexpr uint32_t kSomeLanes = 0x0ff1248e;

bool is_in(uint32_t mask, int lane) { return (mask >> lane & 1) != 0; }

// Lanes hold 100 + lane in %r1; targets hold a mark.
void number_lanes(LoneWarp& lone) {
  for (int lane = 0; lane < kLanes; ++lane) {
    lone.r(0)[lane] = kUntouched;
    lone.r(1)[lane] = 100 + static_cast<uint32_t>(lane);
  }
}

struct Expected {
  int source = 0;
  bool in_range = false;
};

Expected expected_source(const std::string& kind, int lane, uint32_t b, uint32_t c) {
  const int bval = b % 32;
  const int cval = c % 32;
  const int segment = c >> 8 & 31;
  const int max_lane = (lane & segment) | (cval & ~segment);
  const int min_lane = lane & segment;
  int j = 0;
  bool ok = false;
  if (kind == "up") {
    j = lane - bval;
    ok = j >= max_lane;
  } else if (kind == "down") {
    j = lane + bval;
    ok = j <= max_lane;
  } else if (kind == "bfly") {
    j = lane ^ bval;
    ok = j <= max_lane;
  } else {
    j = min_lane | (bval & ~segment);
    ok = j <= max_lane;
  }
  return {ok ? j : lane, ok};
}

TEST(Shuffle, EveryKindDistanceAndBoundFollowsTheFormula) {
  for (const std::string kind : {"up", "down", "bfly", "idx"}) {
    for (const uint32_t c : {0u, 31u, 0x1c1fu, 0x1c00u, 0x101fu, 0x1007u, 0x1f1fu, 0x0810u}) {
      for (uint32_t b = 0; b < 40; ++b) {
        LoneWarp lone;
        number_lanes(lone);
        const Instruction bound =
            lone.run(fmt::format("shfl.sync.{}.b32 %r0|%p0, %r1, {}, {}, 0xffffffff;", kind, b, c));
        EXPECT_EQ(bound.flow, Flow::rendezvous);
        for (int lane = 0; lane < kLanes; ++lane) {
          const Expected want = expected_source(kind, lane, b, c);
          ASSERT_EQ(lone.r(0)[lane], 100u + static_cast<uint32_t>(want.source))
              << kind << " b " << b << " c " << c << " lane " << lane;
          ASSERT_EQ(is_in(lone.p(0), lane), want.in_range)
              << kind << " b " << b << " c " << c << " lane " << lane;
        }
      }
    }
  }
}

TEST(Shuffle, DistanceAndBoundMayDifferFromLaneToLane) {
  std::mt19937 random(7);
  LoneWarp lone;
  number_lanes(lone);
  for (int lane = 0; lane < kLanes; ++lane) {
    lone.r(2)[lane] = random();
    lone.r(3)[lane] = random();
  }
  lone.run("shfl.sync.idx.b32 %r0, %r1, %r2, %r3, -1;");
  for (int lane = 0; lane < kLanes; ++lane) {
    const Expected want = expected_source("idx", lane, lone.r(2)[lane], lone.r(3)[lane]);
    EXPECT_EQ(lone.r(0)[lane], 100u + static_cast<uint32_t>(want.source)) << lane;
  }
}

TEST(Shuffle, LanesOutsideTheMaskStayAndAreNotRead) {
  LoneWarp lone;
  number_lanes(lone);
  lone.p(0) = 0xf0f0f0f0;
  lone.run("shfl.sync.down.b32 %r0|%p0, %r1, 1, 31, %r2;", kSomeLanes);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!is_in(kSomeLanes, lane)) {
      EXPECT_EQ(lone.r(0)[lane], kUntouched) << lane;
      EXPECT_EQ(is_in(lone.p(0), lane), is_in(0xf0f0f0f0, lane)) << lane;
    } else if (is_in(kSomeLanes, lane + 1)) {
      EXPECT_EQ(lone.r(0)[lane], 101u + static_cast<uint32_t>(lane)) << lane;
      EXPECT_TRUE(is_in(lone.p(0), lane)) << lane;
    } else {
      // PTX leaves the value open; it must not be that of a lane.
      EXPECT_EQ(lone.r(0)[lane], 0xfffefffeu) << lane;
      EXPECT_TRUE(is_in(lone.p(0), lane)) << lane;
    }
  }
}

TEST(Shuffle, TargetMayBeTheSource) {
  LoneWarp lone;
  number_lanes(lone);
  lone.run("shfl.sync.up.b32 %r1, %r1, 1, 0, -1;");
  for (int lane = 0; lane < kLanes; ++lane)
    EXPECT_EQ(lone.r(1)[lane], 100u + static_cast<uint32_t>(std::max(lane - 1, 0))) << lane;
}

TEST(Shuffle, TargetMayBeTheSinkOrTheDistance) {
  LoneWarp lone;
  number_lanes(lone);
  for (int lane = 0; lane < kLanes; ++lane) lone.r(2)[lane] = static_cast<uint32_t>(31 - lane);
  lone.run("shfl.sync.idx.b32 _|%p0, %r1, %r2, 15, -1;");
  EXPECT_EQ(lone.p(0), 0xffff0000u);
  lone.run("shfl.sync.idx.b32 %r2, %r1, %r2, 31, -1;");
  for (int lane = 0; lane < kLanes; ++lane)
    EXPECT_EQ(lone.r(2)[lane], 100u + static_cast<uint32_t>(31 - lane)) << lane;
}

TEST(Shuffle, LegacyFormWorksOnTheActiveLanes) {
  LoneWarp lone;
  number_lanes(lone);
  const Instruction bound = lone.run("shfl.bfly.b32 %r0|%p0, %r1, 16, 31;", 0x00010001);
  EXPECT_EQ(bound.flow, Flow::simple);
  EXPECT_EQ(lone.r(0)[0], 116u);
  EXPECT_EQ(lone.r(0)[16], 100u);
  EXPECT_EQ(lone.r(0)[1], kUntouched);
}

TEST(Vote, CountsOnlyTheLanesOfTheMask) {
  struct Case {
    uint32_t predicate, mask;
    bool all, any, uniform;
  };
  for (const Case& c :
       {Case{0xffffffff, 0xffffffff, true, true, true}, Case{0, 0xffffffff, false, false, true},
        Case{0xfffffffe, 0xffffffff, false, true, false},
        Case{0x0000000f, 0x0000000f, true, true, true},
        Case{0xfffffff0, 0x0000000f, false, false, true},
        Case{0x80000001, 0x80000003, false, true, false}}) {
    for (const bool negated : {false, true}) {
      for (const auto& [kind, want] :
           {std::pair{"all", c.all}, std::pair{"any", c.any}, std::pair{"uni", c.uniform}}) {
        for (const uint32_t before : {0u, kAllLanes}) {
          LoneWarp lone;
          lone.p(0) = before;
          lone.p(1) = negated ? ~c.predicate : c.predicate;
          lone.run(fmt::format("vote.sync.{}.pred %p0, {}%p1, %r0;", kind, negated ? "!" : ""),
                   c.mask);
          EXPECT_EQ(lone.p(0), (before & ~c.mask) | (want ? c.mask : 0)) << kind << c.predicate;
        }
      }
    }
  }
}

TEST(Vote, BallotHoldsTheLanesOfTheMask) {
  LoneWarp lone;
  number_lanes(lone);
  lone.p(1) = 0x13579bdf;
  lone.run("vote.sync.ballot.b32 %r0, !%p1, %r2;", kSomeLanes);
  for (int lane = 0; lane < kLanes; ++lane) {
    EXPECT_EQ(lone.r(0)[lane], is_in(kSomeLanes, lane) ? ~0x13579bdfu & kSomeLanes : kUntouched);
  }
  lone.run("vote.ballot.b32 %r0, %p1;");
  EXPECT_EQ(lone.r(0)[31], 0x13579bdfu);
  lone.run("vote.all.pred %p2, %p1;", 0x0000000f);
  EXPECT_EQ(lone.p(2), 0x0000000fu);
}

TEST(Match, AnyNamesTheLanesWithTheSameValue) {
  for (const uint32_t mask : {kAllLanes, kSomeLanes}) {
    for (const bool wide : {false, true}) {
      std::mt19937 random(3);
      LoneWarp lone;
      number_lanes(lone);
      for (int lane = 0; lane < kLanes; ++lane) {
        lone.r(1)[lane] = random() % 5;
        // The low halves are equal: only all 64 bits tell them apart.
        lone.d(0)[lane] = uint64_t{lone.r(1)[lane]} << 32 | 7;
      }
      lone.run(wide ? "match.any.sync.b64 %r0, %d0, %r2;" : "match.any.sync.b32 %r0, %r1, %r2;",
               mask);
      for (int lane = 0; lane < kLanes; ++lane) {
        uint32_t want = 0;
        for (int other = 0; other < kLanes; ++other) {
          if (is_in(mask, other) && lone.r(1)[lane] == lone.r(1)[other]) want |= 1u << other;
        }
        EXPECT_EQ(lone.r(0)[lane], is_in(mask, lane) ? want : kUntouched) << lane;
      }
    }
  }
}

TEST(Match, AllGivesTheMaskOrNothing) {
  LoneWarp lone;
  number_lanes(lone);
  for (int lane = 0; lane < kLanes; ++lane) lone.d(0)[lane] = 9;
  lone.d(0)[0] = uint64_t{1} << 32 | 9;  // lane 0 is outside kSomeLanes
  lone.p(0) = 1;
  lone.run("match.all.sync.b64 %r0|%p0, %d0, %r2;", kSomeLanes);
  EXPECT_EQ(lone.p(0), kSomeLanes | 1);
  EXPECT_EQ(lone.r(0)[1], kSomeLanes);
  EXPECT_EQ(lone.r(0)[0], kUntouched);
  lone.run("match.all.sync.b64 %r0|%p0, %d0, -1;");
  EXPECT_EQ(lone.p(0), 0u);
  for (int lane = 0; lane < kLanes; ++lane) EXPECT_EQ(lone.r(0)[lane], 0u);
  lone.run("match.all.sync.b32 %r0, %r3, -1;");
  EXPECT_EQ(lone.r(0)[31], kAllLanes);
}

uint32_t reduced(const std::string& operation, const uint32_t* values, uint32_t mask) {
  bool is_first = true;
  uint32_t result = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!is_in(mask, lane)) continue;
    const uint32_t value = values[lane];
    const auto as_signed = static_cast<int32_t>(value);
    const auto signed_result = static_cast<int32_t>(result);
    if (is_first) {
      result = value;
    } else if (operation == "add.u32" || operation == "add.s32") {
      result += value;
    } else if (operation == "min.u32") {
      result = std::min(result, value);
    } else if (operation == "max.u32") {
      result = std::max(result, value);
    } else if (operation == "min.s32") {
      result = static_cast<uint32_t>(std::min(signed_result, as_signed));
    } else if (operation == "max.s32") {
      result = static_cast<uint32_t>(std::max(signed_result, as_signed));
    } else if (operation == "and.b32") {
      result &= value;
    } else if (operation == "or.b32") {
      result |= value;
    } else {
      result ^= value;
    }
    is_first = false;
  }
  return result;
}

TEST(Redux, EveryOperationOverAnyMask) {
  std::mt19937 random(11);
  for (const std::string operation : {"add.u32", "add.s32", "min.u32", "max.u32", "min.s32",
                                      "max.s32", "and.b32", "or.b32", "xor.b32"}) {
    for (const uint32_t mask : {kAllLanes, kSomeLanes, 0x80000000u}) {
      LoneWarp lone;
      number_lanes(lone);
      for (int lane = 0; lane < kLanes; ++lane) {
        lone.r(1)[lane] = random();
        if (operation == "and.b32") lone.r(1)[lane] |= 0xff;
        if (operation == "or.b32") lone.r(1)[lane] &= 0xff;
      }
      lone.run("redux.sync." + operation + " %r0, %r1, %r2;", mask);
      for (int lane = 0; lane < kLanes; ++lane) {
        EXPECT_EQ(lone.r(0)[lane],
                  is_in(mask, lane) ? reduced(operation, lone.r(1), mask) : kUntouched)
            << operation;
      }
    }
  }
}

TEST(WarpOps, ActiveMaskIsTheLanesOfTheGroup) {
  LoneWarp lone;
  number_lanes(lone);
  lone.run("activemask.b32 %r0;", kSomeLanes);
  EXPECT_EQ(lone.r(0)[1], kSomeLanes);
  EXPECT_EQ(lone.r(0)[0], kUntouched);
}

TEST(WarpOps, WarpBarrierIsARendezvousThatOrdersMemory) {
  LoneWarp lone;
  const Instruction bound = lone.run("bar.warp.sync 0xffffffff;");
  EXPECT_EQ(bound.flow, Flow::rendezvous);
  EXPECT_TRUE(bound.synchronises);
}

TEST(WarpOps, WhatIsNotKnownIsRefused) {
  LoneWarp lone;
  for (const char* text :
       {"elect.sync %r0|%p0, -1;", "shfl.sync.b32 %r0, %r1, 1, 31, -1;",
        "shfl.sync.up.b64 %d0, %d1, 1, 31, -1;", "redux.sync.add.b32 %r0, %r1, -1;",
        "redux.sync.and.u32 %r0, %r1, -1;", "redux.sync.min.f32 %r0, %r1, -1;",
        "match.any.sync.b32 %r0|%p0, %r1, -1;", "vote.sync.ballot.pred %p0, %p1, -1;",
        "shfl.sync.up.b32 %r0, %r1, 1, 31;", "match.any.b32 %r0, %r1;"}) {
    EXPECT_THROW(lone.run(text), Error) << text;
  }
}

}  // namespace
}  // namespace kiln::runtime::sim
