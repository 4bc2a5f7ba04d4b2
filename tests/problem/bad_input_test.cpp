// Every mistake that the C structs can carry has its code and its one clear line.
#include "problem/bad_input.hpp"

#include <gtest/gtest.h>

#include "fakes/expect_error.hpp"
#include "problem/validate.hpp"

namespace batten::testing {
namespace {

class BadProblemTest : public ::testing::TestWithParam<BadProblem> {};

TEST_P(BadProblemTest, IsRefusedInOneLine) {
  batten_problem problem = good_problem();
  GetParam().spoil(problem);
  try {
    (void)impl::validate_problem(problem);
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), GetParam().code) << error.what();
    EXPECT_EQ(std::string(error.what()).rfind("problem: ", 0), 0u) << error.what();
    expect_message(error.what(), GetParam().fragments);
  }
}

class BadCallTest : public ::testing::TestWithParam<BadCall> {
 protected:
  static void check(impl::Pointers pointers) {
    const auto call = good_call(GetParam().base);
    const auto problem = impl::validate_problem(call->problem);
    ASSERT_NO_THROW((void)impl::validate_call(problem, call->device, call->raw, pointers));
    GetParam().spoil(*call);
    try {
      (void)impl::validate_call(problem, call->device, call->raw, pointers);
      FAIL() << "was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument) << error.what();
      expect_message(error.what(), GetParam().fragments);
    }
  }
};

TEST_P(BadCallTest, IsRefusedByForward) { check(impl::Pointers::required); }

TEST_P(BadCallTest, IsRefusedByPrepare) {
  if (!GetParam().only_forward) return check(impl::Pointers::ignored);
  const auto call = good_call(GetParam().base);
  GetParam().spoil(*call);
  EXPECT_NO_THROW((void)impl::validate_call(impl::validate_problem(call->problem), call->device,
                                            call->raw, impl::Pointers::ignored));
}

constexpr auto kNameOf = [](const auto& info) { return std::string(info.param.name); };

INSTANTIATE_TEST_SUITE_P(Problem, BadProblemTest, ::testing::ValuesIn(bad_problems()), kNameOf);
INSTANTIATE_TEST_SUITE_P(Tensor, BadCallTest, ::testing::ValuesIn(bad_tensors()), kNameOf);
INSTANTIATE_TEST_SUITE_P(Array, BadCallTest, ::testing::ValuesIn(bad_arrays()), kNameOf);
INSTANTIATE_TEST_SUITE_P(Overlap, BadCallTest, ::testing::ValuesIn(bad_overlaps()), kNameOf);

}  // namespace

// Printed by GoogleTest where a case fails.
void PrintTo(const BadProblem& bad, std::ostream* out) { *out << bad.name; }
void PrintTo(const BadCall& bad, std::ostream* out) { *out << bad.name; }

std::unique_ptr<TestCall> good_call(Base base) {
  const Device gpu = Device::cuda(0);
  switch (base) {
    case Base::dense: {
      auto call = std::make_unique<TestCall>(good_problem());
      call->with_lse().with_q_lengths({5, 3}).with_kv_lengths({0, 7});
      return call;
    }
    case Base::packed: {
      auto call = TestCall::packed(good_problem(), Device::cpu(), {0, 3, 3, 8}, {1, 5, 9, 11});
      call->with_lse();
      return call;
    }
    case Base::packed_lengths: {
      auto call = TestCall::packed(good_problem(), Device::cpu(), {0, 3, 8}, {1, 5, 11});
      call->with_q_lengths({2, 5}).with_kv_lengths({4, 0});
      return call;
    }
    case Base::gpu: {
      auto call = std::make_unique<TestCall>(good_problem(), gpu);
      call->with_lse().with_kv_lengths({3, 7}, /*on_device=*/true);
      return call;
    }
    case Base::gpu_packed: {
      auto call = TestCall::packed(good_problem(), gpu, {0, 3, 8}, {0, 5, 9});
      call->offsets_on_device(5, 5);
      return call;
    }
  }
  return nullptr;
}

}  // namespace batten::testing
