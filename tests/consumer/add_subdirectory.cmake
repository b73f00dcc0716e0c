# Kiln as a part of another project: one add_subdirectory gives the library and nothing else. Building all of it a second time is for
# `tools/test --full`; otherwise the parent's own file is compiled, by what the target kiln::kiln hands it.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

set(target program_object)
if(DEFINED ENV{KILN_TEST_FULL})
  set(target program)
endif()
configure_and_build(${CMAKE_CURRENT_LIST_DIR}/add_subdirectory ${WORK} TARGET ${target} ARGUMENTS -DKILN_SOURCE=${SOURCE})
if(target STREQUAL program)
  run(NAME "program" COMMAND ${WORK}/program ENVIRONMENT ${driverless})
  expect_text("${output}" "kiln ${VERSION}" "program")
endif()
