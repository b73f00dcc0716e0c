# Kiln as a part of another project: one add_subdirectory, only the library, no tests, no install rules of its own, no warning flags.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

configure_and_build(${CMAKE_CURRENT_LIST_DIR}/add_subdirectory ${WORK} -DKILN_SOURCE=${SOURCE}
  -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
run(NAME "program" COMMAND ${WORK}/program ENVIRONMENT ${driverless})
expect_text("${output}" "kiln ${VERSION}" "program")
