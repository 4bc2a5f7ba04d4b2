# Finds nvcc, and says how the device code is compiled. Sets BATTEN_WITH_CUDA, BATTEN_WITH_NATIVE and
# which families of native kernels there are, BATTEN_NATIVE_SM80 and BATTEN_NATIVE_SM90, to 0 or 1. (A
# build without CUDA answers questions about cards as if it had both.)
set(BATTEN_WITH_CUDA 0)
set(BATTEN_WITH_NATIVE 0)
set(batten_cuda_status "off (BATTEN_CUDA=OFF)")

if(NOT BATTEN_CUDA STREQUAL "OFF")
  # Architectures are given for each source (below), not for each target.
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    # Not every shell has the toolkit on its PATH.
    find_program(batten_nvcc nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda
                 PATH_SUFFIXES bin)
    if(batten_nvcc)
      set(CMAKE_CUDA_COMPILER "${batten_nvcc}")
    endif()
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    # CMake 3.25.1's module marks CUDA::nvToolsExt as deprecated for projects that ask for 3.25, and
    # fails because CUDA 13 no longer has that library.
    set(batten_minimum_version "${CMAKE_MINIMUM_REQUIRED_VERSION}")
    set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
    find_package(CUDAToolkit REQUIRED)
    set(CMAKE_MINIMUM_REQUIRED_VERSION "${batten_minimum_version}")
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
      message(FATAL_ERROR "batten needs nvcc 13.0 or newer, found ${CMAKE_CUDA_COMPILER_VERSION} at "
                          "${CMAKE_CUDA_COMPILER}; update the CUDA toolkit or configure with "
                          "-DBATTEN_CUDA=OFF")
    endif()
    set(BATTEN_WITH_CUDA 1)
    set(batten_cuda_status "nvcc ${CMAKE_CUDA_COMPILER_VERSION}, ${BATTEN_CUDA_ARCHS}")
  elseif(BATTEN_CUDA STREQUAL "AUTO")
    set(batten_cuda_status "off (nvcc was not found)")
  else()
    message(FATAL_ERROR "BATTEN_CUDA=ON, but nvcc was not found: install the CUDA toolkit, set "
                        "CUDACXX to its nvcc, or configure with -DBATTEN_CUDA=OFF")
  endif()
endif()

set(BATTEN_NATIVE_SM80 1)
set(BATTEN_NATIVE_SM90 1)
if(BATTEN_WITH_CUDA)
  foreach(arch IN LISTS BATTEN_CUDA_ARCHS)
    if(NOT arch MATCHES "^(80|90a)$")
      message(FATAL_ERROR "BATTEN_CUDA_ARCHS has '${arch}'; it may have 80 (for this and every newer card) and 90a (Hopper)")
    endif()
  endforeach()
  set(BATTEN_WITH_NATIVE 1)
  if(NOT "80" IN_LIST BATTEN_CUDA_ARCHS)
    set(BATTEN_NATIVE_SM80 0)
  endif()
  if(NOT "90a" IN_LIST BATTEN_CUDA_ARCHS)
    set(BATTEN_NATIVE_SM90 0)
  endif()
endif()

if(BATTEN_WITH_CUDA)
  set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  # CMake 3.25 does not know that nvcc has C++20, nor the flag.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  # constexpr functions of the host library may be called on the device.
  add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>")
  # ptxas says some things only as a remark that we take as an error: see the script.
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${Python3_EXECUTABLE}"
      "${PROJECT_SOURCE_DIR}/cmake/check_ptxas.py" ${CMAKE_CUDA_COMPILER_LAUNCHER})
endif()

# batten_cuda_sources(source...): gives the CUDA sources of the current folder their architectures.
#   .../sm90/...  sm_90a machine code only: its instructions exist nowhere else
#   .../sm80/...  sm_80 machine code and PTX, which newer cards compile when they load it; of batten's
#                 own kernels machine code for sm_90 and sm_120, too
#   elsewhere     sm_80 with PTX, and sm_90
# BATTEN_CUDA_ARCHS may leave out one of the two.
function(batten_cuda_sources)
  set(sm80 "-gencode=arch=compute_80,code=[sm_80,compute_80]")
  set(sm90 "-gencode=arch=compute_90,code=[sm_90,compute_90]")
  set(sm90a "-gencode=arch=compute_90a,code=sm_90a")
  list(FILTER ARGN INCLUDE REGEX "\\.cu$")
  foreach(source IN LISTS ARGN)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
    if(source MATCHES "/sm90/")
      set(gencode ${sm90a})
    elseif(source MATCHES "/native/sm80/")
      set(gencode "-gencode=arch=compute_80,code=[sm_80,sm_90,sm_120,compute_80]")
    elseif(source MATCHES "/sm80/")
      set(gencode ${sm80})
    else()
      set(gencode)
      if("80" IN_LIST BATTEN_CUDA_ARCHS)
        list(APPEND gencode ${sm80})
      endif()
      if("90a" IN_LIST BATTEN_CUDA_ARCHS)
        list(APPEND gencode ${sm90})
      endif()
    endif()
    set_property(SOURCE "${source}" APPEND PROPERTY COMPILE_OPTIONS ${gencode})
    if(source MATCHES "/native/sm80/")
      # Three machine codes and PTX of each kernel: line tables would make the library twice as large.
      set_property(SOURCE "${source}" APPEND PROPERTY COMPILE_OPTIONS -compress-mode=size)
    elseif(NOT source MATCHES "/backends/single/")
      # Line tables cost nothing at run time and make profiles of our kernels readable. Those of
      # FlashInfer's templates would double the library.
      set_property(SOURCE "${source}" APPEND PROPERTY COMPILE_OPTIONS -lineinfo)
    endif()
    if(source MATCHES "/native/sm[89]0/")
      # Registers and spills, for the script.
      set_property(SOURCE "${source}" APPEND PROPERTY COMPILE_OPTIONS "-Xptxas=-v")
    endif()
  endforeach()
endfunction()
