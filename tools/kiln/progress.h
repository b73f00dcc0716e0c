// Progress with an estimate of what is left: a bar on a terminal, a plain line now and then
// elsewhere. Everything goes to stderr. Thread-safe, since compiles and measurements report from
// their threads.
#pragma once

#include <chrono>
#include <mutex>
#include <string>

namespace kiln::cli {

class Progress {
 public:
  Progress();
  ~Progress();

  void line(const std::string& text);  // an event worth a line, above the bar
  void update(int done, int total, const std::string& what, double eta_s);
  void finish();  // removes the bar

 private:
  using Clock = std::chrono::steady_clock;

  void draw_bar(int done, int total, const std::string& what, double eta_s);
  void clear_bar();

  std::mutex mutex_;
  const bool terminal_;
  bool bar_drawn_ = false;
  int last_done_ = -1;
  Clock::time_point last_output_{};
};

}  // namespace kiln::cli
