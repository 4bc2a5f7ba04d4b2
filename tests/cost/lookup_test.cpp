// Which constants a device gets, and what becomes of files that are wrong.
#include "cost/lookup.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/log.hpp"
#include "cost/shipped.hpp"
#include "fakes/environment.hpp"
#include "fakes/expect_error.hpp"

namespace batten::impl::cost {
namespace {

using testing::expect_error;
using testing::ScopedVariable;
namespace fs = std::filesystem;

CardProperties h200() { return find_shipped("h200")->document.card; }

CardProperties unknown(double clock_mhz, int multiprocessors, double memory_gbps) {
  CardProperties p{.name = "NVIDIA H100 SXM", .arch = 90};
  p.multiprocessors = multiprocessors;
  p.clock_mhz = clock_mhz;
  p.memory_gbps = memory_gbps;
  return p;
}

double block_us(const Card& card) { return card.find("cudnn", 128, false)->constants.block_us; }

// Messages instead of stderr.
class Messages {
 public:
  Messages() {
    set_log_callback([](int level, const char* text,
                        void* self) { static_cast<Messages*>(self)->add(level, text); },
                     this);
  }
  ~Messages() { set_log_callback(nullptr, nullptr); }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  void add(int level, const char* text) {
    if (level >= BATTEN_LOG_WARNING) warnings_.emplace_back(text);
  }
  std::vector<std::string> warnings_;
};

class LookupTest : public ::testing::Test {
 protected:
  LookupTest() {
    // Its own: tests run side by side.
    std::string name = (fs::path(::testing::TempDir()) / "batten_lookup_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder " + name);
    folder_ = name;
  }
  ~LookupTest() override { fs::remove_all(folder_); }

  fs::path write(const std::string& text) {
    const fs::path path = folder_ / "card.json";
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  // One kernel of the card's measured.
  static Document measured(const CardProperties& card, double block) {
    Document d;
    d.card = card;
    d.kernels = {
        {.kernel = "cudnn", .head_dim = 128, .causal = false, .launch_us = 1, .block_us = block}};
    return d;
  }

  fs::path folder_;
};

TEST_F(LookupTest, AShippedCardHasItsOwn) {
  const Card card = known_card(h200());
  ASSERT_TRUE(card.find("native", 128, false));
  for (const Card::Entry& entry : card.entries()) EXPECT_EQ(entry.origin, Origin::shipped);
  EXPECT_EQ(named_card("h200").entries().size(), card.entries().size());
  expect_error(ErrorCode::InvalidArgument, {"'h100'", "h200"}, [] { (void)named_card("h100"); });
  expect_error(ErrorCode::InvalidArgument, {"''"}, [] { (void)named_card(""); });
}

TEST_F(LookupTest, AnotherCardIsEstimatedFromItsProperties) {
  const Card same = estimate(h200());
  EXPECT_DOUBLE_EQ(block_us(same), block_us(known_card(h200())));
  EXPECT_EQ(same.find("cudnn", 128, false)->origin, Origin::estimated);
  // Half the clock: twice the time. Half the multiprocessors: half of them together.
  const Card slow = known_card(unknown(h200().clock_mhz / 2, h200().multiprocessors, 0));
  EXPECT_NEAR(block_us(slow), 2 * block_us(same), 1e-9);
  const Card small = known_card(unknown(0, h200().multiprocessors / 2, h200().memory_gbps / 4));
  EXPECT_NEAR(block_us(small), block_us(same), 1e-9);
  const auto full = [](const Card& card) { return card.find("cudnn", 128, false)->constants; };
  EXPECT_NEAR(full(small).tflops, full(same).tflops / 2, 1e-6);
  EXPECT_NEAR(full(small).gbps, full(same).gbps / 4, 1e-6);
  EXPECT_EQ(full(small).launch_us, full(same).launch_us);
  CardProperties ampere = unknown(h200().clock_mhz, h200().multiprocessors, 0);
  ampere.arch = 80;
  EXPECT_NEAR(block_us(known_card(ampere)), 2 * block_us(same), 1e-9);
}

TEST_F(LookupTest, MeasuredConstantsReplaceTheOthers) {
  Document d = measured(h200(), 0.125);
  d.measured = {{{.dtype = DType::bf16,
                  .batch = 1,
                  .queries = 2,
                  .keys = 3,
                  .num_heads = 1,
                  .num_kv_heads = 1,
                  .head_dim = 128},
                 {{"cudnn", 5}}}};
  const Messages messages;
  const Card card = card_with_file(h200(), write(to_json(d)));
  EXPECT_EQ(block_us(card), 0.125);
  EXPECT_EQ(card.find("cudnn", 128, false)->origin, Origin::measured);
  EXPECT_EQ(card.find("native", 128, false)->origin, Origin::shipped);
  EXPECT_NE(card.find_measured(d.measured[0].shape), nullptr);
  EXPECT_TRUE(messages.warnings().empty());
}

TEST_F(LookupTest, NoFileIsNoWarning) {
  const Messages messages;
  EXPECT_EQ(block_us(card_with_file(h200(), folder_ / "none.json")), block_us(known_card(h200())));
  EXPECT_EQ(block_us(card_with_file(h200(), folder_ / "no" / "folder.json")),
            block_us(known_card(h200())));
  EXPECT_TRUE(messages.warnings().empty());
}

TEST_F(LookupTest, AWrongFileIsNamedOnceAndLeftAlone) {
  CardProperties other = h200();
  other.multiprocessors = 78;
  const std::pair<std::string, std::string> cases[] = {
      {"{", "it is no JSON object"},
      {"", "it is no JSON object"},
      {R"({"format": "batten card", "version": 99})", "version"},
      {to_json(measured(other, 1)), "78 multiprocessors"},
      {std::string(17u << 20, ' '), "it is too long"},
  };
  for (const auto& [text, why] : cases) {
    const Messages messages;
    const Card card = card_with_file(h200(), write(text));
    EXPECT_EQ(block_us(card), block_us(known_card(h200())));
    ASSERT_EQ(messages.warnings().size(), 1u) << why;
    const std::string_view fragments[] = {"card.json is left alone", "shipped constants", why,
                                          "batten tune"};
    testing::expect_message(messages.warnings()[0], fragments);
  }
  const Messages messages;
  EXPECT_EQ(block_us(card_with_file(h200(), folder_)), block_us(known_card(h200())));
  ASSERT_EQ(messages.warnings().size(), 1u);
  EXPECT_NE(messages.warnings()[0].find("no regular file"), std::string::npos);
}

TEST_F(LookupTest, TheFileLiesInTheCacheFolder) {
  const ScopedVariable own("BATTEN_CACHE_DIR", folder_.string());
  EXPECT_EQ(card_path(h200()), folder_ / "cards" / "nvidia-h200-132.json");
  CardProperties strange{.name = "../a/\"b\" (c)"};
  EXPECT_EQ(card_path(strange), folder_ / "cards" / "a-b-c--0.json");
}

TEST_F(LookupTest, WithoutAHomeThereIsNoFile) {
  const ScopedVariable own("BATTEN_CACHE_DIR", {});
  const ScopedVariable xdg("XDG_CACHE_HOME", {});
  {
    const ScopedVariable home("HOME", "/home/someone");
    EXPECT_EQ(card_path(h200()),
              fs::path("/home/someone/.cache/batten/cards/nvidia-h200-132.json"));
  }
  const ScopedVariable home("HOME", {});
  EXPECT_FALSE(card_path(h200()));
}

TEST_F(LookupTest, ADevicesCardIsReadOnce) {
  const ScopedVariable own("BATTEN_CACHE_DIR", folder_.string());
  DeviceProperties device{.name = "NVIDIA H200", .major = 9, .minor = 0, .multiprocessors = 132};
  const fs::path path = *card_path(card_properties(device));
  fs::create_directories(path.parent_path());
  std::ofstream(path) << to_json(measured(h200(), 0.5));
  const auto card = card_of(device);
  EXPECT_EQ(block_us(*card), 0.5);
  std::ofstream(path) << to_json(measured(h200(), 0.75));
  EXPECT_EQ(card_of(device), card);
  device.multiprocessors = 66;
  EXPECT_EQ(card_of(device)->find("cudnn", 128, false)->origin, Origin::estimated);
}

}  // namespace
}  // namespace batten::impl::cost
