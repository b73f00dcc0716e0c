# What the consumer scripts share: run a command and fail with its output, check texts.

# run(NAME what COMMAND ... [STATUS n] [ENVIRONMENT A=b ...]): sets `output` and `errors`; any status but STATUS (default 0) is a failure.
function(run)
  cmake_parse_arguments(ARG "" "NAME;STATUS" "COMMAND;ENVIRONMENT" ${ARGN})
  if(NOT DEFINED ARG_STATUS)
    set(ARG_STATUS 0)
  endif()
  execute_process(COMMAND ${CMAKE_COMMAND} -E env ${ARG_ENVIRONMENT} ${ARG_COMMAND}
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(NOT status STREQUAL ARG_STATUS)
    list(JOIN ARG_COMMAND " " command)
    message(FATAL_ERROR "${ARG_NAME}: status ${status} instead of ${ARG_STATUS} from\n  ${command}\n${output}${errors}")
  endif()
  set(output "${output}" PARENT_SCOPE)
  set(errors "${errors}" PARENT_SCOPE)
endfunction()

function(expect_text text expected what)
  string(FIND "${text}" "${expected}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "${what}: expected to find\n  ${expected}\nin\n${text}")
  endif()
endfunction()

function(expect_file path)
  if(NOT EXISTS ${path})
    message(FATAL_ERROR "${path} is missing")
  endif()
endfunction()

# configure_and_build(source build [TARGET name] [ARGUMENTS ...]): a consumer's project, by the compilers that built Kiln.
function(configure_and_build source build)
  cmake_parse_arguments(ARG "" "TARGET" "ARGUMENTS" ${ARGN})
  if(NOT ARG_TARGET)
    set(ARG_TARGET all)
  endif()
  file(REMOVE_RECURSE ${build})
  run(NAME "configure" COMMAND ${CMAKE_COMMAND} -S ${source} -B ${build} -G ${GENERATOR} -DCMAKE_C_COMPILER=${C_COMPILER}
    -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_BUILD_TYPE=Release ${ARG_ARGUMENTS})
  run(NAME "build" COMMAND ${CMAKE_COMMAND} --build ${build} --target ${ARG_TARGET})
endfunction()

# A place without a driver, a store or anything of this user's.
set(driverless KILN_LIBCUDA=/nonexistent/libcuda.so.1 KILN_DB=:memory:)
