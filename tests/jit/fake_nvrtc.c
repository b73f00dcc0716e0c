/* Has every function that the search asks for, says the version it was built with, and compiles
 * nothing. A compile leaves handlers of its own on two signals, as the real one does while it runs.
 */
#include <signal.h>

int nvrtcVersion(int* major, int* minor) {
  *major = MAJOR;
  *minor = MINOR;
  return 0;
}
const char* nvrtcGetErrorString(int result) {
  (void)result;
  return "FAKE";
}
int nvrtcGetNumSupportedArchs(int* count) {
  *count = 2;
  return 0;
}
int nvrtcGetSupportedArchs(int* archs) {
  archs[0] = 80;
  archs[1] = 86;
  return 0;
}
int nvrtcCreateProgram(void) { return 2; }
int nvrtcDestroyProgram(void) { return 2; }
static void end_process(int number) { (void)number; }
int nvrtcCompileProgram(void) {
  if (signal(SIGINT, SIG_IGN) != SIG_IGN) signal(SIGINT, end_process);
  if (signal(SIGTERM, SIG_IGN) != SIG_IGN) signal(SIGTERM, end_process);
  return 2;
}
int nvrtcGetProgramLogSize(void) { return 2; }
int nvrtcGetProgramLog(void) { return 2; }
int nvrtcGetCUBINSize(void) { return 2; }
int nvrtcGetCUBIN(void) { return 2; }
int nvrtcGetPTXSize(void) { return 2; }
int nvrtcGetPTX(void) { return 2; }
