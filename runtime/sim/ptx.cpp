#include "runtime/sim/ptx.h"

#include <bit>
#include <charconv>
#include <cstdlib>
#include <memory>

#include "jit/base/error.h"

namespace kiln::runtime::sim {
namespace {

// What no kernel comes near, and damaged text must not ask for.
constexpr int kDeepestNesting = 64;                   // of braces, groups and negations
constexpr int64_t kMostRegisters = int64_t{1} << 20;  // of a function
constexpr int64_t kMostAlign = 65536;
constexpr int64_t kMostGlobalBytes = int64_t{1} << 40;
constexpr int64_t kMostSharedBytes = int64_t{1} << 20;   // of a variable; no SM has a quarter of it
constexpr int64_t kMostLocalBytes = int64_t{512} << 10;  // of a thread, as CUDA has it
constexpr int64_t kMostConstantBytes = int64_t{64} << 10;
constexpr int64_t kMostParamBytes = int64_t{32} << 10;

int64_t most_bytes(Space space) {
  switch (space) {
    case Space::shared:
      return kMostSharedBytes;
    case Space::local:
      return kMostLocalBytes;
    case Space::param:
      return kMostParamBytes;
    case Space::constant:
      return kMostConstantBytes;
    default:
      return kMostGlobalBytes;
  }
}

struct Token {
  enum class Kind : uint8_t { word, number, text, mark, end } kind = Kind::end;
  std::string_view text;
  int line = 1;
};

bool is_word_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '%' ||
         c == '.';
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word_part(char c) { return is_word_start(c) || is_digit(c); }

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) { advance(); }

  const Token& peek() const { return token_; }
  Token next() {
    const Token token = token_;
    end_of_last_ = token.text.data() + token.text.size();
    advance();
    return token;
  }
  const char* end_of_last() const { return end_of_last_; }

 private:
  void skip_blanks() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\n') ++line_;
      if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        ++at_;
      } else if (text_.substr(at_, 2) == "//") {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (text_.substr(at_, 2) == "/*") {
        const size_t end = text_.find("*/", at_ + 2);
        const size_t behind = end == std::string_view::npos ? text_.size() : end + 2;
        for (; at_ < behind; ++at_) line_ += text_[at_] == '\n';
      } else {
        return;
      }
    }
  }

  void advance() {
    skip_blanks();
    token_ = {.line = line_};
    if (at_ >= text_.size()) return;
    const size_t begin = at_;
    const char c = text_[at_];
    if (is_digit(c)) {
      token_.kind = Token::Kind::number;
      while (at_ < text_.size() && (is_word_part(text_[at_]) && text_[at_] != '%')) ++at_;
      // An exponent may have a sign; 0x1e-3 is a difference.
      const bool is_hex = text_.substr(begin, 2) == "0x" || text_.substr(begin, 2) == "0X";
      if (!is_hex && at_ < text_.size() && (text_[at_] == '-' || text_[at_] == '+') &&
          (text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E')) {
        ++at_;
        while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
      }
    } else if (is_word_start(c)) {
      token_.kind = Token::Kind::word;
      while (at_ < text_.size() && is_word_part(text_[at_])) ++at_;
    } else if (c == '"') {
      token_.kind = Token::Kind::text;
      at_ = std::min(text_.find('"', at_ + 1), text_.size() - 1) + 1;
    } else {
      token_.kind = Token::Kind::mark;
      ++at_;
      if (c == ':' && at_ < text_.size() && text_[at_] == ':') {  // mul::wide, .shared::cta
        ++at_;
      }
    }
    token_.text = text_.substr(begin, at_ - begin);
  }

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  Token token_;
  const char* end_of_last_ = nullptr;
};

std::vector<std::string_view> split_name(std::string_view name) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    parts.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// The special registers that are read like variables.
bool is_special(std::string_view name) {
  constexpr std::string_view kNames[] = {"%tid",
                                         "%ntid",
                                         "%ctaid",
                                         "%nctaid",
                                         "%laneid",
                                         "%warpid",
                                         "%nwarpid",
                                         "%smid",
                                         "%nsmid",
                                         "%gridid",
                                         "%lanemask_eq",
                                         "%lanemask_le",
                                         "%lanemask_lt",
                                         "%lanemask_ge",
                                         "%lanemask_gt",
                                         "%clock",
                                         "%clock64",
                                         "%clock_hi",
                                         "%globaltimer",
                                         "%globaltimer_lo",
                                         "%globaltimer_hi",
                                         "%dynamic_smem_size",
                                         "%total_smem_size"};
  const std::string_view base = name.substr(0, name.find('.'));
  for (const std::string_view known : kNames) {
    if (base == known) return true;
  }
  return false;
}

// 0: no type.
int64_t type_bytes(std::string_view type) {
  if (type == "pred") return 1;
  if (type == "f16x2" || type == "bf16x2" || type == "tf32") return 4;
  if (type == "bf16") return 2;
  const std::string_view kinds = "busf";
  if (type.empty() || kinds.find(type[0]) == std::string_view::npos) return 0;
  const std::string_view bits = type.substr(1);
  if (bits == "8") return type[0] == 'f' ? 0 : 1;
  if (bits == "16") return 2;
  if (bits == "32") return 4;
  if (bits == "64") return 8;
  return type == "b128" ? 16 : 0;
}

class Parser {
 public:
  explicit Parser(Module& module) : module_(module), lexer_(module.text) {}

  void run() {
    while (lexer_.peek().kind != Token::Kind::end) module_item();
  }

 private:
  struct Scope {
    std::map<std::string, int, std::less<>> names;
    struct Range {
      std::string base;
      int first = 0;
      int count = 0;
    };
    std::vector<Range> ranges;
  };

  // While it lives, one level deeper.
  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ <= kDeepestNesting) return;
      --parser_.depth_;
      fail(Status::invalid_argument, "PTX line {}: nested more than {} times",
           parser_.lexer_.peek().line, kDeepestNesting);
    }
    ~Nesting() { --parser_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Parser& parser_;
  };

  [[noreturn]] void fail_at(int line, std::string_view expected) const {
    fail(Status::invalid_argument, "PTX line {}: expected {}, found \"{}\"", line, expected,
         lexer_.peek().text);
  }
  bool accept(std::string_view mark) {
    if (lexer_.peek().kind == Token::Kind::text || lexer_.peek().text != mark) return false;
    lexer_.next();
    return true;
  }
  Token expect(std::string_view mark) {
    if (lexer_.peek().text != mark) fail_at(lexer_.peek().line, fmt::format("\"{}\"", mark));
    return lexer_.next();
  }
  Token word(std::string_view what) {
    if (lexer_.peek().kind != Token::Kind::word) fail_at(lexer_.peek().line, what);
    return lexer_.next();
  }
  void skip_to_semicolon() {
    while (lexer_.peek().kind != Token::Kind::end && !accept(";")) lexer_.next();
  }

  int64_t integer() {
    const bool minus = accept("-");
    const int line = lexer_.peek().line;
    const Operand value = number();
    if (value.is_float) fail_at(line, "an integer");
    return static_cast<int64_t>(minus ? 0 - value.bits : value.bits);
  }

  // A literal without sign; floats as the bits of a double.
  Operand number() {
    const Token token = lexer_.next();
    if (token.kind != Token::Kind::number) {
      fail(Status::invalid_argument, "PTX line {}: expected a number, found \"{}\"", token.line,
           token.text);
    }
    Operand result{.kind = Operand::Kind::immediate};
    std::string_view digits = token.text;
    const auto parse = [&](std::string_view body, int base) {
      uint64_t value = 0;
      const auto [end, error] =
          std::from_chars(body.data(), body.data() + body.size(), value, base);
      if (error != std::errc() || end != body.data() + body.size()) {
        fail(Status::invalid_argument, "PTX line {}: \"{}\" is not a number", token.line,
             token.text);
      }
      return value;
    };
    const char second = digits.size() > 1 ? digits[1] : '\0';
    if (digits[0] == '0' && (second == 'f' || second == 'F') && digits.size() == 10) {
      result.is_float = true;
      const auto bits = static_cast<uint32_t>(parse(digits.substr(2), 16));
      result.bits = std::bit_cast<uint64_t>(static_cast<double>(std::bit_cast<float>(bits)));
      // A signalling or payload NaN does not survive the widening by value.
      if ((bits & 0x7fffffff) > 0x7f800000) {
        result.bits = (static_cast<uint64_t>(bits >> 31) << 63) | (uint64_t{0x7ff} << 52) |
                      (static_cast<uint64_t>(bits & 0x7fffff) << 29);
      }
      return result;
    }
    if (digits[0] == '0' && (second == 'd' || second == 'D') && digits.size() == 18) {
      result.is_float = true;
      result.bits = parse(digits.substr(2), 16);
      return result;
    }
    if (digits.ends_with('U') || digits.ends_with('u')) digits.remove_suffix(1);
    const bool is_hex = second == 'x' || second == 'X';
    if (!is_hex && digits.find_first_of(".eE") != std::string_view::npos) {
      result.is_float = true;
      const std::string text(digits);
      char* end = nullptr;
      result.bits = std::bit_cast<uint64_t>(std::strtod(text.c_str(), &end));
      if (end != text.c_str() + text.size()) {
        fail(Status::invalid_argument, "PTX line {}: \"{}\" is not a number", token.line, digits);
      }
      return result;
    }
    if (is_hex) {
      result.bits = parse(digits.substr(2), 16);
    } else if (second == 'b' || second == 'B') {
      result.bits = parse(digits.substr(2), 2);
    } else {
      result.bits = parse(digits, digits[0] == '0' && digits.size() > 1 ? 8 : 10);
    }
    return result;
  }

  // --- module level
  void module_item() {
    const Token token = lexer_.next();
    if (token.text == ".version" || token.text == ".address_size") {
      lexer_.next();
    } else if (token.text == ".target") {
      module_.target = std::string(lexer_.next().text);
      while (accept(",")) lexer_.next();
    } else if (token.text == ".file") {
      file();
    } else if (token.text == ".section") {
      skip_section();
    } else if (token.text == ".visible" || token.text == ".extern" || token.text == ".weak" ||
               token.text == ".common") {
      return;
    } else if (token.text == ".entry" || token.text == ".func") {
      function(token.text);
    } else if (token.text == ".global" || token.text == ".const" || token.text == ".shared") {
      variables(token.text, module_.variables);
    } else if (token.text == ".alias" || token.text == ".pragma") {
      skip_to_semicolon();
    } else if (token.text != ";") {
      fail(Status::invalid_argument,
           "PTX line {}: \"{}\" is not a directive that the simulator knows", token.line,
           token.text);
    }
  }

  void file() {
    const auto index = static_cast<int>(integer());
    const Token name = lexer_.next();
    if (name.kind != Token::Kind::text || name.text.size() < 2 || name.text.back() != '"')
      fail_at(name.line, "the name of a file in quotes");
    module_.files[index] = std::string(name.text.substr(1, name.text.size() - 2));
    while (accept(",")) integer();
  }

  void skip_section() {
    while (lexer_.peek().text != "{") {
      if (lexer_.peek().kind == Token::Kind::end) fail_at(lexer_.peek().line, "a section");
      lexer_.next();
    }
    int depth = 0;
    do {
      const Token token = lexer_.next();
      if (token.kind == Token::Kind::end) fail_at(token.line, "the end of a section");
      if (token.text == "{") ++depth;
      if (token.text == "}") --depth;
    } while (depth > 0);
  }

  Space space_of(std::string_view directive) const {
    if (directive == ".shared") return Space::shared;
    if (directive == ".local") return Space::local;
    if (directive == ".param") return Space::param;
    if (directive == ".const") return Space::constant;
    return Space::global;
  }

  // After ".shared": [.align n] .type name[count] [= initialiser] {, name} ;
  void variables(std::string_view directive, std::vector<Variable>& into) {
    last_type_ = {};
    do {
      into.push_back(variable(directive));
    } while (accept(","));
    expect(";");
  }

  Variable variable(std::string_view directive) {
    Variable result{.space = space_of(directive)};
    int64_t vector = 1;
    std::string_view type;
    while (lexer_.peek().text.starts_with('.')) {
      const Token token = lexer_.next();
      if (token.text == ".align") {
        result.align = integer();
        if (result.align < 1 || result.align > kMostAlign ||
            !std::has_single_bit(static_cast<uint64_t>(result.align))) {
          fail(Status::invalid_argument,
               "PTX line {}: an alignment of {}, expected a power of two up to {}", token.line,
               result.align, kMostAlign);
        }
      } else if (token.text == ".ptr") {
        while (lexer_.peek().text == ".global" || lexer_.peek().text == ".shared" ||
               lexer_.peek().text == ".const" || lexer_.peek().text == ".local") {
          lexer_.next();
        }
      } else if (token.text == ".v2" || token.text == ".v4") {
        vector = token.text[2] - '0';
      } else if (token.text != ".managed" && !token.text.starts_with(".attribute")) {
        type = token.text.substr(1);
      }
    }
    if (!type.empty()) last_type_ = type;
    const int line = lexer_.peek().line;
    const int64_t element = type_bytes(last_type_) * vector;
    if (element == 0) {
      fail(Status::unsupported, "PTX line {}: variables of type \".{}\" are not supported", line,
           last_type_);
    }
    result.align = std::max(result.align, element);
    result.name = std::string(word("the name of a variable").text);
    result.bytes = element;
    const int64_t most = most_bytes(result.space);
    while (accept("[")) {
      const int64_t count = lexer_.peek().text == "]" ? 0 : integer();
      if (count < 0 || (result.bytes != 0 && count > most / result.bytes)) {
        fail(Status::invalid_argument,
             "PTX line {}: {} has a dimension of {}; a variable in {} memory has at most {} bytes",
             line, result.name, count, space_name(result.space), most);
      }
      result.bytes *= count;
      expect("]");
    }
    if (accept("=")) initialiser(result, type_bytes(last_type_));
    if (result.bytes != 0 && static_cast<int64_t>(result.content.size()) > result.bytes) {
      fail(Status::invalid_argument, "PTX line {}: {} is given {} bytes and has {}", line,
           result.name, result.content.size(), result.bytes);
    }
    return result;
  }

  void initialiser(Variable& into, int64_t element) {
    const Nesting nesting(*this);
    const int line = lexer_.peek().line;
    if (element > 8) {
      fail(Status::unsupported, "PTX line {}: elements of {} bytes have no initial values", line,
           element);
    }
    if (accept("{")) {
      if (accept("}")) return;
      do {
        initialiser(into, element);
      } while (accept(","));
      expect("}");
      return;
    }
    const auto offset = static_cast<int64_t>(into.content.size());
    uint64_t bits = 0;
    if (lexer_.peek().kind == Token::Kind::word) {
      std::string_view name = lexer_.next().text;
      const bool parenthesised = accept("(");  // generic(symbol)
      if (parenthesised) {
        name = word("a symbol").text;
        expect(")");
      }
      int64_t addend = 0;
      if (accept("+")) addend = integer();
      if (element != 8) {
        fail(Status::unsupported, "PTX line {}: the address of {} needs 8 bytes, not {}", line,
             name, element);
      }
      into.relocations.push_back({.offset = offset, .symbol = std::string(name), .addend = addend});
    } else {
      const bool minus = accept("-");
      const Operand value = number();
      bits = value.bits;
      if (value.is_float && element < 4) {
        fail(Status::unsupported, "PTX line {}: a float does not fit into {} bytes", line, element);
      }
      if (value.is_float) {
        const double real = (minus ? -1.0 : 1.0) * std::bit_cast<double>(value.bits);
        bits = element == 4 ? std::bit_cast<uint32_t>(static_cast<float>(real))
                            : std::bit_cast<uint64_t>(real);
      } else if (minus) {
        bits = 0 - bits;
      }
    }
    into.content.append(reinterpret_cast<const char*>(&bits), static_cast<size_t>(element));
  }

  // --- functions
  std::vector<Variable> parameter_list() {
    std::vector<Variable> list;
    if (!accept("(")) return list;
    while (!accept(")")) {
      const Token directive = lexer_.next();
      if (directive.text == ".param") {
        last_type_ = {};
        list.push_back(variable(".param"));
      } else if (directive.text == ".reg") {
        fail(Status::unsupported, "PTX line {}: parameters in registers are not supported",
             directive.line);
      } else {
        fail_at(directive.line, "a .param");
      }
      accept(",");
    }
    return list;
  }

  void function(std::string_view directive) {
    Function result{.is_entry = directive == ".entry"};
    if (!result.is_entry) result.results = parameter_list();
    result.name = std::string(word("the name of a function").text);
    result.params = parameter_list();
    while (lexer_.peek().text != "{" && lexer_.peek().text != ";") {
      if (lexer_.peek().kind == Token::Kind::end) fail_at(lexer_.peek().line, "a function body");
      launch_bound(result);
    }
    if (!accept(";")) {
      result.has_body = true;
      where_ = {};
      function_ = &result;
      scopes_.clear();
      block();
      function_ = nullptr;
    }
    const auto [place, is_new] = function_index_.try_emplace(result.name, module_.functions.size());
    if (is_new) {
      module_.functions.push_back(std::move(result));
    } else if (result.has_body) {
      module_.functions[place->second] = std::move(result);
    }
  }

  // .maxntid 128, 1, 1 and the like; what says nothing about a launch is passed over.
  void launch_bound(Function& into) {
    const Token directive = lexer_.next();
    if (directive.text == ".maxntid") {
      const std::array<int64_t, 3> most = block_size();
      into.most_threads = most[0] * most[1] * most[2];
    } else if (directive.text == ".reqntid") {
      into.exact_threads = block_size();
    } else if (directive.text == ".minnctapersm") {
      into.least_ctas_per_sm = bounded(1, 1024);
    } else if (directive.text == ".maxnreg") {
      into.most_registers = bounded(1, 1024);
    }
  }
  std::array<int64_t, 3> block_size() {
    std::array<int64_t, 3> size = {bounded(1, 1024), 1, 1};
    if (accept(",")) size[1] = bounded(1, 1024);
    if (accept(",")) size[2] = bounded(1, 1024);
    return size;
  }
  int64_t bounded(int64_t least, int64_t most) {
    const int line = lexer_.peek().line;
    const int64_t value = integer();
    if (value < least || value > most) {
      fail(Status::invalid_argument, "PTX line {}: {}, expected {} to {}", line, value, least,
           most);
    }
    return value;
  }

  void block() {
    const Nesting nesting(*this);
    expect("{");
    scopes_.emplace_back();
    while (!accept("}")) body_item();
    scopes_.pop_back();
  }

  void body_item() {
    const Token first = lexer_.peek();
    if (first.kind == Token::Kind::end) fail_at(first.line, "the end of a function");
    if (first.text == "{") return block();
    if (first.text == ";") {
      lexer_.next();
      return;
    }
    if (first.text == ".reg") return registers();
    if (first.text == ".loc") return location();
    if (first.text == ".shared" || first.text == ".local" || first.text == ".param" ||
        first.text == ".global" || first.text == ".const") {
      lexer_.next();
      return variables(first.text, function_->variables);
    }
    if (first.text == ".pragma") return skip_to_semicolon();
    statement();
  }

  void registers() {
    lexer_.next();
    std::string_view type = word("the type of registers").text.substr(1);
    if (type == "v2" || type == "v4") {
      fail(Status::unsupported, "PTX line {}: vector registers are not supported",
           lexer_.peek().line);
    }
    const int64_t bytes = type_bytes(type);
    if (bytes == 0 || bytes > 8) {
      fail(Status::unsupported, "PTX line {}: registers of type .{} are not supported",
           lexer_.peek().line, type);
    }
    const RegisterClass kind = type == "pred" ? RegisterClass::predicate
                               : bytes <= 2   ? RegisterClass::bits16
                               : bytes == 4   ? RegisterClass::bits32
                                              : RegisterClass::bits64;
    do {
      const std::string name(word("the name of a register").text);
      const auto first = static_cast<int>(function_->registers.size());
      if (accept("<")) {
        const int64_t wanted = integer();
        if (wanted < 0 || wanted > kMostRegisters - first) {
          fail(Status::invalid_argument, "PTX line {}: {} registers, expected at most {}",
               lexer_.peek().line, wanted, kMostRegisters);
        }
        const auto count = static_cast<int>(wanted);
        expect(">");
        for (int i = 0; i < count; ++i)
          function_->registers.push_back({.name = fmt::format("{}{}", name, i), .kind = kind});
        scopes_.back().ranges.push_back({.base = name, .first = first, .count = count});
      } else {
        function_->registers.push_back({.name = name, .kind = kind});
        scopes_.back().names[name] = first;
      }
    } while (accept(","));
    expect(";");
  }

  int find_register(std::string_view name) const {
    const size_t digits = name.find_last_not_of("0123456789") + 1;
    int index = -1;
    if (digits < name.size())
      std::from_chars(name.data() + digits, name.data() + name.size(), index);
    const std::string_view base = name.substr(0, digits);
    for (size_t depth = scopes_.size(); depth-- > 0;) {
      const Scope& scope = scopes_[depth];
      if (const auto found = scope.names.find(name); found != scope.names.end())
        return found->second;
      for (const Scope::Range& range : scope.ranges) {
        if (range.base == base && index >= 0 && index < range.count) return range.first + index;
      }
    }
    return -1;
  }

  // .loc file line column [, function_name label [+ n], inlined_at file line column]
  void location() {
    lexer_.next();
    where_ = {.file = static_cast<int>(integer()), .line = static_cast<int>(integer())};
    integer();
    while (accept(",")) {
      const Token key = word("function_name or inlined_at");
      if (key.text == "inlined_at") {
        where_.caller_file = static_cast<int>(integer());
        where_.caller_line = static_cast<int>(integer());
        integer();
      } else {
        lexer_.next();
        if (accept("+")) integer();
      }
    }
  }

  void statement() {
    Token first = lexer_.next();
    if (first.kind == Token::Kind::word && accept(":")) {
      function_->labels[std::string(first.text)] = function_->statements.size();
      if (lexer_.peek().text == ".branchtargets") branch_targets(first.text);
      if (lexer_.peek().text == ".callprototype") skip_to_semicolon();
      return;
    }
    Statement result{.line = first.line, .where = where_};
    const char* begin = first.text.data();
    if (first.text == "@") {
      result.guard_negated = accept("!");
      const Token guard = word("a predicate");
      result.guard = find_register(guard.text);
      if (result.guard < 0 ||
          function_->registers[static_cast<size_t>(result.guard)].kind != RegisterClass::predicate)
        fail_at(guard.line, "a predicate that was declared");
      first = lexer_.next();
    }
    if (first.kind != Token::Kind::word) fail_at(first.line, "an instruction");
    const char* name_end = first.text.data() + first.text.size();
    while (accept("::"))
      name_end = [&] {  // ld.shared::cta.u32
        const Token more = lexer_.next();
        return more.text.data() + more.text.size();
      }();
    result.name = split_name(
        std::string_view(first.text.data(), static_cast<size_t>(name_end - first.text.data())));
    if (!accept(";")) {
      do {
        result.operands.push_back(operand());
      } while (accept(","));
      expect(";");
    }
    result.text = std::string_view(begin, static_cast<size_t>(lexer_.end_of_last() - begin));
    function_->statements.push_back(std::move(result));
  }

  void branch_targets(std::string_view name) {
    lexer_.next();
    std::vector<std::string>& targets = function_->branch_targets[std::string(name)];
    do {
      targets.emplace_back(word("a label").text);
    } while (accept(","));
    expect(";");
  }

  Operand operand() {
    const Nesting nesting(*this);
    Operand result = simple_operand();
    if (lexer_.peek().text != "|") return result;
    Operand pair{.kind = Operand::Kind::group};
    pair.parts.push_back(std::move(result));
    while (accept("|")) pair.parts.push_back(simple_operand());
    return pair;
  }

  Operand simple_operand() {
    const Nesting nesting(*this);
    const Token token = lexer_.peek();
    if (token.text == "[") return address();
    if (token.text == "{" || token.text == "(") {
      const std::string_view close = token.text == "{" ? "}" : ")";
      lexer_.next();
      Operand group{.kind = Operand::Kind::group};
      if (accept(close)) return group;
      do {
        group.parts.push_back(operand());
      } while (accept(","));
      expect(close);
      return group;
    }
    if (token.text == "!") {
      lexer_.next();
      Operand result = simple_operand();
      result.negated = true;
      return result;
    }
    if (token.text == "-" || token.text == "+") {
      lexer_.next();
      Operand result = number();
      if (token.text == "-") {
        result.bits = result.is_float ? result.bits ^ (uint64_t{1} << 63) : 0 - result.bits;
      }
      return result;
    }
    if (token.kind == Token::Kind::number) return number();
    if (token.kind != Token::Kind::word) fail_at(token.line, "an operand");
    lexer_.next();
    if (token.text == "_") return {.kind = Operand::Kind::sink};
    Operand result{.kind = Operand::Kind::reg, .reg = find_register(token.text)};
    if (result.reg >= 0) return result;
    result.name = std::string(token.text);
    result.kind = is_special(token.text) ? Operand::Kind::special : Operand::Kind::symbol;
    if (result.kind == Operand::Kind::symbol && accept("+")) result.offset = integer();
    return result;
  }

  Operand address() {
    expect("[");
    Operand result{.kind = Operand::Kind::address};
    if (lexer_.peek().kind == Token::Kind::number) {
      result.offset = static_cast<int64_t>(number().bits);
    } else {
      const Token base = word("an address");
      result.reg = find_register(base.text);
      if (result.reg < 0) result.name = std::string(base.text);
    }
    if (accept("+") || lexer_.peek().text == "-") {
      result.offset = static_cast<int64_t>(static_cast<uint64_t>(result.offset) +
                                           static_cast<uint64_t>(integer()));
    }
    expect("]");
    return result;
  }

  Module& module_;
  Lexer lexer_;
  Function* function_ = nullptr;
  std::vector<Scope> scopes_;
  SourceLocation where_;
  std::string_view last_type_;  // of the variables of one declaration
  int depth_ = 0;
  std::map<std::string, size_t, std::less<>> function_index_;  // of module_.functions
};

}  // namespace

const char* space_name(Space space) {
  switch (space) {
    case Space::generic:
      return "generic";
    case Space::global:
      return "global";
    case Space::constant:
      return "constant";
    case Space::shared:
      return "shared";
    case Space::local:
      return "local";
    case Space::param:
      return "parameter";
  }
  return "?";
}

const Function* Module::find(std::string_view name) const {
  for (const Function& function : functions) {
    if (function.name == name) return &function;
  }
  return nullptr;
}

Module parse_ptx(std::string text) {
  Module module;
  // What is short enough to live inside the string would leave the views behind when it moves.
  if (text.size() < 64) text.reserve(64);
  module.text = std::move(text);
  Parser(module).run();
  return module;
}

}  // namespace kiln::runtime::sim
