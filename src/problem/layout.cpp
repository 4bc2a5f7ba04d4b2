#include "problem/layout.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <utility>

namespace batten::impl {
namespace {

struct Range {
  std::intptr_t begin = 0;
  std::intptr_t end = 0;  // bytes; one past the last
};

bool intersect(const Range& a, const Range& b) noexcept {
  return a.begin < b.end && b.begin < a.end;
}

// A dimension of a view: `count` steps of `stride` bytes.
struct Dimension {
  std::int64_t count = 0;
  std::intptr_t stride = 0;
};
constexpr unsigned kDimensions = 3;

std::array<Dimension, kDimensions> dimensions_of(const Extent& v) noexcept {
  const auto size = static_cast<std::intptr_t>(v.element_size);
  return {{{v.batch, v.layout.batch * size},
           {v.rows, v.layout.row * size},
           {v.heads, v.layout.head * size}}};
}

// The bytes that a view touches while it steps along the dimensions of `inner` alone.
Range range_within(const Extent& v, unsigned inner) noexcept {
  const auto data = static_cast<std::intptr_t>(v.data);
  Range r{data, data + v.width * static_cast<std::intptr_t>(v.element_size)};
  const auto dimensions = dimensions_of(v);
  for (unsigned i = 0; i < kDimensions; ++i) {
    if ((inner >> i & 1u) == 0) continue;
    const std::intptr_t reach = (dimensions[i].count - 1) * dimensions[i].stride;
    (reach < 0 ? r.begin : r.end) += reach;
  }
  return r;
}

// The greatest common divisor of the steps along the other dimensions; 0 where there are none.
std::intptr_t period_outside(const Extent& v, unsigned inner) noexcept {
  std::intptr_t period = 0;
  const auto dimensions = dimensions_of(v);
  for (unsigned i = 0; i < kDimensions; ++i) {
    if ((inner >> i & 1u) == 0) period = std::gcd(period, dimensions[i].stride);
  }
  return period;
}

// Slices of one buffer: both views repeat with a common period, and touch disjoint bytes of it.
// Which dimensions lie within the period depends on where the buffer has its slices.
bool interleaved_apart(const Extent& a, const Extent& b) noexcept {
  for (unsigned inner = 0; inner < 1u << kDimensions; ++inner) {
    const std::intptr_t period = std::gcd(period_outside(a, inner), period_outside(b, inner));
    if (period == 0) continue;
    const Range range_a = range_within(a, inner);
    const Range range_b = range_within(b, inner);
    const std::intptr_t shift = (range_b.begin - range_a.begin) % period;
    const std::intptr_t gap = shift < 0 ? shift + period : shift;  // from a's begin to b's
    if (range_a.end - range_a.begin <= gap && gap + range_b.end - range_b.begin <= period) {
      return true;
    }
  }
  return false;
}

}  // namespace

bool overlaps_itself(const Extent& v) noexcept {
  if (v.empty()) return false;
  std::array<std::pair<std::int64_t, std::int64_t>, 3> dims{
      // {stride, count}
      std::pair{std::abs(v.layout.batch), v.batch}, std::pair{std::abs(v.layout.row), v.rows},
      std::pair{std::abs(v.layout.head), v.heads}};
  std::sort(dims.begin(), dims.end());
  std::int64_t reach = v.width;  // elements covered by the dimensions inside
  for (const auto& [stride, count] : dims) {
    if (count == 1) continue;
    if (stride < reach) return true;
    reach += (count - 1) * stride;
  }
  return false;
}

bool overlap(const Extent& a, const Extent& b) noexcept {
  if (a.empty() || b.empty()) return false;
  constexpr unsigned kAll = (1u << kDimensions) - 1;
  return intersect(range_within(a, kAll), range_within(b, kAll)) && !interleaved_apart(a, b);
}

}  // namespace batten::impl
