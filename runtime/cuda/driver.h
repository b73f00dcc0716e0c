// The CUDA Driver API as a table of functions found with dlopen, so that the library loads on any
// machine. cuda.h gives types only. File: KILN_LIBCUDA when set, else libcuda.so.1 by the loader's
// path. A loaded driver stays loaded until the process ends, and nothing here runs in a static
// destructor: both would be unsafe at exit.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>

namespace kiln::runtime::cuda {

struct Driver {
  std::string file;  // as given to the loader
  int version = 0;   // 12040 for 12.4: what cuDriverGetVersion says

  // "12.4"
  std::string version_text() const;
  // "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"
  std::string error_text(int error) const;

  // Loads the driver and starts it; cheap when that has been done. Fails with no_driver (missing,
  // not a driver, cuInit refused) or unsupported (a driver without the functions below), and says
  // which file was tried and why it did not do.
  static Driver load();

  CUresult (*init)(unsigned flags) = nullptr;
  CUresult (*driver_get_version)(int* version) = nullptr;
  CUresult (*get_error_name)(CUresult error, const char** text) = nullptr;
  CUresult (*get_error_string)(CUresult error, const char** text) = nullptr;

  CUresult (*device_get)(CUdevice* device, int ordinal) = nullptr;
  CUresult (*device_get_count)(int* count) = nullptr;
  CUresult (*device_get_name)(char* name, int length, CUdevice device) = nullptr;
  CUresult (*device_get_attribute)(int* value, CUdevice_attribute attribute, CUdevice) = nullptr;
  CUresult (*device_total_mem)(size_t* bytes, CUdevice device) = nullptr;
  CUresult (*device_get_pci_bus_id)(char* id, int length, CUdevice device) = nullptr;

  CUresult (*primary_ctx_retain)(CUcontext* context, CUdevice device) = nullptr;
  CUresult (*primary_ctx_release)(CUdevice device) = nullptr;
  CUresult (*ctx_get_current)(CUcontext* context) = nullptr;
  CUresult (*ctx_push_current)(CUcontext context) = nullptr;
  CUresult (*ctx_pop_current)(CUcontext* context) = nullptr;

  // From driver 12.0 on; nullptr before, then the cuModule* functions serve.
  CUresult (*library_load_data)(CUlibrary* library, const void* image, CUjit_option* jit_options,
                                void** jit_values, unsigned jit_count, CUlibraryOption* options,
                                void** values, unsigned count) = nullptr;
  CUresult (*library_unload)(CUlibrary library) = nullptr;
  CUresult (*library_get_kernel)(CUkernel* kernel, CUlibrary library, const char* name) = nullptr;
  CUresult (*kernel_get_function)(CUfunction* function, CUkernel kernel) = nullptr;
  // From driver 12.4 on; nullptr before. Earlier drivers load a function when it is asked for its
  // attributes.
  CUresult (*func_load)(CUfunction function) = nullptr;

  CUresult (*module_load_data_ex)(CUmodule* module, const void* image, unsigned count,
                                  CUjit_option* options, void** values) = nullptr;
  CUresult (*module_unload)(CUmodule module) = nullptr;
  CUresult (*module_get_function)(CUfunction* function, CUmodule module,
                                  const char* name) = nullptr;
  CUresult (*func_get_attribute)(int* value, CUfunction_attribute attribute,
                                 CUfunction function) = nullptr;
  CUresult (*func_set_attribute)(CUfunction function, CUfunction_attribute attribute,
                                 int value) = nullptr;
  CUresult (*launch_kernel)(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z,
                            unsigned smem_bytes, CUstream stream, void** parameters,
                            void** extra) = nullptr;

  CUresult (*mem_alloc)(CUdeviceptr* pointer, size_t bytes) = nullptr;
  CUresult (*mem_free)(CUdeviceptr pointer) = nullptr;
  CUresult (*mem_host_alloc)(void** memory, size_t bytes, unsigned flags) = nullptr;
  CUresult (*mem_free_host)(void* memory) = nullptr;
  CUresult (*mem_get_info)(size_t* free_bytes, size_t* total_bytes) = nullptr;
  CUresult (*memcpy_h_to_d_async)(CUdeviceptr to, const void* from, size_t bytes,
                                  CUstream stream) = nullptr;
  CUresult (*memcpy_d_to_h_async)(void* to, CUdeviceptr from, size_t bytes,
                                  CUstream stream) = nullptr;
  CUresult (*memcpy_d_to_d_async)(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                  CUstream stream) = nullptr;
  CUresult (*memset_d8_async)(CUdeviceptr to, unsigned char value, size_t bytes,
                              CUstream stream) = nullptr;

  CUresult (*stream_create)(CUstream* stream, unsigned flags) = nullptr;
  CUresult (*stream_destroy)(CUstream stream) = nullptr;
  CUresult (*stream_synchronize)(CUstream stream) = nullptr;
  CUresult (*stream_is_capturing)(CUstream stream, CUstreamCaptureStatus* status) = nullptr;
  CUresult (*stream_begin_capture)(CUstream stream, CUstreamCaptureMode mode) = nullptr;
  CUresult (*stream_end_capture)(CUstream stream, CUgraph* graph) = nullptr;
  CUresult (*thread_exchange_capture_mode)(CUstreamCaptureMode* mode) = nullptr;

  CUresult (*graph_instantiate)(CUgraphExec* exec, CUgraph graph,
                                unsigned long long flags) = nullptr;
  CUresult (*graph_launch)(CUgraphExec exec, CUstream stream) = nullptr;
  CUresult (*graph_destroy)(CUgraph graph) = nullptr;
  CUresult (*graph_exec_destroy)(CUgraphExec exec) = nullptr;

  CUresult (*event_create)(CUevent* event, unsigned flags) = nullptr;
  CUresult (*event_destroy)(CUevent event) = nullptr;
  CUresult (*event_record)(CUevent event, CUstream stream) = nullptr;
  CUresult (*event_synchronize)(CUevent event) = nullptr;
  CUresult (*event_elapsed_time)(float* milliseconds, CUevent start, CUevent end) = nullptr;
};

}  // namespace kiln::runtime::cuda
