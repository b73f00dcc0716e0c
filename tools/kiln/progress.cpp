// Draws at most ten times a second on a terminal; elsewhere a log gets a line per change, but not
// more than one in five seconds, and always the last one.
#include "tools/kiln/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tools/kiln/text.h"

namespace kiln::cli {
namespace {

using namespace std::chrono_literals;

constexpr auto kRedrawInterval = 100ms;
constexpr auto kLineInterval = 5s;
constexpr int kBarCells = 24;

bool is_terminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && (term == nullptr || std::string_view(term) != "dumb");
}

size_t terminal_columns() {
  winsize size = {};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string eta_text(double eta_s) {
  return eta_s > 0 ? ", about " + seconds_text(eta_s) + " left" : "";
}

}  // namespace

Progress::Progress() : terminal_(is_terminal()) {}

Progress::~Progress() { finish(); }

void Progress::line(const std::string& text) {
  const std::lock_guard lock(mutex_);
  clear_bar();
  print_error(fmt::format("{}\n", printable(text)));
}

void Progress::update(int done, int total, const std::string& what, double eta_s) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  const bool last = done >= total;
  if (terminal_) {
    if (!last && now - last_output_ < kRedrawInterval) return;
    draw_bar(done, total, what, eta_s);
  } else {
    if (done == last_done_ || (!last && now - last_output_ < kLineInterval)) return;
    print_error(fmt::format("[{}/{}] {}{}\n", done, total, what, eta_text(eta_s)));
  }
  last_done_ = done;
  last_output_ = now;
}

void Progress::finish() {
  const std::lock_guard lock(mutex_);
  clear_bar();
}

void Progress::draw_bar(int done, int total, const std::string& what, double eta_s) {
  const int filled = total > 0 ? std::clamp(done * kBarCells / total, 0, kBarCells) : 0;
  std::string text = fmt::format("[{:#<{}}{:.<{}}] {}/{}{}  {}", "", filled, "", kBarCells - filled,
                                 done, total, eta_text(eta_s), what);
  text.resize(std::min(text.size(), terminal_columns() - 1));
  print_error(fmt::format("\r\033[K{}", text));
  std::fflush(stderr);
  bar_drawn_ = true;
}

void Progress::clear_bar() {
  if (!bar_drawn_) return;
  print_error(fmt::format("\r\033[K"));
  std::fflush(stderr);
  bar_drawn_ = false;
}

}  // namespace kiln::cli
