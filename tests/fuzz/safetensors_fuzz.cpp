// Fuzz target of the safetensors reader: any bytes give an Error or a file whose tensors lie within
// them; what was read can be written again and read back the same.
//
//   clang++-14 -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all
//       -Isrc -Iinclude tests/fuzz/safetensors_fuzz.cpp src/io/*.cpp -lfmt -o safetensors_fuzz
//   ./safetensors_fuzz -max_total_time=180 -max_len=4096 CORPUS_COPY tests/fuzz/corpus/safetensors
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "io/safetensors.hpp"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check_same(const batten::io::SafetensorsFile& a, const batten::io::SafetensorsFile& b) {
  require(a.metadata() == b.metadata());
  require(a.tensors().size() == b.tensors().size());
  for (std::size_t i = 0; i < a.tensors().size(); ++i) {
    const batten::io::TensorEntry& x = a.tensors()[i];
    const batten::io::TensorEntry& y = b.tensors()[i];
    require(x.name == y.name && x.dtype == y.dtype && x.shape == y.shape);
    // Reads every byte of both.
    const std::string_view data_x(reinterpret_cast<const char*>(x.data), x.bytes);
    const std::string_view data_y(reinterpret_cast<const char*>(y.data), y.bytes);
    require(data_x == data_y);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using batten::io::SafetensorsFile;
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const SafetensorsFile file = SafetensorsFile::parse(bytes);
    batten::io::SafetensorsWriter writer;
    for (const auto& [key, value] : file.metadata()) writer.set_metadata(key, value);
    for (const batten::io::TensorEntry& entry : file.tensors()) {
      require(file.find(entry.name) == &entry);
      writer.add(entry.name, entry.dtype, entry.shape, entry.span());
    }
    const std::vector<std::byte> again = writer.to_bytes();
    check_same(file, SafetensorsFile::parse(again));
  } catch (const batten::Error& error) {
    const std::string_view message = error.what();
    require(error.code() == batten::ErrorCode::InvalidArgument);
    require(message.find('\n') == std::string_view::npos);
    // A valid file must survive the round trip: only the first parse may refuse.
    require(message.starts_with("'<memory>': "));
  }
  return 0;
}
