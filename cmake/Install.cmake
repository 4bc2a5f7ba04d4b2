# Install rules: headers, both libraries, the command, and how CMake and pkg-config find them.
include(CMakePackageConfigHelpers)

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/batten" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(TARGETS batten batten_static EXPORT batten_targets)
if(TARGET batten_cli)
  install(TARGETS batten_cli)
endif()
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/README.md"
        DESTINATION "${CMAKE_INSTALL_DOCDIR}")

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/batten")
install(EXPORT batten_targets NAMESPACE batten:: FILE batten-targets.cmake
        DESTINATION "${package_dir}")
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/batten-config.cmake.in"
  "${PROJECT_BINARY_DIR}/package/batten-config.cmake" INSTALL_DESTINATION "${package_dir}")
# While the major version is 0, a new minor version may break.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/package/batten-config-version.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/package/batten-config.cmake"
              "${PROJECT_BINARY_DIR}/package/batten-config-version.cmake"
        DESTINATION "${package_dir}")

# Libs.private is for the static library.
set(batten_pc_private "-lhwy -lstdc++ -lm -lpthread")
if(BATTEN_WITH_CUDA)
  string(APPEND batten_pc_private " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl")
endif()
# The folder may be moved as a whole.
file(RELATIVE_PATH batten_pc_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" batten_pc_prefix "${batten_pc_prefix}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/batten.pc.in" "${PROJECT_BINARY_DIR}/package/batten.pc"
               @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/package/batten.pc"
        DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
