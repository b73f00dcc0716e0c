# kiln_module(name SOURCES ... DEPENDS ...): one folder of the tree as a static library with hidden symbols.
function(kiln_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/generated)
  target_link_libraries(${name} PUBLIC kiln_third_party ${ARG_DEPENDS})
  kiln_flags(${name})
endfunction()

function(kiln_flags name)
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers)
  if(KILN_SANITIZE)
    list(JOIN KILN_SANITIZE "," sanitizers)
    # Undefined behaviour ends the program: a line on stderr would pass every test.
    target_compile_options(${name} PUBLIC -fsanitize=${sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${name} PUBLIC -fsanitize=${sanitizers})
  endif()
endfunction()
