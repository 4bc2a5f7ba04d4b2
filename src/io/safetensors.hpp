// Reading and writing the safetensors format, as described in
// https://github.com/huggingface/safetensors (README, "Format"):
//
//   u64 little-endian N | N bytes of JSON, spaces at its end allowed | tensor data
//   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
//    "__metadata__": {"text": "text", ...}}
//
// Offsets count bytes from the start of the data; values are little-endian, row-major, packed.
// All errors are `Error{InvalidArgument}`: one line with the file, the tensor and what to do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/mapped_file.hpp"

namespace batten::io {

/// Element types of the format, in the order in which the official writer lays tensors out
/// (by descending alignment).
enum class Dtype : std::uint8_t {
  kU64,
  kI64,
  kF64,
  kF32,
  kU32,
  kI32,
  kBF16,
  kF16,
  kU16,
  kI16,
  kF8E4M3,
  kF8E5M2,
  kI8,
  kU8,
  kBool,
};

/// Bytes of one element: 1, 2, 4 or 8.
std::size_t dtype_size(Dtype dtype) noexcept;

/// The name in the file: "F32", "BF16", "F8_E4M3", "BOOL", ...
std::string_view dtype_name(Dtype dtype) noexcept;

/// The inverse of `dtype_name` (case matters); empty for an unknown name.
std::optional<Dtype> parse_dtype(std::string_view name) noexcept;

/// All names, comma-separated, for error messages and help texts.
std::string legal_dtype_names();

/// Bytes of a packed tensor: dtype size times the product of `shape` (1 for a scalar, 0 if a
/// dimension is 0). Empty if a dimension is negative, or if the product of the non-zero dimensions
/// and the dtype size exceeds 2^63 - 1; so strides computed from a legal shape do not overflow
/// either.
std::optional<std::uint64_t> tensor_bytes(Dtype dtype,
                                          std::span<const std::int64_t> shape) noexcept;

/// One tensor of a file.
struct TensorEntry {
  std::string name;
  Dtype dtype{};
  /// Row-major, outermost first; empty for a scalar. At most `kMaxRank` non-negative dimensions.
  std::vector<std::int64_t> shape;
  /// `bytes` readable bytes. NOT necessarily aligned to the element size: the format promises no
  /// alignment and files without it exist. Copy with `memcpy` (or to the device) instead of
  /// casting to `const float*`.
  const std::byte* data = nullptr;
  /// Always equals `tensor_bytes(dtype, shape)`.
  std::size_t bytes = 0;

  /// The data as a span.
  std::span<const std::byte> span() const noexcept { return {data, bytes}; }
};

/// The longest header that is read or written, in bytes; the official implementation's limit.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

/// The most dimensions of a tensor. The format sets no limit; PyTorch and NumPy stop at 64.
inline constexpr std::size_t kMaxRank = 64;

/// An opened safetensors file whose header has been checked completely: names unique, dtypes
/// known, sizes equal to shapes, and the tensors' ranges cover the data exactly once, without
/// overlap, holes or trailing bytes. Tensor values are not looked at (NaN is data).
class SafetensorsFile {
 public:
  /// Maps and checks the file at `path`. The views live as long as the returned object.
  static SafetensorsFile open(const std::filesystem::path& path);

  /// Checks `bytes` (a whole file), which must outlive the returned object. `source` stands for
  /// the file name in messages.
  static SafetensorsFile parse(std::span<const std::byte> bytes,
                               std::string_view source = "<memory>");

  /// All tensors, sorted by name (bytewise).
  const std::vector<TensorEntry>& tensors() const& noexcept { return tensors_; }

  /// The tensor of that name, or null. O(log n).
  const TensorEntry* find(std::string_view name) const& noexcept;

  /// The tensor of that name; throws if there is none, naming those that there are.
  const TensorEntry& at(std::string_view name) const&;

  /// The `__metadata__` map; empty if the file has none.
  const std::map<std::string, std::string>& metadata() const& noexcept { return metadata_; }

  /// The file's name, fit for a message.
  const std::string& source() const& noexcept { return source_; }

  // `open(path).at("q")` would return a view of a file that is already closed.
  const std::vector<TensorEntry>& tensors() const&& = delete;
  const TensorEntry* find(std::string_view name) const&& = delete;
  const TensorEntry& at(std::string_view name) const&& = delete;
  const std::map<std::string, std::string>& metadata() const&& = delete;
  const std::string& source() const&& = delete;

 private:
  SafetensorsFile() = default;

  std::string source_;
  std::optional<MappedFile> file_;  // empty when the bytes belong to the caller
  std::vector<TensorEntry> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// Collects tensors and writes them as one file. The same tensors and metadata give the same
/// bytes, whatever the order in which they were added, and the bytes that the official writer
/// gives (for at most one metadata key: it does not sort them). Tensors lie by descending element
/// size, then by name; the header is padded with spaces to a multiple of 8, so in a file written
/// here every tensor is aligned to its element size.
class SafetensorsWriter {
 public:
  /// Adds a tensor. `data` is not copied: it must stay valid and unchanged until the last
  /// `write` or `to_bytes`; it may be unaligned, and must hold exactly
  /// `tensor_bytes(dtype, shape)` bytes. Throws if it does not, if the shape is illegal, or if
  /// the name is taken, reserved (`__metadata__`) or not UTF-8.
  void add(std::string name, Dtype dtype, std::vector<std::int64_t> shape,
           std::span<const std::byte> data);

  /// Sets one entry of `__metadata__`, replacing an earlier value. Throws if either is not UTF-8.
  void set_metadata(std::string key, std::string value);

  /// Writes the file through `AtomicFile`: complete, or not at all with what was there intact.
  void write(const std::filesystem::path& path) const;

  /// The same bytes in memory.
  std::vector<std::byte> to_bytes() const;

 private:
  struct Tensor {
    Dtype dtype;
    std::vector<std::int64_t> shape;
    std::span<const std::byte> data;
  };
  using NamedTensor = std::map<std::string, Tensor>::value_type;

  // In the order in which their data lies in the file.
  std::vector<const NamedTensor*> layout() const;
  // The length field and the padded JSON.
  std::string header(const std::vector<const NamedTensor*>& layout) const;

  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace batten::io
