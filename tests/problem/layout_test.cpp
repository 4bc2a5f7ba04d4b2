// Which views share memory, against the sets of bytes that they touch.
#include "problem/layout.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "problem/problem_test.hpp"

namespace batten::impl {
namespace {

// ---- the rule, by counting ----------------------------------------------------------------------

std::vector<std::intptr_t> bytes_of(const Extent& v) {
  std::vector<std::intptr_t> bytes;
  const auto size = static_cast<std::intptr_t>(v.element_size);
  for (std::int64_t b = 0; b < v.batch; ++b)
    for (std::int64_t r = 0; r < v.rows; ++r)
      for (std::int64_t h = 0; h < v.heads; ++h)
        for (std::int64_t d = 0; d < v.width; ++d) {
          const std::int64_t element =
              b * v.layout.batch + r * v.layout.row + h * v.layout.head + d;
          for (std::intptr_t i = 0; i < size; ++i) {
            bytes.push_back(static_cast<std::intptr_t>(v.data) + element * size + i);
          }
        }
  return bytes;
}

bool share_a_byte(const Extent& a, const Extent& b) {
  const auto bytes_a = bytes_of(a);
  const std::set<std::intptr_t> set_a(bytes_a.begin(), bytes_a.end());
  const auto bytes_b = bytes_of(b);
  return std::any_of(bytes_b.begin(), bytes_b.end(), [&](auto x) { return set_a.contains(x); });
}

bool repeats_a_byte(const Extent& v) {
  const auto bytes = bytes_of(v);
  return std::set<std::intptr_t>(bytes.begin(), bytes.end()).size() != bytes.size();
}

// ---- generators ---------------------------------------------------------------------------------

constexpr std::uintptr_t kBase = 1 << 20;  // room for negative strides
constexpr int kDraws = 20;                 // of one case: most pairs of views are far apart

// Any strides at all.
Extent wild() {
  Extent v;
  v.element_size = any_bool() ? 2 : 4;
  v.data = kBase + v.element_size * static_cast<std::uintptr_t>(any_of(0, 40));
  v.batch = any_of(0, 3);
  v.rows = any_of(0, 4);
  v.heads = any_of(0, 3);
  v.width = any_of(1, 4);
  v.layout = {any_of(-20, 20), any_of(-20, 20), any_of(-20, 20)};
  return v;
}

// A slice of a buffer with the dimensions batch, row, head and one of slices, nested in any order.
struct Buffer {
  enum Dim { batch, row, head, slice };
  std::vector<Dim> order{batch, row, head, slice};  // outermost first
  std::int64_t counts[4] = {};                      // of each Dim
  std::int64_t width = 1;
  std::size_t element_size = 2;

  Extent at(std::int64_t index) const {
    std::int64_t strides[4] = {};
    std::int64_t stride = width;
    for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
      strides[*dim] = stride;
      stride *= counts[*dim];
    }
    Extent v;
    v.element_size = element_size;
    v.data = kBase + static_cast<std::uintptr_t>(index * strides[slice]) * element_size;
    v.batch = counts[batch];
    v.rows = counts[row];
    v.heads = counts[head];
    v.width = width;
    v.layout = {strides[batch], strides[row], strides[head]};
    return v;
  }
};

Buffer any_buffer() {
  Buffer b;
  for (std::size_t i = 3; i > 0; --i) {
    std::swap(b.order[i], b.order[static_cast<std::size_t>(any_of(0, static_cast<int>(i)))]);
  }
  for (auto& count : b.counts) count = any_of(1, 4);
  b.counts[Buffer::slice] = any_of(2, 4);
  b.width = any_of(1, 4);
  b.element_size = any_bool() ? 2 : 4;
  return b;
}

// As validation hands views over: strides of dimensions of one entry are the contiguous ones.
Extent normalised(Extent v) {
  if (v.heads == 1) v.layout.head = v.width;
  if (v.rows == 1) v.layout.row = v.heads * v.layout.head;
  if (v.batch == 1) v.layout.batch = v.rows * v.layout.row;
  return v;
}

Extent contiguous(std::uintptr_t data, std::int64_t batch, std::int64_t rows, std::int64_t heads,
                  std::int64_t width, std::size_t size = 2) {
  return {data, batch, rows, heads, width, {rows * heads * width, heads * width, width}, size};
}

// ---- properties ---------------------------------------------------------------------------------

RC_GTEST_PROP(Overlap, IsReportedWhereverTwoViewsShareAByte, ()) {
  for (int i = 0; i < kDraws; ++i) {
    const Extent a = wild();
    const Extent b = wild();
    if (share_a_byte(a, b)) RC_ASSERT(overlap(a, b));
    RC_ASSERT(overlap(a, b) == overlap(b, a));
  }
}

RC_GTEST_PROP(Overlap, IsReportedForInterleavedViewsThatShareAByte, ()) {
  // Both views step alike, which is where the library may call them apart.
  Extent a = any_buffer().at(0);
  Extent b = a;
  b.heads = any_of(1, 4);
  b.width = any_of(1, 4);
  b.element_size = any_bool() ? 2 : 4;
  if (b.element_size != a.element_size) {
    for (std::int64_t* stride : {&b.layout.batch, &b.layout.row, &b.layout.head}) {
      *stride = *stride * static_cast<std::int64_t>(a.element_size) /
                static_cast<std::int64_t>(b.element_size);
    }
  }
  b.data = a.data + b.element_size * static_cast<std::uintptr_t>(any_of(0, 40)) - 40;
  const bool shared = share_a_byte(a, b);
  RC_CLASSIFY(shared);
  if (shared) RC_ASSERT(overlap(a, b));
}

RC_GTEST_PROP(Overlap, TellsTheSlicesOfOneBufferApart, ()) {
  const Buffer buffer = any_buffer();
  const std::int64_t i = any_of(0, buffer.counts[Buffer::slice] - 1);
  const std::int64_t j = any_of(0, buffer.counts[Buffer::slice] - 1);
  RC_ASSERT(overlap(normalised(buffer.at(i)), normalised(buffer.at(j))) == (i == j));
}

RC_GTEST_PROP(OverlapsItself, IsReportedWhereverAByteIsTouchedTwice, ()) {
  for (int i = 0; i < kDraws; ++i) {
    const Extent v = wild();
    if (repeats_a_byte(v)) RC_ASSERT(overlaps_itself(v));
  }
}

RC_GTEST_PROP(OverlapsItself, IsExactForNestedStrides, ()) {
  Extent v = any_buffer().at(0);
  // Each dimension holds the ones inside, or just fails to.
  std::int64_t* const strides[] = {&v.layout.batch, &v.layout.row, &v.layout.head};
  const auto spoilt = any_of(0, 5);
  if (spoilt < 3) *strides[spoilt] += any_of(-1, 1);
  if (any_bool()) v.layout.row = -v.layout.row;
  std::vector<std::pair<std::int64_t, std::int64_t>> dims{{std::abs(v.layout.batch), v.batch},
                                                          {std::abs(v.layout.row), v.rows},
                                                          {std::abs(v.layout.head), v.heads}};
  std::erase_if(dims, [](const auto& dim) { return dim.second == 1; });
  std::sort(dims.begin(), dims.end());
  std::int64_t reach = v.width;
  bool nested = true;
  for (const auto& [stride, count] : dims) {
    nested = nested && (stride >= reach || stride < v.width);
    reach += (count - 1) * stride;
  }
  RC_PRE(nested);
  RC_ASSERT(overlaps_itself(v) == repeats_a_byte(v));
}

// ---- cases that a reader would ask for
// -----------------------------------------------------------

TEST(Overlap, NeighboursTouchButDoNotOverlap) {
  const Extent a = contiguous(kBase, 2, 3, 2, 8);
  const std::uintptr_t bytes = 2 * 3 * 2 * 8 * 2;
  EXPECT_FALSE(overlap(a, contiguous(kBase + bytes, 2, 3, 2, 8)));
  EXPECT_FALSE(overlap(a, contiguous(kBase - bytes, 2, 3, 2, 8)));
  EXPECT_TRUE(overlap(a, contiguous(kBase + bytes - 2, 2, 3, 2, 8)));
  EXPECT_TRUE(overlap(a, contiguous(kBase - bytes + 2, 2, 3, 2, 8)));
  EXPECT_TRUE(overlap(a, a));
}

TEST(Overlap, CountsBytesNotElements) {
  const Extent half = contiguous(kBase, 1, 4, 1, 8, 2);              // 64 bytes
  const Extent single = contiguous(kBase + 64, 1, 4, 1, 8, 4);       // 128 bytes
  const Extent before = contiguous(kBase - 128 + 4, 1, 4, 1, 8, 4);  // ends in the first's
  EXPECT_FALSE(overlap(half, single));
  EXPECT_TRUE(overlap(half, before));
}

TEST(Overlap, EmptyViewsTouchNothing) {
  for (int dim = 0; dim < 3; ++dim) {
    Extent empty = contiguous(kBase, 2, 3, 2, 8);
    (dim == 0 ? empty.batch : dim == 1 ? empty.rows : empty.heads) = 0;
    EXPECT_FALSE(overlap(empty, contiguous(kBase, 2, 3, 2, 8)));
    EXPECT_FALSE(overlap(contiguous(kBase, 2, 3, 2, 8), empty));
    empty.layout = {};
    EXPECT_FALSE(overlaps_itself(empty));
  }
}

TEST(Overlap, SeesThroughNegativeStrides) {
  // Rows backwards from kBase: [kBase - 3 * 32, kBase + 32).
  const Extent backwards{kBase, 1, 4, 1, 16, {0, -16, 16}, 2};
  EXPECT_TRUE(overlap(backwards, contiguous(kBase - 96, 1, 1, 1, 1)));
  EXPECT_FALSE(overlap(backwards, contiguous(kBase - 98, 1, 1, 1, 1)));
  EXPECT_FALSE(overlap(backwards, contiguous(kBase + 32, 1, 1, 1, 1)));
  EXPECT_FALSE(overlaps_itself(backwards));
}

TEST(Overlap, SlicesOfAFusedRowAreApartWhateverTheirOrder) {
  // [B, S, 3, H, D]
  const auto slice = [](std::uintptr_t i, std::int64_t batch, std::int64_t rows) {
    const std::int64_t row = 3 * 2 * 8;
    return normalised({kBase + i * 2 * 8 * 2, batch, rows, 2, 8, {rows * row, row, 8}, 2});
  };
  for (const std::int64_t batch : {1, 2}) {
    for (const std::int64_t rows : {1, 2, 5}) {
      EXPECT_FALSE(overlap(slice(0, batch, rows), slice(2, batch, rows)));
      EXPECT_FALSE(overlap(slice(2, batch, rows), slice(1, batch, rows)));
      EXPECT_TRUE(overlap(slice(1, batch, rows), slice(1, batch, rows)));
    }
  }
}

TEST(Overlap, ASliceThatReachesIntoTheNextIsFound) {
  // q of a fused row that is one head too wide.
  const std::int64_t row = 3 * 2 * 8;
  const Extent wide{kBase, 2, 5, 3, 8, {5 * row, row, 8}, 2};
  const Extent k{kBase + 2 * 8 * 2, 2, 5, 2, 8, {5 * row, row, 8}, 2};
  EXPECT_TRUE(overlap(wide, k));
  // The last slice of a row that wraps into the first of the next.
  const Extent last{kBase + 2 * 2 * 8 * 2, 2, 5, 3, 8, {5 * row, row, 8}, 2};
  const Extent first{kBase, 2, 5, 2, 8, {5 * row, row, 8}, 2};
  EXPECT_TRUE(overlap(last, first));
  EXPECT_TRUE(overlap(first, last));
}

TEST(OverlapsItself, BroadcastDimensionsDo) {
  Extent v = contiguous(kBase, 2, 3, 2, 8);
  EXPECT_FALSE(overlaps_itself(v));
  for (std::int64_t* stride : {&v.layout.batch, &v.layout.row, &v.layout.head}) {
    const std::int64_t old = std::exchange(*stride, 0);
    EXPECT_TRUE(overlaps_itself(v));
    *stride = old;
  }
  v.batch = 1;
  v.layout.batch = 0;
  EXPECT_FALSE(overlaps_itself(v)) << "a dimension of one entry is never stepped along";
}

TEST(OverlapsItself, HeadMajorTensorsDoNot) {
  // [B, H, S, D] in memory.
  EXPECT_FALSE(overlaps_itself({kBase, 2, 5, 4, 8, {160, 8, 40}, 2}));
  EXPECT_TRUE(overlaps_itself({kBase, 2, 5, 4, 8, {160, 8, 39}, 2}));
}

}  // namespace
}  // namespace batten::impl
