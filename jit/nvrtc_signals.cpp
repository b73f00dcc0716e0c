#include "jit/nvrtc_signals.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstring>

namespace kiln::jit {
namespace {

using Handler = void (*)(int);

bool belongs_to_nvrtc(Handler handler) {
  if (handler == SIG_DFL || handler == SIG_IGN) return false;
  Dl_info info{};
  return dladdr(reinterpret_cast<void*>(handler), &info) != 0 && info.dli_fname != nullptr &&
         std::strstr(info.dli_fname, "libnvrtc") != nullptr;
}

// What NVRTC calls for signal(). A compile of somebody else's may have begun before the slot
// changed: the handlers that it installed are still taken back. That it ignores SIGXFSZ is not:
// this looks like a wish of the host's.
Handler signal_of_nvrtc(int number, Handler handler) {
  struct sigaction now {};
  if (sigaction(number, nullptr, &now) != 0) return SIG_ERR;
  const bool is_plain = (now.sa_flags & SA_SIGINFO) == 0;
  if (is_plain && belongs_to_nvrtc(now.sa_handler)) return std::signal(number, handler);
  return SIG_IGN;
}

bool is_import(uint64_t type) {
#if defined(__x86_64__)
  return type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
  return type == R_AARCH64_JUMP_SLOT || type == R_AARCH64_GLOB_DAT;
#else
  (void)type;
  return false;
#endif
}

// The dynamic section of a loaded library, as far as it leads to the slots of its imports.
class Imports {
 public:
  explicit Imports(const link_map& map) : base_(map.l_addr) {
    for (const ElfW(Dyn)* entry = map.l_ld; entry->d_tag != DT_NULL; ++entry) {
      switch (entry->d_tag) {
        case DT_SYMTAB:
          symbols_ = pointer<ElfW(Sym)>(entry->d_un.d_ptr);
          break;
        case DT_STRTAB:
          names_ = pointer<char>(entry->d_un.d_ptr);
          break;
        case DT_JMPREL:
          lazy_.first = pointer<ElfW(Rela)>(entry->d_un.d_ptr);
          break;
        case DT_PLTRELSZ:
          lazy_.count = entry->d_un.d_val / sizeof(ElfW(Rela));
          break;
        case DT_PLTREL:
          has_addends_ = entry->d_un.d_val == DT_RELA;
          break;
        case DT_RELA:
          eager_.first = pointer<ElfW(Rela)>(entry->d_un.d_ptr);
          break;
        case DT_RELASZ:
          eager_.count = entry->d_un.d_val / sizeof(ElfW(Rela));
          break;
        default:
          break;
      }
    }
  }

  void** slot_of(const char* name) const {
    if (symbols_ == nullptr || names_ == nullptr) return nullptr;
    void** slot = has_addends_ ? find(lazy_, name) : nullptr;
    return slot != nullptr ? slot : find(eager_, name);
  }

 private:
  struct Table {
    const ElfW(Rela) * first = nullptr;
    size_t count = 0;
  };

  // glibc has made these absolute on most machines, not on all.
  template <typename T>
  const T* pointer(ElfW(Addr) address) const {
    return reinterpret_cast<const T*>(address < base_ ? base_ + address : address);
  }

  void** find(const Table& table, const char* name) const {
    if (table.first == nullptr) return nullptr;
    for (size_t i = 0; i < table.count; ++i) {
      const ElfW(Rela)& entry = table.first[i];
      if (!is_import(ELF64_R_TYPE(entry.r_info))) continue;
      const ElfW(Sym)& symbol = symbols_[ELF64_R_SYM(entry.r_info)];
      if (std::strcmp(names_ + symbol.st_name, name) == 0) {
        return reinterpret_cast<void**>(base_ + entry.r_offset);
      }
    }
    return nullptr;
  }

  ElfW(Addr) base_;
  const ElfW(Sym) * symbols_ = nullptr;
  const char* names_ = nullptr;
  Table lazy_;
  Table eager_;
  bool has_addends_ = false;
};

// A part that the loader has made read-only once it was done.
struct Sealed {
  ElfW(Addr) base = 0;
  uintptr_t wanted = 0;
  bool found = false;
};

int look_for_sealed(dl_phdr_info* info, size_t, void* argument) {
  auto& sealed = *static_cast<Sealed*>(argument);
  if (info->dlpi_addr != sealed.base) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    const uintptr_t first = info->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_GNU_RELRO && sealed.wanted >= first &&
        sealed.wanted < first + header.p_memsz) {
      sealed.found = true;
    }
  }
  return 1;
}

void write_slot(const link_map& map, void** slot, void* value) {
  Sealed sealed{.base = map.l_addr, .wanted = reinterpret_cast<uintptr_t>(slot)};
  dl_iterate_phdr(look_for_sealed, &sealed);
  const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  void* page = reinterpret_cast<void*>(sealed.wanted / page_bytes * page_bytes);
  if (sealed.found && mprotect(page, page_bytes, PROT_READ | PROT_WRITE) != 0) return;
  __atomic_store_n(slot, value, __ATOMIC_RELEASE);
  if (sealed.found) mprotect(page, page_bytes, PROT_READ);
}

// NVRTC stays loaded, so the function that it calls has to stay as well.
bool pin_this_library() {
  Dl_info info{};
  link_map* map = nullptr;
  if (dladdr1(reinterpret_cast<void*>(&signal_of_nvrtc), &info, reinterpret_cast<void**>(&map),
              RTLD_DL_LINKMAP) == 0 ||
      map == nullptr) {
    return false;
  }
  const bool is_program = map->l_name == nullptr || *map->l_name == '\0';
  return is_program || dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) != nullptr;
}

}  // namespace

void keep_signals_from(void* nvrtc) noexcept {
  link_map* map = nullptr;
  if (dlinfo(nvrtc, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return;
  void** slot = Imports(*map).slot_of("signal");
  if (slot == nullptr || !pin_this_library()) return;
  write_slot(*map, slot, reinterpret_cast<void*>(&signal_of_nvrtc));
}

}  // namespace kiln::jit
