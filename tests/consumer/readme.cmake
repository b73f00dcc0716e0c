# The C program and the CMake project of README.md, as they stand there, against the installed package. With a GPU the program prints the
# checksum that README.md names; without a driver it ends with KILN_NO_DRIVER and the sentence.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

set(checksum "checksum 10500252")  # by the formula of ops.md B15.2, computed apart from Kiln
set(no_driver 8)                   # KILN_NO_DRIVER
set(most_lines 40)

file(READ ${SOURCE}/README.md readme)
expect_text("${readme}" "${checksum}" "README.md")

# fenced_block(language variable): the first fenced block of that language.
function(fenced_block language variable)
  set(fence "```${language}\n")
  string(FIND "${readme}" "${fence}" begin)
  if(begin EQUAL -1)
    message(FATAL_ERROR "README.md has no block of ${language}")
  endif()
  string(LENGTH "${fence}" length)
  math(EXPR begin "${begin} + ${length}")
  string(SUBSTRING "${readme}" ${begin} -1 rest)
  string(FIND "${rest}" "\n```" end)
  math(EXPR end "${end} + 1")
  string(SUBSTRING "${rest}" 0 ${end} text)
  set(${variable} "${text}" PARENT_SCOPE)
endfunction()

fenced_block(c program)
string(REGEX REPLACE "[^\n]" "" newlines "${program}")
string(LENGTH "${newlines}" lines)
if(lines GREATER most_lines)
  message(FATAL_ERROR "The example of README.md has ${lines} lines, more than ${most_lines}")
endif()
fenced_block(cmake project)

file(REMOVE_RECURSE ${WORK})
file(WRITE ${WORK}/source/example.c "${program}")
file(WRITE ${WORK}/source/CMakeLists.txt "${project}")
configure_and_build(${WORK}/source ${WORK}/build ARGUMENTS -DCMAKE_PREFIX_PATH=${PREFIX} "-DCMAKE_C_FLAGS=-Wall -Werror")

if(MACHINE STREQUAL driverless)
  run(NAME "example" COMMAND ${WORK}/build/example STATUS ${no_driver} ENVIRONMENT ${driverless})
  expect_text("${errors}" "KILN_NO_DRIVER: The CUDA driver was not found (searched: /nonexistent/libcuda.so.1" "example")
  return()
endif()

set(environment KILN_DB=${WORK}/kiln.db)
run(NAME "example" COMMAND ${WORK}/build/example sim:rtx-3090 ENVIRONMENT ${environment})
expect_text("${output}" "${checksum}\n" "example on a simulated GPU")
run(NAME "kiln devices" COMMAND ${PREFIX}/bin/kiln devices --json ENVIRONMENT ${environment})
string(JSON devices LENGTH "${output}" devices)
if(devices GREATER 0)
  run(NAME "example" COMMAND ${WORK}/build/example ENVIRONMENT ${environment})
  expect_text("${output}" "${checksum}\n" "example")
else()
  run(NAME "example" COMMAND ${WORK}/build/example STATUS ${no_driver} ENVIRONMENT ${environment})
  expect_text("${errors}" "KILN_NO_DRIVER: The CUDA driver " "example")
endif()
