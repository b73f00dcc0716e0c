# kiln_embed(output.cpp FUNCTION ns::name FILES ...): text files as a function that returns std::span<const kiln::jit::SourceFile>.
# Paths are relative to the project's root and are the names by which sources include each other.
set(KILN_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_DIR}/embed_files.cmake)

function(kiln_embed output)
  cmake_parse_arguments(ARG "" "FUNCTION" "FILES" ${ARGN})
  set(absolute_files)
  foreach(file ${ARG_FILES})
    list(APPEND absolute_files ${PROJECT_SOURCE_DIR}/${file})
  endforeach()
  list(JOIN ARG_FILES "," joined)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -DOUTPUT=${output} -DFUNCTION=${ARG_FUNCTION}
      -DFILES=${joined} -P ${KILN_EMBED_SCRIPT}
    DEPENDS ${absolute_files} ${KILN_EMBED_SCRIPT} VERBATIM
    COMMENT "Embedding device sources")
endfunction()
