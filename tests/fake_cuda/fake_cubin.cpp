#include "tests/fake_cuda/fake_cubin.h"

#include <elf.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>

namespace kiln::fake {
namespace {

constexpr uint16_t kMachineCuda = 190;
constexpr int kAbiWithWideSm = 8;  // CUDA 13: the SM moved from bits 0-7 of e_flags to bits 8-15

// Entries of .nv.info sections: one byte of format, one of attribute, then a value of 16 bits or,
// for kSized, its length.
constexpr uint8_t kFormatHalf = 3;
constexpr uint8_t kFormatSized = 4;
constexpr uint8_t kAttributeMaxThreads = 0x05;
constexpr uint8_t kAttributeParamBytes = 0x19;

constexpr std::string_view kText = ".text.";
constexpr std::string_view kInfo = ".nv.info.";
constexpr std::string_view kShared = ".nv.shared.";

template <typename T>
T read_at(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

void read_info(const char* info, size_t bytes, CubinKernel& kernel) {
  size_t at = 0;
  while (at + 4 <= bytes) {
    const auto format = static_cast<uint8_t>(info[at]);
    const auto attribute = static_cast<uint8_t>(info[at + 1]);
    const auto value = read_at<uint16_t>(info + at + 2);
    at += 4;
    if (format == kFormatHalf && attribute == kAttributeParamBytes) kernel.param_bytes = value;
    if (format != kFormatSized) continue;
    if (attribute == kAttributeMaxThreads && value >= 12 && at + 12 <= bytes) {
      kernel.max_threads = 1;
      for (int dim = 0; dim < 3; ++dim) {
        kernel.max_threads *= read_at<int32_t>(info + at + 4 * dim);
      }
    }
    at += value;
  }
}

Image read_cubin(const char* bytes) {
  const auto header = read_at<Elf64_Ehdr>(bytes);
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != kMachineCuda ||
      header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shstrndx >= header.e_shnum) {
    return {};
  }
  Image image{.kind = ImageKind::cubin};
  const int shift = header.e_ident[EI_ABIVERSION] >= kAbiWithWideSm ? 8 : 0;
  image.sm = static_cast<int>(header.e_flags >> shift & 0xff);

  const auto section = [&](int index) {
    return read_at<Elf64_Shdr>(bytes + header.e_shoff + index * sizeof(Elf64_Shdr));
  };
  const char* names = bytes + section(header.e_shstrndx).sh_offset;
  std::map<std::string, CubinKernel> kernels;
  for (int i = 0; i < header.e_shnum; ++i) {
    const std::string_view name = names + section(i).sh_name;
    if (!name.starts_with(kText)) continue;
    CubinKernel& kernel = kernels[std::string(name.substr(kText.size()))];
    kernel.name = name.substr(kText.size());
    kernel.registers = static_cast<int>(section(i).sh_info >> 24);
  }
  for (int i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr row = section(i);
    const std::string_view name = names + row.sh_name;
    const std::string_view prefix = name.starts_with(kInfo) ? kInfo : kShared;
    if (!name.starts_with(prefix)) continue;
    const auto kernel = kernels.find(std::string(name.substr(prefix.size())));
    if (kernel == kernels.end()) continue;
    if (prefix == kInfo) read_info(bytes + row.sh_offset, row.sh_size, kernel->second);
    if (prefix == kShared) kernel->second.static_smem_bytes = static_cast<int64_t>(row.sh_size);
  }
  for (auto& [name, kernel] : kernels) image.kernels.push_back(std::move(kernel));
  return image;
}

int number_after(std::string_view text, std::string_view what) {
  const size_t at = text.find(what);
  return at == std::string_view::npos ? 0 : std::atoi(text.data() + at + what.size());
}

Image read_ptx(std::string_view text) {
  Image image{.kind = ImageKind::ptx};
  image.sm = number_after(text, ".target sm_");
  const size_t version = text.find(".version ");
  if (image.sm == 0 || version == std::string_view::npos) return {};
  image.ptx_version_major = number_after(text, ".version ");
  image.ptx_version_minor = number_after(text.substr(version + 9), ".");
  constexpr std::string_view kEntry = ".entry ";
  for (size_t at = text.find(kEntry); at != std::string_view::npos; at = text.find(kEntry, at)) {
    at += kEntry.size();
    const size_t name_end = text.find_first_of("( \t\r\n", at);
    const size_t close = text.find(')', at);
    CubinKernel kernel;
    kernel.name = text.substr(at, name_end - at);
    const std::string_view parameters = text.substr(at, close - at);
    const size_t bracket = parameters.find('[');
    if (bracket != std::string_view::npos) {
      kernel.param_bytes = std::atoi(parameters.data() + bracket + 1);
    }
    image.kernels.push_back(std::move(kernel));
  }
  return image;
}

// One section of a cubin in the making.
struct Section {
  std::string name;
  uint32_t type = SHT_PROGBITS;
  std::string bytes;
  uint64_t size = 0;
  uint32_t info = 0;
};

template <typename T>
void append(std::string& to, const T& value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

std::string info_bytes(const CubinKernel& kernel) {
  std::string bytes;
  if (kernel.param_bytes >= 0) {
    append(bytes, kFormatHalf);
    append(bytes, kAttributeParamBytes);
    append(bytes, static_cast<uint16_t>(kernel.param_bytes));
  }
  append(bytes, kFormatSized);
  append(bytes, kAttributeMaxThreads);
  append(bytes, uint16_t{12});
  append(bytes, int32_t{kernel.max_threads});
  append(bytes, int32_t{1});
  append(bytes, int32_t{1});
  return bytes;
}

}  // namespace

Image read_image(const void* image) {
  const auto* bytes = static_cast<const char*>(image);
  // Byte by byte: a short text may end before the fourth.
  const char* magic = ELFMAG;
  int same = 0;
  while (same < SELFMAG && bytes[same] == magic[same]) ++same;
  if (same == SELFMAG) return read_cubin(bytes);
  if (same == 0 && (bytes[0] == '/' || bytes[0] == '.')) return read_ptx(bytes);
  return {};
}

std::string make_cubin(int sm, const std::vector<CubinKernel>& kernels) {
  std::vector<Section> sections = {{"", SHT_NULL}, {".shstrtab", SHT_STRTAB}};
  for (const CubinKernel& kernel : kernels) {
    const std::string code(16, '\0');
    sections.push_back({std::string(kText) + kernel.name, SHT_PROGBITS, code, code.size(),
                        static_cast<uint32_t>(kernel.registers) << 24});
    const std::string info = info_bytes(kernel);
    sections.push_back({std::string(kInfo) + kernel.name, SHT_PROGBITS, info, info.size()});
    sections.push_back({std::string(kShared) + kernel.name, SHT_NOBITS, "",
                        static_cast<uint64_t>(kernel.static_smem_bytes)});
  }
  std::vector<uint32_t> name_offsets;
  for (const Section& section : sections) {
    name_offsets.push_back(static_cast<uint32_t>(sections[1].bytes.size()));
    sections[1].bytes.append(section.name).push_back('\0');
  }
  sections[1].size = sections[1].bytes.size();

  std::string file(sizeof(Elf64_Ehdr), '\0');
  std::string table;
  for (size_t i = 0; i < sections.size(); ++i) {
    append(table, Elf64_Shdr{.sh_name = name_offsets[i],
                             .sh_type = sections[i].type,
                             .sh_flags = 0,
                             .sh_addr = 0,
                             .sh_offset = file.size(),
                             .sh_size = sections[i].size,
                             .sh_link = 0,
                             .sh_info = sections[i].info,
                             .sh_addralign = 1,
                             .sh_entsize = 0});
    file += sections[i].bytes;
  }
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_ident[EI_ABIVERSION] = kAbiWithWideSm;
  header.e_type = ET_EXEC;
  header.e_machine = kMachineCuda;
  header.e_version = EV_CURRENT;
  header.e_flags = static_cast<uint32_t>(sm) << 8;
  header.e_ehsize = sizeof(Elf64_Ehdr);
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = static_cast<uint16_t>(sections.size());
  header.e_shstrndx = 1;
  header.e_shoff = file.size();
  std::memcpy(file.data(), &header, sizeof(header));
  return file + table;
}

}  // namespace kiln::fake
