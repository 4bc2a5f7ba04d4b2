// What the tests of the C ABI share: a fake machine, and checks of a status and its message.
#pragma once

#include <batten/batten.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <memory>
#include <string_view>

#include "fakes/environment.hpp"
#include "fakes/expect_error.hpp"
#include "fakes/fake_backend.hpp"
#include "fakes/fake_device.hpp"
#include "fakes/test_call.hpp"

namespace batten::testing {

inline constexpr batten_device kCudaZero{BATTEN_CUDA, 0};

// The status, and batten_last_error() with all fragments in one line.
inline void expect_status(int status, int expected,
                          std::initializer_list<std::string_view> fragments) {
  EXPECT_STREQ(batten_status_name(status), batten_status_name(expected)) << batten_last_error();
  expect_message(batten_last_error(), fragments);
  EXPECT_EQ(*batten_last_error() == '\0', expected == BATTEN_OK) << batten_last_error();
}

struct Destroy {
  void operator()(batten_attention* attention) const { batten_attention_destroy(attention); }
};
using Handle = std::unique_ptr<batten_attention, Destroy>;

class CapiTest : public ::testing::Test {
 protected:
  ~CapiTest() override {
    batten_set_log_callback(nullptr, nullptr);
    batten_set_log_level(BATTEN_LOG_WARNING);
  }

  // For good_problem() on cuda:0.
  static Handle create(const char* backend = nullptr) {
    const batten_problem problem = good_problem();
    batten_options options{};
    options.struct_size = sizeof(options);
    options.backend = backend;
    batten_attention* attention = nullptr;
    EXPECT_EQ(batten_attention_create(&problem, kCudaZero, &options, &attention), BATTEN_OK)
        << batten_last_error();
    return Handle(attention);
  }

  CleanEnvironment environment_;
  FakeDevices devices_{2};
  FakeBackends backends_;
  FakeBackend& native = backends_.add("native");
  TestCall call_{good_problem(), Device::cuda(0)};
};

}  // namespace batten::testing
