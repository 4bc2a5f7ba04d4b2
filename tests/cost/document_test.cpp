// Documents of constants: back and forth, and every way in which one can be wrong.
#include "cost/document.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "cost/shipped.hpp"
#include "fakes/expect_error.hpp"

namespace batten::impl::cost {
namespace {

using Json = nlohmann::json;
using testing::expect_error;

Document document() {
  Document d;
  d.card = {.name = "NVIDIA X1",
            .arch = 90,
            .multiprocessors = 132,
            .clock_mhz = 1980,
            .memory_gbps = 4800};
  d.origin = {{"date", "2026-11-30"}, {"command", "batten tune"}};
  d.kernels = {{.kernel = "native",
                .head_dim = 128,
                .causal = false,
                .launch_us = 1.5,
                .tile_us = 1.25,
                .block_us = 1.33,
                .part_us = 0.5,
                .merge_us = 0.25,
                .tflops = 700,
                .gbps = 4300},
               {.kernel = "cudnn:decode", .head_dim = 64, .causal = true, .launch_us = 7}};
  d.measured = {{{.dtype = DType::bf16,
                  .mask = Mask::causal,
                  .batch = 4,
                  .queries = 128,
                  .keys = 4096,
                  .num_heads = 12,
                  .num_kv_heads = 4,
                  .head_dim = 128},
                 {{"native", 21.5}, {"cudnn", 54}}}};
  return d;
}

TEST(Document, ComesBackAsItWas) { EXPECT_EQ(parse_document(to_json(document())), document()); }

TEST(Document, NumbersKeepFourDigits) {
  Document d = document();
  d.kernels[0].block_us = 1.23456789;
  EXPECT_EQ(parse_document(to_json(d)).kernels[0].block_us, 1.235);
}

TEST(Document, OfAShippedCardIsRight) {
  ASSERT_FALSE(shipped_cards().empty());
  for (const ShippedCard& card : shipped_cards()) {
    EXPECT_EQ(find_shipped(card.key), &card);
    EXPECT_NE(shipped_keys().find(card.key), std::string::npos);
    EXPECT_FALSE(card.document.kernels.empty());
    EXPECT_EQ(parse_document(to_json(card.document)), card.document);
  }
  EXPECT_EQ(find_shipped("nothing"), nullptr);
  ASSERT_NE(find_shipped("h200"), nullptr);
  EXPECT_EQ(find_shipped("H200"), find_shipped("h200"));
  EXPECT_EQ(find_shipped("NVIDIA H200"), find_shipped("h200"));
  EXPECT_EQ(find_shipped("h200")->document.card.name, "NVIDIA H200");
}

TEST(Document, ThatIsNoJsonIsRefused) {
  for (const char* text : {"", "{", "[]", "3", "null", "{\"format\": \"batten card\"", "\xff\xfe",
                           "{\"a\": 1} trailing"}) {
    expect_error(ErrorCode::InvalidArgument, {"it is no JSON object"},
                 [&] { (void)parse_document(text); });
  }
}

// A right document with one change.
void expect_wrong(const std::function<void(Json&)>& change, std::string_view where,
                  std::string_view what) {
  Json json = Json::parse(to_json(document()));
  change(json);
  expect_error(ErrorCode::InvalidArgument, {where, what},
               [&] { (void)parse_document(json.dump()); });
}

TEST(Document, OfAnotherFormatOrVersionIsRefused) {
  expect_wrong([](Json& j) { j["format"] = "batten plan"; }, "format", "expected");
  expect_wrong([](Json& j) { j.erase("format"); }, "format", "is missing");
  expect_wrong([](Json& j) { j["version"] = 2; }, "version", "is 2, this batten reads 1");
  expect_wrong([](Json& j) { j["version"] = "1"; }, "version", "whole number");
}

TEST(Document, MistakesAreNamedWithTheirPlace) {
  expect_wrong([](Json& j) { j.erase("card"); }, "card", "is missing");
  expect_wrong([](Json& j) { j["card"] = 3; }, "card", "expected an object");
  expect_wrong([](Json& j) { j["card"]["name"] = ""; }, "card.name", "expected a text");
  expect_wrong([](Json& j) { j["card"]["multiprocessors"] = 0; }, "card.multiprocessors",
               "0 is not between 1");
  expect_wrong([](Json& j) { j["card"]["multiprocessors"] = 132.5; }, "card.multiprocessors",
               "whole number");
  expect_wrong([](Json& j) { j["card"]["multiprocessors"] = 1e300; }, "card.multiprocessors",
               "whole number");
  expect_wrong([](Json& j) { j["card"]["multiprocessors"] = ~std::uint64_t{0}; },
               "card.multiprocessors", "not between");
  expect_wrong([](Json& j) { j["card"]["clock_mhz"] = -1; }, "card.clock_mhz", "not between");
  expect_wrong([](Json& j) { j["origin"] = "me"; }, "origin", "expected an object");
  expect_wrong([](Json& j) { j.erase("kernels"); }, "kernels", "is missing");
  expect_wrong([](Json& j) { j["kernels"] = Json::object(); }, "kernels", "expected an array");
  expect_wrong([](Json& j) { j["kernels"][1] = 7; }, "kernels[1]", "expected an object");
  expect_wrong([](Json& j) { j["kernels"][1].erase("causal"); }, "kernels[1].causal", "is missing");
  expect_wrong([](Json& j) { j["kernels"][0]["head_dim"] = 0; }, "kernels[0].head_dim",
               "not between");
  expect_wrong([](Json& j) { j["kernels"][0]["block_us"] = "1"; }, "kernels[0].block_us",
               "expected a number");
  expect_wrong([](Json& j) { j["kernels"][0]["block_us"] = 1e12; }, "kernels[0].block_us",
               "not between");
  expect_wrong([](Json& j) { j["kernels"][0]["block_us"] = -0.1; }, "kernels[0].block_us",
               "not between");
  expect_wrong([](Json& j) { j["kernels"][1]["launch_us"] = 0; }, "kernels[1]",
               "all of its costs are 0");
  expect_wrong([](Json& j) { j["kernels"][1] = j["kernels"][0]; }, "kernels[1]",
               "native d128 stands here twice");
  expect_wrong([](Json& j) { j["measured"][0]["dtype"] = "float8"; }, "measured[0].dtype",
               "'float8' is not known");
  expect_wrong([](Json& j) { j["measured"][0]["mask"] = "window"; }, "measured[0].mask",
               "is not known");
  expect_wrong([](Json& j) { j["measured"][0]["kv_length"] = -3; }, "measured[0].kv_length",
               "not between");
  expect_wrong([](Json& j) { j["measured"][0]["us"] = Json::object(); }, "measured[0].us",
               "times by backend");
  expect_wrong([](Json& j) { j["measured"][0]["us"]["cudnn"] = 0; }, "measured[0].us",
               "cudnn takes no time");
}

TEST(Document, HugeNumbersAreNoNumbers) {
  std::string text = to_json(document());
  const auto at = text.find("1.33");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 4, "1e999");  // JSON has no infinity; parsers differ in what this is
  EXPECT_THROW((void)parse_document(text), Error);
}

TEST(Document, DeepNestingIsNoCrash) {
  const std::string deep(100'000, '[');
  EXPECT_THROW((void)parse_document(deep), Error);
}

}  // namespace
}  // namespace batten::impl::cost
