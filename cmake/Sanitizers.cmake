# BATTEN_SANITIZE applies to every target: a sanitizer that sees half a program reports nonsense.
if(BATTEN_SANITIZE)
  list(JOIN BATTEN_SANITIZE "," batten_sanitizers)
  set(batten_sanitize_flags -fsanitize=${batten_sanitizers} -fno-omit-frame-pointer
                            -fno-sanitize-recover=all)
  # A fuzz target's main() is the fuzzer's; everything else only needs its coverage counters.
  string(REPLACE "-fsanitize=fuzzer" "-fsanitize=fuzzer-no-link" batten_sanitize_flags
                 "${batten_sanitize_flags}")
  string(REPLACE ",fuzzer," ",fuzzer-no-link," batten_sanitize_flags "${batten_sanitize_flags}")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX,C>:${batten_sanitize_flags}>")
  # GCC 12 takes an empty std::optional for an uninitialised value once it is instrumented.
  add_compile_options("$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>")
  add_link_options(${batten_sanitize_flags})
  add_compile_definitions("$<$<COMPILE_LANGUAGE:CXX>:_GLIBCXX_ASSERTIONS>")
endif()

# ThreadSanitizer's shadow memory collides with a strongly randomised address space. Where the plain
# program cannot start, run the tests without randomisation.
if("thread" IN_LIST BATTEN_SANITIZE AND NOT DEFINED BATTEN_TSAN_RUNS)
  set(probe "${CMAKE_CURRENT_BINARY_DIR}/tsan_probe")
  file(WRITE "${probe}.cpp" "int main() { return 0; }\n")
  execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -fsanitize=thread "${probe}.cpp" -o "${probe}"
                          COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND "${probe}" RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
  set(BATTEN_TSAN_RUNS TRUE CACHE INTERNAL "")
  if(NOT result EQUAL 0)
    set(CMAKE_CROSSCOMPILING_EMULATOR setarch;${CMAKE_HOST_SYSTEM_PROCESSOR};-R
        CACHE STRING "Starts the tests" FORCE)
  endif()
endif()
