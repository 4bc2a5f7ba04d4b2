// Codes, names and messages of errors.
#include "core/error.hpp"

#include <gtest/gtest.h>

#include "fakes/expect_error.hpp"

namespace batten::testing {
namespace {

TEST(Error, CarriesItsCodeAndMessage) {
  const Error error(ErrorCode::OutOfMemory, "no room");
  EXPECT_EQ(error.code(), ErrorCode::OutOfMemory);
  EXPECT_STREQ(error.what(), "no room");
  try {
    throw Error(ErrorCode::Device, "lost");
  } catch (const std::runtime_error& caught) {
    EXPECT_STREQ(caught.what(), "lost");
  }
}

TEST(Error, FailFormats) {
  expect_error(ErrorCode::Unsupported, {"q: head dim 72, expected 64"},
               [] { fail(ErrorCode::Unsupported, "{}: head dim {}, expected {}", "q", 72, 64L); });
  expect_error(ErrorCode::Internal, {"braces {} in the text"},
               [] { fail(ErrorCode::Internal, "{}", "braces {} in the text"); });
}

TEST(Error, CodesAreTheStatusesOfTheHeader) {
  const std::pair<ErrorCode, int> all[] = {{ErrorCode::InvalidArgument, BATTEN_INVALID_ARGUMENT},
                                           {ErrorCode::Unsupported, BATTEN_UNSUPPORTED},
                                           {ErrorCode::Unavailable, BATTEN_UNAVAILABLE},
                                           {ErrorCode::OutOfMemory, BATTEN_OUT_OF_MEMORY},
                                           {ErrorCode::Device, BATTEN_DEVICE_ERROR},
                                           {ErrorCode::Internal, BATTEN_INTERNAL}};
  for (const auto& [code, status] : all) EXPECT_EQ(static_cast<int>(code), status);
  EXPECT_STREQ(name_of(ErrorCode::InvalidArgument), "InvalidArgument");
  EXPECT_STREQ(name_of(ErrorCode::Device), "Device");
  EXPECT_STREQ(name_of(static_cast<ErrorCode>(99)), "Unknown");
}

TEST(Error, OneLineHasNoControlCharacters) {
  EXPECT_EQ(impl::one_line("plain größe"), "plain größe");
  EXPECT_EQ(impl::one_line("a\nb\r\tc\x1b[31m\x7f"), "a b  c [31m ");
  EXPECT_EQ(impl::one_line(""), "");
}

TEST(Types, SizesAndNamesOfElements) {
  EXPECT_EQ(size_of(DType::f32), 4u);
  EXPECT_EQ(size_of(DType::f16), 2u);
  EXPECT_EQ(size_of(DType::bf16), 2u);
  EXPECT_EQ(size_of(DType::i32), 4u);
  EXPECT_EQ(size_of(DType::none), 0u);
  EXPECT_EQ(size_of(static_cast<DType>(77)), 0u);
  EXPECT_STREQ(name_of(DType::f32), "float32");
  EXPECT_STREQ(name_of(DType::f16), "float16");
  EXPECT_STREQ(name_of(DType::bf16), "bfloat16");
  EXPECT_STREQ(name_of(DType::i32), "int32");
  EXPECT_STREQ(name_of(DType::none), "none");
  EXPECT_STREQ(name_of(static_cast<DType>(77)), "none");
}

TEST(Types, NamesOfMasksAndDevices) {
  EXPECT_STREQ(name_of(Mask::none), "none");
  EXPECT_STREQ(name_of(Mask::causal), "causal");
  EXPECT_STREQ(name_of(Mask::causal_top_left), "causal_top_left");
  EXPECT_STREQ(name_of(static_cast<Mask>(9)), "unknown");
  EXPECT_EQ(Device::cpu().str(), "cpu");
  EXPECT_EQ(Device::cuda(3).str(), "cuda:3");
  EXPECT_TRUE(Device::cpu().is_cpu());
  EXPECT_FALSE(Device::cuda().is_cpu());
  EXPECT_NE(Device::cuda(0), Device::cuda(1));
  EXPECT_NE(Device::cuda(0), Device::cpu());
}

}  // namespace
}  // namespace batten::testing
