// Walks the includes of a kernel source: the closure for NVRTC and for the key, and the single file
// for people and nvcc.
#include "jit/source.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "jit/base/error.h"

namespace kiln::jit {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// The text with comments and literals blanked out, line for line, except that quoted include names
// stay readable. Without this an include in a comment would join the closure.
std::string blank_comments(std::string_view text) {
  std::string out(text);
  auto blank = [&](size_t from, size_t to) {
    for (size_t i = from; i < to && i < out.size(); ++i) {
      if (out[i] != '\n') out[i] = ' ';
    }
  };
  size_t i = 0;
  while (i < text.size()) {
    const char c = text[i];
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (c == '/' && next == '/') {
      const size_t end = std::min(text.find('\n', i), text.size());
      blank(i, end);
      i = end;
    } else if (c == '/' && next == '*') {
      const size_t close = text.find("*/", i + 2);
      const size_t end = close == std::string_view::npos ? text.size() : close + 2;
      blank(i, end);
      i = end;
    } else if (c == '"' && i > 0 && text[i - 1] == 'R' && (i < 2 || !is_word(text[i - 2]))) {
      const size_t open = std::min(text.find('(', i), text.size());
      const std::string close = fmt::format("){}\"", text.substr(i + 1, open - i - 1));
      const size_t found = text.find(close, open);
      const size_t end = found == std::string_view::npos ? text.size() : found + close.size();
      blank(i, end);
      i = end;
    } else if (c == '"' || (c == '\'' && (i == 0 || !is_word(text[i - 1])))) {
      ++i;
      while (i < text.size() && text[i] != c && text[i] != '\n') i += text[i] == '\\' ? 2 : 1;
      ++i;
    } else {
      ++i;
    }
  }
  return out;
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return lines;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())))
    text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())))
    text.remove_suffix(1);
  return text;
}

struct Directive {
  std::string_view name;       // "include", "pragma", ...
  std::string_view arguments;  // what follows, trimmed
};

std::optional<Directive> directive_of(std::string_view line) {
  line = trim(line);
  if (line.empty() || line.front() != '#') return std::nullopt;
  line = trim(line.substr(1));
  size_t length = 0;
  while (length < line.size() && is_word(line[length])) ++length;
  return Directive{line.substr(0, length), trim(line.substr(length))};
}

bool is_pragma_once(const Directive& directive) {
  return directive.name == "pragma" && directive.arguments == "once";
}

// Visits a file line by line: `on_include(name, line number)` for an include, `on_line(text)` for
// every other line.
template <typename OnInclude, typename OnLine>
void visit_lines(const SourceFile& file, OnInclude on_include, OnLine on_line) {
  const std::string blanked = blank_comments(file.text);
  const std::vector<std::string_view> code = split_lines(blanked);
  const std::vector<std::string_view> lines = split_lines(file.text);
  int conditionals = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::optional<Directive> directive = directive_of(code[i]);
    if (!directive) {
      on_line(lines[i]);
      continue;
    }
    if (directive->name.starts_with("if")) ++conditionals;
    if (directive->name == "endif") --conditionals;
    if (is_pragma_once(*directive)) continue;
    if (directive->name != "include") {
      on_line(lines[i]);
      continue;
    }
    const std::string_view name = directive->arguments;
    if (name.size() < 3 || name.front() != '"' || name.back() != '"') {
      fail(Status::compile_error,
           "{} line {} includes {}, but a template may include only its own headers, by their "
           "quoted name from the root of the tree: no standard or CUDA header reaches NVRTC.",
           file.path, i + 1, name.empty() ? "nothing" : name);
    }
    if (conditionals > 0) {
      fail(Status::compile_error,
           "{} line {} includes {} inside a conditional. Move the include out of it, so that the "
           "headers of a kernel do not depend on macros.",
           file.path, i + 1, name);
    }
    on_include(std::string(name.substr(1, name.size() - 2)), i + 1);
  }
}

// What the walk over the headers needs to know of a file.
struct Scan {
  struct Include {
    std::string name;
    size_t line = 0;
  };
  std::vector<Include> includes;
  bool has_pragma_once = false;
};

Scan scanned(const SourceFile& file) {
  Scan scan;
  visit_lines(
      file,
      [&](const std::string& name, size_t line) {
        scan.includes.push_back({name, line});
      },
      [](std::string_view) {});
  const std::string blanked = blank_comments(file.text);
  for (std::string_view line : split_lines(blanked)) {
    const std::optional<Directive> directive = directive_of(line);
    if (directive && is_pragma_once(*directive)) scan.has_pragma_once = true;
  }
  return scan;
}

// Kept by each thread, as a warm start asks for the same few files once for each kernel.
std::shared_ptr<const Scan> scan_of(const SourceFile& file) {
  // Generated, another one for each kernel.
  if (file.path == kConstantsHeader)
    return std::make_shared<const Scan>(Scan{.includes = {}, .has_pragma_once = true});
  thread_local std::map<Hash128, std::shared_ptr<const Scan>> kept;
  const Hash128 key = HashRecord().field("path", file.path).field("text", file.text).hash();
  std::shared_ptr<const Scan>& scan = kept[key];
  if (scan == nullptr) scan = std::make_shared<const Scan>(scanned(file));
  return scan;
}

bool is_identifier(std::string_view name) {
  return !name.empty() && !std::isdigit(static_cast<unsigned char>(name.front())) &&
         std::all_of(name.begin(), name.end(), is_word);
}

// The headers of a source by name, the generated one included.
class HeaderSet {
 public:
  explicit HeaderSet(const KernelSource& source)
      : source_(source), constants_{kConstantsHeader, constants_header(source.constants)} {
    std::set<std::string_view> names{kConstantsHeader};
    for (const SourceFile& header : source.headers) {
      if (!names.insert(header.path).second) {
        fail(Status::compile_error, "{} is handed over with two headers called \"{}\".",
             source.main.path, header.path);
      }
    }
  }

  const SourceFile& find(const std::string& name, const SourceFile& from, size_t line) const {
    if (name == constants_.path) return constants_;
    for (const SourceFile& header : source_.headers) {
      if (header.path == name) return header;
    }
    std::string known(kConstantsHeader);
    for (const SourceFile& header : source_.headers) known += ", " + header.path;
    fail(Status::compile_error,
         "{} line {} includes \"{}\", which is not among the headers handed over ({}).", from.path,
         line, name, known);
  }

 private:
  const KernelSource& source_;
  const SourceFile constants_;
};

void collect(const HeaderSet& headers, const SourceFile& file, std::set<std::string>& seen,
             std::vector<SourceFile>& reached) {
  const std::shared_ptr<const Scan> scan = scan_of(file);
  for (const auto& [name, line] : scan->includes) {
    const SourceFile& header = headers.find(name, file, line);
    if (seen.insert(name).second) {
      reached.push_back(header);
      collect(headers, header, seen, reached);
    } else if (!scan_of(header)->has_pragma_once) {
      fail(Status::compile_error,
           "{} line {} includes \"{}\" a second time, and that header lacks `#pragma once`.",
           file.path, line, name);
    }
  }
}

void append_file(const HeaderSet& headers, const SourceFile& file, std::set<std::string>& seen,
                 std::string& out) {
  visit_lines(
      file,
      [&](const std::string& name, size_t line) {
        if (!seen.insert(name).second) return;
        out += fmt::format("// From {}.\n", name);
        append_file(headers, headers.find(name, file, line), seen, out);
        out += fmt::format("// Back in {}.\n", file.path);
      },
      [&](std::string_view line) { out.append(line).push_back('\n'); });
}

}  // namespace

std::string constants_header(const std::vector<Constant>& constants) {
  std::string text = "// The constants of this specialisation.\n#pragma once\n\n";
  std::set<std::string_view> names;
  for (const Constant& constant : constants) {
    const std::string both = constant.type + constant.value;
    if (!is_identifier(constant.name) || constant.type.empty() || constant.value.empty() ||
        both.find_first_of("\n;") != std::string::npos) {
      fail(Status::compile_error,
           "The constant \"{}\" of type \"{}\" and value \"{}\" cannot be written as one line of "
           "C++.",
           constant.name, constant.type, constant.value);
    }
    if (!names.insert(constant.name).second) {
      fail(Status::compile_error, "The constant {} is given twice.", constant.name);
    }
    text += fmt::format("constexpr {} {} = {};\n", constant.type, constant.name, constant.value);
  }
  return text;
}

std::vector<SourceFile> reached_headers(const KernelSource& source) {
  const HeaderSet headers(source);
  std::set<std::string> seen;
  std::vector<SourceFile> reached;
  collect(headers, source.main, seen, reached);
  if (!source.constants.empty() && seen.count(kConstantsHeader) == 0) {
    fail(Status::compile_error,
         "{} is specialised by {} constants, but neither it nor its headers include \"{}\".",
         source.main.path, source.constants.size(), kConstantsHeader);
  }
  return reached;
}

Hash128 closure_hash(const KernelSource& source, const std::vector<SourceFile>& headers) {
  HashRecord record;
  record.field("record", "kiln source 1");
  record.field("main", source.main.text);
  for (const SourceFile& header : headers) {
    record.field("header", header.path).field("text", header.text);
  }
  record.field("entry", source.entry);
  return record.hash();
}

std::string dump_source(const KernelSource& source) {
  reached_headers(source);  // the same checks as a compile
  const HeaderSet headers(source);
  std::set<std::string> seen;
  std::string out;
  append_file(headers, source.main, seen, out);
  return out;
}

}  // namespace kiln::jit
