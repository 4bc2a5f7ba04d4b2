// Structs of older and newer callers, and of callers that forgot to say.
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "capi/capi_test.hpp"

namespace batten::testing {
namespace {

// The ABI: members stay where they are. New ones are added behind, in the last column.
static_assert(sizeof(void*) != 8 || sizeof(batten_tensor) == 88);
static_assert(sizeof(void*) != 8 || offsetof(batten_tensor, device) == 80);
static_assert(sizeof(void*) != 8 || offsetof(batten_problem, scale) == 40);
static_assert(sizeof(void*) != 8 || offsetof(batten_problem, batch_invariant) == 48);
static_assert(sizeof(void*) != 8 || offsetof(batten_options, num_threads) == 16);
static_assert(sizeof(void*) != 8 || offsetof(batten_call, lse) == 40);
static_assert(sizeof(void*) != 8 || offsetof(batten_call, max_q) == 80);
static_assert(sizeof(void*) != 8 || offsetof(batten_call, scale) == 104);
static_assert(sizeof(void*) != 8 || offsetof(batten_call, workspace_size) == 128);
static_assert(sizeof(void*) != 8 || offsetof(batten_receipt, splits) == 168);
static_assert(sizeof(void*) != 8 || offsetof(batten_receipt, reason) == 344);

// A struct in a larger piece of memory, as a newer caller's is.
template <class T>
class Larger {
 public:
  Larger(const T& value, std::size_t struct_size) : bytes_(sizeof(T) + 256, 0) {
    std::memcpy(bytes_.data(), &value, sizeof(T));
    std::memcpy(bytes_.data(), &struct_size, sizeof(struct_size));
  }
  unsigned char& byte(std::size_t i) { return bytes_[i]; }
  T* get() { return reinterpret_cast<T*>(bytes_.data()); }

 private:
  std::vector<unsigned char> bytes_;
};

constexpr std::size_t kNotSizes[] = {0, 1, 8, 15, 4097, std::size_t{1} << 40, SIZE_MAX};

class StructSizeTest : public CapiTest {
 protected:
  int create_with(const batten_problem* problem, const batten_options* options) {
    batten_attention* attention = nullptr;
    const int status = batten_attention_create(problem, kCudaZero, options, &attention);
    handle_.reset(attention);
    return status;
  }

  Handle handle_;
};

TEST_F(StructSizeTest, ThatWereNeverSetAreRefused) {
  const Handle attention = create();
  for (const std::size_t size : kNotSizes) {
    const std::string is = "struct_size is " + std::to_string(size);
    batten_problem problem = good_problem();
    problem.struct_size = size;
    expect_status(create_with(&problem, nullptr), BATTEN_INVALID_ARGUMENT,
                  {"batten_problem", is, "set it to sizeof(batten_problem)"});
    problem = good_problem();
    batten_options options{};
    options.struct_size = size;
    expect_status(create_with(&problem, &options), BATTEN_INVALID_ARGUMENT,
                  {"batten_options", is, "sizeof(batten_options)"});
    batten_call call = call_.raw;
    call.struct_size = size;
    expect_status(batten_forward(attention.get(), &call, nullptr), BATTEN_INVALID_ARGUMENT,
                  {"batten_call", is, "sizeof(batten_call)"});
    expect_status(batten_prepare(attention.get(), &call, nullptr), BATTEN_INVALID_ARGUMENT,
                  {"batten_call", is});
    batten_receipt receipt{};
    receipt.struct_size = size;
    expect_status(batten_forward(attention.get(), &call_.raw, &receipt), BATTEN_INVALID_ARGUMENT,
                  {"batten_receipt", is, "sizeof(batten_receipt)"});
  }
  EXPECT_TRUE(native.runs().empty());
}

TEST_F(StructSizeTest, OfAnOlderCallerLeaveTheRestAtItsDefault) {
  // What lies behind the older struct is the caller's, and none of our business.
  batten_problem problem = good_problem();
  problem.struct_size = offsetof(batten_problem, head_dim_v);
  problem.head_dim_v = -1;
  problem.mask = 99;
  problem.has_scale = 1;
  problem.scale = std::numeric_limits<double>::quiet_NaN();
  batten_options options{};
  options.struct_size = offsetof(batten_options, num_threads);
  options.num_threads = -1;
  ASSERT_EQ(create_with(&problem, &options), BATTEN_OK) << batten_last_error();
  batten_call call = call_.raw;
  call.struct_size = offsetof(batten_call, lse);
  call.lse = reinterpret_cast<const batten_tensor*>(std::uintptr_t{8});
  call.offsets_q = call.lse;
  call.max_q = -1;
  call.has_scale = 1;
  call.scale = std::numeric_limits<double>::infinity();
  call.workspace = reinterpret_cast<void*>(std::uintptr_t{3});
  ASSERT_EQ(batten_forward(handle_.get(), &call, nullptr), BATTEN_OK) << batten_last_error();
  ASSERT_EQ(native.runs().size(), 1u);
  EXPECT_FALSE(native.runs()[0].shape.lse);
  EXPECT_EQ(native.runs()[0].call.scale, 0.125);
}

TEST_F(StructSizeTest, OfAnOlderReceiptGetWhatTheyHold) {
  const Handle attention = create();
  batten_receipt receipt{};
  receipt.struct_size = offsetof(batten_receipt, kernel);
  receipt.kernel[0] = 'x';
  ASSERT_EQ(batten_forward(attention.get(), &call_.raw, &receipt), BATTEN_OK);
  EXPECT_STREQ(receipt.backend, "native");
  EXPECT_EQ(receipt.kernel[0], 'x');
  EXPECT_EQ(receipt.struct_size, offsetof(batten_receipt, kernel));
}

TEST_F(StructSizeTest, OfANewerCallerMayBeLargerWhereTheyAreZero) {
  Larger<batten_problem> problem(good_problem(), sizeof(batten_problem) + 64);
  Larger<batten_options> options(batten_options{}, sizeof(batten_options) + 64);
  // What lies behind even the newer struct is not read.
  problem.byte(sizeof(batten_problem) + 64) = 1;
  ASSERT_EQ(create_with(problem.get(), options.get()), BATTEN_OK) << batten_last_error();
  Larger<batten_call> call(call_.raw, sizeof(batten_call) + 64);
  Larger<batten_receipt> receipt(batten_receipt{}, sizeof(batten_receipt) + 64);
  receipt.byte(sizeof(batten_receipt) + 3) = 0xAB;
  receipt.byte(sizeof(batten_receipt) + 64) = 0xAB;
  ASSERT_EQ(batten_forward(handle_.get(), call.get(), receipt.get()), BATTEN_OK)
      << batten_last_error();
  EXPECT_STREQ(receipt.get()->backend, "native");
  EXPECT_EQ(receipt.byte(sizeof(batten_receipt) + 3), 0) << "members that this library leaves out";
  EXPECT_EQ(receipt.byte(sizeof(batten_receipt) + 64), 0xAB);
}

TEST_F(StructSizeTest, OfANewerCallerThatWantsMoreAreRefused) {
  const Handle attention = create();
  for (const std::size_t where : {std::size_t{0}, std::size_t{31}, std::size_t{63}}) {
    Larger<batten_problem> problem(good_problem(), sizeof(batten_problem) + 64);
    problem.byte(sizeof(batten_problem) + where) = 1;
    expect_status(create_with(problem.get(), nullptr), BATTEN_UNSUPPORTED,
                  {"batten_problem", "does not know", batten_version()});
    Larger<batten_options> options(batten_options{}, sizeof(batten_options) + 64);
    options.byte(sizeof(batten_options) + where) = 0x80;
    const batten_problem good = good_problem();
    expect_status(create_with(&good, options.get()), BATTEN_UNSUPPORTED, {"batten_options"});
    Larger<batten_call> call(call_.raw, sizeof(batten_call) + 64);
    call.byte(sizeof(batten_call) + where) = 1;
    expect_status(batten_forward(attention.get(), call.get(), nullptr), BATTEN_UNSUPPORTED,
                  {"batten_call"});
    expect_status(batten_prepare(attention.get(), call.get(), nullptr), BATTEN_UNSUPPORTED,
                  {"batten_call"});
  }
  EXPECT_TRUE(native.runs().empty());
}

}  // namespace
}  // namespace batten::testing
