#include "io/safetensors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "io_test_util.hpp"

namespace batten::io {
namespace {

using namespace testing;
using Shape = std::vector<std::int64_t>;

constexpr std::array kAllDtypes{Dtype::kU64, Dtype::kI64, Dtype::kF64,    Dtype::kF32,
                                Dtype::kU32, Dtype::kI32, Dtype::kBF16,   Dtype::kF16,
                                Dtype::kU16, Dtype::kI16, Dtype::kF8E4M3, Dtype::kF8E5M2,
                                Dtype::kI8,  Dtype::kU8,  Dtype::kBool};

struct OwnedTensor {
  std::string name;
  Dtype dtype;
  Shape shape;
  std::vector<std::byte> data;
};

SafetensorsWriter writer_for(const std::vector<OwnedTensor>& tensors) {
  SafetensorsWriter writer;
  for (const OwnedTensor& tensor : tensors) {
    writer.add(tensor.name, tensor.dtype, tensor.shape, tensor.data);
  }
  return writer;
}

void expect_contents(const SafetensorsFile& file, const std::vector<OwnedTensor>& tensors) {
  ASSERT_EQ(file.tensors().size(), tensors.size());
  EXPECT_TRUE(std::is_sorted(file.tensors().begin(), file.tensors().end(),
                             [](const auto& a, const auto& b) { return a.name < b.name; }));
  for (const OwnedTensor& tensor : tensors) {
    const TensorEntry& entry = file.at(tensor.name);
    EXPECT_EQ(entry.name, tensor.name);
    EXPECT_EQ(entry.dtype, tensor.dtype) << tensor.name;
    EXPECT_EQ(entry.shape, tensor.shape) << tensor.name;
    EXPECT_TRUE(std::ranges::equal(entry.span(), tensor.data)) << tensor.name;
  }
}

TEST(SafetensorsDtype, NamesAndSizes) {
  for (const Dtype dtype : kAllDtypes) {
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
    EXPECT_NE(legal_dtype_names().find(dtype_name(dtype)), std::string::npos);
  }
  EXPECT_EQ(dtype_name(Dtype::kF8E5M2), "F8_E5M2");
  EXPECT_EQ(dtype_size(Dtype::kF64), 8U);
  EXPECT_EQ(dtype_size(Dtype::kU32), 4U);
  EXPECT_EQ(dtype_size(Dtype::kBF16), 2U);
  EXPECT_EQ(dtype_size(Dtype::kBool), 1U);
  for (const char* name : {"", "f32", "F32 ", "FLOAT", "F4"}) EXPECT_FALSE(parse_dtype(name));
}

TEST(SafetensorsTensorBytes, CountsAndRefusesOverflow) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const auto bytes = [](Dtype dtype, const Shape& shape) { return tensor_bytes(dtype, shape); };
  EXPECT_EQ(bytes(Dtype::kF32, {}), 4U);
  EXPECT_EQ(bytes(Dtype::kF16, {2, 3, 5}), 60U);
  EXPECT_EQ(bytes(Dtype::kF64, {7, 0}), 0U);
  EXPECT_EQ(bytes(Dtype::kU8, {kMax}), static_cast<std::uint64_t>(kMax));
  EXPECT_EQ(bytes(Dtype::kU8, {1LL << 31, 1LL << 31}), std::uint64_t{1} << 62);
  EXPECT_FALSE(bytes(Dtype::kF16, {kMax}));
  EXPECT_FALSE(bytes(Dtype::kU8, {1LL << 32, 1LL << 31}));
  EXPECT_FALSE(bytes(Dtype::kU8, {0, kMax, kMax})) << "strides would overflow";
  EXPECT_FALSE(bytes(Dtype::kU8, {kMax, kMax, 0}));
  EXPECT_FALSE(bytes(Dtype::kF32, {-1}));
  EXPECT_FALSE(bytes(Dtype::kF32, {0, -1}));
}

TEST(Safetensors, RoundTripsEveryDtypeThroughAFile) {
  const TempDir dir;
  std::mt19937_64 random(2);
  std::vector<OwnedTensor> tensors;
  for (const Dtype dtype : kAllDtypes) {
    const std::string name(dtype_name(dtype));
    for (const Shape& shape : {Shape{3, 5}, Shape{}, Shape{4, 0, 2}}) {
      const std::size_t bytes = static_cast<std::size_t>(*tensor_bytes(dtype, shape));
      tensors.push_back(
          {name + "." + std::to_string(shape.size()), dtype, shape, random_bytes(bytes, random)});
    }
  }
  SafetensorsWriter writer = writer_for(tensors);
  writer.set_metadata("format", "pt");
  writer.set_metadata("", "empty key, \"quotes\",\nnewline, 日本 \\");
  writer.write(dir / "all.safetensors");

  const SafetensorsFile file = SafetensorsFile::open(dir / "all.safetensors");
  expect_contents(file, tensors);
  EXPECT_EQ(file.metadata(),
            (std::map<std::string, std::string>{{"format", "pt"},
                                                {"", "empty key, \"quotes\",\nnewline, 日本 \\"}}));
  EXPECT_EQ(file.source(), (dir / "all.safetensors").string());
  EXPECT_EQ(dir.names(), std::vector<std::string>{"all.safetensors"});
  for (const TensorEntry& entry : file.tensors()) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(entry.data) % dtype_size(entry.dtype), 0U)
        << entry.name << " lies unaligned in a file of ours";
  }
}

TEST(Safetensors, ViewsSurviveAMoveOfTheFile) {
  const TempDir dir;
  const std::vector<OwnedTensor> tensors{{"t", Dtype::kU8, {3}, std::vector<std::byte>(3)}};
  writer_for(tensors).write(dir / "f");
  SafetensorsFile first = SafetensorsFile::open(dir / "f");
  const std::byte* const data = first.at("t").data;
  const SafetensorsFile second = std::move(first);
  EXPECT_EQ(second.at("t").data, data);
  expect_contents(second, tensors);
}

TEST(Safetensors, ReplacesTheFileThatItReads) {
  const TempDir dir;
  std::mt19937_64 random(3);
  const std::vector<OwnedTensor> tensors{{"q", Dtype::kF32, {64, 33}, random_bytes(8448, random)}};
  writer_for(tensors).write(dir / "f");
  const SafetensorsFile in = SafetensorsFile::open(dir / "f");
  SafetensorsWriter writer;
  writer.add("copy", Dtype::kF32, {33, 64}, in.at("q").span());
  writer.write(dir / "f");
  expect_contents(SafetensorsFile::open(dir / "f"),
                  {{"copy", Dtype::kF32, {33, 64}, tensors[0].data}});
  expect_contents(in, tensors);
}

TEST(Safetensors, RandomRoundTrips) {
  const TempDir dir;
  std::mt19937_64 random(4);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  for (int round = 0; round < 200; ++round) {
    std::vector<OwnedTensor> tensors;
    std::vector<std::string> names;
    const std::uint64_t count = below(8);
    while (names.size() < count) {
      // Every character up to U+07FF, the JSON specials and control characters among them.
      std::string name;
      for (std::uint64_t i = below(12); i > 0; --i) {
        const std::uint64_t c = below(2) ? below(0x80) : 0x80 + below(0x780);
        if (c >= 0x80) name.push_back(static_cast<char>(0xC0 | (c >> 6)));
        name.push_back(static_cast<char>(c < 0x80 ? c : 0x80 | (c & 0x3F)));
      }
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    for (const std::string& name : names) {
      const Dtype dtype = kAllDtypes[below(kAllDtypes.size())];
      Shape shape(below(5));
      for (std::int64_t& dimension : shape) dimension = static_cast<std::int64_t>(below(6));
      const auto bytes = static_cast<std::size_t>(*tensor_bytes(dtype, shape));
      tensors.push_back({name, dtype, shape, random_bytes(bytes, random)});
    }
    SafetensorsWriter writer = writer_for(tensors);
    if (below(2)) writer.set_metadata("round", std::to_string(round));
    const std::vector<std::byte> bytes = writer.to_bytes();
    const SafetensorsFile parsed = SafetensorsFile::parse(bytes);
    expect_contents(parsed, tensors);
    if (round % 10 == 0) {
      writer.write(dir / "f");
      EXPECT_EQ(read_file(dir / "f"), to_text(bytes));
      expect_contents(SafetensorsFile::open(dir / "f"), tensors);
    }

    std::shuffle(tensors.begin(), tensors.end(), random);
    SafetensorsWriter again = writer_for(tensors);
    for (const auto& [key, value] : parsed.metadata()) {
      again.set_metadata(key, value);
    }
    EXPECT_EQ(again.to_bytes(), bytes) << "depends on the order of adding";
  }
}

// Expected bytes from the official implementation's own tests and layout rule.
TEST(SafetensorsWriter, WritesTheOfficialBytes) {
  SafetensorsWriter writer;
  EXPECT_EQ(to_text(writer.to_bytes()), raw_file("{}      "));
  writer.set_metadata("framework", "pt");
  EXPECT_EQ(to_text(writer.to_bytes()), raw_file(R"({"__metadata__":{"framework":"pt"}}     )"));

  const std::vector<std::byte> data(24);
  SafetensorsWriter mixed;
  mixed.add("a", Dtype::kU8, {3}, std::span(data).first(3));
  mixed.add("z", Dtype::kF16, {}, std::span(data).first(2));
  mixed.add("attn0", Dtype::kF32, {1, 1, 2, 3}, data);
  mixed.add("B", Dtype::kF32, {0}, {});
  EXPECT_EQ(to_text(mixed.to_bytes()),
            raw_file(R"({"B":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
                     R"("attn0":{"dtype":"F32","shape":[1,1,2,3],"data_offsets":[0,24]},)"
                     R"("z":{"dtype":"F16","shape":[],"data_offsets":[24,26]},)"
                     R"("a":{"dtype":"U8","shape":[3],"data_offsets":[26,29]}}      )",
                     29));
}

TEST(SafetensorsWriter, RefusesIllegalTensors) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::byte> data(64);
  SafetensorsWriter writer;
  writer.add("taken", Dtype::kU8, {64}, data);
  const auto add = [&](std::string name, Dtype dtype, Shape shape, std::size_t bytes) {
    writer.add(std::move(name), dtype, std::move(shape), std::span(data).first(bytes));
  };
  EXPECT_IO_ERROR(add("taken", Dtype::kU8, {1}, 1), "tensor 'taken' was added twice");
  EXPECT_IO_ERROR(add("__metadata__", Dtype::kU8, {1}, 1), "the format reserves it");
  EXPECT_IO_ERROR(add("\xff", Dtype::kU8, {1}, 1), "tensor name '\\xff' is not UTF-8");
  EXPECT_IO_ERROR(add("t", Dtype::kF32, {2, 3}, 23), "F32 [2, 3] takes 24 bytes, 23 were given");
  EXPECT_IO_ERROR(add("t", Dtype::kF32, {2, 3}, 25), "F32 [2, 3] takes 24 bytes, 25 were given");
  EXPECT_IO_ERROR(add("t", Dtype::kF32, {2, -3}, 24), "shape [2, -3] has a negative dimension");
  EXPECT_IO_ERROR(add("t", Dtype::kF32, {kMax}, 4), "size above 63 bits");
  EXPECT_IO_ERROR(add("t", Dtype::kU8, Shape(65, 1), 1), "has 65 dimensions");
  EXPECT_IO_ERROR(writer.set_metadata("k", "\xc3"), "metadata 'k' is not UTF-8");
  EXPECT_IO_ERROR(writer.set_metadata("\xc3", "v"), "metadata '\\xc3' is not UTF-8");
  const std::vector<std::byte> bytes = writer.to_bytes();
  const SafetensorsFile file = SafetensorsFile::parse(bytes);
  EXPECT_EQ(file.tensors().size(), 1U) << "a refused tensor was kept";
}

TEST(SafetensorsWriter, RefusesAHeaderAboveTheLimit) {
  SafetensorsWriter writer;
  writer.set_metadata("big", std::string(kMaxHeaderBytes, 'x'));
  EXPECT_IO_ERROR(writer.to_bytes(), "the format's limit is 100000000");
}

TEST(SafetensorsWriter, AFailedWriteKeepsTheOldFile) {
  const TempDir dir;
  const std::vector<std::byte> data(8);
  SafetensorsWriter writer;
  writer.add("t", Dtype::kF64, {1}, data);
  writer.write(dir / "f");
  const std::string old = read_file(dir / "f");

  const std::vector<std::byte> many(10'000);
  SafetensorsWriter big;
  big.add("t", Dtype::kU8, {10'000}, many);
  std::string message;
  {
    const FileSizeLimit limit(5000);  // the header fits, the data does not
    message = error_of([&] { big.write(dir / "f"); });
  }
  EXPECT_NE(message.find("/f': File too large"), std::string::npos) << message;
  EXPECT_IO_ERROR(writer.write(dir.path()), "it is a directory");
  EXPECT_IO_ERROR(writer.write(dir / "missing/f"), "create its directory first");
  EXPECT_EQ(read_file(dir / "f"), old);
  EXPECT_EQ(dir.names(), std::vector<std::string>{"f"});
}

TEST(Safetensors, FindAndAt) {
  const std::vector<std::byte> data(1);
  SafetensorsWriter writer;
  for (const char* name : {"v", "k", "q"}) writer.add(name, Dtype::kU8, {1}, data);
  const std::vector<std::byte> bytes = writer.to_bytes();
  const SafetensorsFile file = SafetensorsFile::parse(bytes, "in.safetensors");
  EXPECT_EQ(file.find("k"), &file.tensors()[0]);
  EXPECT_EQ(file.find("v"), &file.tensors()[2]);
  for (const char* name : {"", "a", "l", "z", "kk"}) EXPECT_EQ(file.find(name), nullptr) << name;
  EXPECT_IO_ERROR(file.at("mask"),
                  "'in.safetensors': no tensor 'mask'; the file has 'k', 'q', 'v'");

  const std::string empty = raw_file("{}");
  const SafetensorsFile empty_file = SafetensorsFile::parse(as_bytes(empty));
  EXPECT_IO_ERROR(empty_file.at("q"), "the file has none");

  SafetensorsWriter many;
  for (int i = 10; i < 40; ++i) many.add("t" + std::to_string(i), Dtype::kU8, {1}, data);
  const std::vector<std::byte> many_bytes = many.to_bytes();
  const SafetensorsFile many_file = SafetensorsFile::parse(many_bytes);
  EXPECT_IO_ERROR(many_file.at("q"), "'t29' and 10 more");
}

}  // namespace
}  // namespace batten::io
