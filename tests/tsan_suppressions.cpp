// Linked into the tests of a ThreadSanitizer build: libnvrtc makes its mutexes on first use without
// a lock that the sanitiser sees, as it is not built with it.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
  return "race:libnvrtc.so\n";
}
