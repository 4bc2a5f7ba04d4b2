# `bundle`: the programs and the libraries they need in one folder, which can be copied to a machine
# that has neither the Debian packages nor this source tree (a GPU machine, say). Programs join with
# batten_bundle(target...); the target itself is made at the end, by batten_add_bundle().
function(batten_bundle)
  set_property(GLOBAL APPEND PROPERTY BATTEN_BUNDLED_TARGETS ${ARGN})
endfunction()

function(batten_add_bundle)
  get_property(bundled GLOBAL PROPERTY BATTEN_BUNDLED_TARGETS)
  if(NOT bundled)
    return()
  endif()
  set(folder "${PROJECT_BINARY_DIR}/bundle")
  set(files)
  foreach(target IN LISTS bundled)
    list(APPEND files "$<TARGET_FILE:${target}>")
  endforeach()
  get_property(bundled_tests GLOBAL PROPERTY BATTEN_BUNDLED_TESTS)
  list(JOIN bundled_tests "" tests)
  file(WRITE "${PROJECT_BINARY_DIR}/bundle.ctest" "# ctest --test-dir THIS_FOLDER runs the programs.\n${tests}")
  add_custom_target(
    bundle
    COMMAND "${CMAKE_COMMAND}" -E rm -rf "${folder}"
    COMMAND "${CMAKE_COMMAND}" -E make_directory "${folder}"
    COMMAND "${CMAKE_COMMAND}" -E copy ${files} "$<TARGET_SONAME_FILE:batten>"
            "$<TARGET_SONAME_FILE:hwy::hwy>" "${folder}"
    COMMAND "${CMAKE_COMMAND}" -E copy "${PROJECT_BINARY_DIR}/bundle.ctest"
            "${folder}/CTestTestfile.cmake"
    COMMAND sh -c "strip --strip-unneeded ${folder}/* 2>/dev/null || true"
    DEPENDS ${bundled} batten
    COMMENT "Copying programs and libraries to ${folder}"
    VERBATIM)
endfunction()
