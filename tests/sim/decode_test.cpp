// What the decoder makes of functions, variables and registers, seen in what kernels compute.
#include <fmt/format.h>

#include <string>

#include "tests/sim/memory_testing.h"

namespace kiln::runtime::sim {
namespace {

class DecodeTest : public MemoryTest {
 protected:
  // Every thread stores %r10 to its word of the first parameter.
  std::vector<uint32_t> results(const std::string& body) {
    const size_t count = size_t{grid_} * block_;
    const uint64_t out = upload(std::vector<uint32_t>(count));
    const Outcome outcome = run(body +
                                    "mov.u32 %r60, %ntid.x;\nmad.lo.u32 %r61, %r1, %r60, %r0;\n"
                                    "mad.wide.u32 %d30, %r61, 4, %d0;\n"
                                    "st.global.u32 [%d30], %r10;\n",
                                {out});
    EXPECT_TRUE(outcome.is_clean()) << body << outcome.text();
    return download<uint32_t>(out, count);
  }
};

TEST_F(DecodeTest, AFunctionHasOneSharedVariableForAllItsCalls) {
  // Gives back what the call before it left; dynamic shared memory lies elsewhere.
  functions_ =
      ".func (.param .b32 old) swap(.param .b32 next)\n{\n.reg .b32 %r<4>;\n"
      ".shared .align 4 .b8 kept[4];\nld.param.u32 %r1, [next];\nld.shared.u32 %r2, [kept];\n"
      "st.shared.u32 [kept], %r1;\nst.param.b32 [old], %r2;\nret;\n}\n"
      ".func (.param .b32 old) outer(.param .b32 next)\n{\n.reg .b32 %r<4>;\n"
      ".param .b32 n;\n.param .b32 o;\nld.param.u32 %r1, [next];\nst.param.b32 [n], %r1;\n"
      "call.uni (o), swap, (n);\nld.param.b32 %r2, [o];\nst.param.b32 [old], %r2;\nret;\n}\n";
  block_ = 1;
  dynamic_shared_bytes_ = 16;
  checks_ = false;  // the first call reads what nobody wrote
  const auto call = [](const char* function, int next, const char* into) {
    return fmt::format(
        "mov.u32 %r20, {1};\nst.param.b32 [n], %r20;\ncall.uni (o), {0}, (n);\n"
        "ld.param.b32 {2}, [o];\n",
        function, next, into);
  };
  const std::vector<uint32_t> got = results(
      ".param .b32 n;\n.param .b32 o;\nmov.u32 %r21, more;\nst.shared.u32 [%r21], 1000;\n" +
      call("swap", 5, "%r11") + call("outer", 60, "%r12") + call("swap", 7, "%r13") +
      "ld.shared.u32 %r14, [%r21];\nadd.u32 %r10, %r12, %r13;\nadd.u32 %r10, %r10, %r14;\n");
  EXPECT_EQ(got[0], 1065u);
}

TEST_F(DecodeTest, ManyRegistersAliveAcrossALoopKeepTheirPlaces) {
  constexpr uint32_t kFirst = 11, kLast = 58;
  std::string body = "mov.u32 %r10, 0;\n";
  for (uint32_t r = kFirst; r <= kLast; ++r)
    body += fmt::format("mad.lo.u32 %r{0}, %r0, {0}, {1};\n", r, r * r);
  body += "mov.u32 %r59, 0;\nagain:\n";
  for (uint32_t r = kFirst; r < kLast; ++r)
    body += fmt::format("mad.lo.u32 %r{}, %r{}, 3, %r{};\n", r, r + 1, r);
  body += "add.u32 %r59, %r59, 1;\nsetp.le.u32 %p1, %r59, %r0;\n@%p1 bra again;\n";
  for (uint32_t r = kFirst; r <= kLast; ++r)
    body += fmt::format("mad.lo.u32 %r10, %r10, 5, %r{};\n", r);
  const std::vector<uint32_t> got = results(body);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    std::vector<uint32_t> registers(kLast + 1);
    for (uint32_t r = kFirst; r <= kLast; ++r) registers[r] = lane * r + r * r;
    for (uint32_t round = 0; round <= lane; ++round) {
      for (uint32_t r = kFirst; r < kLast; ++r) registers[r] += 3 * registers[r + 1];
    }
    uint32_t sum = 0;
    for (uint32_t r = kFirst; r <= kLast; ++r) sum = 5 * sum + registers[r];
    EXPECT_EQ(got[lane], sum) << lane;
  }
}

TEST_F(DecodeTest, ARegisterThatNobodySetIsTheSameInEveryBlock) {
  grid_ = 5;
  // On one path only; what comes behind it leaves other values in all places.
  std::string body = "setp.gt.u32 %p1, %r0, 40;\n@%p1 mov.u32 %r40, 1;\nmov.u32 %r10, %r40;\n";
  for (int r = 20; r < 30; ++r) body += fmt::format("mov.u32 %r{}, {};\n", r, r);
  for (int r = 20; r < 30; ++r) body += fmt::format("add.u32 %r11, %r11, %r{};\n", r);
  for (const uint32_t value : results(body)) EXPECT_EQ(value, 0xcdcdcdcd);
}

}  // namespace
}  // namespace kiln::runtime::sim
