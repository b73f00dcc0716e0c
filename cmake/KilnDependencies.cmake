# What Kiln builds on, all from Debian: fmt (headers only), nlohmann-json, SQLite (static, hidden), zstd, xxHash (inline), CLI11.
# The CUDA toolkit gives headers at build time only; libcuda and libnvrtc are found with dlopen when the library runs.
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Threads REQUIRED)
if(KILN_BUILD_TOOLS)
  find_package(CLI11 REQUIRED)
endif()

# kiln_require(variable "what is missing, and what to install"): the sentence instead of a variable's name.
function(kiln_require variable sentence)
  if(NOT ${variable})
    message(FATAL_ERROR "${sentence} (${variable})")
  endif()
endfunction()

find_library(KILN_SQLITE_STATIC NAMES libsqlite3.a)
kiln_require(KILN_SQLITE_STATIC "The static SQLite, libsqlite3.a, was not found: install libsqlite3-dev.")
find_path(KILN_SQLITE_INCLUDE sqlite3.h)
kiln_require(KILN_SQLITE_INCLUDE "sqlite3.h was not found: install libsqlite3-dev.")
find_library(KILN_ZSTD NAMES zstd)
kiln_require(KILN_ZSTD "libzstd was not found: install libzstd-dev.")
find_path(KILN_ZSTD_INCLUDE zstd.h)
kiln_require(KILN_ZSTD_INCLUDE "zstd.h was not found: install libzstd-dev.")
find_path(KILN_XXHASH_INCLUDE xxhash.h)
kiln_require(KILN_XXHASH_INCLUDE "xxhash.h was not found: install libxxhash-dev.")

file(GLOB kiln_cuda_toolkits /usr/local/cuda /usr/local/cuda-*)
find_path(KILN_CUDA_INCLUDE cuda.h
  HINTS ${CUDAToolkit_ROOT} $ENV{CUDA_HOME} $ENV{CUDA_PATH} ${kiln_cuda_toolkits}
  PATH_SUFFIXES include targets/x86_64-linux/include)
kiln_require(KILN_CUDA_INCLUDE "cuda.h was not found: install a CUDA toolkit, or name yours with CUDA_HOME=/path/to/cuda.")

# fmt is used by its headers alone, so that nothing of it has to be there at run time. What fmt 9 leaves to its library is compiled once.
if(fmt_VERSION VERSION_GREATER_EQUAL 9 AND fmt_VERSION VERSION_LESS 10)
  add_library(kiln_fmt STATIC ${CMAKE_CURRENT_LIST_DIR}/compiled_fmt.cpp)
  target_include_directories(kiln_fmt SYSTEM PUBLIC $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
else()
  add_library(kiln_fmt INTERFACE)
  target_link_libraries(kiln_fmt INTERFACE fmt::fmt-header-only)
endif()

add_library(kiln_third_party INTERFACE)
target_include_directories(kiln_third_party SYSTEM INTERFACE
  ${KILN_SQLITE_INCLUDE} ${KILN_ZSTD_INCLUDE} ${KILN_XXHASH_INCLUDE} ${KILN_CUDA_INCLUDE})
target_compile_definitions(kiln_third_party INTERFACE XXH_INLINE_ALL)
target_link_libraries(kiln_third_party INTERFACE
  kiln_fmt nlohmann_json::nlohmann_json Threads::Threads ${CMAKE_DL_LIBS})
