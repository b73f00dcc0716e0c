# C programs, one of them C89, and a C++ program by find_package(kiln), against nothing but the installed tree.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

configure_and_build(${CMAKE_CURRENT_LIST_DIR}/find_package ${WORK} ARGUMENTS -DCMAKE_PREFIX_PATH=${PREFIX} -DEXPECTED_VERSION=${VERSION})
foreach(program c_program c89_program cxx_program)
  run(NAME ${program} COMMAND ${WORK}/${program} ENVIRONMENT ${driverless})
  expect_text("${output}" "kiln ${VERSION}" ${program})
endforeach()
