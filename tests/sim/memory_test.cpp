// Memory instructions through PTX text, against plain C++.
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include "jit/base/error.h"
#include "tests/sim/memory_testing.h"

namespace kiln::runtime::sim {
namespace {

// %d10: 4 bytes a thread of the first parameter; %d11: 8 bytes; %d12: 16 bytes.
constexpr std::string_view kOwnPlaces =
    "mad.wide.u32 %d10, %r0, 4, %d0;\nmad.wide.u32 %d11, %r0, 8, %d0;\n"
    "mad.wide.u32 %d12, %r0, 16, %d0;\n";

class Memory : public MemoryTest {
 protected:
  // Runs with and without the checker; both give the same, and the checker finds nothing.
  template <class T>
  std::vector<T> result_of(const std::string& body, size_t count,
                           const std::function<std::vector<uint64_t>()>& make_params = nullptr) {
    std::vector<T> results[2];
    for (const bool checks : {false, true}) {
      checks_ = checks;
      const uint64_t out = upload(std::vector<T>(count));
      std::vector<uint64_t> params = {out};
      if (make_params) {
        for (const uint64_t param : make_params()) params.push_back(param);
      }
      const Outcome outcome = run(std::string(kOwnPlaces) + body, params);
      EXPECT_TRUE(outcome.is_clean()) << outcome.text();
      results[checks] = download<T>(out, count);
    }
    EXPECT_EQ(results[0], results[1]);
    return results[0];
  }

  std::string fault_of(const std::string& body, std::vector<uint64_t> params = {}) {
    std::string text;
    for (const bool checks : {true, false}) {
      checks_ = checks;
      text = run(std::string(kOwnPlaces) + body, params).fault;
      EXPECT_NE(text, "") << body;
    }
    return text;
  }

  void expect_unsupported(const std::string& body) {
    try {
      run(body);
      ADD_FAILURE() << body << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::unsupported) << error.what();
    }
  }
};

std::vector<uint8_t> bytes_from(int first, size_t count) {
  std::vector<uint8_t> bytes(count);
  for (size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<uint8_t>(first + 37 * static_cast<int>(i));
  return bytes;
}

template <class T>
T at(const std::vector<uint8_t>& bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// --- ld and st

template <class T>
std::string load_to_words(const std::string& type, const std::string& address = "%d13") {
  return fmt::format(
      "mad.wide.u32 %d13, %r0, {}, %d1;\nld.global.{} %r10, [{}];\nst.global.u32 [%d10], %r10;\n",
      sizeof(T), type, address);
}

TEST_F(Memory, NarrowLoadsExtendToTheRegister) {
  const std::vector<uint8_t> bytes = bytes_from(100, 32 * 4);
  const auto source = [&] { return std::vector<uint64_t>{upload(bytes)}; };
  const auto u8 = result_of<uint32_t>(load_to_words<uint8_t>("u8"), 32, source);
  const auto s8 = result_of<int32_t>(load_to_words<int8_t>("s8"), 32, source);
  const auto u16 = result_of<uint32_t>(load_to_words<uint16_t>("u16"), 32, source);
  const auto s16 = result_of<int32_t>(load_to_words<int16_t>("s16"), 32, source);
  const auto b32 = result_of<uint32_t>(load_to_words<uint32_t>("b32"), 32, source);
  for (size_t l = 0; l < 32; ++l) {
    EXPECT_EQ(u8[l], bytes[l]);
    EXPECT_EQ(s8[l], static_cast<int8_t>(bytes[l]));
    EXPECT_EQ(u16[l], at<uint16_t>(bytes, 2 * l));
    EXPECT_EQ(s16[l], at<int16_t>(bytes, 2 * l));
    EXPECT_EQ(b32[l], at<uint32_t>(bytes, 4 * l));
  }
}

TEST_F(Memory, LoadsExtendToRegistersOf64Bits) {
  const std::vector<uint8_t> bytes = bytes_from(90, 32 * 4);
  const auto source = [&] { return std::vector<uint64_t>{upload(bytes)}; };
  const auto load = [&](const std::string& type, size_t size) {
    return result_of<int64_t>(
        fmt::format("mad.wide.u32 %d13, %r0, {}, %d1;\nld.global.{} %d14, [%d13];\n"
                    "st.global.u64 [%d11], %d14;\n",
                    size, type),
        32, source);
  };
  const auto s8 = load("s8", 1);
  const auto u8 = load("u8", 1);
  const auto s16 = load("s16", 2);
  const auto s32 = load("s32", 4);
  const auto u32 = load("u32", 4);
  for (size_t l = 0; l < 32; ++l) {
    EXPECT_EQ(s8[l], static_cast<int8_t>(bytes[l]));
    EXPECT_EQ(u8[l], bytes[l]);
    EXPECT_EQ(s16[l], at<int16_t>(bytes, 2 * l));
    EXPECT_EQ(s32[l], at<int32_t>(bytes, 4 * l));
    EXPECT_EQ(u32[l], at<uint32_t>(bytes, 4 * l));
  }
}

TEST_F(Memory, SignedBytesFillARegisterOf16Bits) {
  const std::vector<uint8_t> bytes = bytes_from(3, 32);
  const auto values = result_of<uint32_t>(
      "cvt.u64.u32 %d13, %r0;\nadd.u64 %d13, %d13, %d1;\nld.global.s8 %h1, [%d13];\n"
      "mov.u16 %h2, 7;\nmov.b32 %r10, {%h1, %h2};\nst.global.u32 [%d10], %r10;\n",
      32, [&] { return std::vector<uint64_t>{upload(bytes)}; });
  for (size_t l = 0; l < 32; ++l) {
    const auto low = static_cast<uint16_t>(static_cast<int16_t>(static_cast<int8_t>(bytes[l])));
    EXPECT_EQ(values[l], 7u << 16 | low);
  }
}

TEST_F(Memory, NarrowStoresTouchOnlyTheirBytes) {
  const auto bytes = result_of<uint8_t>(
      "mov.u32 %r10, 0x11223344;\nmov.u64 %d14, 0x5566778899aabbcc;\n"
      "st.global.u8 [%d10+1], %r10;\nst.global.u16 [%d10+2], %d14;\n",
      32 * 4);
  for (size_t l = 0; l < 32; ++l) {
    EXPECT_EQ(bytes[4 * l], 0);
    EXPECT_EQ(bytes[4 * l + 1], 0x44);
    EXPECT_EQ(bytes[4 * l + 2], 0xcc);
    EXPECT_EQ(bytes[4 * l + 3], 0xbb);
  }
}

TEST_F(Memory, VectorsGoElementByElement) {
  std::vector<uint32_t> source(128);
  std::iota(source.begin(), source.end(), 1000u);
  const auto params = [&] { return std::vector<uint64_t>{upload(source)}; };
  const auto reversed = result_of<uint32_t>(
      "mad.wide.u32 %d13, %r0, 16, %d1;\n"
      "ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%r10, %r11, %r12, %r13}, [%d13];\n"
      "st.global.cs.v4.b32 [%d12], {%r13, %r12, %r11, %r10};\n",
      128, params);
  const auto halves = result_of<uint64_t>(
      "mad.wide.u32 %d13, %r0, 16, %d1;\nld.global.v2.u64 {_, %d14}, [%d13];\n"
      "st.global.v2.u64 [%d12], {%d14, 5};\n",
      64, params);
  const auto shorts = result_of<uint16_t>(
      "mad.wide.u32 %d13, %r0, 8, %d1;\nld.global.v4.u16 {%h1, %h2, %h3, %h4}, [%d13];\n"
      "st.global.v2.u16 [%d10], {%h3, %h1};\n",
      64, params);
  for (size_t l = 0; l < 32; ++l) {
    for (size_t e = 0; e < 4; ++e) EXPECT_EQ(reversed[4 * l + e], source[4 * l + 3 - e]);
    EXPECT_EQ(halves[2 * l], source[4 * l + 2] | uint64_t{source[4 * l + 3]} << 32);
    EXPECT_EQ(halves[2 * l + 1], 5u);
    EXPECT_EQ(shorts[2 * l], static_cast<uint16_t>(source[2 * l + 1]));
    EXPECT_EQ(shorts[2 * l + 1], static_cast<uint16_t>(source[2 * l]));
  }
}

TEST_F(Memory, LanesThatDoNotTakePartKeepTheirRegisters) {
  const auto values = result_of<uint32_t>(
      "mov.u32 %r10, 77;\nsetp.lt.u32 %p1, %r0, 5;\n@%p1 ld.global.u32 %r10, [%d1];\n"
      "@!%p1 st.global.u32 [%d10], %r10;\n@%p1 st.global.u32 [%d10], %r10;\n",
      32, [&] { return std::vector<uint64_t>{upload(std::vector<uint32_t>{5})}; });
  for (size_t l = 0; l < 32; ++l) EXPECT_EQ(values[l], l < 5 ? 5u : 77u);
}

TEST_F(Memory, ScatteredLanesReachTheirOwnPlaces) {
  std::vector<uint32_t> source(32);
  std::iota(source.begin(), source.end(), 0u);
  const auto values = result_of<uint32_t>(
      "mul.lo.u32 %r9, %r0, 7;\nand.b32 %r9, %r9, 31;\nmad.wide.u32 %d13, %r9, 4, %d1;\n"
      "ld.global.u32 %r10, [%d13];\nmad.wide.u32 %d14, %r9, 4, %d0;\n"
      "st.global.u32 [%d14], %r0;\nst.global.u32 [%d10+128], %r10;\n",
      64, [&] { return std::vector<uint64_t>{upload(source)}; });
  for (uint32_t l = 0; l < 32; ++l) {
    EXPECT_EQ(values[l * 7 % 32], l);
    EXPECT_EQ(values[32 + l], l * 7 % 32);
  }
}

TEST_F(Memory, OfLanesThatWriteOnePlaceTheLastWins) {
  const auto values = result_of<uint32_t>(
      "setp.eq.u32 %p1, %r0, 31;\nmov.u32 %r10, 9;\nst.global.u32 [%d0], %r10;\n", 1);
  EXPECT_EQ(values[0], 9u);
}

TEST_F(Memory, EachThreadHasItsOwnLocalMemory) {
  const auto values = result_of<uint32_t>(
      ".local .align 8 .b8 own[16];\nmov.u64 %d14, own;\ncvta.local.u64 %d15, %d14;\n"
      "st.local.u32 [%d14+4], %r0;\nld.u32 %r10, [%d15+4];\nadd.u32 %r10, %r10, 1;\n"
      "st.u32 [%d15+8], %r10;\nld.local.u32 %r11, [own+8];\nst.global.u32 [%d10], %r11;\n",
      32);
  for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(values[l], l + 1);
}

TEST_F(Memory, SharedMemoryByAddressesOf32And64Bits) {
  const auto values = result_of<uint32_t>(
      ".shared .align 16 .b8 first[64];\n.shared .align 16 .b8 tile[128];\n"
      "mov.u32 %r9, tile;\nmad.lo.u32 %r10, %r0, 4, %r9;\nst.shared.u32 [%r10], %r0;\n"
      "bar.sync 0;\nxor.b32 %r11, %r0, 1;\nmov.u64 %d14, tile;\ncvta.shared.u64 %d15, %d14;\n"
      "mad.wide.u32 %d16, %r11, 4, %d14;\nld.shared.u32 %r12, [%d16];\n"
      "mad.wide.u32 %d16, %r11, 4, %d15;\nld.u32 %r13, [%d16];\n"
      "cvta.to.shared.u64 %d17, %d16;\nld.shared::cta.u32 %r14, [%d17];\n"
      "add.u32 %r12, %r12, %r13;\nadd.u32 %r12, %r12, %r14;\nst.global.u32 [%d10], %r12;\n",
      32);
  for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(values[l], 3 * (l ^ 1));
}

TEST_F(Memory, GenericAddressesOfOneInstructionMayBeInDifferentSpaces) {
  const auto values = result_of<uint32_t>(
      ".shared .align 16 .b8 tile[128];\n.local .align 8 .b8 own[8];\n"
      "mov.u64 %d14, tile;\ncvta.shared.u64 %d14, %d14;\nmad.wide.u32 %d14, %r0, 4, %d14;\n"
      "mov.u64 %d15, own;\ncvta.local.u64 %d15, %d15;\n"
      "mad.wide.u32 %d16, %r0, 4, %d1;\n"
      "rem.u32 %r9, %r0, 3;\nsetp.eq.u32 %p1, %r9, 0;\nsetp.eq.u32 %p2, %r9, 1;\n"
      "selp.b64 %d17, %d14, %d16, %p1;\nselp.b64 %d17, %d15, %d17, %p2;\n"
      "add.u32 %r10, %r0, 500;\nst.u32 [%d17], %r10;\nld.u32 %r11, [%d17];\n"
      "isspacep.shared %p3, %d17;\nisspacep.local %p4, %d17;\nisspacep.global %p5, %d17;\n"
      "@%p3 add.u32 %r11, %r11, 1000;\n@%p4 add.u32 %r11, %r11, 2000;\n"
      "@%p5 add.u32 %r11, %r11, 4000;\nst.global.u32 [%d10], %r11;\n",
      32, [&] { return std::vector<uint64_t>{upload(std::vector<uint32_t>(32))}; });
  constexpr uint32_t kMark[] = {1000, 2000, 4000};
  for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(values[l], 500 + l + kMark[l % 3]);
}

TEST_F(Memory, StrongAccessesMoveTheSameData) {
  const auto values = result_of<uint32_t>(
      "ld.volatile.global.u32 %r10, [%d1];\nld.acquire.gpu.global.u32 %r11, [%d1+4];\n"
      "ld.relaxed.sys.global.v2.u32 {%r12, %r13}, [%d1+8];\nadd.u32 %r10, %r10, %r11;\n"
      "add.u32 %r10, %r10, %r12;\nadd.u32 %r10, %r10, %r13;\n"
      "st.release.gpu.global.u32 [%d10], %r10;\nst.volatile.global.u32 [%d10+128], %r0;\n",
      64, [&] {
        return std::vector<uint64_t>{upload(std::vector<uint32_t>{1, 10, 100, 1000})};
      });
  for (uint32_t l = 0; l < 32; ++l) {
    EXPECT_EQ(values[l], 1111u);
    EXPECT_EQ(values[32 + l], l);
  }
}

TEST_F(Memory, CacheHintsAndPoliciesChangeNothing) {
  const auto values = result_of<uint32_t>(
      "createpolicy.fractional.L2::evict_last.b64 %d14, 1.0;\n"
      "ld.global.L1::evict_last.L2::cache_hint.u32 %r10, [%d1], %d14;\n"
      "prefetch.global.L2 [%d1];\nprefetchu.L1 [%d1];\nld.global.cv.u32 %r11, [%d1];\n"
      "add.u32 %r10, %r10, %r11;\nst.global.wt.u32 [%d10], %r10;\n",
      32, [&] { return std::vector<uint64_t>{upload(std::vector<uint32_t>{21})}; });
  for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(values[l], 42u);
}

// --- faults

TEST_F(Memory, AMisalignedAccessIsAFault) {
  const uint64_t a = upload(std::vector<uint32_t>(64));
  EXPECT_NE(fault_of("ld.global.u32 %r9, [%d0+2];", {a}).find("not a multiple of 4"),
            std::string::npos);
  EXPECT_NE(fault_of("ld.global.v2.u32 {%r9, %r8}, [%d0+4];", {a}).find("not a multiple of 8"),
            std::string::npos);
  fault_of(".shared .align 16 .b8 t[64];\nst.shared.u16 [t+1], %r0;");
}

TEST_F(Memory, AnAddressOutsideOfEveryAllocationIsAFault) {
  const uint64_t a = upload(std::vector<uint32_t>(32));
  const std::string text = fault_of("ld.global.u32 %r9, [%d10+4];", {a});
  EXPECT_NE(text.find("thread (31, 0, 0)"), std::string::npos) << text;
  fault_of("st.global.u32 [%d0+-4], %r0;", {a});
  fault_of("ld.global.u32 %r9, [%d1];", {a, 0});
  fault_of("st.global.u32 [%d1], %r0;", {a, ~uint64_t{3}});
  fault_of("atom.global.add.u32 %r9, [%d1], 1;", {a, 64});
  fault_of("ld.u32 %r9, [%d1];", {a, uint64_t{0x77} << 56});
}

TEST_F(Memory, AFreedAllocationIsAFault) {
  const uint64_t a = upload(std::vector<uint32_t>(32));
  arena_.free(a);
  fault_of("ld.global.u32 %r9, [%d10];", {a});
}

TEST_F(Memory, OutsideOfSharedLocalAndParamIsAFault) {
  fault_of(".shared .align 16 .b8 t[64];\nmad.lo.u32 %r9, %r0, 4, 0;\nst.shared.u32 [%r9], %r0;");
  fault_of("mov.u32 %r9, 0;\nld.shared.u32 %r9, [%r9+-4];");
  fault_of(".local .align 8 .b8 own[8];\nst.local.u64 [own+8], %d0;");
  fault_of("ld.param.u64 %d9, [a+32];");
  fault_of("cvta.param.u64 %d9, a;\nst.u64 [%d9], %d0;");
}

TEST_F(Memory, DynamicSharedMemoryEndsWhereTheLaunchSays) {
  dynamic_shared_bytes_ = 128;
  const std::string body =
      "mov.u32 %r9, more;\nmad.lo.u32 %r9, %r0, 4, %r9;\n"
      "st.shared.u32 [%r9], %r0;";
  EXPECT_TRUE(run(body).is_clean());
  dynamic_shared_bytes_ = 124;
  EXPECT_NE(fault_of(body).find("thread (31, 0, 0)"), std::string::npos);
}

// --- atom and red

template <class T>
std::string type_name();
template <>
std::string type_name<uint32_t>() {
  return "u32";
}
template <>
std::string type_name<int32_t>() {
  return "s32";
}
template <>
std::string type_name<uint64_t>() {
  return "u64";
}
template <>
std::string type_name<int64_t>() {
  return "s64";
}

template <class T>
using Combine = std::function<T(T, T)>;

template <class T>
std::map<std::string, Combine<T>> operations() {
  using U = std::make_unsigned_t<T>;
  std::map<std::string, Combine<T>> all;
  all["add." + type_name<T>()] = [](T a, T b) {
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  };
  all["min." + type_name<T>()] = [](T a, T b) { return a < b ? a : b; };
  all["max." + type_name<T>()] = [](T a, T b) { return a > b ? a : b; };
  const std::string bits = sizeof(T) == 4 ? "b32" : "b64";
  all["and." + bits] = [](T a, T b) { return static_cast<T>(a & b); };
  all["or." + bits] = [](T a, T b) { return static_cast<T>(a | b); };
  all["xor." + bits] = [](T a, T b) { return static_cast<T>(a ^ b); };
  all["exch." + bits] = [](T, T b) { return b; };
  if constexpr (std::is_same_v<T, uint32_t>) {
    all["inc.u32"] = [](T a, T b) { return a >= b ? 0u : a + 1; };
    all["dec.u32"] = [](T a, T b) { return a == 0 || a > b ? b : a - 1; };
  }
  return all;
}

class Atomics : public Memory {
 protected:
  // All lanes on one place, in their order; the place and what the lanes saw.
  template <class T>
  void expect_in_lane_order(const std::string& space) {
    std::vector<T> operands(32);
    for (size_t l = 0; l < 32; ++l) {
      operands[l] = static_cast<T>(0x9e3779b97f4a7c15 * (l + 1) >> (l % 7 * 4));
    }
    const T start = static_cast<T>(0x123456789abcdef5);
    const std::string data = sizeof(T) == 4 ? "%r" : "%d";
    const std::string own = sizeof(T) == 4 ? "%d10" : "%d11";
    for (const auto& [name, combine] : operations<T>()) {
      std::string body =
          fmt::format("mad.wide.u32 %d13, %r0, {0}, %d1;\nld.global.b{1} {2}20, [%d13];\n",
                      sizeof(T), 8 * sizeof(T), data);
      if (space == "shared") {
        body += fmt::format(
            ".shared .align 8 .b8 place[8];\nld.global.b{0} {1}21, [%d2];\n"
            "st.shared.b{0} [place], {1}21;\nbar.sync 0;\n"
            "atom.shared.{2} {1}22, [place], {1}20;\n"
            "bar.sync 0;\nld.shared.b{0} {1}21, [place];\nst.global.b{0} [%d2], {1}21;\n",
            8 * sizeof(T), data, name);
      } else {
        body += fmt::format("atom{}.{} {}22, [%d2], {}20;\n", space, name, data, data);
      }
      body += fmt::format("st.global.b{} [{}], {}22;\n", 8 * sizeof(T), own, data);
      uint64_t place = 0;
      const auto seen = result_of<T>(body, 32, [&] {
        place = upload(std::vector<T>{start});
        return std::vector<uint64_t>{upload(operands), place};
      });
      T value = start;
      for (size_t l = 0; l < 32; ++l) {
        EXPECT_EQ(seen[l], value) << name << " lane " << l;
        value = combine(value, operands[l]);
      }
      EXPECT_EQ(download<T>(place, 1)[0], value) << name;
    }
  }
};

TEST_F(Atomics, GlobalInLaneOrder) {
  expect_in_lane_order<uint32_t>(".global");
  expect_in_lane_order<int32_t>(".relaxed.gpu.global");
  expect_in_lane_order<uint64_t>(".acq_rel.gpu.global");
  expect_in_lane_order<int64_t>("");
}

TEST_F(Atomics, SharedInLaneOrder) {
  expect_in_lane_order<uint32_t>("shared");
  expect_in_lane_order<int32_t>("shared");
  expect_in_lane_order<uint64_t>("shared");
  expect_in_lane_order<int64_t>("shared");
}

TEST_F(Atomics, CompareAndSwapOfAllSizes) {
  const auto words = result_of<uint32_t>(
      "add.u32 %r20, %r0, 1;\natom.global.cas.b32 %r21, [%d0], %r0, %r20;\n"
      "cvt.u64.u32 %d20, %r0;\nadd.u64 %d21, %d20, 1;\natom.global.cas.b64 %d22, [%d0+8], %d20, "
      "%d21;\n"
      "cvt.u16.u32 %h1, %r0;\nadd.u16 %h2, %h1, 1;\natom.global.cas.b16 %h3, [%d0+18], %h1, %h2;\n",
      6);
  EXPECT_EQ(words, (std::vector<uint32_t>{32, 0, 32, 0, 32u << 16, 0}));
}

TEST_F(Atomics, ReductionsFromManyBlocksAddUp) {
  grid_ = 7;
  block_ = 96;
  const auto words = result_of<uint32_t>(
      "red.global.add.u32 [%d0], 1;\nred.global.max.s32 [%d0+4], %r0;\nred.or.b32 [%d0+8], %r0;\n",
      3);
  EXPECT_EQ(words, (std::vector<uint32_t>{7 * 96, 95, 127}));
}

TEST_F(Atomics, FloatAdd) {
  const auto words = result_of<uint32_t>(
      "red.global.add.f32 [%d0], 0f3F000000;\nred.global.add.f32 [%d0+4], 0f7FC12345;\n", 2);
  EXPECT_EQ(words, (std::vector<uint32_t>{std::bit_cast<uint32_t>(16.0f), 0x7fffffff}));
  const auto doubles = result_of<double>("red.global.add.f64 [%d0], 0d3FB999999999999A;\n", 1);
  double sum = 0;
  for (int l = 0; l < 32; ++l) sum += 0.1;
  EXPECT_EQ(doubles[0], sum);
}

TEST_F(Atomics, GlobalFloatAddFlushesSubnormalsAndSharedDoesNot) {
  const auto bits = result_of<uint32_t>(
      ".shared .align 4 .b8 place[4];\nsetp.ne.u32 %p1, %r0, 0;\n@%p1 bra done;\n"
      "st.shared.u32 [place], 1;\natom.shared.add.f32 %r10, [place], 0f00000002;\n"
      "ld.shared.u32 %r11, [place];\nst.global.u32 [%d0], %r11;\n"
      "st.global.u32 [%d0+4], 1;\nred.global.add.f32 [%d0+4], 0f80000002;\n"
      "st.global.u32 [%d0+8], 0x80800001;\nred.global.add.f32 [%d0+8], 0f00800000;\ndone:\n",
      3);
  EXPECT_EQ(bits[0], 3u);
  EXPECT_EQ(bits[1], 0u);
  EXPECT_EQ(bits[2], 0x80000000u);
}

TEST_F(Atomics, HalvesRoundEachForItself) {
  // f16: 2048 + 1 ties to even, 1 + 1; bf16: 256 + 1 ties to even.
  const auto bits = result_of<uint32_t>(
      "setp.ne.u32 %p1, %r0, 0;\n@%p1 bra done;\n"
      "st.global.u32 [%d0], 0x3c006800;\nmov.u32 %r10, 0x3c003c00;\n"
      "red.global.add.noftz.f16x2 [%d0], %r10;\n"
      "st.global.u32 [%d0+4], 0x00014380;\nmov.u32 %r10, 0x00013f80;\n"
      "red.global.add.noftz.bf16x2 [%d0+4], %r10;\n"
      "st.global.u32 [%d0+8], 0x12340001;\nmov.u16 %h1, 1;\n"
      "atom.global.add.noftz.f16 %h2, [%d0+8], %h1;\ndone:\n",
      3);
  EXPECT_EQ(bits, (std::vector<uint32_t>{0x40006800, 0x00024380, 0x12340002}));
}

TEST_F(Atomics, OfLocalMemoryAreAFault) {
  fault_of(
      ".local .align 8 .b8 own[8];\nmov.u64 %d14, own;\ncvta.local.u64 %d14, %d14;\n"
      "atom.add.u32 %r10, [%d14], 1;");
}

// --- cp.async

TEST_F(Memory, AsyncCopiesOfAllSizes) {
  const std::vector<uint8_t> bytes = bytes_from(1, 32 * 16);
  const auto params = [&] { return std::vector<uint64_t>{upload(bytes)}; };
  for (const int size : {4, 8, 16}) {
    const auto copied = result_of<uint8_t>(
        fmt::format(".shared .align 16 .b8 tile[512];\nmov.u32 %r9, tile;\n"
                    "mad.lo.u32 %r9, %r0, {0}, %r9;\nmad.wide.u32 %d13, %r0, {0}, %d1;\n"
                    "cp.async.ca.shared.global [%r9], [%d13], {0};\n"
                    "cp.async.commit_group;\ncp.async.wait_group 0;\n"
                    "mad.wide.u32 %d14, %r0, {0}, %d0;\n{1}",
                    size,
                    size == 4   ? "ld.shared.u32 %r10, [%r9];\nst.global.u32 [%d14], %r10;\n"
                    : size == 8 ? "ld.shared.u64 %d15, [%r9];\nst.global.u64 [%d14], %d15;\n"
                                : "ld.shared.v2.u64 {%d15, %d16}, [%r9];\n"
                                  "st.global.v2.u64 [%d14], {%d15, %d16};\n"),
        static_cast<size_t>(32 * size), params);
    EXPECT_TRUE(std::equal(copied.begin(), copied.end(), bytes.begin()));
  }
}

TEST_F(Memory, AsyncCopiesFillWithZeros) {
  const std::vector<uint8_t> bytes = bytes_from(1, 32 * 16);
  // A lane reads as many bytes as its number says, at most 16; nothing of an address with 0.
  const auto sized = result_of<uint8_t>(
      ".shared .align 16 .b8 tile[512];\nmov.u32 %r9, tile;\nmad.lo.u32 %r9, %r0, 16, %r9;\n"
      "mad.wide.u32 %d13, %r0, 16, %d1;\nmin.u32 %r10, %r0, 16;\nsetp.eq.u32 %p1, %r0, 0;\n"
      "@%p1 mov.u64 %d13, 0;\ncp.async.cg.shared.global.L2::128B [%r9], [%d13], 16, %r10;\n"
      "cp.async.wait_all;\nld.shared.v2.u64 {%d15, %d16}, [%r9];\n"
      "st.global.v2.u64 [%d12], {%d15, %d16};\n",
      512, [&] { return std::vector<uint64_t>{upload(bytes)}; });
  const auto ignored = result_of<uint8_t>(
      ".shared .align 16 .b8 tile[512];\nmov.u32 %r9, tile;\nmad.lo.u32 %r9, %r0, 16, %r9;\n"
      "mad.wide.u32 %d13, %r0, 16, %d1;\nsetp.lt.u32 %p1, %r0, 9;\n@%p1 mov.u64 %d13, 16;\n"
      "cp.async.cg.shared.global [%r9], [%d13], 16, %p1;\n"
      "cp.async.wait_all;\nld.shared.v2.u64 {%d15, %d16}, [%r9];\n"
      "st.global.v2.u64 [%d12], {%d15, %d16};\n",
      512, [&] { return std::vector<uint64_t>{upload(bytes)}; });
  for (size_t i = 0; i < 512; ++i) {
    EXPECT_EQ(sized[i], i % 16 < i / 16 ? bytes[i] : 0) << i;
    EXPECT_EQ(ignored[i], i / 16 < 9 ? 0 : bytes[i]) << i;
  }
}

TEST_F(Memory, AsyncCopyWithMoreSourceThanDestinationIsAFault) {
  const uint64_t a = upload(std::vector<uint32_t>(64));
  fault_of(
      ".shared .align 16 .b8 tile[16];\nmov.u32 %r9, tile;\nmov.u32 %r10, 5;\n"
      "cp.async.ca.shared.global [%r9], [%d0], 4, %r10;",
      {a});
}

// --- ldmatrix

TEST_F(Memory, MatricesComeToTheirLanes) {
  // Element (matrix m, row r, column c) is 256 m + 16 r + c; rows are 16 bytes, in the order of the
  // lanes 31 - l so that they do not lie side by side.
  const std::string fill =
      ".shared .align 16 .b8 tile[512];\nmov.u32 %r9, tile;\n"
      "sub.u32 %r10, 31, %r0;\nmad.lo.u32 %r9, %r10, 16, %r9;\n"
      "shr.u32 %r11, %r0, 3;\nand.b32 %r12, %r0, 7;\nshl.b32 %r11, %r11, 8;\n"
      "mad.lo.u32 %r11, %r12, 16, %r11;\nmul.lo.u32 %r11, %r11, 0x10001;\nadd.u32 %r11, %r11, "
      "0x10000;\n"
      "add.u32 %r12, %r11, 0x20002;\nadd.u32 %r13, %r11, 0x40004;\nadd.u32 %r14, %r11, 0x60006;\n"
      "st.shared.v4.u32 [%r9], {%r11, %r12, %r13, %r14};\nbar.sync 0;\n";
  for (const std::string_view transposition : {"", ".trans"}) {
    for (const int count : {1, 2, 4}) {
      const char* const targets = count == 1   ? "{%r20}"
                                  : count == 2 ? "{%r20, %r21}"
                                               : "{%r20, %r21, %r22, %r23}";
      std::string body = fill;
      body += fmt::format(
          "mov.u32 %r20, 0;\nmov.u32 %r21, 0;\nmov.u32 %r22, 0;\nmov.u32 %r23, 0;\n"
          "ldmatrix.sync.aligned.m8n8.x{}{}.shared.b16 {}, [%r9];\n"
          "st.global.v4.u32 [%d12], {{%r20, %r21, %r22, %r23}};\n",
          count, transposition, targets);
      const auto words = result_of<uint32_t>(body, 128);
      for (uint32_t l = 0; l < 32; ++l) {
        for (uint32_t m = 0; m < 4; ++m) {
          const auto element = [&](uint32_t row, uint32_t column) {
            return 256 * m + 16 * row + column;
          };
          const uint32_t a = l / 4;
          const uint32_t b = l % 4 * 2;
          uint32_t expected = transposition.empty() ? element(a, b) | element(a, b + 1) << 16
                                                    : element(b, a) | element(b + 1, a) << 16;
          if (m >= static_cast<uint32_t>(count)) expected = 0;
          EXPECT_EQ(words[4 * l + m], expected) << "lane " << l << " matrix " << m;
        }
      }
    }
  }
}

TEST_F(Memory, LdmatrixByAPartOfAWarpIsAFault) {
  fault_of(
      ".shared .align 16 .b8 tile[512];\nmov.u32 %r9, tile;\nsetp.lt.u32 %p1, %r0, 8;\n"
      "@%p1 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r20}, [%r9];");
  fault_of("ldmatrix.sync.aligned.m8n8.x1.b16 {%r20}, [%d0];", {upload(std::vector<uint32_t>(64))});
}

// --- what is not supported says so

TEST_F(Memory, UnknownFormsAreUnsupported) {
  for (const char* const statement : {"ld.global.b128 %d9, [%d0];",
                                      "ld.global.v8.u32 {%r9}, [%d0];",
                                      "ld.global.mmio.relaxed.sys.u32 %r9, [%d0];",
                                      "ld.shared::cluster.u32 %r9, [%r8];",
                                      "ld.global.v2.u32 {%r9, %r8, %r7}, [%d0];",
                                      "ld.global.u64 %r9, [%d0];",
                                      "ld.global.v4.u64 {%d9, %d8, %d7, %d6}, [%d0];",
                                      "st.async.u32 [%d0], %r9;",
                                      "atom.global.v2.f32.add {%r9, %r8}, [%d0], {%r9, %r8};",
                                      "atom.global.add.b32 %r9, [%d0], 1;",
                                      "atom.global.and.s32 %r9, [%d0], 1;",
                                      "atom.global.min.f32 %r9, [%d0], %r8;",
                                      "red.global.cas.b32 [%d0], %r9, %r8;",
                                      "red.async.add.u32 [%d0], %r9;",
                                      "cp.async.bulk.commit_group;",
                                      "cp.async.mbarrier.arrive.shared.b64 [%r9];",
                                      "cp.async.cg.shared.global [%r9], [%d0], 8;",
                                      "cp.async.ca.shared.global [%r9], [%d0], 12;",
                                      "fence.proxy.async;",
                                      "mapa.u64 %d9, %d0, %r9;",
                                      "isspacep.const %p1, %d0;",
                                      "ldmatrix.sync.aligned.m16n16.x1.shared.b8 {%r9}, [%r8];",
                                      "cvta.to.global.u32 %r9, %r8;"}) {
    expect_unsupported(statement);
  }
}

}  // namespace
}  // namespace kiln::runtime::sim
