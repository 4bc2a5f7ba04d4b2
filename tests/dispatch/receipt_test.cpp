// Receipts: what they say, and how they fit into structs of other versions.
#include "dispatch/receipt.hpp"

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "dispatch/dispatch_test.hpp"

namespace batten::testing {
namespace {

using impl::copy_receipt;
using impl::make_receipt;

impl::PlanInfo long_info() {
  return {.form = std::string(100, 'f'),
          .kernel = std::string(1000, 'k'),
          .tile = std::string(1000, 't'),
          .splits = 7,
          .library = std::string(1000, 'l'),
          .workspace_size = std::size_t{1} << 40};
}

TEST(Receipt, SaysWhatThePlanSays) {
  const impl::PlanInfo info{.form = "packed",
                            .kernel = "sm90_d128",
                            .tile = "128x176",
                            .splits = 3,
                            .library = "cuDNN 9.19",
                            .workspace_size = 4096};
  const batten_receipt r = make_receipt("cudnn", info, "because");
  EXPECT_STREQ(r.backend, "cudnn");
  EXPECT_STREQ(r.form, "packed");
  EXPECT_STREQ(r.kernel, "sm90_d128");
  EXPECT_STREQ(r.tile, "128x176");
  EXPECT_EQ(r.splits, 3);
  EXPECT_STREQ(r.library, "cuDNN 9.19");
  EXPECT_EQ(r.workspace_size, 4096u);
  EXPECT_STREQ(r.reason, "because");
}

TEST(Receipt, CutsStringsThatDoNotFit) {
  const batten_receipt r =
      make_receipt(std::string(1000, 'b'), long_info(), std::string(5000, 'r'));
  EXPECT_EQ(r.backend, std::string(sizeof(r.backend) - 1, 'b'));
  EXPECT_EQ(r.form, std::string(sizeof(r.form) - 1, 'f'));
  EXPECT_EQ(r.kernel, std::string(sizeof(r.kernel) - 1, 'k'));
  EXPECT_EQ(r.tile, std::string(sizeof(r.tile) - 1, 't'));
  EXPECT_EQ(r.library, std::string(sizeof(r.library) - 1, 'l'));
  EXPECT_EQ(r.reason, std::string(sizeof(r.reason) - 1, 'r'));
  EXPECT_EQ(r.splits, 7);
  EXPECT_EQ(r.workspace_size, std::uint64_t{1} << 40);
}

TEST(Receipt, KeepsStringsThatJustFit) {
  impl::PlanInfo info;
  info.form = std::string(15, 'f');
  EXPECT_STREQ(make_receipt("b", info, "").form, info.form.c_str());
}

// A receipt in a larger piece of memory, full of rubbish.
class Memory {
 public:
  explicit Memory(std::size_t struct_size) : bytes_(4096, 0xAB) {
    receipt().struct_size = struct_size;
  }
  batten_receipt& receipt() { return *reinterpret_cast<batten_receipt*>(bytes_.data()); }
  // The first byte that is rubbish from `from` on.
  std::size_t rubbish_from(std::size_t from) const {
    while (from < bytes_.size() && bytes_[from] != 0xAB) ++from;
    return from;
  }
  unsigned char at(std::size_t i) const { return bytes_[i]; }

 private:
  std::vector<unsigned char> bytes_;
};

TEST(Receipt, FillsTheWholeStructOfThisVersion) {
  Memory memory(sizeof(batten_receipt));
  const batten_receipt source = make_receipt("cpu", long_info(), "why");
  copy_receipt(source, true, memory.receipt());
  EXPECT_EQ(memory.receipt().struct_size, sizeof(batten_receipt));
  EXPECT_EQ(memory.receipt().plan_reused, 1);
  EXPECT_STREQ(memory.receipt().backend, "cpu");
  EXPECT_STREQ(memory.receipt().reason, "why");
  EXPECT_EQ(memory.receipt().splits, 7);
  EXPECT_EQ(memory.rubbish_from(0), sizeof(batten_receipt)) << "and nothing behind it";
  copy_receipt(source, false, memory.receipt());
  EXPECT_EQ(memory.receipt().plan_reused, 0);
}

TEST(Receipt, FillsWhatAnOlderStructHas) {
  const batten_receipt source = make_receipt("cpu", long_info(), "why");
  for (const std::size_t size :
       {offsetof(batten_receipt, form), offsetof(batten_receipt, tile),
        offsetof(batten_receipt, splits), offsetof(batten_receipt, plan_reused),
        offsetof(batten_receipt, workspace_size), offsetof(batten_receipt, reason)}) {
    Memory memory(size);
    copy_receipt(source, true, memory.receipt());
    EXPECT_EQ(memory.receipt().struct_size, size);
    EXPECT_STREQ(memory.receipt().backend, "cpu");
    EXPECT_EQ(memory.rubbish_from(sizeof(std::size_t)), size);
    if (size >= offsetof(batten_receipt, workspace_size)) {
      EXPECT_EQ(memory.receipt().plan_reused, 1);
    }
  }
}

TEST(Receipt, ZeroesWhatANewerStructHasBesides) {
  const std::size_t size = sizeof(batten_receipt) + 40;
  Memory memory(size);
  copy_receipt(make_receipt("cpu", long_info(), "why"), true, memory.receipt());
  EXPECT_EQ(memory.receipt().struct_size, size);
  for (std::size_t i = sizeof(batten_receipt); i < size; ++i) EXPECT_EQ(memory.at(i), 0) << i;
  EXPECT_EQ(memory.rubbish_from(sizeof(batten_receipt)), size);
  EXPECT_EQ(memory.receipt().plan_reused, 1);
}

// ---- of an attention
// ----------------------------------------------------------------------------------

class ReceiptTest : public DispatchTest {};

TEST_F(ReceiptTest, EachShapeHasItsOwn) {
  FakeBackend& native = backends_.add("native");
  native.answers().workspace_size = [](const impl::Shape& shape) {
    return static_cast<std::size_t>(shape.max_q) * 1000;
  };
  auto a = attention();
  TestCall short_call(good_problem(), kGpu, {2, 5, 7});
  TestCall long_call(good_problem(), kGpu, {2, 9, 7});
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(forward(a, short_call.raw).workspace_size, 5000u);
    EXPECT_EQ(forward(a, long_call.raw).workspace_size, 9000u);
  }
}

TEST_F(ReceiptTest, IsOptionalAndOfTheCallersSize) {
  backends_.add("native");
  auto a = attention();
  TestCall call(good_problem(), kGpu);
  EXPECT_NO_THROW(a.forward(call.raw, nullptr));
  Memory memory(offsetof(batten_receipt, kernel));
  a.forward(call.raw, &memory.receipt());
  EXPECT_STREQ(memory.receipt().backend, "native");
  EXPECT_STREQ(memory.receipt().form, "dense");
  EXPECT_EQ(memory.rubbish_from(sizeof(std::size_t)), offsetof(batten_receipt, kernel));
}

TEST_F(ReceiptTest, SaysWhatEarlierCallsHaveShown) {
  FakeBackend& native = backends_.add("native");
  int calls = 0;
  native.answers().on_run = [&](const RecordedRun&) { ++calls; };
  native.answers().remark = [&] { return calls < 2 ? "" : std::to_string(calls) + " calls"; };
  auto a = attention();
  TestCall call(good_problem(), kGpu);
  EXPECT_STREQ(forward(a, call.raw).kernel, "fake_kernel");
  EXPECT_STREQ(forward(a, call.raw).kernel, "fake_kernel, 2 calls");
  EXPECT_STREQ(forward(a, call.raw).kernel, "fake_kernel, 3 calls");
  native.answers().remark = [] { return std::string(200, 'r'); };
  const batten_receipt receipt = forward(a, call.raw);
  EXPECT_EQ(std::strlen(receipt.kernel), sizeof(receipt.kernel) - 1);
  EXPECT_STREQ(receipt.tile, "128x64");
}

TEST_F(ReceiptTest, ALongReasonIsCutNotLost) {
  for (int i = 0; i < 20; ++i) {
    backends_.add("b" + std::to_string(i)).unavailable(std::string(100, 'x'), "");
  }
  backends_.add("last");
  auto a = attention();
  TestCall call(good_problem(), kGpu);
  const batten_receipt receipt = forward(a, call.raw);
  EXPECT_STREQ(receipt.backend, "last");
  EXPECT_EQ(std::strlen(receipt.reason), sizeof(receipt.reason) - 1);
  EXPECT_EQ(
      std::string(receipt.reason).rfind("auto (default): first that serves this call; b0: x", 0),
      0u);
}

}  // namespace
}  // namespace batten::testing
