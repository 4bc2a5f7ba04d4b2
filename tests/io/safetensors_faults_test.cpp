// Files that must be refused, and legal oddities that must not.
#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.hpp"
#include "io_test_util.hpp"

namespace batten::io {
namespace {

using namespace testing;
using namespace std::string_literals;

// Copies the bytes to a heap block of exactly their size, so that AddressSanitizer sees a read of
// one byte too many, and reads every byte of every tensor.
unsigned parse_and_touch(std::string_view contents) {
  const auto block = std::make_unique<std::byte[]>(contents.size());
  std::copy(as_bytes(contents).begin(), as_bytes(contents).end(), block.get());
  const std::span<const std::byte> bytes(block.get(), contents.size());
  const SafetensorsFile file = SafetensorsFile::parse(bytes, "x.safetensors");
  unsigned sum = 0;
  for (const TensorEntry& entry : file.tensors()) {
    EXPECT_EQ(tensor_bytes(entry.dtype, entry.shape), entry.bytes);
    if (entry.bytes == 0) continue;
    EXPECT_GE(entry.data, bytes.data());
    EXPECT_LE(entry.data + entry.bytes, bytes.data() + bytes.size());
    for (const std::byte byte : entry.span()) sum += std::to_integer<unsigned>(byte);
  }
  return sum;
}

// A tensor's JSON, {"t":{...}}, from its three values as JSON.
std::string one(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  std::string json = R"({"t":{"dtype":)";
  json.append(dtype).append(R"(,"shape":)").append(shape);
  return json.append(R"(,"data_offsets":)").append(offsets).append("}}");
}

// Several U8 vectors: {"name", begin, end}.
struct Range {
  const char* name;
  int begin, end;
};
std::string ranges(const std::vector<Range>& list) {
  std::string json = "{";
  for (const Range& r : list) {
    if (json.size() > 1) json += ",";
    json += "\""s + r.name + R"(":{"dtype":"U8","shape":[)" + std::to_string(r.end - r.begin) +
            R"(],"data_offsets":[)" + std::to_string(r.begin) + "," + std::to_string(r.end) + "]}";
  }
  return json + "}";
}

std::string repeat(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

struct Fault {
  std::string name;
  std::string bytes;
  std::string fragment;
};

// Without this GoogleTest prints the bytes.
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

std::vector<Fault> faults() {
  const std::string f32 = R"("F32")";
  const std::string tensor_json = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  return {
      // The length field.
      {"Empty", "", "0 bytes are too few for the 8-byte header length"},
      {"SevenBytes", "\2\0\0\0\0\0\0"s, "7 bytes are too few"},
      {"LengthZero", raw_file(0, ""), "does not begin with '{'"},
      {"LengthPastEnd", raw_file(3, "{}"), "header length 3 exceeds the 2 bytes that follow"},
      {"LengthAtLimit", raw_file(100'000'000, "{}"), "exceeds the 2 bytes that follow"},
      {"LengthAboveLimit", raw_file(100'000'001, "{}"), "exceeds the limit of 100000000 bytes"},
      {"LengthMax", raw_file(~std::uint64_t{0}, "{}"), "18446744073709551615 exceeds the limit"},
      {"LengthSignBit", raw_file(std::uint64_t{1} << 63, "{}"), "exceeds the limit"},
      {"LengthTooShort", raw_file(1, "{}"), "not valid JSON"},
      // JSON.
      {"NotJson", raw_file("{hello}"), "not valid JSON at byte 2"},
      {"LeadingSpace", raw_file(" {}"), "does not begin with '{'"},
      {"ByteOrderMark", raw_file("\xef\xbb\xbf{}"), "does not begin with '{'"},
      {"ArrayAtTop", raw_file("[]"), "does not begin with '{'"},
      {"NullAtTop", raw_file("null"), "does not begin with '{'"},
      {"Unclosed", raw_file("{"), "not valid JSON"},
      {"UnclosedText", raw_file(R"({"a)"), "not valid JSON"},
      {"TrailingComma", raw_file("{\"t\":" + tensor_json + ",}", 1), "not valid JSON"},
      {"TextAfterTheObject", raw_file("{} x"), "not valid JSON"},
      {"TwoObjects", raw_file("{}{}"), "not valid JSON"},
      {"Comment", raw_file("{/**/}"), "not valid JSON"},
      {"ZeroByteThenRubbish", raw_file("{}\0rubbish"s), "contains a zero byte"},
      {"ZeroPadding", raw_file("{}\0\0"s), "contains a zero byte"},
      {"BadUtf8InAName", raw_file("{\"a\xff\":" + tensor_json + "}", 1), "not UTF-8 at byte 3"},
      {"OverlongUtf8", raw_file("{\"\xc0\x80\":" + tensor_json + "}", 1), "not UTF-8 at byte 2"},
      {"CutUtf8", raw_file("{\"\xe2\x82"), "not UTF-8 at byte 2"},
      {"LoneSurrogateEscape", raw_file("{\"\\ud800\":" + tensor_json + "}", 1), "not valid JSON"},
      {"ControlCharacterInAName", raw_file("{\"a\nb\":" + tensor_json + "}", 1), "not valid JSON"},
      {"HugeExponent", raw_file(one(f32, "[1e999]", "[0,4]"), 4), "not valid JSON"},
      {"DeepArrays", raw_file("{\"t\":" + std::string(1'000'000, '[')), "found an array"},
      {"DeepObjects", raw_file("{" + repeat(R"("a":{)", 200'000)), "unknown field 'a'"},
      {"DeepShape", raw_file(one(f32, std::string(100'000, '['), "[0,4]")), "found an array"},
      {"DeepMetadata", raw_file(R"({"__metadata__":)" + repeat(R"({"a":)", 200'000)),
       "found an object"},
      // Duplicates.
      {"DuplicateTensor", raw_file("{\"t\":" + tensor_json + ",\"t\":" + tensor_json + "}", 1),
       "tensor 't' occurs twice"},
      {"DuplicateTensorEscaped",
       raw_file("{\"t\":" + tensor_json + ",\"\\u0074\":" + tensor_json + "}", 1),
       "tensor 't' occurs twice"},
      {"DuplicateField",
       raw_file(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"shape":[1]}})", 1),
       "the field shape occurs twice"},
      {"DuplicateMetadata", raw_file(R"({"__metadata__":{},"__metadata__":{}})"),
       "__metadata__ occurs twice"},
      {"DuplicateMetadataKey", raw_file(R"({"__metadata__":{"a":"1","b":"","a":"2"}})"),
       "the key 'a' occurs twice in __metadata__"},
      // Kinds of values.
      {"TensorIsANumber", raw_file(R"({"t":1})"), "tensor 't' must be an object"},
      {"TensorIsNull", raw_file(R"({"t":null})"), "found null"},
      {"TensorIsAText", raw_file(R"({"t":"F32"})"), "found the text 'F32'"},
      {"TensorIsAnArray", raw_file(R"({"t":[]})"), "found an array"},
      {"TensorIsTrue", raw_file(R"({"t":true})"), "found a boolean"},
      {"TensorIsEmpty", raw_file(R"({"t":{}})"), "dtype is missing"},
      {"NoShape", raw_file(R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", 1), "shape is missing"},
      {"NoOffsets", raw_file(R"({"t":{"dtype":"U8","shape":[1]}})", 1), "data_offsets is missing"},
      {"UnknownField",
       raw_file(R"({"t":{"dtype":"U8","shape":[1],"strides":[1],"data_offsets":[0,1]}})", 1),
       "unknown field 'strides'"},
      {"MetadataIsAText", raw_file(R"({"__metadata__":"x"})"),
       "__metadata__ must be an object of texts"},
      {"MetadataIsNull", raw_file(R"({"__metadata__":null})"), "found null"},
      {"MetadataNumber", raw_file(R"({"__metadata__":{"k":1}})"),
       "__metadata__ 'k' must be a text, found the number 1"},
      {"MetadataNested", raw_file(R"({"__metadata__":{"k":{}}})"), "found an object"},
      {"MetadataList", raw_file(R"({"__metadata__":{"k":[]}})"), "found an array"},
      {"DtypeUnknown", raw_file(one(R"("F31")", "[1]", "[0,4]"), 4),
       "tensor 't': unknown dtype 'F31'; convert it to one of U64, I64, F64, F32, U32, I32, "
       "BF16, F16, U16, I16, F8_E4M3, F8_E5M2, I8, U8, BOOL"},
      {"DtypeLowerCase", raw_file(one(R"("f32")", "[1]", "[0,4]"), 4), "unknown dtype 'f32'"},
      {"DtypeIsANumber", raw_file(one("32", "[1]", "[0,4]"), 4), "dtype must be a text"},
      {"DtypeIsAnArray", raw_file(one("[]", "[1]", "[0,4]"), 4), "dtype must be a text"},
      {"ShapeIsANumber", raw_file(one(f32, "1", "[0,4]"), 4), "shape must be an array"},
      {"ShapeIsAnObject", raw_file(one(f32, "{}", "[0,4]"), 4), "found an object"},
      {"ShapeHoldsAText", raw_file(one(f32, R"(["1"])", "[0,4]"), 4), "found the text '1'"},
      {"ShapeHoldsNull", raw_file(one(f32, "[null]", "[0,4]"), 4), "found null"},
      {"OffsetsAreAText", raw_file(one(f32, "[1]", R"("0,4")"), 4),
       "data_offsets must be an array"},
      {"OneOffset", raw_file(one(f32, "[1]", "[4]"), 4), "needs two numbers, has 1"},
      {"NoOffset", raw_file(one(f32, "[1]", "[]"), 4), "needs two numbers, has 0"},
      {"ThreeOffsets", raw_file(one(f32, "[1]", "[0,4,8]"), 4), "more than two numbers"},
      // Dimensions.
      {"NegativeDimension", raw_file(one(f32, "[-1]", "[0,4]"), 4),
       "tensor 't': shape must hold non-negative integers below 2^63, found a negative number"},
      {"FractionalDimension", raw_file(one(f32, "[1.5]", "[0,4]"), 4), "found the number 1.5"},
      {"FloatDimension", raw_file(one(f32, "[1.0]", "[0,4]"), 4), "found the number 1.0"},
      {"DimensionOf63Bits", raw_file(one(f32, "[9223372036854775808]", "[0,4]"), 4),
       "found 9223372036854775808"},
      {"DimensionOf64Bits", raw_file(one(f32, "[18446744073709551616]", "[0,4]"), 4),
       "found the number 18446744073709551616"},
      {"ProductOverflows", raw_file(one(f32, "[4294967296,4294967296,4]", "[0,4]"), 4),
       "shape [4294967296, 4294967296, 4] is too large"},
      {"ProductWrapsToSmall", raw_file(one(f32, "[4611686018427387905]", "[0,4]"), 4),
       "is too large"},
      {"EmptyButOverflowing", raw_file(one(f32, "[0,4294967296,4294967296]", "[0,0]")),
       "is too large"},
      {"TooManyDimensions", raw_file(one(f32, "[1" + repeat(",1", 64) + "]", "[0,4]"), 4),
       "more than 64 dimensions"},
      // Offsets.
      {"NegativeOffset", raw_file(one(f32, "[1]", "[-4,0]"), 4), "found a negative number"},
      {"OffsetOf65Bits", raw_file(one(f32, "[1]", "[0,18446744073709551616]"), 4),
       "data_offsets must hold non-negative integers below 2^64, found the number 1844"},
      {"EndBeforeBegin", raw_file(one(f32, "[1]", "[4,0]"), 4), "end before they begin"},
      {"PastTheEnd", raw_file(one(f32, "[1]", "[0,4]"), 3),
       "data_offsets [0, 4] pass the end of the data (3 bytes)"},
      {"FarPastTheEnd", raw_file(one(f32, "[1]", "[18446744073709551611,18446744073709551615]"), 4),
       "pass the end of the data"},
      {"SizeTooSmall", raw_file(one(f32, "[2]", "[0,4]"), 4),
       "F32 [2] takes 8 bytes, but data_offsets [0, 4] hold 4"},
      {"SizeTooLarge", raw_file(one(f32, "[1]", "[0,8]"), 8), "takes 4 bytes"},
      {"ScalarWithoutData", raw_file(one(f32, "[]", "[0,0]")), "F32 [] takes 4 bytes"},
      {"EmptyWithData", raw_file(one(f32, "[0]", "[0,4]"), 4), "F32 [0] takes 0 bytes"},
      // The layout.
      {"Overlap", raw_file(ranges({{"a", 0, 4}, {"b", 3, 6}}), 6),
       "tensor 'b' at [3, 6] overlaps tensor 'a' at [0, 4]"},
      {"SameRange", raw_file(ranges({{"a", 0, 4}, {"b", 0, 4}}), 4), "overlaps"},
      {"Inside", raw_file(ranges({{"a", 1, 2}, {"b", 0, 4}}), 4), "tensor 'a' at [1, 2] overlaps"},
      {"EmptyInside", raw_file(ranges({{"a", 2, 2}, {"b", 0, 4}}), 4), "overlaps"},
      {"Hole", raw_file(ranges({{"a", 0, 4}, {"b", 6, 8}}), 8),
       "2 bytes before tensor 'b' belong to no tensor"},
      {"HoleAtTheStart", raw_file(ranges({{"a", 1, 4}}), 4), "1 bytes before tensor 'a'"},
      {"TrailingBytes", raw_file(ranges({{"a", 0, 4}}), 9), "5 bytes after the last tensor"},
      {"TrailingBytesOnly", raw_file("{}", 1), "1 bytes after the last tensor"},
      // Names in messages.
      {"NewlineInAName", raw_file(R"({"a\nb\u001b":1})"), "tensor 'a\\x0ab\\x1b' must be"},
      {"LongName", raw_file("{\"" + std::string(100'000, 'n') + "\":1}"), "nnn...' must be"},
      {"LongDtype", raw_file(one('"' + std::string(100'000, 'F') + '"', "[1]", "[0,4]"), 4),
       "FFF...'"},
      {"LongBadToken", raw_file("{\"" + std::string(100'000, 'n')), "not valid JSON"},
  };
}

class SafetensorsFault : public ::testing::TestWithParam<Fault> {};

TEST_P(SafetensorsFault, IsRefused) {
  EXPECT_IO_ERROR(parse_and_touch(GetParam().bytes), GetParam().fragment);
  EXPECT_IO_ERROR(parse_and_touch(GetParam().bytes), "'x.safetensors': ");

  const TempDir dir;
  write_file(dir / "bad.safetensors", GetParam().bytes);
  EXPECT_IO_ERROR(SafetensorsFile::open(dir / "bad.safetensors"), "bad.safetensors': ");
}

INSTANTIATE_TEST_SUITE_P(All, SafetensorsFault, ::testing::ValuesIn(faults()),
                         [](const auto& test) { return test.param.name; });

TEST(SafetensorsOddities, AreAccepted) {
  const std::string accepted[] = {
      raw_file("{}"),
      raw_file("{ } \n\t\r "),
      raw_file(R"({"__metadata__":{}})"),
      raw_file(R"({"__metadata__":{"":""},"":{"data_offsets":[0,1],"shape":[],"dtype":"BOOL"}})",
               1),
      raw_file(one(R"("F32")", "[1" + repeat(",1", 63) + "]", "[0,4]"), 4),
      raw_file(one(R"("F64")", "[0,3]", "[0,0]")),
      // Not in the order of their names, empty tensors between.
      raw_file(ranges({{"c", 0, 3}, {"b", 3, 3}, {"d", 3, 3}, {"a", 3, 5}, {"e", 5, 5}}), 5),
  };
  for (const std::string& bytes : accepted) {
    SCOPED_TRACE(bytes.substr(8));
    EXPECT_NO_THROW(parse_and_touch(bytes));
  }
}

TEST(SafetensorsOddities, DataMayBeUnaligned) {
  // A header of odd length: every offset in memory is odd as well.
  const std::string bytes = raw_file(one(R"("F64")", "[2]", "[0,16]") + "  ", 16);
  ASSERT_EQ(bytes.size() % 2, 1U);
  EXPECT_NO_THROW(parse_and_touch(bytes));
}

// A valid file with everything in it.
std::string valid_file() {
  std::mt19937_64 random(5);
  const std::vector<std::byte> data = random_bytes(64, random);
  SafetensorsWriter writer;
  writer.set_metadata("format", "pt");
  writer.add("q", Dtype::kF32, {2, 3}, std::span(data).first(24));
  writer.add("k.größe", Dtype::kBF16, {5}, std::span(data).first(10));
  writer.add("scalar", Dtype::kU8, {}, std::span(data).first(1));
  writer.add("empty", Dtype::kI64, {0, 7}, {});
  return to_text(writer.to_bytes());
}

TEST(SafetensorsDamage, TruncationAtEveryByteIsAnError) {
  const TempDir dir;
  const std::string valid = valid_file();
  ASSERT_NO_THROW(parse_and_touch(valid));
  for (std::size_t size = 0; size < valid.size(); ++size) {
    SCOPED_TRACE(size);
    const std::string cut = valid.substr(0, size);
    EXPECT_IO_ERROR(parse_and_touch(cut), "x.safetensors");
    write_file(dir / "cut", cut);
    EXPECT_IO_ERROR(SafetensorsFile::open(dir / "cut"), "cut': ");
  }
}

TEST(SafetensorsDamage, EveryValueOfEveryHeaderByteIsRefusedOrReadInBounds) {
  const std::string valid = valid_file();
  const std::size_t header_end =
      8 + static_cast<unsigned char>(valid[0]) +
      256 * static_cast<std::size_t>(static_cast<unsigned char>(valid[1]));
  int refused = 0;
  int read = 0;
  for (std::size_t at = 0; at < header_end; ++at) {
    std::string damaged = valid;
    for (int value = 0; value < 256; ++value) {
      damaged[at] = static_cast<char>(value);
      try {
        parse_and_touch(damaged);
        ++read;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::InvalidArgument) << error.what();
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GE(read, static_cast<int>(header_end)) << "the undamaged value must be read";
}

TEST(SafetensorsDamage, RandomBytesNeverCrash) {
  std::mt19937_64 random(6);
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = valid_file();
    for (std::uint64_t i = 1 + random() % 4; i > 0; --i) {
      bytes[random() % bytes.size()] = static_cast<char>(random() & 0xFF);
    }
    try {
      parse_and_touch(bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument) << error.what();
    }
  }
}

}  // namespace
}  // namespace batten::io
