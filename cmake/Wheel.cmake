# What `pip install .` adds to a build: it has no preset to say these.
if(NOT DEFINED BATTEN_HEADERS_DIR)
  # pip's build folder is gone after the build; the header packages stay with the others.
  set(BATTEN_HEADERS_DIR "${PROJECT_SOURCE_DIR}/build/headers")
endif()
find_program(BATTEN_CCACHE ccache)
if(BATTEN_CCACHE)
  foreach(language C CXX CUDA)
    if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER "${BATTEN_CCACHE}")
    endif()
  endforeach()
endif()
