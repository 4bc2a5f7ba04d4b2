// Nothing throws across the ABI, and each thread has its own last error.
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "capi/capi_test.hpp"

namespace batten::testing {
namespace {

class ErrorsTest : public CapiTest {
 protected:
  int forward() { return batten_forward(attention_.get(), &call_.raw, nullptr); }

  Handle attention_ = create();
};

TEST_F(ErrorsTest, WhateverABackendThrowsIsAStatus) {
  struct Case {
    std::function<void()> raise;
    int status;
    const char* fragment;
  };
  const Case all[] = {
      {[] { throw Error(ErrorCode::InvalidArgument, "a"); }, BATTEN_INVALID_ARGUMENT, "a"},
      {[] { throw Error(ErrorCode::Unsupported, "b"); }, BATTEN_UNSUPPORTED, "b"},
      {[] { throw Error(ErrorCode::Unavailable, "c"); }, BATTEN_UNAVAILABLE, "c"},
      {[] { throw Error(ErrorCode::OutOfMemory, "d"); }, BATTEN_OUT_OF_MEMORY, "d"},
      {[] { throw Error(ErrorCode::Device, "e"); }, BATTEN_DEVICE_ERROR, "e"},
      {[] { throw Error(ErrorCode::Internal, "f"); }, BATTEN_INTERNAL, "f"},
      {[] { throw std::bad_alloc(); }, BATTEN_OUT_OF_MEMORY, "out of host memory"},
      {[] { throw std::out_of_range("index 7"); }, BATTEN_INTERNAL, "index 7"},
      {[] { throw 42; }, BATTEN_INTERNAL, "unknown failure"},
  };
  for (const Case& c : all) {
    native.answers().on_plan = c.raise;
    expect_status(forward(), c.status, {c.fragment});
    expect_status(batten_prepare(attention_.get(), &call_.raw, nullptr), c.status, {c.fragment});
  }
  native.answers().on_plan = nullptr;
  for (const Case& c : all) {
    native.answers().on_run = [&](const RecordedRun&) { c.raise(); };
    expect_status(forward(), c.status, {c.fragment});
  }
}

TEST_F(ErrorsTest, WhateverABackendThrowsWhenItIsAskedIsAStatus) {
  native.answers().availability = [](Device) -> impl::Availability { throw 42; };
  const batten_problem problem = good_problem();
  batten_attention* attention = nullptr;
  expect_status(batten_attention_create(&problem, kCudaZero, nullptr, &attention), BATTEN_INTERNAL,
                {"unknown failure"});
  EXPECT_EQ(attention, nullptr);
  expect_status(batten_info(nullptr, 0, nullptr), BATTEN_INTERNAL, {"unknown failure"});
}

TEST_F(ErrorsTest, AMessageIsOneLineWhateverItIsMadeOf) {
  native.answers().on_plan = [] {
    throw Error(ErrorCode::Device, "first\nsecond\r\n\tthird\x1b[0m");
  };
  expect_status(forward(), BATTEN_DEVICE_ERROR, {"first second", "third"});
  EXPECT_EQ(std::string(batten_last_error()).find('\x1b'), std::string::npos);
  const batten_problem problem = good_problem();
  batten_options options{};
  options.struct_size = sizeof(options);
  options.backend = "no\nsuch";
  batten_attention* attention = nullptr;
  expect_status(batten_attention_create(&problem, kCudaZero, &options, &attention),
                BATTEN_INVALID_ARGUMENT, {"unknown backend 'no such'"});
}

TEST_F(ErrorsTest, ASuccessClearsTheLastError) {
  EXPECT_NE(batten_forward(nullptr, nullptr, nullptr), BATTEN_OK);
  EXPECT_STRNE(batten_last_error(), "");
  EXPECT_STRNE(batten_last_error(), "") << "reading it does not clear it";
  EXPECT_EQ(forward(), BATTEN_OK);
  EXPECT_STREQ(batten_last_error(), "");
}

TEST_F(ErrorsTest, TheLastErrorIsTheThreadsOwn) {
  EXPECT_NE(batten_forward(nullptr, nullptr, nullptr), BATTEN_OK);
  std::thread other([&] {
    EXPECT_STREQ(batten_last_error(), "");
    EXPECT_NE(batten_forward(attention_.get(), nullptr, nullptr), BATTEN_OK);
    EXPECT_STREQ(batten_last_error(), "call: null pointer");
    EXPECT_EQ(forward(), BATTEN_OK);
  });
  other.join();
  EXPECT_STREQ(batten_last_error(), "attention: null pointer");
}

}  // namespace
}  // namespace batten::testing
