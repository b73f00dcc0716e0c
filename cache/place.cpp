#include "cache/place.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cache/files.h"
#include "jit/base/environment.h"

namespace kiln::cache {
namespace {

bool is_absolute(const std::string& path) { return !path.empty() && path.front() == '/'; }

// By permissions alone: what else may go wrong is found out by whoever opens it.
std::string why_not_usable(const std::string& path) {
  if (file_id(path)) {
    const int error = why_not_writable(path);
    if (error == 0) return "";
    return fmt::format("{} cannot be written ({})", path, std::strerror(error));
  }
  const std::string why = why_not_creatable(path);
  return why.empty() ? "" : fmt::format("{} cannot be created ({})", path, why);
}

std::string why_not_local(const std::string& path) {
  const std::string why = why_not_private(local_folder());
  return why.empty() ? why_not_usable(path) : why;
}

}  // namespace

std::string local_folder() {
  const std::string named = environment("KILN_LOCAL");
  return fmt::format("{}/kiln-{}", named.empty() ? "/var/tmp" : absolute_path(named), ::geteuid());
}

std::string why_not_private(const std::string& folder) {
  struct stat status;
  if (::lstat(folder.c_str(), &status) != 0) return "";
  if (!S_ISDIR(status.st_mode)) return folder + " is not a folder";
  if (status.st_uid != ::geteuid()) return folder + " belongs to another user";
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) return folder + " may be written by other users";
  return "";
}

std::string passed_over_text(const std::vector<PassedOver>& places) {
  std::string text;
  for (const PassedOver& place : places) text += (text.empty() ? "" : ", ") + place.why;
  return text;
}

ChosenPlace choose_store_place() {
  ChosenPlace chosen;
  if (const std::string path = environment("KILN_DB"); !path.empty()) {
    chosen.place = {path, "from KILN_DB"};
    return chosen;
  }
  const auto take = [&](const std::string& path, const char* why, const std::string& not_usable) {
    if (!not_usable.empty()) {
      chosen.passed_over.push_back({path, not_usable});
      return false;
    }
    chosen.place = {path, why};
    return true;
  };
  // The XDG specification tells to ignore a relative path.
  if (const std::string folder = environment("XDG_CACHE_HOME"); is_absolute(folder)) {
    const std::string path = folder + "/kiln/kiln.db";
    if (take(path, "from XDG_CACHE_HOME", why_not_usable(path))) return chosen;
  }
  if (const std::string folder = environment("HOME"); is_absolute(folder)) {
    const std::string path = folder + "/.cache/kiln/kiln.db";
    if (take(path, "from HOME", why_not_usable(path))) return chosen;
  }
  if (chosen.passed_over.empty()) {
    chosen.passed_over.push_back({"", "neither KILN_DB, XDG_CACHE_HOME nor HOME names a place"});
  }
  const std::string path = local_folder() + "/kiln.db";
  if (take(path, "of this machine", why_not_local(path))) return chosen;
  chosen.place = {":memory:", passed_over_text(chosen.passed_over)};
  return chosen;
}

StorePlace default_store_place() { return choose_store_place().place; }

}  // namespace kiln::cache
