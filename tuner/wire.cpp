#include "tuner/wire.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>

#include "jit/base/error.h"

namespace kiln::tuner {
namespace {

constexpr uint32_t kMagic = 0x4E4C494B;  // "KILN"
constexpr uint32_t kMaxHeaderBytes = 64u << 20;
constexpr uint64_t kMaxPayloadBytes = uint64_t{1} << 32;

struct Prefix {
  uint32_t magic = kMagic;
  uint32_t header_bytes = 0;
  uint64_t payload_bytes = 0;
};

}  // namespace

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool Channel::write_all(std::string_view bytes) {
  while (!bytes.empty()) {
    // MSG_NOSIGNAL: a dead peer must not raise SIGPIPE in a program that only links this library.
    ssize_t written = ::send(out_fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (written < 0 && errno == ENOTSOCK) written = ::write(out_fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

bool Channel::send(const Json& header, std::string_view payload) {
  const std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  const Prefix prefix{.header_bytes = static_cast<uint32_t>(text.size()),
                      .payload_bytes = payload.size()};
  std::string head(sizeof(prefix), '\0');
  std::memcpy(head.data(), &prefix, sizeof(prefix));
  return write_all(head + text) && write_all(payload);
}

Received Channel::read_all(char* bytes, size_t count, double deadline_s) {
  while (count > 0) {
    pollfd wait{.fd = in_fd_, .events = POLLIN, .revents = 0};
    int timeout_ms = -1;
    if (deadline_s >= 0) {
      const double left_ms = std::ceil((deadline_s - now_s()) * 1000);
      if (left_ms <= 0) return Received::late;
      timeout_ms = static_cast<int>(std::min(left_ms, 1e9));
    }
    const int ready = ::poll(&wait, 1, timeout_ms);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) return Received::late;
    const ssize_t got = ::read(in_fd_, bytes, count);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Received::closed;
    bytes += got;
    count -= static_cast<size_t>(got);
  }
  return Received::frame;
}

Received Channel::receive(Frame& frame, double timeout_s) {
  const double deadline_s = timeout_s < 0 ? -1 : now_s() + timeout_s;
  Prefix prefix;
  if (const Received r = read_all(reinterpret_cast<char*>(&prefix), sizeof(prefix), deadline_s);
      r != Received::frame)
    return r;
  if (prefix.magic != kMagic || prefix.header_bytes > kMaxHeaderBytes ||
      prefix.payload_bytes > kMaxPayloadBytes) {
    fail(Status::internal, "The tuner's worker protocol is out of step: what came is not a frame.");
  }
  std::string text(prefix.header_bytes, '\0');
  if (const Received r = read_all(text.data(), text.size(), deadline_s); r != Received::frame)
    return r;
  frame.payload.assign(prefix.payload_bytes, '\0');
  if (const Received r = read_all(frame.payload.data(), frame.payload.size(), deadline_s);
      r != Received::frame)
    return r;
  frame.header = Json::parse(text, nullptr, false);
  if (frame.header.is_discarded())
    fail(Status::internal, "The tuner's worker protocol is out of step: a header is not JSON.");
  return Received::frame;
}

}  // namespace kiln::tuner
