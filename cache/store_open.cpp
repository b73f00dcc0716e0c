// How the layers of a store are found and opened, and what is said when one of them fails.
#include <fmt/format.h>

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "cache/layered_store.h"
#include "cache/place.h"

namespace kiln::cache {
namespace {

constexpr size_t kMaxWarnings = 100;

// The packs of a folder, in the order of their names. A folder without any stands for itself: then
// there is no pack, and it is said where.
std::vector<std::string> files_of_folder(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".db") files.push_back(entry->path().string());
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) files.push_back(folder + "/*.db");
  return files;
}

// The files of a list as KILN_PACK has it, each once.
std::vector<std::string> named_files(const std::string& list) {
  std::vector<std::string> files;
  std::istringstream names(list);
  for (std::string name; std::getline(names, name, ':');) {
    if (name.empty()) continue;
    const std::string path = absolute_path(name);
    std::error_code error;
    const bool is_folder = std::filesystem::is_directory(path, error);
    for (const std::string& file : is_folder ? files_of_folder(path) : std::vector{path}) {
      if (std::find(files.begin(), files.end(), file) == files.end()) files.push_back(file);
    }
  }
  return files;
}

// Makes the folder of this machine; why it cannot be used, "" when it can.
std::string why_no_private_folder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return fmt::format("{} cannot be made ({})", folder, std::strerror(errno));
  }
  return why_not_private(folder);
}

// Who only reads does not mind that a store cannot be written.
void prefer_what_is_there(ChosenPlace& chosen) {
  if (file_id(chosen.place.path)) return;
  for (const PassedOver& other : chosen.passed_over) {
    if (!file_id(other.path)) continue;
    chosen = {.place = {other.path, "there"}, .passed_over = {}};
    return;
  }
}

}  // namespace

std::unique_ptr<Store> Store::open(const StoreOptions& options) {
  return std::make_unique<LayeredStore>(options);
}

LayeredStore::LayeredStore(const StoreOptions& options) {
  ChosenPlace chosen{.place = {options.path, "asked for"}};
  if (options.path.empty()) chosen = choose_store_place();
  if (options.mode == StoreOptions::Mode::read_only) prefer_what_is_there(chosen);
  const StorePlace& place = chosen.place;
  path_ = place.path == ":memory:" ? place.path : absolute_path(place.path);
  std::string packs = options.pack;
  if (const char* pack = std::getenv("KILN_PACK"); packs.empty() && pack != nullptr) packs = pack;
  packs_ = named_files(packs);
  read_budget(options.budget_bytes);
  std::erase(packs_, path_);

  const char* named = std::getenv("KILN_DB");
  const bool is_named = !options.path.empty() || (named != nullptr && *named != '\0');
  const bool nowhere = place.path == ":memory:" && !is_named;
  const std::string no_place = "there is no place for the store: " + place.why +
                               "; name a file on a local disk with KILN_DB or --db";
  if (options.mode == StoreOptions::Mode::read_only) {
    if (nowhere) warn("memory", no_place);
    if (path_ != ":memory:") open_read_only(path_);
  } else if (nowhere) {
    use_memory(no_place);
  } else if (path_ == ":memory:") {
    top_ = Layer::in_memory();
    layers_.push_back(top_);
  } else {
    const std::string folder = local_folder();
    const bool is_local = !is_named && place.path.starts_with(folder + "/");
    const std::string why = is_local ? why_no_private_folder(folder) : "";
    why.empty() ? open_top(path_) : use_memory(why);
  }
  const bool is_told = nowhere || (options.mode == StoreOptions::Mode::read_only && !top_ &&
                                   !file_id(path_));  // by a sentence of its own
  if (!chosen.passed_over.empty() && !is_told) {
    warn("place", fmt::format("the store is {}: {}; name a place with KILN_DB or --db", path_,
                              passed_over_text(chosen.passed_over)));
  }
  for (const PassedOver& other : chosen.passed_over) {
    if (file_id(other.path)) add_read_layer(other.path, "Nothing is read from it");
  }
  open_packs();
}

void LayeredStore::open_packs() {
  std::vector<std::string> absent;
  for (const std::string& pack : packs_) {
    if (file_id(pack)) {
      add_read_layer(pack, "This pack is not used");
    } else {
      warn("pack:" + pack,
           fmt::format("there is no pack at {}; correct KILN_PACK or --pack", pack));
      absent.push_back(pack);
    }
  }
  for (const std::string& pack : absent) std::erase(packs_, pack);
}

bool LayeredStore::is_pack(const std::string& path) const {
  return std::find(packs_.begin(), packs_.end(), path) != packs_.end();
}

void LayeredStore::use_memory(std::string_view why) {
  warn("memory", fmt::format("{}. Results are kept in memory and lost at the end", why));
  trouble_ = why;
  top_ = Layer::in_memory();
  layers_.insert(layers_.begin(), top_);
}

void LayeredStore::give_up_top(const Unusable& error) {
  std::erase(layers_, top_);
  use_memory(with_remedy(path_, error));
}

std::string LayeredStore::other_file(const std::string& path) const {
  return is_pack(path) ? "name another pack with KILN_PACK or --pack"
                       : "name another file with KILN_DB or --db";
}

std::string LayeredStore::replacement(const std::string& path) const {
  if (is_pack(path)) return "get a sound copy of this pack, or " + other_file(path);
  return fmt::format(
      "`kiln tune` and `kiln build` put it aside as {}.corrupt-<time> and start a new "
      "one, as does every program that opens it for writing",
      path);
}

std::string LayeredStore::with_remedy(const std::string& path, const Unusable& error) const {
  switch (error.remedy()) {
    case Remedy::other_file:
      return error.sentence(other_file(path));
    case Remedy::replace:
      return error.sentence(replacement(path));
    case Remedy::said:
      break;
  }
  return error.sentence();
}

void LayeredStore::open_top(const std::string& path) {
  std::vector<std::string> happened;
  try {
    std::shared_ptr<Layer> layer = Layer::open(path, Layer::Access::read_write, happened);
    layers_.push_back(layer);
    for (const std::string& sentence : happened) warn(sentence, sentence);
    if (const std::optional<Unusable> why = layer->why_read_only()) {
      use_memory(with_remedy(path, *why));
      return;
    }
    top_ = std::move(layer);
    if (const std::string network = network_file_system(path); !network.empty()) {
      warn("network",
           fmt::format("the store {} is on a network file system ({}), which is slow and safe for "
                       "one writer only; name a file on a local disk with KILN_DB or --db and "
                       "share a read-only pack instead",
                       path, network));
    }
  } catch (const Unusable& error) {
    use_memory(with_remedy(path, error));
  } catch (const SqliteError& error) {
    use_memory(
        fmt::format("the store {} cannot be opened: {}; {}", path, error.what(), other_file(path)));
  }
}

void LayeredStore::open_read_only(const std::string& path) {
  if (!file_id(path)) {
    const int error = errno;
    if (error != ENOENT && error != ENOTDIR) {
      trouble_ = fmt::format("{} cannot be read ({})", path, std::strerror(error));
      warn("absent", fmt::format("{}; {}", trouble_, other_file(path)));
    } else if (packs_.empty()) {
      warn("absent", fmt::format("there is no store at {} yet; `kiln tune` or `kiln build` makes "
                                 "one",
                                 path));
    }
    return;
  }
  add_read_layer(path, "Nothing is read from it");
}

void LayeredStore::add_read_layer(const std::string& path, std::string_view consequence) {
  std::vector<std::string> happened;
  try {
    layers_.push_back(Layer::open(path, Layer::Access::read_only, happened));
    for (const std::string& sentence : happened) warn(sentence, sentence);
  } catch (const Unusable& error) {
    warn("read:" + path, fmt::format("{}. {}", with_remedy(path, error), consequence));
    trouble_ = error.what();
  } catch (const SqliteError& error) {
    const Unusable unusable(
        fmt::format("{} {} ({})", path, error.is_corruption() ? "is damaged" : "cannot be read",
                    error.what()),
        "", error.is_corruption() ? Remedy::replace : Remedy::other_file);
    warn("read:" + path, fmt::format("{}. {}", with_remedy(path, unusable), consequence));
    trouble_ = unusable.what();
  }
}

void LayeredStore::warn(const std::string& key, const std::string& sentence) {
  if (warnings_.size() >= kMaxWarnings || !warned_.insert(key).second) return;
  warnings_.push_back(sentence);
}

void LayeredStore::note_damage(Layer& layer, std::string_view how, std::string_view consequence) {
  const std::string& path = layer.path();
  trouble_ = fmt::format("{} is damaged", path);
  std::string next = replacement(path);
  if (is_pack(path)) {
    // Nobody writes a pack, so nobody would read a note about it.
  } else if (const Layer::DamageNote note = layer.remember_damaged();
             note == Layer::DamageNote::changed) {
    warn("changed:" + path,
         fmt::format("{} was changed while it was read, {}; run this again", path, consequence));
    return;
  } else if (note == Layer::DamageNote::not_kept) {
    next = fmt::format(
        "move it away with `mv {0} {0}.damaged`, and `kiln tune` or `kiln build` makes "
        "a new one",
        path);
  }
  warn("damaged:" + path, fmt::format("{} is damaged ({}), {}; {}", path, how, consequence, next));
}

void LayeredStore::note_failure(Layer& layer, const SqliteError& error,
                                std::string_view consequence) {
  const std::string& path = layer.path();
  if (error.is_corruption()) {
    note_damage(layer, error.what(), consequence);
    return;
  }
  trouble_ = fmt::format("{} failed: {}", path, error.what());
  if (error.is_busy()) {
    warn("busy:" + path,
         fmt::format("{} was locked by another process for too long, {}", path, consequence));
  } else if (error.code() == SQLITE_FULL) {
    warn("full:" + path, fmt::format("the disk of {} is full, {}; {} or {}", path, consequence,
                                     what_helps(error), other_file(path)));
  } else if (error.is_unwritable()) {
    warn(fmt::format("error {}:{}", error.code(), path),
         fmt::format("{} failed ({}), {}; {} or {}", path, error.what(), consequence,
                     what_helps(error), other_file(path)));
  } else {
    warn(fmt::format("error {}:{}", error.code(), path),
         fmt::format("{} failed: {}, {}", path, error.what(), consequence));
  }
}

bool LayeredStore::read(Layer& layer, const Layer::Work& work) {
  try {
    layer.read(work);
    return true;
  } catch (const SqliteError& error) {
    note_failure(layer, error, "so what it holds may be missed");
  } catch (const Unusable& error) {
    if (&layer == top_.get()) {
      give_up_top(error);
    } else {
      warn("read:" + layer.path(), with_remedy(layer.path(), error));
      trouble_ = error.what();
    }
  }
  return false;
}

void LayeredStore::warn_damaged(Layer& layer, std::string_view what, const std::string& name,
                                std::string_view remedy) {
  warn(fmt::format("record:{}:{}", layer.path(), name),
       fmt::format("the checksum of {} {} in {} does not hold, so it is not used; {}", what, name,
                   layer.path(), remedy));
}

StoreInfo LayeredStore::info() {
  const std::lock_guard lock(mutex_);
  StoreInfo info;
  info.path = top_ ? top_->path() : path_;
  info.packs = packs_;
  info.budget_bytes = budget_bytes_;
  info.writable = top_ != nullptr;
  info.wal = top_ && top_->uses_wal();
  if (!(top_ && top_->is_in_memory())) {
    for (const char* suffix : {"", "-wal"}) {
      info.file_bytes += std::max<int64_t>(0, side_file_bytes(info.path, suffix));
    }
  }
  read_down([&](Database& database, Layer&) {
    info.decisions += database.query_integer("SELECT count(*) FROM decisions");
    info.binaries += database.query_integer("SELECT count(*) FROM images");
    info.timings += database.query_integer("SELECT count(*) FROM timings");
    return false;
  });
  return info;
}

std::string LayeredStore::trouble() {
  const std::lock_guard lock(mutex_);
  if (trouble_.empty() && top_ && !top_->has_kept_its_file()) {
    return fmt::format("the store {} was removed or replaced meanwhile", path_);
  }
  return trouble_;
}

std::vector<std::string> LayeredStore::warnings() {
  const std::lock_guard lock(mutex_);
  return warnings_;
}

}  // namespace kiln::cache
