// A file at the place of a store, of a pack, and of the other store of a merge: what is not sound
// is told in warnings, and what is answered can be used. Nothing throws.
//   input: byte 0 even: a sound store, changed by the records of seven bytes that follow (where,
//          four bytes; how, with what and how many, one byte each; how = 255: cut off there); odd:
//          the file itself. Half of byte 0, modulo 3: the file is a pack, is read, is written.
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <string>

#include "cache/transfer.h"
#include "jit/base/error.h"
#include "runtime/import_check.h"
#include "tests/cache/fixture.h"
#include "tests/fuzz/fuzz.h"

namespace kiln::fuzz {
namespace {

namespace fs = std::filesystem;
using cache::Store;

// In memory where there is such a folder: a run writes a file of 200 KB.
class Folder {
 public:
  Folder() {
    std::string pattern =
        (fs::exists("/dev/shm") ? "/dev/shm" : fs::temp_directory_path().string()) +
        "/kiln-fuzz-XXXXXX";
    require(mkdtemp(pattern.data()) != nullptr, "no folder can be made");
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string file(const char* name) const { return path_ + "/" + name; }
  void clear() const {
    for (const auto& entry : fs::directory_iterator(path_)) fs::remove_all(entry.path());
  }

 private:
  std::string path_;
};

const Folder& folder() {
  static const Folder made;
  return made;
}

const std::string& sound_store() {
  static const std::string bytes = [] {
    const std::string path = folder().file("sound.db");
    {
      const auto store = Store::open({.path = path, .pack = ":"});
      for (const int rows : {16, 32, 64}) {
        require(store->put(cache::sample_result(std::to_string(rows), rows)), "no sample is kept");
      }
    }
    return cache::read_file(path);
  }();
  return bytes;
}

std::string file_of(Bytes input) {
  const uint8_t first = input.take<uint8_t>();
  if (first % 2 == 1) {
    return {reinterpret_cast<const char*>(input.data()), input.left()};
  }
  std::string bytes = sound_store();
  while (input.left() > 0) {
    const size_t at = input.take<uint32_t>() % bytes.size();
    const uint8_t how = input.take<uint8_t>();
    const auto with = static_cast<char>(input.take<uint8_t>());
    const size_t count = std::min<size_t>(input.take<uint8_t>() + size_t{1}, bytes.size() - at);
    for (size_t i = at; i < at + count; ++i) {
      bytes[i] = how % 4 == 0 ? with : static_cast<char>(bytes[i] ^ (how % 4 == 1 ? with : 1));
    }
    if (how == 255 && at > 0) bytes.resize(at);
  }
  return bytes;
}

// What can be asked of a store, asked.
void read_all(Store& store) {
  store.info();
  for (const cache::DecisionRow& row : store.list_decisions()) {
    store.decisions(row.decision.problem, row.decision.gpu_class);
    store.verifications(row.decision.problem);
    store.timings(row.decision.problem, row.decision.gpu_class);
    store.rejections(row.decision.problem, row.decision.gpu_class);
    if (const auto plan = store.find_plan(row.decision.plan)) {
      for (const auto& kernel : plan->kernels) store.find_binary(kernel.binary);
    }
  }
  store.list_binaries();
  store.used_sizes();
  store.check();
  cache::StoreContents contents;
  try {
    contents = cache::contents_of(store, {.images = cache::Images::with});
  } catch (const Error& error) {
    // Images that say they unpack to more than goes from one store to another.
    require(error.status() == Status::unsupported, error.what());
  }
  for (const auto& decision : contents.decisions) why_refused(decision, std::time(nullptr));
  for (const auto& plan : contents.plans) why_refused(plan);
  for (const auto& binary : contents.binaries) cache::why_refused(binary);
  runtime::drop_refused(contents);
  for (const std::string& warning : store.warnings()) require(!warning.empty(), "no sentence");
}

}  // namespace
}  // namespace kiln::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace kiln;
  using cache::StoreOptions;
  const std::string file = fuzz::file_of({data, bytes});
  const std::string path = fuzz::folder().file("fuzzed.db");
  fuzz::folder().clear();
  cache::write_file(path, file);
  switch (bytes > 0 ? data[0] / 2 % 3 : 0) {
    case 0:
      fuzz::read_all(*cache::Store::open({.path = ":memory:", .pack = path}));
      fuzz::require(cache::read_file(path) == file, "a pack was written");
      break;
    case 1:
      fuzz::read_all(
          *cache::Store::open({.path = path, .pack = ":", .mode = StoreOptions::Mode::read_only}));
      fuzz::require(cache::read_file(path) == file, "a file that is read was written");
      break;
    default: {
      {
        const auto store = cache::Store::open({.path = path, .pack = ":"});
        fuzz::read_all(*store);
        store->put(cache::sample_result("new", 128));
      }
      const auto next = cache::Store::open({.path = path, .pack = ":"});
      fuzz::require(next->put(cache::sample_result("next", 256)), "the next writer is not served");
      break;
    }
  }
  return 0;
}
