# The tests that run the suite. Included by tests/CMakeLists.txt, which has batten_add_test.
# BATTEN_TEST_QUICK=1 runs the reduced form of the groups, for sanitizers and emulators.
batten_add_test(
  conformance_test
  conformance/conformance_test.cpp
  conformance/plain_subject.cpp
  PUBLIC_API
  COMPUTES
  LABEL conformance
  LIBRARIES batten_conformance
  TIMEOUT 900)
batten_add_test(
  mutation_test
  conformance/mutation_test.cpp
  conformance/plain_subject.cpp
  WHOLE # the mutants share the cases' expected outputs
  PUBLIC_API
  COMPUTES
  LABEL conformance
  LIBRARIES batten_conformance
  TIMEOUT 900)
batten_add_test(behaviour_test conformance/behaviour_test.cpp PUBLIC_API LABEL conformance LIBRARIES
                batten_conformance)
batten_add_test(random_test conformance/random_test.cpp PUBLIC_API LABEL conformance LIBRARIES
                batten_conformance TIMEOUT 900)
batten_add_test(
  gpu_conformance_test
  conformance/gpu_conformance_test.cpp
  PUBLIC_API
  LABEL conformance gpu
  LIBRARIES batten_conformance
  TIMEOUT 900)
if(BATTEN_WITH_CUDA)
  batten_add_test(
    gpu_behaviour_test
    conformance/gpu_behaviour_test.cpp
    conformance/gpu_large_test.cpp
    PUBLIC_API
    LABEL conformance gpu
    LIBRARIES batten_conformance
    TIMEOUT 900)
endif()
if(BATTEN_WITH_NATIVE)
  batten_test_sm80_family(gpu_conformance_test)
  batten_test_sm80_family(gpu_behaviour_test)
endif()
