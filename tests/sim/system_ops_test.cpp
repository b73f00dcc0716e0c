// printf and assert of a kernel: what the device runtime does with a format and a buffer that a
// kernel made, which may be anything.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <ctime>

#include "jit/base/error.h"
#include "tests/sim/memory_testing.h"

namespace {

// By how much the time of day goes back with each question of this thread.
thread_local int64_t step_back_s = 0;

}  // namespace

// In the place of that of libc.
extern "C" int clock_gettime(clockid_t clock, timespec* time) {
  static thread_local int64_t lost_s = 0;
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec -= lost_s += step_back_s;
  return result;
}

namespace kiln::runtime::sim {
namespace {

// The arguments of one printf, as the device compiler lays them out.
class Arguments {
 public:
  template <class T>
  Arguments& add(T value) {
    bytes_.resize((bytes_.size() + sizeof(T) - 1) / sizeof(T) * sizeof(T));
    const auto* const begin = reinterpret_cast<const char*>(&value);
    bytes_.insert(bytes_.end(), begin, begin + sizeof value);
    return *this;
  }
  const std::vector<char>& bytes() const { return bytes_; }

 private:
  std::vector<char> bytes_;
};

class SystemOpsTest : public MemoryTest {
 protected:
  struct Printed {
    std::string text;
    std::string fault;
    uint32_t count = 0;
  };

  uint64_t upload_text(std::string_view text) {
    std::vector<char> bytes(text.begin(), text.end());
    bytes.push_back('\0');
    return upload(bytes);
  }

  Printed print(std::string_view format, const Arguments& arguments = {}) {
    checks_ = false;
    block_ = 1;
    const uint64_t buffer = arguments.bytes().empty() ? 0 : upload(arguments.bytes());
    const uint64_t count = upload(std::vector<uint32_t>{0});
    testing::internal::CaptureStdout();
    const Outcome outcome =
        run(".param .b64 format;\n.param .b64 buffer;\n.param .b32 count;\n"
            "st.param.b64 [format], %d0;\nst.param.b64 [buffer], %d1;\n"
            "call.uni (count), vprintf, (format, buffer);\n"
            "ld.param.b32 %r2, [count];\nst.global.u32 [%d2], %r2;",
            {upload_text(format), buffer, count});
    std::fflush(stdout);
    return {.text = testing::internal::GetCapturedStdout(),
            .fault = outcome.fault,
            .count = download<uint32_t>(count, 1)[0]};
  }

  std::string text_of(std::string_view format, const Arguments& arguments = {}) {
    const Printed printed = print(format, arguments);
    EXPECT_EQ(printed.fault, "") << format;
    return printed.text;
  }

  std::string refusal(const std::string& body) {
    try {
      run(body);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(SystemOpsTest, PrintfPrintsIntegersOfEveryLength) {
  EXPECT_EQ(text_of("%d %i %u|", Arguments().add(-5).add(7).add(9u)), "-5 7 9|");
  EXPECT_EQ(text_of("%x %X %#o|", Arguments().add(255u).add(255u).add(8u)), "ff FF 010|");
  EXPECT_EQ(text_of("%hd %hhd %hx|", Arguments().add(65537).add(-129).add(0x12345u)),
            "1 127 2345|");
  const int64_t big = -(int64_t{1} << 40);
  for (const char* length : {"l", "ll", "z", "j", "t"}) {
    EXPECT_EQ(text_of(fmt::format("%{}d,%d|", length), Arguments().add(big).add(3)),
              "-1099511627776,3|")
        << length;
  }
}

TEST_F(SystemOpsTest, PrintfTakesWidthAndPrecisionFromItsArguments) {
  EXPECT_EQ(text_of("[%*d]%d", Arguments().add(5).add(42).add(7)), "[   42]7");
  EXPECT_EQ(text_of("[%*d]%d", Arguments().add(-5).add(42).add(7)), "[42   ]7");
  EXPECT_EQ(text_of("[%.*f]%d", Arguments().add(2).add(3.14159).add(7)), "[3.14]7");
  EXPECT_EQ(text_of("[%.*f]%d", Arguments().add(-2).add(0.5).add(7)), "[0.500000]7");
  EXPECT_EQ(text_of("[%+08.3f]", Arguments().add(1.5)), "[+001.500]");
}

TEST_F(SystemOpsTest, PrintfPrintsTextAndPointers) {
  const uint64_t word = upload_text("abcdef");
  EXPECT_EQ(
      text_of("[%8s][%-8s][%.2s][%c]", Arguments().add(word).add(word).add(word).add(int{'z'})),
      "[  abcdef][abcdef  ][ab][z]");
  EXPECT_EQ(text_of("%p", Arguments().add(uint64_t{0xabc})), "0xabc");
  EXPECT_EQ(text_of("100%% of %s", Arguments().add(word)), "100% of abcdef");
}

TEST_F(SystemOpsTest, PrintfGivesTheNumberOfItsArguments) {
  EXPECT_EQ(print("%d %% %f", Arguments().add(1).add(2.0)).count, 2u);
  EXPECT_EQ(print("none").count, 0u);
}

TEST_F(SystemOpsTest, AFormatThatTheGpuDoesNotKnowIsAFaultWithItsText) {
  for (const char* format : {"%n items", "%q", "%", "100%", "%5", "%-", "%.", "%lln", "%y", "% "}) {
    const Printed printed = print(format, Arguments().add(uint64_t{1}).add(uint64_t{2}));
    EXPECT_NE(printed.fault.find(fmt::format("of its format \"{}\"", format)), std::string::npos)
        << format << ": " << printed.fault;
    EXPECT_EQ(printed.text, "") << format;
  }
}

TEST_F(SystemOpsTest, AFieldOfAbsurdWidthIsAFault) {
  EXPECT_NE(print("%2000000000d", Arguments().add(1)).fault.find("4095"), std::string::npos);
  EXPECT_NE(print("%*d", Arguments().add(INT32_MIN).add(1)).fault.find("4095"), std::string::npos);
  EXPECT_NE(print("%.99999999999999999999f", Arguments().add(1.0)).fault.find("4095"),
            std::string::npos);
}

TEST_F(SystemOpsTest, AnArgumentBehindTheBufferIsAFault) {
  EXPECT_NE(print("%d").fault.find("does not exist"), std::string::npos);
  EXPECT_NE(print("%s", Arguments().add(uint64_t{16})).fault.find("does not exist"),
            std::string::npos);
}

TEST_F(SystemOpsTest, ACallOfTheRuntimeNeedsItsArguments) {
  const std::string params = ".param .b64 x;\n.param .b64 y;\n.param .b32 r;\n";
  for (const char* call :
       {"call.uni vprintf;", "call.uni (r), vprintf;", "call.uni (r), vprintf, (x);",
        "call.uni vprintf, (x, y);", "call.uni __assertfail;", "call.uni __assertfail, (x);"}) {
    EXPECT_NE(refusal(params + call).find("arguments"), std::string::npos) << call;
  }
  EXPECT_NE(refusal(params + "call.uni unheard_of, vprintf;").find("has no body"),
            std::string::npos);
}

TEST_F(SystemOpsTest, ACallArgumentThatIsTooShortIsAFault) {
  checks_ = false;
  // The last one declared has four bytes; eight are read.
  const Outcome outcome =
      run(".param .b64 x;\n.param .b32 r;\n.param .b32 y;\ncall.uni (r), vprintf, (x, y);");
  EXPECT_NE(outcome.fault.find("8 bytes of its own"), std::string::npos) << outcome.fault;
}

TEST_F(SystemOpsTest, AssertNamesWhatFailed) {
  checks_ = false;
  const Outcome outcome =
      run(".param .b64 m;\n.param .b64 f;\n.param .b32 l;\n.param .b64 n;\n.param .b64 s;\n"
          "st.param.b64 [m], %d0;\ncall.uni __assertfail, (m, f, l, n, s);",
          {upload_text("x > 0")});
  EXPECT_NE(outcome.fault.find("the assertion \"x > 0\" failed"), std::string::npos)
      << outcome.fault;
}

TEST_F(SystemOpsTest, TheGlobalTimerIsTheTimeOfDayAndNeverGoesBack) {
  checks_ = false;
  block_ = 1;
  const uint64_t times = upload(std::vector<uint64_t>(3));
  const std::string body =
      "mov.u64 %d4, %globaltimer;\nmov.u64 %d5, %globaltimer;\nmov.u64 %d6, %globaltimer;\n"
      "st.global.u64 [%d0], %d4;\nst.global.u64 [%d0+8], %d5;\nst.global.u64 [%d0+16], %d6;";
  const auto begin = static_cast<uint64_t>(std::time(nullptr));
  EXPECT_EQ(run(body, {times}).fault, "");
  step_back_s = 1000;
  EXPECT_EQ(run(body, {times}).fault, "");
  step_back_s = 0;
  const std::vector<uint64_t> seen = download<uint64_t>(times, 3);
  EXPECT_LE(seen[0], seen[1]);
  EXPECT_LE(seen[1], seen[2]);
  EXPECT_GE(seen[0] / 1'000'000'000 + 60, begin);
  EXPECT_LE(seen[0] / 1'000'000'000, begin + 600);
}

}  // namespace
}  // namespace kiln::runtime::sim
