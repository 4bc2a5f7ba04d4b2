/* What the C99 test program offers to the test that calls it. */
#ifndef BATTEN_TESTS_CAPI_HEADER_C99_H_
#define BATTEN_TESTS_CAPI_HEADER_C99_H_

#ifdef __cplusplus
extern "C" {
#endif

/* Uses every function of batten.h from C on `device_type`. NULL, or what went wrong. */
const char* use_batten_from_c(int device_type);

#ifdef __cplusplus
}
#endif
#endif
