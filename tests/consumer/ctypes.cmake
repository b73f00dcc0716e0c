# The installed library from Python, by dlopen alone. COMPANY: alone, or beside_sqlite. Skipped where there is no python3.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

find_program(PYTHON NAMES python3)
if(NOT PYTHON)
  message("SKIPPED: there is no python3 here")
  return()
endif()
file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
run(NAME "ctypes_program.py" COMMAND ${PYTHON} -B -W error ${CMAKE_CURRENT_LIST_DIR}/ctypes_program.py
  ${PREFIX}/${LIBDIR}/libkiln.so ${VERSION} ${WORK}/kiln.db ${COMPANY} ENVIRONMENT ${driverless})
expect_text("${output}" "kiln ${VERSION} checksum 10500252\n" "ctypes_program.py")
if(NOT errors STREQUAL "")
  message(FATAL_ERROR "ctypes_program.py: the library printed\n${errors}")
endif()
