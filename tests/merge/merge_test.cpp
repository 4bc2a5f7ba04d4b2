// merge on the CPU: against float64, its algebra, and rows without keys.
#include "merge/merge.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "merge/merge_data.hpp"

namespace batten::impl::merge_test {
namespace {

double epsilon(DType dtype) {
  return dtype == DType::f32 ? 1e-6 : dtype == DType::f16 ? 1e-3 : 8e-3;
}

struct Exact {
  double value, lse;
};

Exact combine(double o1, double a, double o2, double b) {
  const double maximum = std::max(a, b);
  if (maximum == -kInfinity) return {0, maximum};
  const double first = std::exp(a - maximum);
  const double second = std::exp(b - maximum);
  return {(first * o1 + second * o2) / (first + second), maximum + std::log(first + second)};
}

TEST(Merge, MatchesFloat64InEveryTypeAndLayout) {
  const Dims dims{2, 7, 3, 40};
  for (const DType dtype : kDTypes) {
    for (const DType dtype2 : kDTypes) {
      for (const Order order : kOrders) {
        for (const Order order2 : kOrders) {
          Partial first(dims, dtype, order);
          Partial second(dims, dtype2, order2);
          first.fill(1);
          second.fill(2);
          const Partial before = first;
          merge_cpu(call_of(first, second));
          for (std::int64_t n = 0; n < dims.count(); ++n) {
            const double a = before.get_lse(n);
            const double b = second.get_lse(n);
            for (std::int64_t d = 0; d < dims.head_dim; ++d) {
              const Exact exact = combine(before.get(n, d), a, second.get(n, d), b);
              const double size = std::fabs(before.get(n, d)) + std::fabs(second.get(n, d));
              ASSERT_NEAR(first.get(n, d), exact.value, epsilon(dtype) * size)
                  << name_of(dtype) << " " << name_of(dtype2) << " row " << n << " " << d;
            }
            const Exact exact = combine(0, a, 0, b);
            if (std::isinf(exact.lse)) {
              ASSERT_EQ(first.get_lse(n), -kInfinity);
            } else {
              ASSERT_NEAR(first.get_lse(n), exact.lse, 4e-6 * (1 + std::fabs(exact.lse)));
            }
          }
        }
      }
    }
  }
}

TEST(Merge, TouchesNothingBetweenRows) {
  const Dims dims{2, 3, 2, 8};
  Partial first(dims, DType::f32, Order::padded);
  Partial second(dims, DType::f32, Order::bshd);
  for (std::int64_t n = 0; n < static_cast<std::int64_t>(first.out.bytes.size() / 4); ++n) {
    first.out.set(n, 77);
  }
  first.fill(1);
  second.fill(2);
  merge_cpu(call_of(first, second));
  for (std::int64_t n = 0; n < dims.count(); ++n) {
    for (std::int64_t d = 0; d < dims.head_dim; ++d) first.set(n, d, 77);
  }
  for (std::int64_t n = 0; n < static_cast<std::int64_t>(first.out.bytes.size() / 4); ++n) {
    ASSERT_EQ(first.out.get(n), 77) << n;
  }
}

TEST(Merge, IsAssociativeAndCommutativeWithinRounding) {
  const Dims dims{1, 64, 4, 16};
  const auto make = [&](std::uint32_t seed) {
    Partial partial(dims, DType::f32, Order::bshd);
    partial.fill(seed);
    return partial;
  };
  const Partial a = make(1), b = make(2), c = make(3);
  Partial left = a;  // (a b) c
  merge_cpu(call_of(left, b));
  merge_cpu(call_of(left, c));
  Partial tail = b;  // a (b c)
  merge_cpu(call_of(tail, c));
  Partial right = a;
  merge_cpu(call_of(right, tail));
  Partial reverse = c;  // (c b) a
  merge_cpu(call_of(reverse, b));
  merge_cpu(call_of(reverse, a));
  for (std::int64_t n = 0; n < dims.count(); ++n) {
    const double size = 2e-6 * (1 + std::fabs(left.get_lse(n)));
    if (std::isinf(left.get_lse(n))) {
      ASSERT_EQ(right.get_lse(n), -kInfinity);
      ASSERT_EQ(reverse.get_lse(n), -kInfinity);
    } else {
      ASSERT_NEAR(left.get_lse(n), right.get_lse(n), size);
      ASSERT_NEAR(left.get_lse(n), reverse.get_lse(n), size);
    }
    for (std::int64_t d = 0; d < dims.head_dim; ++d) {
      ASSERT_NEAR(left.get(n, d), right.get(n, d), 2e-5);
      ASSERT_NEAR(left.get(n, d), reverse.get(n, d), 2e-5);
    }
  }
}

// One row of two elements.
Partial row(float lse, float x, float y, DType dtype = DType::f32) {
  Partial partial({1, 1, 1, 2}, dtype, Order::bshd);
  partial.set_lse(0, lse);
  partial.set(0, 0, x);
  partial.set(0, 1, y);
  return partial;
}

TEST(Merge, ARowWithoutKeysContributesNothing) {
  // 0.1 is no float: bits must survive, and what stands in an empty row must not matter.
  Partial first = row(1.5f, 0.1f, -0.0f);
  merge_cpu(call_of(first, row(-kInfinity, NAN, 3)));
  EXPECT_EQ(first.get_lse(0), 1.5f);
  EXPECT_EQ(first.get(0, 0), 0.1f);
  EXPECT_TRUE(std::signbit(first.get(0, 1)));

  for (const DType dtype : kDTypes) {
    Partial empty = row(-kInfinity, NAN, 3, dtype);
    const Partial second = row(1.5f, 0.1f, -0.0f, dtype);
    merge_cpu(call_of(empty, second));
    EXPECT_EQ(empty.get_lse(0), 1.5f);
    EXPECT_EQ(empty.out.bytes, second.out.bytes) << name_of(dtype);
  }

  Partial both = row(-kInfinity, NAN, 3);
  merge_cpu(call_of(both, row(-kInfinity, 4, NAN)));
  EXPECT_EQ(both.get_lse(0), -kInfinity);
  EXPECT_EQ(both.get(0, 0), 0);
  EXPECT_EQ(both.get(0, 1), 0);
}

TEST(Merge, NanPropagates) {
  Partial lse = row(NAN, 1, 2);
  merge_cpu(call_of(lse, row(0, 3, 4)));
  EXPECT_TRUE(std::isnan(lse.get_lse(0)));
  EXPECT_TRUE(std::isnan(lse.get(0, 0)));

  Partial lse2 = row(0, 1, 2);
  merge_cpu(call_of(lse2, row(NAN, 3, 4)));
  EXPECT_TRUE(std::isnan(lse2.get_lse(0)));
  EXPECT_TRUE(std::isnan(lse2.get(0, 1)));

  Partial out = row(0, NAN, 2);
  merge_cpu(call_of(out, row(200, 3, 4)));  // a weight of 0 hides no NaN
  EXPECT_EQ(out.get_lse(0), 200);
  EXPECT_TRUE(std::isnan(out.get(0, 0)));
  EXPECT_EQ(out.get(0, 1), 4);
}

TEST(Merge, AnInfiniteSumStaysInfinite) {
  Partial first = row(kInfinity, 1, 2);
  merge_cpu(call_of(first, row(3, 3, 4)));
  EXPECT_EQ(first.get_lse(0), kInfinity);
  EXPECT_TRUE(std::isnan(first.get(0, 0)));

  Partial both = row(kInfinity, 1, 2);
  merge_cpu(call_of(both, row(NAN, 3, 4)));
  EXPECT_TRUE(std::isnan(both.get_lse(0)));
}

TEST(Merge, DistantSumsNeitherOverflowNorVanish) {
  Partial first = row(1e5f, 1, 2);
  merge_cpu(call_of(first, row(-1e5f, 3, 4)));
  EXPECT_EQ(first.get_lse(0), 1e5f);
  EXPECT_EQ(first.get(0, 0), 1);

  Partial equal = row(-1e5f, 1, 2);
  merge_cpu(call_of(equal, row(-1e5f, 3, 4)));
  EXPECT_FLOAT_EQ(equal.get(0, 0), 2);
  EXPECT_FLOAT_EQ(equal.get_lse(0), -1e5f + std::log(2.0f));
}

TEST(Merge, NoRowsIsNoWork) {
  Partial first = row(1, 2, 3);
  const Partial second = row(4, 5, 6);
  MergeCall call = call_of(first, second);
  call.rows = 0;
  merge_cpu(call);
  EXPECT_EQ(first.get_lse(0), 1);
}

}  // namespace
}  // namespace batten::impl::merge_test
