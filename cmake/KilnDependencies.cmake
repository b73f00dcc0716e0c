# What Kiln builds on, all from Debian: fmt (header-only), nlohmann-json, SQLite (static, hidden), zstd, xxHash (inline), CLI11.
# The CUDA toolkit gives headers at build time only; libcuda and libnvrtc are found with dlopen when the library runs.
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(Threads REQUIRED)

find_library(KILN_SQLITE_STATIC NAMES libsqlite3.a REQUIRED)
find_path(KILN_SQLITE_INCLUDE sqlite3.h REQUIRED)
find_library(KILN_ZSTD NAMES zstd REQUIRED)
find_path(KILN_ZSTD_INCLUDE zstd.h REQUIRED)
find_path(KILN_XXHASH_INCLUDE xxhash.h REQUIRED)

find_path(KILN_CUDA_INCLUDE cuda.h
  HINTS ${CUDAToolkit_ROOT} $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda
  PATH_SUFFIXES include targets/x86_64-linux/include REQUIRED)

add_library(kiln_third_party INTERFACE)
target_include_directories(kiln_third_party SYSTEM INTERFACE
  ${KILN_SQLITE_INCLUDE} ${KILN_ZSTD_INCLUDE} ${KILN_XXHASH_INCLUDE} ${KILN_CUDA_INCLUDE})
target_compile_definitions(kiln_third_party INTERFACE XXH_INLINE_ALL)
target_link_libraries(kiln_third_party INTERFACE
  fmt::fmt-header-only nlohmann_json::nlohmann_json Threads::Threads ${CMAKE_DL_LIBS})
