# A C program by pkg-config, from a prefix that was moved after the installation.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

find_program(PKG_CONFIG NAMES pkg-config pkgconf)
if(NOT PKG_CONFIG)
  message(FATAL_ERROR "pkg-config is missing: tools/packages test")
endif()

set(moved ${WORK}/moved)
file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${moved})
foreach(part include ${LIBDIR})
  get_filename_component(parent ${moved}/${part} DIRECTORY)
  file(COPY ${PREFIX}/${part} DESTINATION ${parent})
endforeach()

set(search PKG_CONFIG_PATH=${moved}/${LIBDIR}/pkgconfig)
run(NAME "pkg-config" COMMAND ${PKG_CONFIG} --modversion kiln ENVIRONMENT ${search})
expect_text("${output}" "${VERSION}" "pkg-config --modversion")
run(NAME "pkg-config" COMMAND ${PKG_CONFIG} --cflags --libs kiln ENVIRONMENT ${search})
separate_arguments(flags UNIX_COMMAND "${output}")
run(NAME "compile" COMMAND ${C_COMPILER} -Wall -Wextra -Werror ${CMAKE_CURRENT_LIST_DIR}/c_program.c -o ${WORK}/program ${flags})
run(NAME "program" COMMAND ${WORK}/program ENVIRONMENT ${driverless} LD_LIBRARY_PATH=${moved}/${LIBDIR})
expect_text("${output}" "kiln ${VERSION}" "program")
