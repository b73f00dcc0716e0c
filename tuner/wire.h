// Frames between the tuner and its child: a JSON header and bytes, each with its length before it.
// Works on pipes and socket pairs. A peer that is gone, late or out of step is an answer, not a
// signal.
#pragma once

#include <string>
#include <string_view>

#include "jit/base/json.h"

namespace kiln::tuner {

inline constexpr int kProtocol = 2;

struct Frame {
  Json header;
  std::string payload;
};

enum class Received { frame, closed, late };

// Does not own the descriptors.
class Channel {
 public:
  Channel(int in_fd, int out_fd) : in_fd_(in_fd), out_fd_(out_fd) {}

  // False when the peer is gone.
  bool send(const Json& header, std::string_view payload = {});
  // timeout_s: for the whole frame; negative waits for ever. Fails with internal when what comes is
  // not a frame.
  Received receive(Frame& frame, double timeout_s = -1);

 private:
  bool write_all(std::string_view bytes);
  Received read_all(char* bytes, size_t count, double deadline_s);

  int in_fd_;
  int out_fd_;
};

double now_s();  // monotonic

}  // namespace kiln::tuner
