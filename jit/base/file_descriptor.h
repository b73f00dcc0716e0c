// An open file that is closed with its holder. Negative: none, as when open() fails.
#pragma once

#include <unistd.h>

namespace kiln {

class FileDescriptor {
 public:
  explicit FileDescriptor(int value) : value_(value) {}
  ~FileDescriptor() {
    if (value_ >= 0) ::close(value_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const { return value_; }

 private:
  const int value_;
};

}  // namespace kiln
