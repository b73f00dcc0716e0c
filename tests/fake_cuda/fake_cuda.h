/* Control of the fake CUDA driver: it plays two GPUs, cuda:0 an A100-SXM4-80GB and cuda:1 an RTX
 * 3090, and runs no kernel. It keeps the driver's books as the real one does: contexts per thread,
 * capture states and what invalidates them, bounds of allocations, errors that stick, binaries that
 * do not fit the card. Tests link it, or find these functions by dlsym; child processes use the
 * environment:
 *
 *   KILN_FAKE_CUDA_DEVICES=0
 *       how many GPUs there are (0 to 2); with 0 cuInit says CUDA_ERROR_NO_DEVICE
 *   KILN_FAKE_CUDA_FAIL=cuLaunchKernel:719:3
 *       fake_cuda_fail(...); a fourth number is `times`; several are separated by commas
 *   KILN_FAKE_CUDA_DRIVER=11080
 *       fake_cuda_set_driver_version(...)
 *   KILN_FAKE_CUDA_RECORD=0
 *       fake_cuda_set_recording(0)
 *
 * Function names may be given with or without their version: "cuMemAlloc" and "cuMemAlloc_v2" are
 * one. All functions are thread-safe.
 */
#ifndef KILN_FAKE_CUDA_H_
#define KILN_FAKE_CUDA_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Back to the start, with what the environment says: no contexts, memory or handles, counts of
 * zero. Only while nobody uses the driver. */
void fake_cuda_reset(void);

/* The first after_n_calls calls of the function work as usual, all later ones return `error`. An
 * error that corrupts a context (illegal address, launch failure, ...) sticks to the caller's
 * current context, as in life. error 0 takes it back. Returns 0 when the fake has no such
 * function. */
int fake_cuda_fail(const char *function, int error, int after_n_calls);
/* The same, but only `times` calls fail. */
int fake_cuda_fail_times(const char *function, int error, int after_n_calls, int times);
/* Every use of the device's primary context returns this from now on; 0 heals it. */
void fake_cuda_sticky_error(int device, int error);

void fake_cuda_set_device_count(int count);
/* 12040 for 12.4, the default; before 12000 there are no cuLibrary functions */
void fake_cuda_set_driver_version(int version);
/* CU_DEVICE_ATTRIBUTE_... */
void fake_cuda_set_attribute(int device, int attribute, int value);
void fake_cuda_set_name(int device, const char *name);
void fake_cuda_set_memory(int device, uint64_t total_bytes);
/* How long each launch takes on the events' clock; 1000 by default. */
void fake_cuda_set_kernel_ns(uint64_t ns);
/* NVML: the SM clock and the throttle reasons of both cards. */
void fake_cuda_set_clocks(unsigned sm_mhz, unsigned long long reasons);

/* As if somebody captured this stream in global mode: 0 none, 1 active, 2 invalidated
 * (CU_STREAM_CAPTURE_STATUS_...). Returns 0 when there is no such stream. */
int fake_cuda_set_stream_capturing(void *stream, int status);

/* Calls of one function since the reset, failed ones too; 0 for a name that the fake does not
 * have. */
uint64_t fake_cuda_calls(const char *function);
/* Kernels run, by cuLaunchKernel or by a graph. */
uint64_t fake_cuda_launches(void);

/* With recording off a launch costs a few atomic operations on memory that other threads do not
 * touch, and the two logs below stay as they are. On by default. */
void fake_cuda_set_recording(int on);

enum { FAKE_CUDA_PARAM_BYTES = 4096 };
typedef struct fake_cuda_launch {
  char kernel[128];
  int device;
  int from_graph; /* 1 for a replay */
  unsigned grid[3];
  unsigned block[3];
  unsigned dynamic_smem_bytes;
  void *stream;
  const void *param;    /* address of the one parameter at the call; of a replay NULL */
  uint64_t param_bytes; /* as the binary says, else the first eight bytes of the parameter */
  unsigned char params[FAKE_CUDA_PARAM_BYTES]; /* its copy, cut at 4 KB */
} fake_cuda_launch;

/* The last launch; or one by its number, 0 the first since the reset (the last 1024 are kept).
 * Returns 0 when there is none. */
int fake_cuda_last_launch(fake_cuda_launch *launch);
int fake_cuda_get_launch(uint64_t number, fake_cuda_launch *launch);

/* Names of the functions called, in order; the first 65536 are kept. The text is static; NULL past
 * the end. */
size_t fake_cuda_log_size(void);
const char *fake_cuda_log_entry(size_t index);

/* What is alive: "contexts", "allocations", "pinned", "bytes", "streams", "events", "images",
 * "graphs", "graph_execs". */
uint64_t fake_cuda_live(const char *what);

/* This thread: device of the current context (-1: none) and how many contexts are pushed. */
int fake_cuda_current_device(void);
int fake_cuda_context_depth(void);

/* This thread: is it inside a function of the driver? So that tests can tell the caller's doings
 * from the fake's. */
int fake_cuda_is_inside(void);

#ifdef __cplusplus
}
#endif

#endif
