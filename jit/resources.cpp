// Reads registers, stack, spills and static shared memory. Images are untrusted: every offset is
// checked against the size.
#include "jit/resources.h"

#include <elf.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace kiln::jit {
namespace {

// Attributes of `.nv.info`: a format byte, an attribute byte, and a 16-bit size or value; format 4
// is followed by `size` bytes.
constexpr uint8_t kFormatSized = 4;
constexpr uint8_t kAttributeMinStackSize = 0x12;
constexpr uint8_t kAttributeRegisterCount = 0x2f;

// Marks the symbol of a kernel among those of device functions.
constexpr uint8_t kSymbolIsEntry = 0x10;

// From cc 9.0 on a kernel's shared section begins with the system's own kilobyte, and this section
// says so.
constexpr std::string_view kReservedSmemSection = ".nv.shared.reserved.0";
constexpr int64_t kReservedSmemBytes = 1024;

// The number that stands directly before `unit`, as in "1024 bytes smem".
std::optional<int64_t> number_before(std::string_view line, std::string_view unit) {
  const size_t at = line.find(unit);
  if (at == std::string_view::npos) return std::nullopt;
  size_t begin = at;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int64_t value = 0;
  const auto result = std::from_chars(line.data() + begin, line.data() + at, value);
  if (result.ec != std::errc{} || begin == at) return std::nullopt;
  return value;
}

std::string_view quoted_name(std::string_view line) {
  const size_t open = line.find('\'');
  if (open == std::string_view::npos) return {};
  const size_t close = line.find('\'', open + 1);
  return close == std::string_view::npos ? std::string_view{}
                                         : line.substr(open + 1, close - open - 1);
}

struct Section {
  std::string_view name;
  std::string_view data;  // empty for NOBITS
  uint64_t size_bytes = 0;
};

// The sections of an ELF64 file; none when the image is not one.
class ElfFile {
 public:
  explicit ElfFile(std::string_view image) : image_(image) {
    Elf64_Ehdr header;
    if (!read(0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return;
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr)) return;
    std::vector<Elf64_Shdr> headers(header.e_shnum);
    for (size_t i = 0; i < headers.size(); ++i) {
      if (!read(header.e_shoff + i * sizeof(Elf64_Shdr), headers[i])) return;
    }
    if (header.e_shstrndx >= headers.size()) return;
    const std::string_view names = bytes(headers[header.e_shstrndx]);
    for (const Elf64_Shdr& section : headers) {
      sections_.push_back({string_at(names, section.sh_name),
                           section.sh_type == SHT_NOBITS ? std::string_view{} : bytes(section),
                           section.sh_size});
      if (section.sh_type == SHT_SYMTAB && section.sh_link < headers.size()) {
        symbols_ = bytes(section);
        symbol_names_ = bytes(headers[section.sh_link]);
      }
    }
  }

  const Section* find(std::string_view name) const {
    for (const Section& section : sections_) {
      if (section.name == name) return &section;
    }
    return nullptr;
  }

  size_t symbol_count() const { return symbols_.size() / sizeof(Elf64_Sym); }

  // Nothing when there is no such symbol.
  std::optional<Elf64_Sym> symbol(size_t index) const {
    if (index >= symbol_count()) return std::nullopt;
    Elf64_Sym symbol;
    std::memcpy(&symbol, symbols_.data() + index * sizeof(symbol), sizeof(symbol));
    return symbol;
  }

  std::string_view symbol_name(size_t index) const {
    const std::optional<Elf64_Sym> found = symbol(index);
    return found ? string_at(symbol_names_, found->st_name) : std::string_view{};
  }

 private:
  template <typename T>
  bool read(uint64_t offset, T& value) const {
    if (offset > image_.size() || image_.size() - offset < sizeof(T)) return false;
    std::memcpy(&value, image_.data() + offset, sizeof(T));
    return true;
  }

  std::string_view bytes(const Elf64_Shdr& section) const {
    if (section.sh_offset > image_.size() || image_.size() - section.sh_offset < section.sh_size) {
      return {};
    }
    return image_.substr(section.sh_offset, section.sh_size);
  }

  static std::string_view string_at(std::string_view table, uint64_t offset) {
    if (offset >= table.size()) return {};
    table.remove_prefix(offset);
    return table.substr(0, table.find('\0'));
  }

  std::string_view image_;
  std::vector<Section> sections_;
  std::string_view symbols_;
  std::string_view symbol_names_;
};

// Calls visit(attribute, symbol, value) for each attribute that is a pair of symbol and number.
template <typename Visit>
void visit_info(std::string_view info, Visit visit) {
  while (info.size() >= 4) {
    const auto format = static_cast<uint8_t>(info[0]);
    const auto attribute = static_cast<uint8_t>(info[1]);
    uint16_t size_bytes;
    std::memcpy(&size_bytes, info.data() + 2, sizeof(size_bytes));
    info.remove_prefix(4);
    if (format != kFormatSized) continue;
    if (size_bytes > info.size()) return;
    if (size_bytes == 8) {
      uint32_t pair[2];
      std::memcpy(pair, info.data(), sizeof(pair));
      visit(attribute, pair[0], pair[1]);
    }
    info.remove_prefix(size_bytes);
  }
}

}  // namespace

std::optional<Resources> resources_from_log(std::string_view log, std::string_view entry) {
  Resources resources;
  std::optional<int64_t> cumulative_stack_bytes;
  bool in_entry = false;
  bool found = false;
  while (!log.empty()) {
    const size_t end = log.find('\n');
    const std::string_view line = log.substr(0, end);
    log.remove_prefix(end == std::string_view::npos ? log.size() : end + 1);
    if (line.find("Compiling entry function") != std::string_view::npos) {
      in_entry = quoted_name(line) == entry;
    } else if (in_entry && line.find("bytes stack frame") != std::string_view::npos) {
      // Functions that were not inlined have lines of their own.
      resources.stack_bytes += number_before(line, " bytes stack frame").value_or(0);
      resources.spill_store_bytes += number_before(line, " bytes spill stores").value_or(0);
      resources.spill_load_bytes += number_before(line, " bytes spill loads").value_or(0);
    } else if (in_entry && line.find("Used ") != std::string_view::npos) {
      const std::optional<int64_t> registers = number_before(line, " registers");
      if (!registers) continue;
      found = true;
      resources.registers = static_cast<int>(*registers);
      resources.static_smem_bytes = number_before(line, " bytes smem").value_or(0);
      cumulative_stack_bytes = number_before(line, " bytes cumulative stack size");
    }
  }
  if (!found) return std::nullopt;
  resources.stack_bytes = cumulative_stack_bytes.value_or(resources.stack_bytes);
  return resources;
}

std::optional<Resources> resources_from_cubin(std::string_view image, std::string_view entry) {
  const ElfFile elf(image);
  const Section* info = elf.find(".nv.info");
  if (info == nullptr) return std::nullopt;
  Resources resources;
  bool found = false;
  visit_info(info->data, [&](uint8_t attribute, uint32_t symbol, uint32_t value) {
    if (elf.symbol_name(symbol) != entry) return;
    if (attribute == kAttributeRegisterCount) {
      resources.registers = static_cast<int>(value);
      found = true;
    } else if (attribute == kAttributeMinStackSize) {
      resources.stack_bytes = value;
    }
  });
  if (!found) return std::nullopt;
  if (const Section* shared = elf.find(".nv.shared." + std::string(entry))) {
    const int64_t reserved = elf.find(kReservedSmemSection) != nullptr ? kReservedSmemBytes : 0;
    resources.static_smem_bytes =
        std::max<int64_t>(static_cast<int64_t>(shared->size_bytes) - reserved, 0);
  }
  return resources;
}

std::vector<std::string> entries_of_cubin(std::string_view image) {
  std::vector<std::string> entries;
  const ElfFile elf(image);
  for (size_t i = 0; i < elf.symbol_count(); ++i) {
    const std::optional<Elf64_Sym> symbol = elf.symbol(i);
    if (ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && (symbol->st_other & kSymbolIsEntry) != 0) {
      entries.emplace_back(elf.symbol_name(i));
    }
  }
  return entries;
}

std::vector<std::string> entries_of_ptx(std::string_view ptx) {
  constexpr std::string_view kEntry = ".entry ";
  std::vector<std::string> entries;
  for (size_t at = ptx.find(kEntry); at != std::string_view::npos; at = ptx.find(kEntry, at)) {
    at += kEntry.size();
    const size_t end = ptx.find_first_of("( \n\t", at);
    entries.emplace_back(
        ptx.substr(at, end == std::string_view::npos ? std::string_view::npos : end - at));
  }
  return entries;
}

}  // namespace kiln::jit
