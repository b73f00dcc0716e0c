# `cmake --install` gives all that README.md lists, and what is installed works away from the build tree.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

file(REMOVE_RECURSE ${PREFIX})
run(NAME "install" COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX})

foreach(file
    bin/kiln libexec/kiln/kiln-worker ${LIBDIR}/libkiln.so ${LIBDIR}/libkiln.so.${VERSION} ${LIBDIR}/libkiln_sim.so include/kiln/kiln.h include/kiln/kiln_ops.h
    ${LIBDIR}/cmake/kiln/kilnConfig.cmake ${LIBDIR}/cmake/kiln/kilnConfigVersion.cmake ${LIBDIR}/cmake/kiln/kilnTargets.cmake
    ${LIBDIR}/pkgconfig/kiln.pc)
  expect_file(${PREFIX}/${file})
endforeach()

# Package files that name the tree that they were made in would work on this machine only.
file(GLOB package_files ${PREFIX}/${LIBDIR}/cmake/kiln/*.cmake ${PREFIX}/${LIBDIR}/pkgconfig/kiln.pc)
foreach(file ${package_files})
  file(READ ${file} text)
  foreach(place ${SOURCE} ${BUILD} ${PREFIX})
    string(FIND "${text}" "${place}/" found)
    if(NOT found EQUAL -1)
      message(FATAL_ERROR "${file} names ${place}")
    endif()
  endforeach()
endforeach()

run(NAME "exports" COMMAND ${NM} -D --defined-only --format=posix ${PREFIX}/${LIBDIR}/libkiln.so)
string(REGEX REPLACE "\n$" "" lines "${output}")
string(REPLACE "\n" ";" lines "${lines}")
foreach(line ${lines})
  if(NOT line MATCHES "^(kiln_[a-z0-9_]+(@@KILN_1)? T|KILN_1(@@KILN_1)? A) ")
    message(FATAL_ERROR "libkiln.so exports more than kiln_*: ${line}")
  endif()
endforeach()
expect_text("${output}" "kiln_open" "exports")

run(NAME "kiln --version" COMMAND ${PREFIX}/bin/kiln --version)
expect_text("${output}" "kiln ${VERSION}" "kiln --version")
run(NAME "kiln ops" COMMAND ${PREFIX}/bin/kiln ops --json)
expect_text("${output}" "combine_topk_swa" "kiln ops --json")
