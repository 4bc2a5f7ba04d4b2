#include "io/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <tuple>
#include <utility>

#include "core/error.hpp"
#include "io/atomic_file.hpp"
#include "io/safetensors_header.hpp"
#include "io/text.hpp"

namespace batten::io {
namespace {

static_assert(std::endian::native == std::endian::little,
              "tensor data is handed out as it lies in the file, which is little-endian");

constexpr std::size_t kLengthBytes = 8;  // the length field, and the header's padding
constexpr std::size_t kMaxNamesListed = 20;

struct DtypeInfo {
  Dtype dtype;
  std::string_view name;
  std::size_t size;
};

constexpr std::array<DtypeInfo, 15> kDtypes{{
    {Dtype::kU64, "U64", 8},
    {Dtype::kI64, "I64", 8},
    {Dtype::kF64, "F64", 8},
    {Dtype::kF32, "F32", 4},
    {Dtype::kU32, "U32", 4},
    {Dtype::kI32, "I32", 4},
    {Dtype::kBF16, "BF16", 2},
    {Dtype::kF16, "F16", 2},
    {Dtype::kU16, "U16", 2},
    {Dtype::kI16, "I16", 2},
    {Dtype::kF8E4M3, "F8_E4M3", 1},
    {Dtype::kF8E5M2, "F8_E5M2", 1},
    {Dtype::kI8, "I8", 1},
    {Dtype::kU8, "U8", 1},
    {Dtype::kBool, "BOOL", 1},
}};

constexpr bool table_follows_enum() {
  for (std::size_t i = 0; i < kDtypes.size(); ++i) {
    if (static_cast<std::size_t>(kDtypes[i].dtype) != i) return false;
  }
  return true;
}
static_assert(table_follows_enum());

const DtypeInfo& info(Dtype dtype) noexcept { return kDtypes[static_cast<std::size_t>(dtype)]; }

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape.first(std::min(shape.size(), kMaxRank)), ", "));
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Splits a file into its JSON and its data.
std::pair<std::string_view, std::span<const std::byte>> split(std::span<const std::byte> bytes,
                                                              std::string_view source) {
  constexpr std::string_view kAdvice =
      "the file is cut short or not safetensors; fetch or write it again";
  if (bytes.size() < kLengthBytes) {
    fail(ErrorCode::InvalidArgument, "'{}': {} bytes are too few for the 8-byte header length; {}",
         source, bytes.size(), kAdvice);
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  }
  if (length > kMaxHeaderBytes) {
    fail(ErrorCode::InvalidArgument, "'{}': header length {} exceeds the limit of {} bytes; {}",
         source, length, kMaxHeaderBytes, kAdvice);
  }
  const std::span<const std::byte> rest = bytes.subspan(kLengthBytes);
  if (length > rest.size()) {
    fail(ErrorCode::InvalidArgument, "'{}': header length {} exceeds the {} bytes that follow; {}",
         source, length, rest.size(), kAdvice);
  }
  const auto header_bytes = static_cast<std::size_t>(length);
  return {as_text(rest.first(header_bytes)), rest.subspan(header_bytes)};
}

// One tensor on its own: offsets ordered and within the data, size equal to what the shape needs.
void check_entry(const HeaderEntry& entry, std::uint64_t data_bytes, std::string_view source) {
  const auto where = [&] {
    return fmt::format("'{}': tensor '{}'", source, printable(entry.name));
  };
  if (entry.begin > entry.end) {
    fail(ErrorCode::InvalidArgument,
         "{}: data_offsets [{}, {}] end before they begin; write the file again", where(),
         entry.begin, entry.end);
  }
  if (entry.end > data_bytes) {
    fail(ErrorCode::InvalidArgument,
         "{}: data_offsets [{}, {}] pass the end of the data ({} bytes); the file is cut short or "
         "damaged, fetch or write it again",
         where(), entry.begin, entry.end, data_bytes);
  }
  const std::optional<std::uint64_t> needed = tensor_bytes(entry.dtype, entry.shape);
  if (!needed) {
    fail(ErrorCode::InvalidArgument,
         "{}: shape {} is too large, its size overflows 63 bits; write the file again", where(),
         shape_text(entry.shape));
  }
  if (*needed != entry.end - entry.begin) {
    fail(ErrorCode::InvalidArgument,
         "{}: {} {} takes {} bytes, but data_offsets [{}, {}] hold {}; write the file again",
         where(), dtype_name(entry.dtype), shape_text(entry.shape), *needed, entry.begin, entry.end,
         entry.end - entry.begin);
  }
}

// All tensors together: they cover the data exactly once. As the official implementation demands:
// an overlap would let a small file claim much memory, a hole could hide other content.
void check_layout(const std::vector<HeaderEntry>& entries, std::uint64_t data_bytes,
                  std::string_view source) {
  std::vector<const HeaderEntry*> order;
  order.reserve(entries.size());
  for (const HeaderEntry& entry : entries) {
    check_entry(entry, data_bytes, source);
    order.push_back(&entry);
  }
  std::sort(order.begin(), order.end(), [](const HeaderEntry* a, const HeaderEntry* b) {
    return std::tie(a->begin, a->end) < std::tie(b->begin, b->end);
  });
  std::uint64_t covered = 0;
  const HeaderEntry* previous = nullptr;
  for (const HeaderEntry* entry : order) {
    if (entry->begin < covered) {
      fail(ErrorCode::InvalidArgument,
           "'{}': tensor '{}' at [{}, {}] overlaps tensor '{}' at [{}, {}]; write the file again",
           source, printable(entry->name), entry->begin, entry->end, printable(previous->name),
           previous->begin, previous->end);
    }
    if (entry->begin > covered) {
      fail(ErrorCode::InvalidArgument,
           "'{}': {} bytes before tensor '{}' belong to no tensor; write the file again", source,
           entry->begin - covered, printable(entry->name));
    }
    covered = entry->end;
    previous = entry;
  }
  if (covered != data_bytes) {
    fail(ErrorCode::InvalidArgument,
         "'{}': {} bytes after the last tensor belong to no tensor; write the file again", source,
         data_bytes - covered);
  }
}

}  // namespace

std::size_t dtype_size(Dtype dtype) noexcept { return info(dtype).size; }

std::string_view dtype_name(Dtype dtype) noexcept { return info(dtype).name; }

std::optional<Dtype> parse_dtype(std::string_view name) noexcept {
  for (const DtypeInfo& known : kDtypes) {
    if (known.name == name) return known.dtype;
  }
  return std::nullopt;
}

std::string legal_dtype_names() {
  std::string names;
  for (const DtypeInfo& known : kDtypes) {
    if (!names.empty()) names += ", ";
    names += known.name;
  }
  return names;
}

std::optional<std::uint64_t> tensor_bytes(Dtype dtype,
                                          std::span<const std::int64_t> shape) noexcept {
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::uint64_t bytes = dtype_size(dtype);
  bool empty = false;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    if (dimension == 0) {
      empty = true;
      continue;
    }
    const auto factor = static_cast<std::uint64_t>(dimension);
    if (bytes > kMax / factor) return std::nullopt;
    bytes *= factor;
  }
  return empty ? 0 : bytes;
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  MappedFile mapped(path);
  SafetensorsFile file = parse(mapped.bytes(), path.native());
  file.file_ = std::move(mapped);
  return file;
}

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes, std::string_view source) {
  SafetensorsFile file;
  file.source_ = printable_path(source);
  const auto [json, data] = split(bytes, file.source_);
  Header header = parse_header(json, file.source_);
  check_layout(header.tensors, data.size(), file.source_);

  file.tensors_.reserve(header.tensors.size());
  for (HeaderEntry& entry : header.tensors) {
    const auto view = data.subspan(static_cast<std::size_t>(entry.begin),
                                   static_cast<std::size_t>(entry.end - entry.begin));
    file.tensors_.push_back(
        {std::move(entry.name), entry.dtype, std::move(entry.shape), view.data(), view.size()});
  }
  file.metadata_ = std::move(header.metadata);
  return file;
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const& noexcept {
  const auto at_or_after = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const TensorEntry& entry, std::string_view key) { return entry.name < key; });
  return at_or_after != tensors_.end() && at_or_after->name == name ? &*at_or_after : nullptr;
}

const TensorEntry& SafetensorsFile::at(std::string_view name) const& {
  if (const TensorEntry* entry = find(name)) return *entry;
  std::string names;
  for (std::size_t i = 0; i < std::min(tensors_.size(), kMaxNamesListed); ++i) {
    names += fmt::format("{}'{}'", i == 0 ? "" : ", ", printable(tensors_[i].name));
  }
  if (tensors_.size() > kMaxNamesListed) {
    names += fmt::format(" and {} more", tensors_.size() - kMaxNamesListed);
  }
  fail(ErrorCode::InvalidArgument, "'{}': no tensor '{}'; the file has {}", source_,
       printable(name), names.empty() ? "none" : names);
}

void SafetensorsWriter::add(std::string name, Dtype dtype, std::vector<std::int64_t> shape,
                            std::span<const std::byte> data) {
  const std::string label = printable(name);
  if (name == kMetadataKey) {
    fail(ErrorCode::InvalidArgument, "a tensor cannot be named '{}'; the format reserves it",
         label);
  }
  if (valid_utf8_prefix(name) != name.size()) {
    fail(ErrorCode::InvalidArgument, "tensor name '{}' is not UTF-8; rename the tensor", label);
  }
  if (shape.size() > kMaxRank) {
    fail(ErrorCode::InvalidArgument, "tensor '{}' has {} dimensions; reshape it to at most {}",
         label, shape.size(), kMaxRank);
  }
  const std::optional<std::uint64_t> needed = tensor_bytes(dtype, shape);
  if (!needed) {
    fail(ErrorCode::InvalidArgument,
         "tensor '{}': shape {} has a negative dimension or a size above 63 bits; correct it",
         label, shape_text(shape));
  }
  if (*needed != data.size()) {
    fail(ErrorCode::InvalidArgument,
         "tensor '{}': {} {} takes {} bytes, {} were given; correct the shape or the data", label,
         dtype_name(dtype), shape_text(shape), *needed, data.size());
  }
  const bool added =
      tensors_.try_emplace(std::move(name), Tensor{dtype, std::move(shape), data}).second;
  if (!added) {
    fail(ErrorCode::InvalidArgument, "tensor '{}' was added twice; rename one", label);
  }
}

void SafetensorsWriter::set_metadata(std::string key, std::string value) {
  if (valid_utf8_prefix(key) != key.size() || valid_utf8_prefix(value) != value.size()) {
    fail(ErrorCode::InvalidArgument, "metadata '{}' is not UTF-8; encode it as text",
         printable(key));
  }
  metadata_.insert_or_assign(std::move(key), std::move(value));
}

std::vector<const SafetensorsWriter::NamedTensor*> SafetensorsWriter::layout() const {
  std::vector<const NamedTensor*> order;
  order.reserve(tensors_.size());
  for (const NamedTensor& tensor : tensors_) order.push_back(&tensor);
  // The map is sorted by name, and a stable sort keeps that order within a dtype.
  std::stable_sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return a->second.dtype < b->second.dtype;
  });
  return order;
}

std::string SafetensorsWriter::header(const std::vector<const NamedTensor*>& layout) const {
  Header header;
  header.metadata = metadata_;
  std::uint64_t offset = 0;
  for (const NamedTensor* tensor : layout) {
    const auto& [name, body] = *tensor;
    const std::uint64_t end = offset + body.data.size();
    header.tensors.push_back({name, body.dtype, body.shape, offset, end});
    offset = end;
  }
  std::string json = format_header(header);
  json.append((kLengthBytes - json.size() % kLengthBytes) % kLengthBytes, ' ');
  if (json.size() > kMaxHeaderBytes) {
    fail(ErrorCode::InvalidArgument,
         "the safetensors header takes {} bytes, the format's limit is {}; split the file or "
         "shorten its metadata",
         json.size(), kMaxHeaderBytes);
  }
  std::string out;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    out.push_back(static_cast<char>((json.size() >> (8 * i)) & 0xFF));
  }
  return out + json;
}

void SafetensorsWriter::write(const std::filesystem::path& path) const {
  const std::vector<const NamedTensor*> order = layout();
  const std::string head = header(order);
  AtomicFile file(path);
  file.write(head);
  for (const NamedTensor* tensor : order) file.write(tensor->second.data);
  file.commit();
}

std::vector<std::byte> SafetensorsWriter::to_bytes() const {
  const std::vector<const NamedTensor*> order = layout();
  const std::string head = header(order);
  const auto head_bytes = std::as_bytes(std::span<const char>(head));
  std::vector<std::byte> out(head_bytes.begin(), head_bytes.end());
  for (const NamedTensor* tensor : order) {
    out.insert(out.end(), tensor->second.data.begin(), tensor->second.data.end());
  }
  return out;
}

}  // namespace batten::io
