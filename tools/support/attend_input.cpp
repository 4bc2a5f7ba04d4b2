#include "support/attend_input.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>

#include "core/error.hpp"
#include "half.hpp"
#include "io/text.hpp"
#include "support/suggest.hpp"

namespace batten::tools {
namespace {

constexpr std::size_t kRank = 4;
// The library's own limits on a dimension (heads, head dim) lie below; this keeps the casts safe.
constexpr std::int64_t kMaxDimension = std::int64_t{1} << 31;

template <class... Args>
[[noreturn]] void bad(const io::SafetensorsFile& file, fmt::format_string<Args...> format,
                      Args&&... args) {
  fail(ErrorCode::InvalidArgument, "'{}': {}", file.source(),
       fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace

DType dtype_of(io::Dtype dtype) noexcept {
  switch (dtype) {
    case io::Dtype::kF32:
      return DType::f32;
    case io::Dtype::kF16:
      return DType::f16;
    case io::Dtype::kBF16:
      return DType::bf16;
    default:
      return DType::none;
  }
}

io::Dtype file_dtype_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return io::Dtype::kF32;
    case DType::f16:
      return io::Dtype::kF16;
    case DType::bf16:
      return io::Dtype::kBF16;
    default:
      fail(ErrorCode::Internal, "{} has no place in a result file", name_of(dtype));
  }
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::vector<float> decode_values(const io::TensorEntry& entry) {
  const DType dtype = dtype_of(entry.dtype);
  std::vector<float> values(entry.bytes / size_of(dtype));
  conformance::decode(dtype, entry.data, values);
  return values;
}

AttendInput::AttendInput(const std::filesystem::path& path)
    : file_(io::SafetensorsFile::open(path)) {
  q_ = &require("q");
  k_ = &require("k");
  v_ = &require("v");
  dtype_ = dtype_of(q_->dtype);
  check_shapes();
  q_lengths_ = read_lengths("q_lengths", "q", q_rows());
  kv_lengths_ = read_lengths("kv_lengths", "k", kv_rows());
}

const io::TensorEntry& AttendInput::require(std::string_view name) const {
  const io::TensorEntry* entry = file_.find(name);
  if (entry == nullptr) {
    std::vector<std::string> names;
    for (const io::TensorEntry& other : file_.tensors()) {
      const std::string& known = other.name;
      if (known != "q" && known != "k" && known != "v") names.push_back(known);
    }
    const std::string nearest = nearest_tensor(name, names);
    if (!nearest.empty()) {
      bad(file_, "no tensor '{0}'; the nearest is '{1}', rename it to '{0}' if it is meant", name,
          io::printable(nearest));
    }
    static_cast<void>(file_.at(name));  // throws, listing the names that there are
  }
  if (dtype_of(entry->dtype) == DType::none) {
    bad(file_, "tensor '{}' is {}, expected F32, F16 or BF16; convert it", io::printable(name),
        io::dtype_name(entry->dtype));
  }
  return *entry;
}

void AttendInput::check_shapes() const {
  struct Named {
    const char* name;
    const io::TensorEntry* entry;
  };
  for (const Named& t : {Named{"q", q_}, Named{"k", k_}, Named{"v", v_}}) {
    const auto& shape = t.entry->shape;
    if (shape.size() != kRank) {
      bad(file_, "tensor '{}' has {} dimensions {}, expected 4: [batch, length, heads, head dim]",
          t.name, shape.size(), shape_text(shape));
    }
    for (const std::int64_t n : shape) {
      if (n >= kMaxDimension)
        bad(file_, "tensor '{}' of shape {} is too large", t.name, shape_text(shape));
    }
    if (t.entry->dtype != q_->dtype) {
      bad(file_, "tensor '{}' is {} but q is {}; give q, k and v one dtype", t.name,
          io::dtype_name(t.entry->dtype), io::dtype_name(q_->dtype));
    }
    if (shape[2] < 1 || shape[3] < 1)
      bad(file_, "tensor '{}' of shape {} has no heads or no head dim", t.name, shape_text(shape));
    if (shape[0] != batch()) {
      bad(file_, "tensor '{}' of shape {} has batch {} but q of shape {} has {}; they must agree",
          t.name, shape_text(shape), shape[0], shape_text(q_->shape), batch());
    }
  }
  if (k_->shape[1] != v_->shape[1] || k_->shape[2] != v_->shape[2]) {
    bad(file_, "k of shape {} and v of shape {} disagree; they need the same length and heads",
        shape_text(k_->shape), shape_text(v_->shape));
  }
  if (k_->shape[3] != q_->shape[3]) {
    bad(file_, "q of shape {} and k of shape {} disagree in the head dim, the last one",
        shape_text(q_->shape), shape_text(k_->shape));
  }
  if (q_->shape[2] % k_->shape[2] != 0) {
    bad(file_,
        "{} query heads (q {}) are no multiple of {} key/value heads (k {}); the layout is "
        "[batch, length, heads, head dim]",
        num_heads(), shape_text(q_->shape), num_kv_heads(), shape_text(k_->shape));
  }
}

std::vector<std::int32_t> AttendInput::read_lengths(const std::string& name, const char* of,
                                                    std::int64_t rows) const {
  const io::TensorEntry* entry = file_.find(name);
  if (entry == nullptr) return {};
  if (entry->dtype != io::Dtype::kI32 || entry->shape.size() != 1) {
    bad(file_, "tensor '{}' is {} {}, expected I32 [batch]; convert it", name,
        io::dtype_name(entry->dtype), shape_text(entry->shape));
  }
  if (entry->shape[0] != batch()) {
    bad(file_, "tensor '{}' has {} entries for a batch of {}; give one length a sample", name,
        entry->shape[0], batch());
  }
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(batch()));
  if (!lengths.empty()) std::memcpy(lengths.data(), entry->data, entry->bytes);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0 || lengths[i] > rows) {
      bad(file_, "{}[{}] is {}, expected 0 to {}, the rows of {}", name, i, lengths[i], rows, of);
    }
  }
  return lengths;
}

LoadedTensor::LoadedTensor(const io::TensorEntry& entry, DType dtype, Device device) {
  const void* data = entry.data;
  // The format promises no alignment; a file without it is copied.
  const bool aligned = reinterpret_cast<std::uintptr_t>(data) % size_of(dtype) == 0;
  if (!device.is_cpu() || !aligned) {
    memory_ = conformance::DeviceMemory(device, entry.bytes);
    memory_.upload(entry.span());
    data = memory_.data();
  }
  view_ = TensorView(data, dtype, entry.shape, {}, device);
}

}  // namespace batten::tools
