#include <batten/batten.h>

#define BATTEN_TEXT_(x) #x
#define BATTEN_TEXT(x) BATTEN_TEXT_(x)

extern "C" const char* batten_version(void) {
  return BATTEN_TEXT(BATTEN_VERSION_MAJOR) "." BATTEN_TEXT(BATTEN_VERSION_MINOR) "." BATTEN_TEXT(
      BATTEN_VERSION_PATCH);
}
