// PTX text as statements: names resolved, nothing decided about what an instruction means. The
// decoder (decode.h) turns statements into instructions.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kiln::runtime::sim {

// Where a statement came from, by the `.loc` before it. An inlined function also knows its caller.
struct SourceLocation {
  int file = 0;  // of Module::files; 0: not known
  int line = 0;
  int caller_file = 0;
  int caller_line = 0;
};

// What a `.b32` says about storage.
enum class RegisterClass : uint8_t { predicate, bits16, bits32, bits64 };
struct Register {
  std::string name;
  RegisterClass kind = RegisterClass::bits32;
};

struct Operand {
  enum class Kind : uint8_t {
    reg,        // %r1, or !%p1
    immediate,  // 5, -1, 0x10, 0f3F800000
    symbol,     // a variable, a label, a function
    special,    // %tid.x
    address,    // [%rd1+8], [symbol+8], [16]
    group,      // {a, b, c, d}, (a, b), and d|p
    sink        // _
  } kind = Kind::sink;
  bool negated = false;
  bool is_float = false;  // of an immediate: `bits` are those of a double
  int reg = -1;           // register, or base register of an address
  int64_t offset = 0;     // of an address
  uint64_t bits = 0;      // of an immediate
  std::string name;       // of a symbol, special register or base variable of an address
  std::vector<Operand> parts;
};

struct Statement {
  std::string_view text;  // as written, for messages
  int line = 0;           // of the PTX
  SourceLocation where;
  int guard = -1;  // register, or none
  bool guard_negated = false;
  std::vector<std::string_view> name;  // "ld", "global", "v4", "u32"
  std::vector<Operand> operands;
};

enum class Space : uint8_t { generic, global, constant, shared, local, param };
const char* space_name(Space space);

struct Variable {
  std::string name;
  Space space = Space::global;
  int64_t align = 1;
  int64_t bytes = 0;    // 0: extern shared memory, as much as the launch gives
  std::string content;  // initial bytes; shorter than `bytes`: the rest is zero
  struct Relocation {
    int64_t offset = 0;
    std::string symbol;
    int64_t addend = 0;
  };
  std::vector<Relocation> relocations;
};

struct Function {
  std::string name;
  bool is_entry = false;
  bool has_body = false;
  // What the kernel was compiled for; 0: it does not say.
  int64_t most_threads = 0;                   // .maxntid, their product
  std::array<int64_t, 3> exact_threads = {};  // .reqntid: x, y, z
  int64_t least_ctas_per_sm = 0;              // .minnctapersm
  int64_t most_registers = 0;                 // .maxnreg
  std::vector<Variable> params;               // of an entry: its parameter bytes, in order
  std::vector<Variable> results;              // of a function
  std::vector<Register> registers;
  std::vector<Variable> variables;  // .shared, .local and .param declared inside
  std::vector<Statement> statements;
  std::map<std::string, size_t, std::less<>> labels;  // statement that follows
  std::map<std::string, std::vector<std::string>, std::less<>> branch_targets;
};

struct Module {
  std::string text;  // owns what the views point into
  std::string target;
  std::map<int, std::string> files;
  std::vector<Variable> variables;
  std::vector<Function> functions;

  const Function* find(std::string_view name) const;
};

// Fails with invalid_argument, the line and what was expected.
Module parse_ptx(std::string text);

}  // namespace kiln::runtime::sim
