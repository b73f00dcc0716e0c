// The caller's log callback with its level. Lines are sent while no lock of the library is held.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "runtime/abi/kiln.h"

namespace kiln::runtime {

class Log {
 public:
  Log() = default;
  Log(kiln_log_fn callback, void* user, kiln_log_level level)
      : callback_(callback), user_(user), level_(level) {}

  bool passes(kiln_log_level level) const { return callback_ != nullptr && level <= level_; }

  template <typename... Args>
  void line(kiln_log_level level, fmt::format_string<Args...> format, Args&&... args) const {
    if (passes(level)) send(level, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  void send(kiln_log_level level, const std::string& text) const {
    callback_(user_, level, text.c_str());
  }

  kiln_log_fn callback_ = nullptr;
  void* user_ = nullptr;
  kiln_log_level level_ = KILN_LOG_ERROR;
};

}  // namespace kiln::runtime
