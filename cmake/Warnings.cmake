# Warnings of batten's own code. The interface target keeps them away from what we export.
add_library(batten_warnings INTERFACE)
add_library(batten::warnings ALIAS batten_warnings)

set(batten_cxx_warnings -Wall -Wextra -Wundef -Wnon-virtual-dtor)
set(batten_c_warnings -Wall -Wextra -Wpedantic -Wstrict-prototypes)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees overlapping copies in std::string where there are none (its bug 105651).
  list(APPEND batten_cxx_warnings -Wno-restrict)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # clang warns of members left to their default in designated initialisers; that is their point.
  list(APPEND batten_cxx_warnings -Wno-missing-field-initializers)
endif()

target_compile_options(
  batten_warnings
  INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${batten_cxx_warnings}>"
            "$<$<COMPILE_LANGUAGE:C>:${batten_c_warnings}>"
            # -Wextra and -Wpedantic dislike what nvcc generates.
            "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall>")
if(BATTEN_WERROR)
  target_compile_options(
    batten_warnings
    INTERFACE "$<$<COMPILE_LANGUAGE:CXX,C>:-Werror>"
              "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Werror>")
endif()
