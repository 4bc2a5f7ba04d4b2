#include "capi/header_c99.h"

#include "capi/capi_test.hpp"

namespace batten::testing {
namespace {

class HeaderC99Test : public CapiTest {};

TEST_F(HeaderC99Test, AllOfItWorksFromC) {
  native.answers().plan_info.workspace_size = 1000;
  EXPECT_STREQ(use_batten_from_c(BATTEN_CPU), nullptr);
  EXPECT_STREQ(use_batten_from_c(BATTEN_CUDA), nullptr);
  EXPECT_EQ(native.runs().size(), 2u);
}

}  // namespace
}  // namespace batten::testing
