#include "tests/sim/programs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "jit/base/hash.h"
#include "templates/abi.h"
#include "tests/sim/instructions.h"

namespace kiln::runtime::sim {
namespace {

constexpr int kInputBytes = 4096;  // and as many of shared memory
constexpr int kCounterBytes = 64;  // of the input behind those: only atomics go there
constexpr int kTableBytes = 1024;  // of constants, of local memory and of the parameters
constexpr int kHeadBytes = 48;     // of the argument struct, in front of its table
constexpr int kParamBytes = kHeadBytes + kTableBytes;
constexpr int kOutBytes = 768;  // of a thread
constexpr uint8_t kUntouched = 0xa5;

uint64_t draw(uint64_t index) { return operand_draw(20261201 + index); }

// The text of a body and where its next result goes. Registers:
//   %p0-15  predicates   %h0-31  16 bits   %r0-63  32 bits   %d0-63  64 bits
// %thread, %lane and %cta say who it is; %in is the input, %tile its copy in shared memory (%tile32
// in 32 bits, %gtile generic).
class Body {
 public:
  template <class... Args>
  Body& line(fmt::format_string<Args...> format, Args&&... args) {
    text_ += "  " + fmt::format(format, std::forward<Args>(args)...) + "\n";
    return *this;
  }
  Body& out32(const std::string& value) { return out("b32", 4, value); }
  Body& out64(const std::string& value) { return out("b64", 8, value); }
  Body& out16(const std::string& value) { return out("b16", 4, value); }
  Body& out_predicate(const std::string& value) {
    line("selp.b32 %r63, 1, 0, {};", value);
    return out32("%r63");
  }
  const std::string& text() const { return text_; }

 private:
  Body& out(const char* type, int bytes, const std::string& value) {
    at_ = (at_ + bytes - 1) / bytes * bytes;
    line("st.global.{} [%out+{}], {};", type, at_, value);
    at_ += bytes;
    if (at_ > kOutBytes) fail(Status::internal, "A program stores more than {} bytes", kOutBytes);
    return *this;
  }

  std::string text_;
  int at_ = 0;
};

void add(std::vector<PtxProgram>& list, std::string name, const Body& body,
         std::string elements = "b32") {
  list.push_back({.name = std::move(name), .body = body.text(), .elements = std::move(elements)});
}

// --- loads and stores

struct MemoryType {
  const char* name;
  int bytes;
};
constexpr MemoryType kMemoryTypes[] = {
    {"b8", 1},  {"u8", 1},  {"s8", 1},  {"b16", 2}, {"u16", 2}, {"s16", 2}, {"b32", 4},
    {"u32", 4}, {"s32", 4}, {"f32", 4}, {"b64", 8}, {"u64", 8}, {"s64", 8}, {"f64", 8},
};

// Registers that hold an element: equal or wider; floats want their own size.
struct RegisterKind {
  char letter;
  int bytes;
};
std::vector<RegisterKind> register_kinds(const MemoryType& type) {
  std::vector<RegisterKind> kinds;
  for (const RegisterKind kind : {RegisterKind{'h', 2}, RegisterKind{'r', 4}, RegisterKind{'d', 8}})
    if (type.name[0] == 'f' ? kind.bytes == type.bytes : kind.bytes >= type.bytes)
      kinds.push_back(kind);
  return kinds;
}

std::vector<int> vector_sizes(const MemoryType& type) {
  if (type.bytes == 8) return {1, 2};
  return {1, 2, 4};
}

std::string vector_text(int elements) { return elements == 1 ? "" : fmt::format(".v{}", elements); }

// "{%r20, %r21}"
std::string registers_text(char letter, int first, int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += fmt::format("{}%{}{}", i > 0 ? ", " : "", letter, first + i);
  return count == 1 ? text : "{" + text + "}";
}

// A way to name memory that has the first kTableBytes of something known.
struct Place {
  std::string name;   // "global", "generic to shared"
  std::string space;  // of the instruction: ".global"
  enum class Base { global, shared, shared_narrow, local, constant, param, mixed } base;
  bool is_generic() const { return space.empty(); }
};

// The address of the memory, in %d0 (or in %r0).
void base_address(Body& body, const Place& place) {
  const bool generic = place.is_generic();
  switch (place.base) {
    case Place::Base::global:
      body.line("mov.u64 %d0, %in;");  // generic addresses of global memory are the same
      return;
    case Place::Base::shared:
      body.line("mov.u64 %d0, tile;");
      if (generic) body.line("cvta.shared.u64 %d0, %d0;");
      return;
    case Place::Base::shared_narrow:
      body.line("mov.u32 %r0, %tile32;");
      return;
    case Place::Base::local:
      body.line("mov.u64 %d0, own;");
      if (generic) body.line("cvta.local.u64 %d0, %d0;");
      return;
    case Place::Base::constant:
      body.line("mov.u64 %d0, table;");
      if (generic) body.line("cvta.const.u64 %d0, %d0;");
      return;
    case Place::Base::param:
      body.line("mov.u64 %d0, p;");
      if (generic) body.line("cvta.param.u64 %d0, %d0;");
      body.line("add.u64 %d0, %d0, {};", kHeadBytes);
      return;
    case Place::Base::mixed:  // odd lanes in shared memory
      body.line("mov.u64 %d0, tile;").line("cvta.shared.u64 %d0, %d0;");
      body.line("and.b32 %r1, %thread, 1;").line("setp.eq.u32 %p0, %r1, 1;");
      body.line("selp.b64 %d0, %d0, %in, %p0;");
      return;
  }
}

// Which of the places of `bytes` each lane takes.
enum class Spread { in_order, one_for_all, shuffled, shuffled_and_partial };

// Leaves the address in %d1 (or in %r1) and, for a part of the lanes, %p1 and "@%p1 ".
std::string lane_address(Body& body, const Place& place, Spread spread, int bytes) {
  std::string guard;
  switch (spread) {
    case Spread::in_order:
      body.line("mul.lo.u32 %r2, %thread, {};", bytes);
      break;
    case Spread::one_for_all:
      body.line("mov.u32 %r2, 32;");
      break;
    case Spread::shuffled_and_partial:
      body.line("rem.u32 %r3, %thread, 3;").line("setp.ne.u32 %p1, %r3, 0;");
      guard = "@%p1 ";
      [[fallthrough]];
    case Spread::shuffled:
      body.line("mad.lo.u32 %r2, %thread, 37, 11;").line("and.b32 %r2, %r2, 63;");
      body.line("mul.lo.u32 %r2, %r2, {};", bytes);
      break;
  }
  if (place.base == Place::Base::shared_narrow) {
    body.line("add.u32 %r1, %r0, %r2;");
  } else {
    body.line("cvt.u64.u32 %d2, %r2;").line("add.u64 %d1, %d0, %d2;");
  }
  return guard;
}
std::string address_text(const Place& place) {
  return place.base == Place::Base::shared_narrow ? "[%r1]" : "[%d1]";
}

// Local memory begins with a copy of the input.
void fill_local(Body& body) {
  body.line("mov.u64 %d3, own;").line("mov.u32 %r4, 0;").line("FILL:");
  body.line("cvt.u64.u32 %d4, %r4;").line("add.u64 %d5, %in, %d4;").line("add.u64 %d4, %d3, %d4;");
  body.line("ld.global.v2.b64 {{%d6, %d7}}, [%d5];").line("st.local.v2.b64 [%d4], {{%d6, %d7}};");
  body.line("add.u32 %r4, %r4, 16;").line("setp.lt.u32 %p2, %r4, {};", kTableBytes);
  body.line("@%p2 bra FILL;");
}

void out_registers(Body& body, char letter, int first, int count) {
  for (int i = 0; i < count; ++i) {
    const std::string name = fmt::format("%{}{}", letter, first + i);
    if (letter == 'h') body.out16(name);
    if (letter == 'r') body.out32(name);
    if (letter == 'd') body.out64(name);
  }
}

void add_loads(std::vector<PtxProgram>& list) {
  using Base = Place::Base;
  const Place places[] = {
      {"global", ".global", Base::global},
      {"shared", ".shared", Base::shared},
      {"shared, 32-bit address", ".shared", Base::shared_narrow},
      {"local", ".local", Base::local},
      {"const", ".const", Base::constant},
      {"param", ".param", Base::param},
      {"generic to global", "", Base::global},
      {"generic to shared", "", Base::shared},
      {"generic to local", "", Base::local},
      {"generic to const", "", Base::constant},
      {"generic to param", "", Base::param},
      {"generic to global and shared", "", Base::mixed},
  };
  const auto loads = [&](const Place& place, const std::string& qualifiers,
                         const std::string& name) {
    for (const MemoryType& type : kMemoryTypes) {
      Body body;
      if (place.base == Base::local) fill_local(body);
      base_address(body, place);
      for (const int elements : vector_sizes(type)) {
        for (const Spread spread : {Spread::in_order, Spread::one_for_all, Spread::shuffled,
                                    Spread::shuffled_and_partial}) {
          // Vectors show with one of them what a single element shows with all.
          if (elements > 1 && spread == Spread::one_for_all) continue;
          if (elements == 4 && spread == Spread::shuffled) continue;
          const std::string guard = lane_address(body, place, spread, type.bytes * elements);
          for (const RegisterKind& kind : register_kinds(type)) {
            for (int i = 0; i < elements; ++i)
              body.line("mov.b{} %{}{}, {};", 8 * kind.bytes, kind.letter, 20 + i, 7 + i);
            body.line("{}ld{}{}{}.{} {}, {};", guard, place.space, qualifiers,
                      vector_text(elements), type.name, registers_text(kind.letter, 20, elements),
                      address_text(place));
            out_registers(body, kind.letter, 20, elements);
          }
        }
      }
      add(list, fmt::format("ld {}.{}", name, type.name), body, "b64");
    }
  };
  for (const Place& place : places) loads(place, "", place.name);
  loads(places[0], ".nc", "global.nc");
}

void add_stores(std::vector<PtxProgram>& list) {
  using Base = Place::Base;
  const Place places[] = {
      {"global", ".global", Base::global},
      {"shared", ".shared", Base::shared},
      {"shared, 32-bit address", ".shared", Base::shared_narrow},
      {"local", ".local", Base::local},
      {"generic to global", "", Base::global},
      {"generic to shared", "", Base::shared},
      {"generic to local", "", Base::local},
      {"generic to global and shared", "", Base::mixed},
  };
  for (const Place& place : places) {
    for (const MemoryType& type : kMemoryTypes) {
      Body body;
      if (place.base == Base::local) fill_local(body);
      base_address(body, place);
      // What is stored: the last part of the input, which nothing overwrites.
      body.line("mul.lo.u32 %r4, %thread, 16;").line("cvt.u64.u32 %d4, %r4;");
      body.line("add.u64 %d4, %in, %d4;").line("ld.global.v2.b64 {{%d20, %d21}}, [%d4+3072];");
      for (const int elements : vector_sizes(type)) {
        for (const Spread spread : {Spread::in_order, Spread::shuffled_and_partial}) {
          const std::string guard = lane_address(body, place, spread, type.bytes * elements);
          for (const RegisterKind& kind : register_kinds(type)) {
            // Other values each time, so that every store shows.
            body.line("mad.lo.u64 %d20, %d20, 3, 77;").line("mad.lo.u64 %d21, %d21, 5, 99;");
            body.line("xor.b64 %d22, %d20, %d21;").line("sub.u64 %d23, %d20, %d21;");
            for (int i = 0; i < elements && kind.letter != 'd'; ++i)
              body.line("cvt.u{0}.u64 %{1}{2}, %d{2};", 8 * kind.bytes, kind.letter, 20 + i);
            body.line("{}st{}{}.{} {}, {};", guard, place.space, vector_text(elements), type.name,
                      address_text(place), registers_text(kind.letter, 20, elements));
            // The 16 bytes around, by the thread that wrote them.
            body.line("bar.sync 0;");
            const bool is_narrow = place.base == Base::shared_narrow;
            body.line("and.b{} %{}, %{}, -16;", is_narrow ? 32 : 64, is_narrow ? "r5" : "d5",
                      is_narrow ? "r1" : "d1");
            body.line("ld{}.v2.b64 {{%d6, %d7}}, [%{}];", place.space, is_narrow ? "r5" : "d5");
            body.out64("%d6").out64("%d7").line("bar.sync 0;");
          }
        }
      }
      add(list, fmt::format("st {}.{}", place.name, type.name), body, "b64");
    }
  }
}

// Cache hints change no value; orders and scopes none where nobody else is at work.
void add_hints(std::vector<PtxProgram>& list) {
  const auto load = [&](const std::string& form, const std::string& base, const char* policy = "") {
    Body body;
    body.line("createpolicy.fractional.L2::evict_first.b64 %d9, 0.5;");
    body.line("mul.lo.u32 %r2, %thread, 16;").line("cvt.u64.u32 %d2, %r2;");
    body.line("add.u64 %d1, {}, %d2;", base);
    const int words = form.find(".v4") != std::string::npos ? 4 : 1;
    body.line("{} {}, [%d1]{};", form, registers_text('r', 20, words), policy);
    out_registers(body, 'r', 20, words);
    add(list, form, body);
  };
  for (const char* part : {".ca", ".cg", ".cs", ".lu", ".cv"})
    load(fmt::format("ld.global{}.u32", part), "%in");
  for (const char* part : {".ca", ".cg", ".cs"})
    load(fmt::format("ld.global{}.nc.v4.u32", part), "%in");
  for (const char* part :
       {".L1::evict_normal", ".L1::evict_unchanged", ".L1::evict_first", ".L1::evict_last",
        ".L1::no_allocate", ".L2::64B", ".L2::128B", ".L2::256B", ".L1::no_allocate.L2::128B"})
    load(fmt::format("ld.global{}.v4.u32", part), "%in");
  load("ld.global.nc.L1::no_allocate.L2::256B.v4.u32", "%in");
  load("ld.global.L1::evict_last.L2::cache_hint.v4.u32", "%in", ", %d9");
  load("ld.global.nc.L2::cache_hint.v4.u32", "%in", ", %d9");
  load("ld.weak.global.u32", "%in");
  load("ld.shared::cta.u32", "%tile");
  load("ldu.global.v4.u32", "%in");
  for (const char* space : {".global", ".shared", ""}) {
    const std::string base = std::string(space) == ".shared" ? "%tile" : "%in";
    load(fmt::format("ld.volatile{}.u32", space), base);
    load(fmt::format("ld.volatile{}.v4.u32", space), base);
    for (const char* order : {"relaxed", "acquire"}) {
      for (const char* scope : {"cta", "gpu", "sys"})
        load(fmt::format("ld.{}.{}{}.u32", order, scope, space), base);
    }
  }

  const auto store = [&](const std::string& form, const std::string& base,
                         const char* policy = "") {
    Body body;
    body.line("createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %d9, 1.0;");
    body.line("mul.lo.u32 %r2, %thread, 16;").line("cvt.u64.u32 %d2, %r2;");
    body.line("add.u64 %d1, {}, %d2;", base);
    for (int i = 0; i < 4; ++i) body.line("mad.lo.u32 %r{}, %thread, 77, {};", 20 + i, i);
    const int words = form.find(".v4") != std::string::npos ? 4 : 1;
    body.line("{} [%d1], {}{};", form, registers_text('r', 20, words), policy);
    add(list, form, body);
  };
  for (const char* part : {".wb", ".cg", ".cs", ".wt"})
    store(fmt::format("st.global{}.u32", part), "%in");
  for (const char* part : {".L1::evict_normal", ".L1::evict_unchanged", ".L1::evict_first",
                           ".L1::evict_last", ".L1::no_allocate"})
    store(fmt::format("st.global{}.v4.u32", part), "%in");
  store("st.global.L2::cache_hint.v4.u32", "%in", ", %d9");
  store("st.weak.global.u32", "%in");
  store("st.shared::cta.u32", "%tile");
  for (const char* space : {".global", ".shared", ""}) {
    const std::string base = std::string(space) == ".shared" ? "%tile" : "%in";
    store(fmt::format("st.volatile{}.u32", space), base);
    for (const char* order : {"relaxed", "release"}) {
      for (const char* scope : {"cta", "gpu", "sys"})
        store(fmt::format("st.{}.{}{}.u32", order, scope, space), base);
    }
  }

  Body fences;
  fences.line("st.global.u32 [%in], 5;").line("st.shared.u32 [%tile], 5;");
  for (const char* fence : {"membar.cta", "membar.gl", "membar.sys", "fence.sc.cta", "fence.sc.gpu",
                            "fence.acq_rel.cta", "fence.acq_rel.gpu", "fence.acq_rel.sys"})
    fences.line("{};", fence);
  for (const char* prefetch : {"prefetch.global.L1", "prefetch.global.L2", "prefetch.L2",
                               "prefetchu.L1", "prefetch.global.L2::evict_last"})
    fences.line("{} [%in];", prefetch);
  fences.line("applypriority.global.L2::evict_normal [%in], 128;");
  add(list, "fences and prefetches", fences);
  list.back().threads = 32;
  // All lanes would write one place: one of them does.
  list.back().body =
      "  setp.ne.u32 %p0, %thread, 0;\n  @%p0 bra DONE;\n" + list.back().body + "DONE:\n";
}

// --- atom and red

struct Atomic {
  std::string op;    // "add.noftz"
  std::string type;  // "f16"
  int bytes = 4;
};

std::vector<Atomic> atomics() {
  std::vector<Atomic> all;
  for (const char* type : {"b32", "b64"}) {
    for (const char* op : {"and", "or", "xor", "exch", "cas"})
      all.push_back({op, type, std::string(type) == "b64" ? 8 : 4});
  }
  all.push_back({"cas", "b16", 2});
  for (const char* type : {"u32", "s32", "u64", "f32", "f64"})
    all.push_back({"add", type, std::string(type).ends_with("64") ? 8 : 4});
  all.push_back({"add.noftz", "f16", 2});
  all.push_back({"add.noftz", "f16x2", 4});
  all.push_back({"inc", "u32", 4});
  all.push_back({"dec", "u32", 4});
  for (const char* type : {"u32", "s32", "u64", "s64"}) {
    for (const char* op : {"min", "max"})
      all.push_back({op, type, std::string(type).ends_with("64") ? 8 : 4});
  }
  return all;
}

struct AtomicPlace {
  const char* name;
  const char* qualifiers;
  const char* base;  // a register with the address
  uint32_t ctas;     // that may meet there
  int counters;      // where: from the base. Other CTAs copy what comes before.
  bool is_narrow = false;
};
constexpr AtomicPlace kAtomicPlaces[] = {
    {"global", ".global", "%in", 3, kInputBytes},
    {"shared", ".shared", "%tile", 1, 0},
    {"shared, 32-bit address", ".shared", "%tile32", 1, 0, true},
    {"generic to global", "", "%in", 3, kInputBytes},
    {"generic to shared", "", "%gtile", 1, 0},
};

bool is_float(const Atomic& atomic) { return atomic.type[0] == 'f'; }

// The first half of the input is what atomics work on, the second has the operands.
constexpr int kHalf = kInputBytes / 2;

void add_own_atomics(std::vector<PtxProgram>& list, const AtomicPlace& place,
                     const Atomic& atomic) {
  const bool is_swap = atomic.op == "cas";
  const char letter = atomic.bytes == 8 ? 'd' : atomic.bytes == 2 ? 'h' : 'r';
  const auto reg = [&](int index) { return fmt::format("%{}{}", letter, index); };
  for (const bool has_result : {true, false}) {
    if (!has_result && (is_swap || atomic.op == "exch")) continue;
    Body body;
    for (int round = 0; round < kHalf / (64 * atomic.bytes); ++round) {
      body.line("mad.lo.u32 %r2, %thread, {0}, {1};", atomic.bytes, round * 64 * atomic.bytes);
      body.line("cvt.u64.u32 %d2, %r2;").line("add.u64 %d3, %in, %d2;");
      body.line("ld.global.b{} {}, [%d3+{}];", 8 * atomic.bytes, reg(20), kHalf);
      if (place.is_narrow) {
        body.line("add.u32 %r1, {}, %r2;", place.base);
      } else {
        body.line("add.u64 %d1, {}, %d2;", place.base);
      }
      const char* const address = place.is_narrow ? "[%r1]" : "[%d1]";
      std::string operands = reg(20);
      if (is_swap) {  // every other lane knows what is there
        body.line("ld{}.b{} {}, {};", place.qualifiers, 8 * atomic.bytes, reg(21), address);
        body.line("and.b32 %r3, %thread, 1;");
        if (letter == 'r') body.line("xor.b32 %r21, %r21, %r3;");
        if (letter == 'd') body.line("cvt.u64.u32 %d4, %r3;").line("xor.b64 %d21, %d21, %d4;");
        if (letter == 'h') body.line("cvt.u16.u32 %h4, %r3;").line("xor.b16 %h21, %h21, %h4;");
        operands = reg(21) + ", " + reg(20);
      }
      if (has_result) {
        body.line("atom{}.{}.{} {}, {}, {};", place.qualifiers, atomic.op, atomic.type, reg(22),
                  address, operands);
        // Where the rounds are many, their old values are told together.
        if (atomic.bytes == 2) {
          body.line("cvt.u32.u16 %r22, %h22;");
          body.line("mad.lo.u32 %r30, %r{}, 65537, %r22;", round == 0 ? 22 : 30);
        } else {
          out_registers(body, letter, 22, 1);
        }
      } else {
        body.line("red{}.{}.{} {}, {};", place.qualifiers, atomic.op, atomic.type, address,
                  operands);
      }
    }
    if (has_result && atomic.bytes == 2) body.out32("%r30");
    const std::string elements =
        is_float(atomic) ? atomic.type : fmt::format("b{}", 8 * atomic.bytes);
    add(list,
        fmt::format("{} {}.{}.{}", has_result ? "atom" : "red", place.name, atomic.op, atomic.type),
        body, elements);
  }
}

// All threads, in global memory of three CTAs, on one address: the order is nobody's business where
// the result does not depend on it.
void add_contended_atomic(std::vector<PtxProgram>& list, const AtomicPlace& place,
                          const Atomic& atomic) {
  const bool has_order = is_float(atomic) || atomic.op == "exch" || atomic.op == "cas";
  if (has_order) return;
  const bool is_wide = atomic.bytes == 8;
  Body body;
  body.line("mad.lo.u32 %r2, %cta, 64, %thread;").line("mad.lo.u32 %r20, %r2, 77773, 5;");
  if (atomic.op == "inc" || atomic.op == "dec") body.line("mov.u32 %r20, 100;");
  if (is_wide) body.line("mul.wide.u32 %d20, %r20, %r20;");
  body.line("red{}.{}.{} [{}+{}], {};", place.qualifiers, atomic.op, atomic.type, place.base,
            place.counters, is_wide ? "%d20" : "%r20");
  add(list, fmt::format("red {}.{}.{}, one address", place.name, atomic.op, atomic.type), body);
  list.back().ctas = place.ctas;
}

void add_atomics(std::vector<PtxProgram>& list) {
  for (const AtomicPlace& place : kAtomicPlaces) {
    for (const Atomic& atomic : atomics()) {
      add_own_atomics(list, place, atomic);
      add_contended_atomic(list, place, atomic);
    }
  }
  for (const char* order : {"relaxed", "acquire", "release", "acq_rel"}) {
    for (const char* scope : {"cta", "gpu", "sys"}) {
      Body body;
      body.line("mul.lo.u32 %r2, %thread, 4;").line("cvt.u64.u32 %d2, %r2;");
      body.line("add.u64 %d1, %in, %d2;");
      body.line("atom.{}.{}.global.add.u32 %r20, [%d1], 3;", order, scope).out32("%r20");
      if (std::string(order) == "relaxed" || std::string(order) == "release")
        body.line("red.{}.{}.global.xor.b32 [%d1], %r20;", order, scope);
      add(list, fmt::format("atom and red .{}.{}", order, scope), body);
    }
  }
  // Every thread draws another ticket; their sum and exclusive or do not depend on the order.
  for (const AtomicPlace& place : kAtomicPlaces) {
    if (place.is_narrow) continue;
    Body body;
    body.line("add.u64 %d1, {}, {};", place.base, place.counters);
    body.line("atom{}.add.u32 %r20, [%d1], 1;", place.qualifiers);
    body.line("red{}.add.u32 [%d1+4], %r20;", place.qualifiers);
    body.line("red{}.xor.b32 [%d1+8], %r20;", place.qualifiers);
    body.line("atom{}.inc.u32 %r21, [%d1+12], 6;", place.qualifiers);
    body.line("red{}.add.u32 [%d1+16], %r21;", place.qualifiers);
    body.line("atom{}.exch.b32 %r22, [%d1+20], 5;", place.qualifiers);
    body.line("red{}.add.u32 [%d1+24], %r22;", place.qualifiers);
    add(list, fmt::format("tickets {}", place.name), body);
    list.back().ctas = place.ctas;
  }
  Body hint;
  hint.line("createpolicy.fractional.L2::evict_first.b64 %d9, 1.0;");
  hint.line("mul.lo.u32 %r2, %thread, 4;").line("cvt.u64.u32 %d2, %r2;");
  hint.line("add.u64 %d1, %in, %d2;");
  hint.line("atom.global.add.L2::cache_hint.u32 %r20, [%d1], 3, %d9;").out32("%r20");
  hint.line("red.global.add.L2::cache_hint.u32 [%d1], 4, %d9;");
  add(list, "atom and red with L2::cache_hint", hint);
}

// --- cp.async, ldmatrix, movmatrix

void add_copies(std::vector<PtxProgram>& list) {
  // Destinations in order, sources shuffled; %r5 and %d5 are their addresses.
  const auto addresses = [](Body& body, int bytes, int part) {
    body.line("mad.lo.u32 %r5, %thread, {}, {};", bytes, part * 1024);
    body.line("add.u32 %r5, %r5, %tile32;");
    body.line("mad.lo.u32 %r2, %thread, 37, 11;").line("and.b32 %r2, %r2, 63;");
    body.line("mad.lo.u32 %r2, %r2, {}, {};", bytes, (3 - part) * 1024);
    body.line("cvt.u64.u32 %d2, %r2;").line("add.u64 %d5, %in, %d2;");
  };
  struct Form {
    const char* name;
    int bytes;
  };
  const Form forms[] = {{"ca.shared.global", 4},           {"ca.shared.global", 8},
                        {"ca.shared.global", 16},          {"cg.shared.global", 16},
                        {"ca.shared.global.L2::128B", 16}, {"cg.shared.global.L2::256B", 16}};
  const char* const kFinish[] = {"cp.async.wait_all;", "cp.async.commit_group;",
                                 "cp.async.wait_group 0;"};
  for (const Form& form : forms) {
    for (const char* size : {"", ", 0", ", part", ", ignored"}) {
      const std::string which = size;
      Body body;
      addresses(body, form.bytes, 0);
      std::string operand = which;
      if (which == ", part") {  // every number of bytes up to all
        body.line("rem.u32 %r6, %thread, {};", form.bytes + 1);
        operand = ", %r6";
      } else if (which == ", ignored") {
        body.line("and.b32 %r6, %thread, 2;").line("setp.ne.u32 %p0, %r6, 0;");
        operand = ", %p0";
      }
      body.line("cp.async.{} [%r5], [%d5], {}{};", form.name, form.bytes, operand);
      if (form.bytes == 8) {
        body.line("{}", kFinish[0]);
      } else {
        body.line("{}", kFinish[1]).line("{}", kFinish[2]);
      }
      add(list, fmt::format("cp.async.{} {}{}", form.name, form.bytes, which), body);
    }
  }
  Body policy;
  policy.line("createpolicy.fractional.L2::evict_first.b64 %d9, 1.0;");
  addresses(policy, 16, 0);
  policy.line("mov.u64 %d6, tile;").line("cvt.u64.u32 %d7, %thread;");
  policy.line("mad.lo.u64 %d6, %d7, 16, %d6;");
  policy.line("cp.async.cg.shared.global.L2::cache_hint [%d6], [%d5], 16, %d9;");
  policy.line("cp.async.wait_all;");
  add(list, "cp.async.cg with L2::cache_hint, 64-bit address", policy);
  // Groups end in the order in which they began; each thread reads what it copied itself.
  Body groups;
  for (int part = 0; part < 3; ++part) {
    addresses(groups, 16, part);
    groups.line("cp.async.cg.shared.global [%r5], [%d5], 16;").line("cp.async.commit_group;");
  }
  groups.line("mad.lo.u32 %r5, %thread, 16, %tile32;");
  for (int part = 0; part < 3; ++part) {
    groups.line("cp.async.wait_group {};", 2 - part);
    groups.line("ld.shared.v2.b64 {{%d20, %d21}}, [%r5+{}];", part * 1024);
    groups.out64("%d20").out64("%d21");
  }
  add(list, "cp.async.wait_group 2, 1, 0", groups);
}

void add_matrices(std::vector<PtxProgram>& list) {
  for (const int matrices : {1, 2, 4}) {
    for (const char* trans : {"", ".trans"}) {
      for (const char* space : {".shared", ""}) {
        Body body;
        // Rows anywhere in the tile: no two alike.
        body.line("mad.lo.u32 %r2, %thread, 37, 11;").line("and.b32 %r2, %r2, 255;");
        body.line("mul.lo.u32 %r2, %r2, 16;").line("cvt.u64.u32 %d2, %r2;");
        body.line("add.u64 %d1, {}, %d2;", space[0] == '\0' ? "%gtile" : "%tile");
        body.line("add.u32 %r1, %tile32, %r2;");
        const std::string form =
            fmt::format("ldmatrix.sync.aligned.m8n8.x{}{}{}.b16", matrices, trans, space);
        const std::string targets =
            fmt::format("{0}{1}{2}", matrices == 1 ? "{" : "", registers_text('r', 20, matrices),
                        matrices == 1 ? "}" : "");
        body.line("{} {}, [%d1];", form, targets);
        out_registers(body, 'r', 20, matrices);
        if (space[0] != '\0') {
          body.line("{} {}, [%r1+0];", form, targets);
          out_registers(body, 'r', 20, matrices);
        }
        add(list, form, body);
      }
    }
  }
  Body body;
  body.line("mul.lo.u32 %r2, %thread, 4;").line("cvt.u64.u32 %d2, %r2;");
  body.line("add.u64 %d1, %in, %d2;").line("ld.global.b32 %r20, [%d1];");
  body.line("movmatrix.sync.aligned.m8n8.trans.b16 %r21, %r20;").out32("%r21");
  add(list, "movmatrix.sync.aligned.m8n8.trans.b16", body);
}

// --- addresses

void add_addresses(std::vector<PtxProgram>& list) {
  struct Space {
    const char* name;
    const char* symbol;  // a variable in it
  };
  const Space spaces[] = {
      {"global", ""}, {"shared", "tile"}, {"local", "own"}, {"const", "table"}, {"param", "p"}};
  for (const Space& space : spaces) {
    Body body;
    const bool is_global = space.symbol[0] == '\0';
    body.line("mov.u64 %d0, {};", is_global ? "%in" : space.symbol);
    body.line("cvta.{}.u64 %d1, %d0;", space.name);
    // What lies there, by way of the generic address.
    if (std::string(space.name) == "local") body.line("st.local.u32 [%d0+8], %thread;");
    body.line("ld.u32 %r20, [%d1+{}];", std::string(space.name) == "param" ? 24 : 8).out32("%r20");
    body.line("cvta.to.{}.u64 %d2, %d1;", space.name);
    body.line("setp.eq.u64 %p0, %d2, %d0;").out_predicate("%p0");
    body.line("add.u64 %d3, %d1, 12;").line("cvta.to.{}.u64 %d3, %d3;", space.name);
    body.line("sub.u64 %d3, %d3, %d0;").out64("%d3");
    for (const char* asked : {"global", "shared", "local", "param"}) {
      // Constants and parameters may have addresses of global memory.
      const bool is_open = std::string(asked) == "global" && (std::string(space.name) == "const" ||
                                                              std::string(space.name) == "param");
      if (is_open) continue;
      body.line("isspacep.{} %p0, %d1;", asked).out_predicate("%p0");
    }
    add(list, fmt::format("cvta and isspacep, {}", space.name), body);
  }
}

// --- barriers

void add_barriers(std::vector<PtxProgram>& list) {
  const std::pair<const char*, const char*> conditions[] = {
      {"none", "setp.eq.u32 %p0, %thread, 1000;"},
      {"one", "setp.eq.u32 %p0, %thread, 45;"},
      {"some", "and.b32 %r2, %thread, 5; setp.eq.u32 %p0, %r2, 4;"},
      {"first warp", "setp.lt.u32 %p0, %thread, 32;"},
      {"all", "setp.lt.u32 %p0, %thread, 64;"},
  };
  for (const char* op : {"bar", "barrier", "barrier.cta"}) {
    Body body;
    for (const auto& [name, condition] : conditions) {
      const char* const aligned = op[3] == '\0' ? "" : ".aligned";
      body.line("{}", condition);
      body.line("{}.red.popc{}.u32 %r20, 0, %p0;", op, aligned).out32("%r20");
      body.line("{}.red.popc{}.u32 %r20, 3, 64, !%p0;", op, aligned).out32("%r20");
      body.line("{}.red.and{}.pred %p1, 0, %p0;", op, aligned).out_predicate("%p1");
      body.line("{}.red.or{}.pred %p1, 0, %p0;", op, aligned).out_predicate("%p1");
      body.line("{}.red.or{}.pred %p1, 5, 64, !%p0;", op, aligned).out_predicate("%p1");
    }
    add(list, fmt::format("{}.red", op), body);
  }
  // The barrier's number in a register, warps of 32 threads by themselves, lanes apart.
  Body apart;
  apart.line("shr.u32 %r2, %thread, 5;").line("add.u32 %r2, %r2, 4;");
  apart.line("and.b32 %r3, %thread, 3;").line("setp.eq.u32 %p0, %r3, 1;");
  apart.line("barrier.red.popc.u32 %r20, %r2, 32, %p0;").out32("%r20");
  apart.line("@%p0 bra ODD;").line("barrier.red.popc.u32 %r21, 6, 64, %p0;").line("bra JOIN;");
  apart.line("ODD:").line("barrier.red.popc.u32 %r21, 6, 64, %p0;").line("JOIN:");
  apart.line("bar.warp.sync 0xffffffff;").out32("%r21");
  add(list, "barrier.red of diverged lanes", apart);

  // Two neighbours exchange words through shared memory, under each kind of barrier.
  const auto exchange = [&](const std::string& name, const std::string& barrier, uint32_t threads,
                            int distance) {
    Body body;
    body.line("mul.lo.u32 %r2, %thread, 4;").line("add.u32 %r2, %tile32, %r2;");
    body.line("mad.lo.u32 %r20, %thread, 77, 5;");
    body.line("xor.b32 %r3, %thread, {};", distance).line("mad.lo.u32 %r3, %r3, 4, %tile32;");
    body.line("shr.u32 %r5, %thread, 6;").line("add.u32 %r5, %r5, 1;");  // of a pair of warps
    body.line("st.shared.u32 [%r2], %r20;").line("{}", barrier);
    body.line("ld.shared.u32 %r21, [%r3];").out32("%r21");
    body.line("{}", barrier).line("st.shared.u32 [%r3], %r21;");
    add(list, name, body);
    list.back().threads = threads;
  };
  exchange("bar.sync 0", "bar.sync 0;", 128, 96);
  exchange("bar.sync 2, 128", "bar.sync 2, 128;", 128, 64);
  exchange("bar.sync of pairs of warps", "bar.sync %r5, 64;", 128, 32);
  exchange("barrier.sync 0", "barrier.sync 0;", 64, 33);
  exchange("barrier.sync 7, 64", "barrier.sync 7, 64;", 64, 33);
  exchange("barrier.cta.sync.aligned 1", "barrier.cta.sync.aligned 1;", 64, 63);
  exchange("bar.cta.sync 1", "bar.cta.sync 1;", 64, 63);
  exchange("bar.warp.sync 0xffffffff", "bar.warp.sync 0xffffffff;", 64, 31);

  // One warp makes, the other takes.
  for (const char* arrive :
       {"bar.arrive 1, 64;", "barrier.arrive 1, 64;", "barrier.cta.arrive.aligned 1, 64;"}) {
    Body body;
    body.line("mad.lo.u32 %r2, %lane, 4, %tile32;").line("setp.ge.u32 %p0, %thread, 32;");
    body.line("@%p0 bra TAKE;").line("st.shared.u32 [%r2], %lane;").line("membar.cta;");
    body.line("{}", arrive).line("bra DONE;").line("TAKE:");
    body.line("bar.sync 1, 64;").line("ld.shared.u32 %r20, [%r2];").out32("%r20").line("DONE:");
    add(list, arrive, body);
  }

  // Lanes of one warp meet with part of it, in two places.
  Body part;
  part.line("mad.lo.u32 %r2, %thread, 4, %tile32;").line("xor.b32 %r3, %thread, 2;");
  part.line("mad.lo.u32 %r3, %r3, 4, %tile32;").line("and.b32 %r4, %thread, 1;");
  part.line("setp.eq.u32 %p0, %r4, 1;").line("@%p0 bra ODD;");
  part.line("st.shared.u32 [%r2], 11;").line("bar.warp.sync 0x55555555;");
  part.line("ld.shared.u32 %r20, [%r3];").line("bra JOIN;");
  part.line("ODD:").line("st.shared.u32 [%r2], 22;").line("bar.warp.sync 0xaaaaaaaa;");
  part.line("ld.shared.u32 %r20, [%r3];").line("JOIN:").line("bar.warp.sync 0xffffffff;");
  part.out32("%r20");
  add(list, "bar.warp.sync of every other lane", part);
}

// --- lanes of a warp

// The body of both sides of a branch: even lanes, then odd ones, with their member masks.
void on_both_sides(Body& body, const std::vector<std::string>& lines) {
  const auto side = [&](const char* mask) {
    for (std::string text : lines) {
      for (size_t at; (at = text.find("MASK")) != std::string::npos;) text.replace(at, 4, mask);
      body.line("{}", text);
    }
  };
  body.line("and.b32 %r4, %thread, 1;").line("setp.eq.u32 %p0, %r4, 1;").line("@%p0 bra ODD;");
  side("0x55555555");
  body.line("bra JOIN;").line("ODD:");
  side("0xaaaaaaaa");
  body.line("JOIN:").line("bar.warp.sync 0xffffffff;");
}

// %r20: a word of this lane's own.
void load_own_word(Body& body) {
  body.line("mul.lo.u32 %r2, %thread, 4;").line("cvt.u64.u32 %d2, %r2;");
  body.line("add.u64 %d1, %in, %d2;").line("ld.global.b32 %r20, [%d1];");
}

// Where a source is no member its value is undefined, so that none is.
void add_shuffles(std::vector<PtxProgram>& list) {
  struct Mode {
    const char* name;
    const char* whole;     // the bounds of the whole warp
    const char* segments;  // of eight lanes
  };
  const Mode modes[] = {
      {"up", "0", "0x1800"}, {"down", "0x1f", "0x181f"}, {"bfly", "0x1f", "0x181f"}};
  for (const Mode& mode : modes) {
    for (const char* bounds : {mode.whole, mode.segments}) {
      Body body;
      load_own_word(body);
      std::vector<std::string> lines;
      for (const int distance : {0, 2, 4, 6, 16, 30})
        lines.push_back(fmt::format("shfl.sync.{}.b32 %r{}|%p{}, %r20, {}, {}, MASK;", mode.name,
                                    21 + distance, 2 + distance / 4, distance, bounds));
      on_both_sides(body, lines);
      for (const int distance : {0, 2, 4, 6, 16, 30})
        body.out32(fmt::format("%r{}", 21 + distance))
            .out_predicate(fmt::format("%p{}", 2 + distance / 4));
      add(list, fmt::format("shfl.sync.{} bounds {}, lanes apart", mode.name, bounds), body);
    }
  }
  // A lower half, with the bounds of a half.
  for (const Mode& mode : modes) {
    Body body;
    load_own_word(body);
    body.line("mov.u32 %r21, 1;").line("mov.u32 %r22, 2;");
    body.line("setp.lt.u32 %p0, %lane, 16;").line("@!%p0 bra REST;");
    const char* const bounds = std::string(mode.name) == "up" ? "0x1000" : "0x101f";
    body.line("shfl.sync.{}.b32 %r21|%p1, %r20, 3, {}, 0x0000ffff;", mode.name, bounds);
    body.line("selp.b32 %r22, 1, 0, %p1;").line("REST:").line("bar.warp.sync 0xffffffff;");
    body.out32("%r21").out32("%r22");
    add(list, fmt::format("shfl.sync.{} of a half", mode.name), body);
  }
  // Any lane of a mask without a pattern.
  Body body;
  load_own_word(body);
  body.line("mov.u32 %r21, 1;").line("mov.u32 %r6, 0x9b35c2a6;").line("shr.u32 %r7, %r6, %lane;");
  body.line("and.b32 %r7, %r7, 1;").line("setp.eq.u32 %p0, %r7, 1;").line("popc.b32 %r8, %r6;");
  body.line("mad.lo.u32 %r9, %lane, 5, 3;").line("rem.u32 %r9, %r9, %r8;");
  body.line("add.u32 %r9, %r9, 1;").line("fns.b32 %r10, %r6, 0, %r9;").line("@!%p0 bra REST;");
  body.line("shfl.sync.idx.b32 %r21, %r20, %r10, 0x1f, %r6;").line("REST:");
  body.line("bar.warp.sync 0xffffffff;").out32("%r10").out32("%r21");
  add(list, "shfl.sync.idx among 0x9b35c2a6", body);
  Body index;
  load_own_word(index);
  index.line("and.b32 %r5, %thread, 1;").line("mad.lo.u32 %r5, %thread, 6, %r5;");
  on_both_sides(index, {"shfl.sync.idx.b32 %r21|%p2, %r20, %r5, 0x1f, MASK;",
                        "shfl.sync.idx.b32 %r22|%p3, %r20, %r5, 0x181f, MASK;",
                        "shfl.sync.idx.b32 %r23|%p4, %r20, %r5, 0x1c1d, MASK;"});
  index.out32("%r21").out32("%r22").out32("%r23");
  for (const char* predicate : {"%p2", "%p3", "%p4"}) index.out_predicate(predicate);
  add(list, "shfl.sync.idx, lanes apart", index);
}

void add_votes(std::vector<PtxProgram>& list) {
  for (const char* condition :
       {"setp.lt.u32 %p1, %r20, 0x80000000;", "setp.lt.u32 %p1, %thread, 100;",
        "setp.gt.u32 %p1, %thread, 100;", "mov.pred %p1, %p0;"}) {
    Body body;
    load_own_word(body);
    body.line("and.b32 %r4, %thread, 1;").line("setp.eq.u32 %p0, %r4, 1;").line("{}", condition);
    on_both_sides(body,
                  {"vote.sync.all.pred %p2, %p1, MASK;", "vote.sync.any.pred %p3, %p1, MASK;",
                   "vote.sync.uni.pred %p4, %p1, MASK;", "vote.sync.ballot.b32 %r21, !%p1, MASK;",
                   "vote.sync.all.pred %p5, !%p1, MASK;", "activemask.b32 %r22;"});
    for (const char* predicate : {"%p2", "%p3", "%p4", "%p5"}) body.out_predicate(predicate);
    body.out32("%r21").out32("%r22");
    add(list, fmt::format("vote.sync and activemask, lanes apart: {}", condition), body);
  }
  for (const char* value : {"and.b32 %r20, %r20, 6;", "mov.b32 %r20, 5;", "mov.b32 %r20, %r4;"}) {
    Body body;
    load_own_word(body);
    body.line("and.b32 %r4, %thread, 1;").line("{}", value).line("cvt.s64.s32 %d20, %r20;");
    body.line("mov.b64 %d21, {{%r20, %lane}};");
    on_both_sides(
        body, {"match.any.sync.b32 %r21, %r20, MASK;", "match.all.sync.b32 %r22|%p2, %r20, MASK;",
               "match.any.sync.b64 %r23, %d20, MASK;", "match.any.sync.b64 %r24, %d21, MASK;",
               "match.all.sync.b64 %r25|%p3, %d21, MASK;"});
    for (int i = 21; i <= 25; ++i) body.out32(fmt::format("%r{}", i));
    body.out_predicate("%p2").out_predicate("%p3");
    add(list, fmt::format("match.sync, lanes apart: {}", value), body);
  }
  Body reductions;
  load_own_word(reductions);
  std::vector<std::string> lines;
  for (const char* op : {"add.u32", "add.s32", "min.u32", "min.s32", "max.u32", "max.s32",
                         "and.b32", "or.b32", "xor.b32"})
    lines.push_back(fmt::format("redux.sync.{} %r{}, %r20, MASK;", op, 21 + lines.size()));
  on_both_sides(reductions, lines);
  for (size_t i = 0; i < lines.size(); ++i) reductions.out32(fmt::format("%r{}", 21 + i));
  add(list, "redux.sync, lanes apart", reductions);

  // Masks differ by lane: groups of four meet at one instruction.
  Body groups;
  load_own_word(groups);
  groups.line("and.b32 %r4, %lane, 28;").line("shl.b32 %r5, 15, %r4;");
  groups.line("redux.sync.add.u32 %r21, %r20, %r5;").out32("%r21");
  groups.line("setp.lt.u32 %p1, %r20, 0x80000000;");
  groups.line("vote.sync.ballot.b32 %r22, %p1, %r5;").out32("%r22");
  groups.line("shfl.sync.down.b32 %r23, %r20, 1, 0x1c1f, %r5;").out32("%r23");
  groups.line("match.any.sync.b32 %r24, %r4, %r5;").out32("%r24");
  add(list, "member masks of groups of four", groups);
}

void add_idioms(std::vector<PtxProgram>& list) {
  // One lane of those that are here adds for all; each gets its own place.
  Body leader;
  leader.line("mul.lo.u32 %r2, %thread, 4;").line("cvt.u64.u32 %d2, %r2;");
  leader.line("add.u64 %d1, %in, %d2;").line("ld.global.b32 %r20, [%d1];");
  leader.line("shr.u32 %r3, %thread, 5;").line("mad.lo.u32 %r3, %r3, 4, %tile32;");  // of the warp
  leader.line("mov.u32 %r21, 77;").line("setp.lt.u32 %p0, %r20, 0x90000000;");
  leader.line("vote.sync.ballot.b32 %r5, %p0, 0xffffffff;").line("@!%p0 bra REST;");
  leader.line("neg.s32 %r6, %r5;").line("and.b32 %r6, %r6, %r5;");  // the lowest of them
  leader.line("bfind.u32 %r7, %r6;").line("setp.eq.u32 %p1, %r7, %lane;");
  leader.line("popc.b32 %r8, %r5;").line("mov.u32 %r9, 0;");
  leader.line("@%p1 atom.shared.add.u32 %r9, [%r3], %r8;");
  leader.line("shfl.sync.idx.b32 %r9, %r9, %r7, 0x1f, %r5;");
  leader.line("mov.u32 %r10, %lanemask_lt;").line("and.b32 %r10, %r10, %r5;");
  leader.line("popc.b32 %r10, %r10;").line("add.u32 %r21, %r9, %r10;").line("REST:");
  leader.line("bar.warp.sync 0xffffffff;").out32("%r21");
  add(list, "one lane adds for all", leader);
  // The same for each of several keys.
  Body keys;
  load_own_word(keys);
  keys.line("and.b32 %r20, %r20, 7;").line("shr.u32 %r3, %thread, 5;");
  keys.line("mad.lo.u32 %r3, %r3, 8, %r20;").line("mad.lo.u32 %r3, %r3, 4, %tile32;");
  keys.line("match.any.sync.b32 %r5, %r20, 0xffffffff;");
  keys.line("brev.b32 %r6, %r5;").line("clz.b32 %r6, %r6;");
  keys.line("setp.eq.u32 %p1, %r6, %lane;").line("popc.b32 %r8, %r5;").line("mov.u32 %r9, 0;");
  keys.line("@%p1 atom.shared.add.u32 %r9, [%r3], %r8;");
  keys.line("shfl.sync.idx.b32 %r9, %r9, %r6, 0x1f, %r5;");
  keys.line("mov.u32 %r10, %lanemask_lt;").line("and.b32 %r10, %r10, %r5;");
  keys.line("popc.b32 %r10, %r10;").line("add.u32 %r21, %r9, %r10;").out32("%r21");
  add(list, "one lane of each key adds", keys);
  // Lanes leave a loop one after the other and meet behind it.
  Body loop;
  loop.line("mov.u32 %r5, 0;").line("mov.u32 %r6, 0;").line("mad.lo.u32 %r7, %lane, 7, 3;");
  loop.line("and.b32 %r7, %r7, 15;").line("NEXT:");
  loop.line("add.u32 %r5, %r5, 1;").line("mad.lo.u32 %r6, %r6, 3, %r5;");
  loop.line("setp.lt.u32 %p0, %r5, %r7;").line("@%p0 bra NEXT;");
  loop.line("bar.warp.sync 0xffffffff;");
  loop.line("shfl.sync.bfly.b32 %r8, %r6, 5, 0x1f, 0xffffffff;").out32("%r6").out32("%r8");
  loop.line("activemask.b32 %r9;").out32("%r9");
  add(list, "a loop that lanes leave by themselves", loop);
  // A lane waits for another one of its warp.
  Body hand_over;
  hand_over.line("mul.lo.u32 %r2, %lane, 4;").line("shr.u32 %r3, %thread, 5;");
  hand_over.line("mad.lo.u32 %r2, %r3, 128, %r2;").line("add.u32 %r2, %r2, %tile32;");
  hand_over.line("st.volatile.shared.u32 [%r2], 0;").line("bar.warp.sync 0xffffffff;");
  hand_over.line("setp.eq.u32 %p0, %lane, 31;").line("mov.u32 %r5, 9;").line("@%p0 bra SET;");
  hand_over.line("WAIT:").line("ld.volatile.shared.u32 %r5, [%r2+4];");
  hand_over.line("setp.eq.u32 %p1, %r5, 0;").line("@%p1 bra WAIT;").line("SET:");
  hand_over.line("add.u32 %r6, %r5, 3;").line("st.volatile.shared.u32 [%r2], %r6;");
  hand_over.line("bar.warp.sync 0xffffffff;").out32("%r6");
  add(list, "lanes wait for each other in a chain", hand_over);
}

std::string table_text() {
  std::string text = fmt::format(".const .align 16 .b32 table[{}] = {{", kTableBytes / 4);
  for (int i = 0; i < kTableBytes / 4; ++i)
    text += fmt::format("{}{:#x}", i > 0 ? ", " : "",
                        static_cast<uint32_t>(draw(5000 + static_cast<uint64_t>(i))));
  return text + "};\n";
}

std::vector<std::byte> input_of(const PtxProgram& program) {
  const std::vector<uint64_t> pool = operand_pool(program.elements, 40);
  const auto bytes = static_cast<size_t>(std::max(operand_bits(program.elements), 8) / 8);
  std::vector<std::byte> input(kInputBytes + kCounterBytes);
  for (size_t i = 0; i < input.size() / bytes; ++i) {
    const uint64_t value = pool[draw(i) % pool.size()];
    std::memcpy(input.data() + i * bytes, &value, bytes);
  }
  return input;
}

size_t words_bytes(const PtxProgram& program) {
  return size_t{program.ctas} * program.threads * kOutBytes;
}

}  // namespace

std::vector<PtxProgram> ptx_programs() {
  std::vector<PtxProgram> list;
  add_loads(list);
  add_stores(list);
  add_hints(list);
  add_atomics(list);
  add_copies(list);
  add_matrices(list);
  add_addresses(list);
  add_barriers(list);
  add_shuffles(list);
  add_votes(list);
  add_idioms(list);
  return list;
}

std::string program_ptx(const PtxProgram& program) {
  const auto uses = [&](const char* name) { return program.body.find(name) != std::string::npos; };
  std::string text = ".version 7.8\n.target sm_80\n.address_size 64\n";
  if (uses(" table;")) text += table_text();
  text += fmt::format(".visible .entry program(.param .align 16 .b8 p[{}])\n{{\n", kParamBytes);
  text += fmt::format("  .shared .align 16 .b8 tile[{}];\n", kInputBytes);
  if (uses(" own;")) text += fmt::format("  .local .align 16 .b8 own[{}];\n", kTableBytes);
  text += fmt::format(R"(  .reg .pred %p<16>, %more;
  .reg .b16 %h<32>;
  .reg .b32 %r<64>, %thread, %lane, %cta, %threads, %tile32, %at;
  .reg .b64 %d<64>, %out, %in, %tile, %gtile, %shared_out, %a, %b, %v, %w;
  ld.param.u64 %out, [p+8];
  ld.param.u64 %in, [p+16];
  mov.u32 %thread, %tid.x;
  mov.u32 %lane, %laneid;
  mov.u32 %cta, %ctaid.x;
  mov.u32 %threads, %ntid.x;
  mov.u64 %tile, tile;
  cvta.shared.u64 %gtile, %tile;
  cvt.u32.u64 %tile32, %tile;
  mul.wide.u32 %a, %cta, {0};
  add.u64 %shared_out, %out, %a;
  add.u64 %shared_out, %shared_out, {1};
  mad.lo.u32 %at, %cta, %threads, %thread;
  mul.wide.u32 %a, %at, {2};
  add.u64 %out, %out, %a;
  mul.lo.u32 %at, %thread, 16;
COPY_IN:
  cvt.u64.u32 %a, %at;
  add.u64 %b, %in, %a;
  ld.global.v2.b64 {{%v, %w}}, [%b];
  add.u64 %b, %tile, %a;
  st.shared.v2.b64 [%b], {{%v, %w}};
  mad.lo.u32 %at, %threads, 16, %at;
  setp.lt.u32 %more, %at, {0};
  @%more bra COPY_IN;
  bar.sync 0;
)",
                      kInputBytes, words_bytes(program), kOutBytes);
  text += program.body;
  text += fmt::format(R"(  bar.sync 0;
  mul.lo.u32 %at, %thread, 16;
COPY_OUT:
  cvt.u64.u32 %a, %at;
  add.u64 %b, %tile, %a;
  ld.shared.v2.b64 {{%v, %w}}, [%b];
  add.u64 %b, %shared_out, %a;
  st.global.v2.b64 [%b], {{%v, %w}};
  mad.lo.u32 %at, %threads, 16, %at;
  setp.lt.u32 %more, %at, {};
  @%more bra COPY_OUT;
  ret;
}}
)",
                      kInputBytes);
  return text;
}

std::string program_place(const PtxProgram& program, size_t offset) {
  const size_t words = words_bytes(program);
  if (offset < words) {
    return fmt::format("thread {}, byte {} of its words", offset / kOutBytes, offset % kOutBytes);
  }
  offset -= words;
  const size_t shared = size_t{program.ctas} * kInputBytes;
  if (offset < shared) {
    return fmt::format("CTA {}, byte {} of shared memory", offset / kInputBytes,
                       offset % kInputBytes);
  }
  return fmt::format("byte {} of the input", offset - shared);
}

// The argument struct of the programs: what they write, what they read, and a table.
const templates::Op& program_op() {
  static const templates::Op op = [] {
    templates::Op made{.name = "program"};
    made.sizes = {templates::dynamic("O", "out_bytes", "bytes of out"),
                  templates::dynamic("I", "in_bytes", "bytes of in")};
    const int others = kParamBytes / templates::kFieldBytes - 5;
    for (int i = 0; i < others; ++i) {
      const std::string name = fmt::format("word{}", i);
      made.sizes.push_back(templates::dynamic(name, name, "of the table"));
    }
    made.args = {templates::out("out", templates::DType::u8, "O", "results"),
                 templates::in("in", templates::DType::u8, "I", "operands")};
    for (templates::Arg& arg : made.args) arg.kind = templates::ArgKind::inout;
    return made;
  }();
  return op;
}

std::vector<std::byte> run_program(Device& device, const PtxProgram& program,
                                   ProgramChecks checks) {
  jit::Binary binary;
  binary.kind = jit::BinaryKind::ptx;
  binary.arch = "compute_80";
  binary.entry = "program";
  binary.image = program_ptx(program);
  const auto threads = static_cast<int>(program.threads);
  const LoadedKernel kernel = device.load(binary, threads, 0);
  if (checks == ProgramChecks::on) device.describe(kernel, {&program_op(), {}, program.name});

  const std::vector<std::byte> input = input_of(program);
  const size_t out_bytes = words_bytes(program) + size_t{program.ctas} * kInputBytes;
  std::vector<std::byte> result(out_bytes, std::byte{kUntouched});
  DeviceBuffer in(device, static_cast<int64_t>(input.size()));
  DeviceBuffer out(device, static_cast<int64_t>(out_bytes));
  device.copy_to_device(in.get(), input.data(), in.bytes());
  device.copy_to_device(out.get(), result.data(), static_cast<int64_t>(out_bytes));

  alignas(16) std::array<std::byte, kParamBytes> params{};
  const uint64_t head[kHeadBytes / 8] = {kParamBytes, out.get(), in.get(), out_bytes, input.size()};
  std::memcpy(params.data(), head, sizeof head);
  for (size_t i = sizeof head; i < params.size(); ++i)
    params[i] = static_cast<std::byte>(draw(7000 + i));
  const Stream stream = device.create_stream();
  const LaunchResult launched = device.launch(kernel, {.x = program.ctas}, params.data(), stream);
  if (launched.driver_error != 0) {
    fail(Status::driver_error, "{}: {}", program.name, device.error_text(launched.driver_error));
  }
  device.synchronize(stream);
  device.destroy_stream(stream);

  result.resize(out_bytes + input.size());
  device.copy_to_host(result.data(), out.get(), static_cast<int64_t>(out_bytes));
  device.copy_to_host(result.data() + out_bytes, in.get(), in.bytes());
  return result;
}

std::string program_golden_name(const PtxProgram& program) { return "program: " + program.name; }

std::string program_digest(const std::vector<std::byte>& result) {
  return hash_bytes(std::span(result)).hex();
}

}  // namespace kiln::runtime::sim
