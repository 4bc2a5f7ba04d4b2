/* batten.h is C99 and needs nothing before it. */
#include <batten/batten.h>

int batten_test_header_alone(void);
int batten_test_header_alone(void) {
  batten_problem problem = {0};
  problem.struct_size = sizeof(problem);
  return problem.mask == BATTEN_MASK_NONE;
}
