// How the lists of cases are written down. Internal to the conformance library.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "cases.hpp"

namespace batten::conformance {

struct Heads {
  int q = 2;
  int kv = 2;
};
inline constexpr Heads kMha{2, 2};
inline constexpr Heads kGqa{4, 2};
inline constexpr Heads kMqa{3, 1};

inline constexpr Mask kMasks[] = {Mask::none, Mask::causal, Mask::causal_top_left};

// Appends cases to a list, each in the next dtype and head dim of the backend's row: so a list of
// shapes also walks through the formats, and never asks for one that the row does not have.
class CaseBuilder {
 public:
  CaseBuilder(const Served& served, DeviceType device, std::vector<Case>& list)
      : served_(served), device_(device), list_(list) {}

  bool on_gpu() const noexcept { return device_ == DeviceType::cuda; }

  // `what` must be unique in the group. The reference holds until the next add.
  Case& add(const char* group, const std::string& what, Heads heads, Mask mask, std::int64_t batch,
            std::int64_t q, std::int64_t kv) {
    const DType dtype = next(served_.dtypes, dtype_turn_);
    // A full turn of the dtypes sees one head dim, so that all pairs come up.
    const int dim = served_.head_dims[dim_turn_ / served_.dtypes.size() % served_.head_dims.size()];
    ++dim_turn_;
    return add(group, what, heads, mask, batch, q, kv, dtype, dim);
  }

  Case& add(const char* group, const std::string& what, Heads heads, Mask mask, std::int64_t batch,
            std::int64_t q, std::int64_t kv, DType dtype, int dim) {
    Case one;
    one.name = fmt::format("{}/{}_{}_h{}x{}_d{}_{}", group, what, name_of(mask), heads.q, heads.kv,
                           dim, name_of(dtype));
    one.problem = {.dtype = dtype,
                   .num_heads = heads.q,
                   .num_kv_heads = heads.kv,
                   .head_dim = dim,
                   .mask = mask};
    one.batch = batch;
    one.q = q;
    one.kv = kv;
    list_.push_back(one);
    return list_.back();
  }

 private:
  template <class T>
  static T next(const std::vector<T>& values, std::size_t& turn) {
    return values[turn++ % values.size()];
  }

  const Served& served_;
  DeviceType device_;
  std::vector<Case>& list_;
  std::size_t dtype_turn_ = 0;
  std::size_t dim_turn_ = 0;
};

// The parts of the full list.
void add_shape_cases(CaseBuilder& builder);  // tile edges, lengths, packing, causal, heads
void add_value_cases(CaseBuilder& builder);  // contents, padding, scale
void add_use_cases(CaseBuilder& builder);    // layouts, flows, lengths on a device, large calls
void add_served_cases(CaseBuilder& builder, const Served& served);  // the row's combinations

}  // namespace batten::conformance
