// The numbers in a case's tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cases.hpp"
#include "geometry.hpp"

namespace batten::conformance {

// Row-major [rows, heads, dim], rows as Geometry counts them. Rows of no sample hold garbage.
struct Inputs {
  std::vector<float> q, k, v;
};

Inputs make_inputs(const Case& one, const Geometry& geometry, Garbage garbage);

float garbage_value(Garbage garbage) noexcept;

// Where nan_key and nan_value put their NaN: key/value head 0 of this sample, at this key.
struct Planted {
  std::int64_t sample = 0;
  std::int64_t key = 0;
};
std::optional<Planted> planted_nan(const Case& one, const Geometry& geometry);

// What NaN a row of the output may hold.
enum class NanRule { never, may, must };
NanRule nan_rule(const Case& one, const Geometry& geometry, std::int64_t sample, std::int64_t row,
                 int head);

}  // namespace batten::conformance
