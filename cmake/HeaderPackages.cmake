# C++ headers that live in Python packages: cudnn-frontend and FlashInfer. They are fetched once into
# BATTEN_HEADERS_DIR, at the versions that scripts/requirements-headers.txt pins, and only when CUDA
# code is built. Sets BATTEN_WITH_CUDNN and BATTEN_WITH_SINGLE to 0 or 1.
set(BATTEN_HEADERS_DIR "${PROJECT_BINARY_DIR}/headers"
    CACHE PATH "Where the header packages are, or are put")
set(BATTEN_WITH_CUDNN 0)
set(BATTEN_WITH_SINGLE 0)
set(BATTEN_SINGLE_ALL 0)
set(batten_cudnn_status "off (no CUDA)")
set(batten_single_status "off (no CUDA)")
if(NOT BATTEN_WITH_CUDA)
  return()
endif()

set(requirements "${PROJECT_SOURCE_DIR}/scripts/requirements-headers.txt")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${requirements}")
execute_process(
  COMMAND "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/scripts/fetch_headers.py" --requirements
          "${requirements}" --into "${BATTEN_HEADERS_DIR}"
  RESULT_VARIABLE result
  OUTPUT_VARIABLE fetched
  ERROR_VARIABLE complaint
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_STRIP_TRAILING_WHITESPACE)
if(NOT result EQUAL 0)
  set(batten_cudnn_status "off (header package missing)")
  set(batten_single_status "off (header package missing)")
  if(BATTEN_CUDA STREQUAL "AUTO")
    message(WARNING "${complaint}")
    return()
  endif()
  message(FATAL_ERROR "${complaint}")
endif()

# The script prints NAME VERSION FOLDER, a line each.
string(REPLACE "\n" ";" fetched "${fetched}")
foreach(line IN LISTS fetched)
  if(line MATCHES "^nvidia-cudnn-frontend ([^ ]+) (.+)$")
    set(BATTEN_CUDNN_FRONTEND_VERSION "${CMAKE_MATCH_1}")
    set(cudnn_frontend_dir "${CMAKE_MATCH_2}")
  elseif(line MATCHES "^flashinfer-python ([^ ]+) (.+)$")
    set(BATTEN_FLASHINFER_VERSION "${CMAKE_MATCH_1}")
    set(flashinfer_dir "${CMAKE_MATCH_2}")
  endif()
endforeach()

# cuDNN itself is loaded at run time; its C header comes with the CUDA toolkit or Debian's or
# NVIDIA's cuDNN package, or from the wheel nvidia-cudnn-cu13 (then set CUDNN_INCLUDE_DIR).
find_path(CUDNN_INCLUDE_DIR cudnn_version.h HINTS ENV CUDNN_PATH ${CUDAToolkit_INCLUDE_DIRS}
          PATH_SUFFIXES include)
if(CUDNN_INCLUDE_DIR)
  set(BATTEN_WITH_CUDNN 1)
  file(STRINGS "${CUDNN_INCLUDE_DIR}/cudnn_version.h" defines REGEX "^#define CUDNN_[A-Z]+ [0-9]+")
  string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCHLEVEL ([0-9]+).*" "\\1.\\2.\\3"
                       BATTEN_CUDNN_HEADER_VERSION "${defines}")
  add_library(batten_cudnn_headers INTERFACE)
  target_include_directories(batten_cudnn_headers SYSTEM
                             INTERFACE "${cudnn_frontend_dir}/include" "${CUDNN_INCLUDE_DIR}")
  set(batten_cudnn_status
      "headers ${BATTEN_CUDNN_HEADER_VERSION}, frontend ${BATTEN_CUDNN_FRONTEND_VERSION}")
else()
  set(batten_cudnn_status "off (cudnn.h was not found: install cuDNN or set CUDNN_INCLUDE_DIR)")
endif()

if(BATTEN_SINGLE STREQUAL "off")
  set(batten_single_status "off (BATTEN_SINGLE=off)")
else()
  set(BATTEN_WITH_SINGLE 1)
  if(BATTEN_SINGLE STREQUAL "all")
    set(BATTEN_SINGLE_ALL 1)
  endif()
  add_library(batten_flashinfer_headers INTERFACE)
  # FlashInfer needs a newer CCCL than the toolkit's. nvcc searches its own folders before -isystem,
  # so these are plain -I, in front of the toolkit's.
  foreach(folder include cccl/cub cccl/thrust cccl/libcudacxx/include cutlass/include
                 cutlass/tools/util/include)
    target_compile_options(batten_flashinfer_headers
                           INTERFACE "SHELL:-I${flashinfer_dir}/${folder}")
  endforeach()
  set(batten_single_status "flashinfer ${BATTEN_FLASHINFER_VERSION}, ${BATTEN_SINGLE}")
endif()
