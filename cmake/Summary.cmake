# What was decided, in one place.
message(STATUS "")
message(STATUS "batten ${PROJECT_VERSION} (${BATTEN_GIT_REVISION}), ${CMAKE_BUILD_TYPE}")
message(STATUS "  CUDA        ${batten_cuda_status}")
message(STATUS "  cudnn       ${batten_cudnn_status}")
message(STATUS "  single      ${batten_single_status}")
if(BATTEN_SANITIZE)
  message(STATUS "  sanitizers  ${BATTEN_SANITIZE}")
endif()
message(STATUS "  tools ${BATTEN_BUILD_TOOLS}, tests ${BATTEN_BUILD_TESTS}, "
               "benchmarks ${BATTEN_BUILD_BENCHMARKS}, python ${BATTEN_BUILD_PYTHON}")
message(STATUS "")
