#include "backends/single/path.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace batten::impl::single {
namespace {

constexpr std::int64_t kInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kUint32 = std::numeric_limits<std::uint32_t>::max();

// CUDA's limits of a tensor map's byte strides and of a grid's second dimension.
constexpr std::int64_t kMapStride = std::int64_t{1} << 40;
constexpr std::int64_t kGridY = 65535;

struct Tensor {
  const char* name;
  const Layout& layout;
  std::int64_t rows;
  std::int64_t heads;
  std::int64_t head_dim;

  bool is_shared() const {
    return (rows > 1 && layout.row == 0) || (heads > 1 && layout.head == 0);
  }
  bool is_backwards() const {
    return (rows > 1 && layout.row < 0) || (heads > 1 && layout.head < 0);
  }
  // Elements from a sample's first to its last; 2^63 - 1 when beyond 64 bits.
  std::int64_t reach() const {
    const auto span = [](std::int64_t count, std::int64_t stride) {
      std::int64_t product = 0;
      return __builtin_mul_overflow(std::max<std::int64_t>(count - 1, 0), stride, &product)
                 ? std::numeric_limits<std::int64_t>::max() / 4
                 : product;
    };
    return span(rows, layout.row) + span(heads, layout.head) + head_dim;
  }
};

struct Tensors {
  Tensor q, k, v, out;
};

Tensors tensors_of(const Problem& problem, const Shape& shape) {
  return {
      {"q", shape.q, shape.max_q, problem.num_heads, problem.head_dim},
      {"k", shape.k, shape.max_kv, problem.num_kv_heads, problem.head_dim},
      {"v", shape.v, shape.max_kv, problem.num_kv_heads, problem.head_dim_v},
      {"out", shape.out, shape.max_q, problem.num_heads, problem.head_dim_v},
  };
}

// Keys and values that all heads share are those of one head.
bool shares_heads(const Shape& shape) { return shape.k.head == 0 && shape.v.head == 0; }

}  // namespace

bool sm90_can_read(const Problem& problem, const Shape& shape) {
  Tensors tensors = tensors_of(problem, shape);
  if (shares_heads(shape)) tensors.k.heads = tensors.v.heads = 1;
  for (const Tensor& tensor : {tensors.q, tensors.k, tensors.v}) {
    if (tensor.is_shared()) return false;
    if (std::max(tensor.layout.row, tensor.layout.head) * 2 >= kMapStride) return false;
  }
  return problem.num_heads <= kGridY;
}

Path path_of(const Problem& problem, const Shape& shape, int arch) {
  return arch == 90 && sm90_can_read(problem, shape) ? Path::sm90 : Path::sm80;
}

bool output_is_contiguous(const Problem& problem, const Shape& shape) {
  return (problem.num_heads == 1 || shape.out.head == problem.head_dim_v) &&
         (shape.max_q <= 1 ||
          shape.out.row == static_cast<std::int64_t>(problem.num_heads) * problem.head_dim_v);
}

bool lse_is_contiguous(const Problem& problem, const Shape& shape) {
  return (problem.num_heads == 1 || shape.lse_layout.head == 1) &&
         (shape.max_q <= 1 || shape.lse_layout.row == problem.num_heads);
}

std::optional<std::string> why_not_path(Path path, const Problem& problem, const Shape& shape,
                                        const char* version) {
  const Tensors tensors = tensors_of(problem, shape);
  for (const Tensor& tensor : {tensors.q, tensors.k, tensors.v, tensors.out}) {
    if (tensor.is_backwards()) return fmt::format("{} has a negative stride", tensor.name);
  }
  // Both kernels count rows, and the sm90 kernel places its log-sum-exp, in 32 bits.
  if (std::max(shape.max_q, shape.max_kv) > kInt32 - 256 ||
      shape.max_q * problem.num_heads > kInt32 - 256) {
    return fmt::format("flashinfer {} counts a sample's rows times heads in 32 bits", version);
  }
  if (path == Path::sm90) return std::nullopt;

  const std::int64_t written = shape.max_q * problem.num_heads * problem.head_dim_v;
  for (const Tensor& tensor : {tensors.q, tensors.k, tensors.v}) {
    if (tensor.reach() > kUint32) {
      return fmt::format(
          "flashinfer {}'s sm80 kernel addresses a sample in 32 bits, but one of {} "
          "spans {} elements",
          version, tensor.name, tensor.reach());
    }
  }
  if (written > kUint32) {
    return fmt::format(
        "flashinfer {}'s sm80 kernel addresses a sample in 32 bits, but one of out "
        "has {} elements",
        version, written);
  }
  return std::nullopt;
}

}  // namespace batten::impl::single
