# How other projects reach libkiln: `#include <kiln/kiln.h>` with the target kiln::kiln, whether Kiln is installed (find_package, pkg-config)
# or a subdirectory. Programs install their own targets; the library, its headers and its package files are installed here.
set(kiln_headers ${PROJECT_SOURCE_DIR}/runtime/abi/kiln.h ${PROJECT_SOURCE_DIR}/runtime/abi/kiln_ops.h)

# The build tree shows the headers under the path that they have when installed.
foreach(header ${kiln_headers})
  get_filename_component(name ${header} NAME)
  configure_file(${header} ${PROJECT_BINARY_DIR}/include/kiln/${name} COPYONLY)
endforeach()
target_include_directories(kiln INTERFACE $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>)

if(NOT KILN_INSTALL)
  return()
endif()

include(CMakePackageConfigHelpers)
set(kiln_package_directory ${CMAKE_INSTALL_LIBDIR}/cmake/kiln)

install(TARGETS kiln EXPORT kilnTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${kiln_headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kiln)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(EXPORT kilnTargets NAMESPACE kiln:: DESTINATION ${kiln_package_directory})

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/kilnConfig.cmake.in ${PROJECT_BINARY_DIR}/package/kilnConfig.cmake
  INSTALL_DESTINATION ${kiln_package_directory} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/kilnConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/kilnConfig.cmake ${PROJECT_BINARY_DIR}/package/kilnConfigVersion.cmake
  DESTINATION ${kiln_package_directory})

# Relative to the file itself, so that the installed tree may be moved.
file(RELATIVE_PATH kiln_pc_to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(${CMAKE_CURRENT_LIST_DIR}/kiln.pc.in ${PROJECT_BINARY_DIR}/package/kiln.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/package/kiln.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
