// The same header from C++: an error crosses as a status, never as an exception.
#include <kiln/kiln.h>

#include <iostream>
#include <string>

int main() {
  kiln_options options = {};
  options.size = sizeof(options);
  options.device = "cuda:0";
  options.store = ":memory:";
  kiln_session* session = nullptr;
  const kiln_status status = kiln_open(&options, &session);
  if (status != KILN_NO_DRIVER || session != nullptr) {
    std::cerr << kiln_status_name(status) << ": " << kiln_last_error() << "\n";
    return 1;
  }
  if (std::string(kiln_last_error()).find("KILN_LIBCUDA") == std::string::npos) return 2;
  std::cout << "kiln " << kiln_version() << "\n";
  return 0;
}
