// A call on a GPU whose inputs can be replaced in place, and its judgement. For the tests of
// behaviour that one case cannot state: streams, threads, graphs, devices.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "conformance.hpp"

namespace batten::conformance {

class GpuCall {
 public:
  GpuCall(Case one, Device device)
      : one_(std::move(one)), device_(device), geometry_(geometry_of(one_)) {
    const Problem& p = one_.problem;
    const int kv_heads = kv_heads_of(p);
    const auto tensor = [&](DType dtype, std::int64_t rows, std::int64_t heads) {
      std::vector<std::int64_t> shape{rows, heads, p.head_dim};
      if (one_.form == Form::bshd) shape = {one_.batch, rows / one_.batch, heads, p.head_dim};
      return DeviceTensor(device, dtype, contiguous_layout(shape));
    };
    q_ = tensor(p.dtype, geometry_.q_rows, p.num_heads);
    k_ = tensor(p.dtype, geometry_.kv_rows, kv_heads);
    v_ = tensor(p.dtype, geometry_.kv_rows, kv_heads);
    out_ = tensor(p.dtype, geometry_.q_rows, p.num_heads);
    load(one_.name);
  }

  const Problem& problem() const { return one_.problem; }

  // New numbers in the same memory.
  void load(const std::string& seed) {
    one_.name = seed;
    inputs_ = make_inputs(one_, geometry_, Garbage::finite);
    q_.upload(inputs_.q, 0);
    k_.upload(inputs_.k, 0);
    v_.upload(inputs_.v, 0);
    clear();
  }

  void clear() { out_.fill_bits(0x7fff); }  // a NaN in both 16-bit formats

  std::uint64_t prepare(Attention& attention, void* stream) {
    if (one_.form == Form::bshd)
      return attention.prepare(q_.view(), k_.view(), v_.view(), out_.view(), dense(stream));
    return attention.prepare_packed(q_.view(), k_.view(), v_.view(), out_.view(), packed(stream));
  }

  Receipt forward(Attention& attention, void* stream) {
    if (one_.form == Form::bshd)
      return attention.forward(q_.view(), k_.view(), v_.view(), out_.view(), dense(stream));
    return attention.forward_packed(q_.view(), k_.view(), v_.view(), out_.view(), packed(stream));
  }

  // Compares with the reference on the same GPU. The work must have ended.
  void expect_right(const std::string& when) const {
    const Expected expected =
        compute_expected(one_.problem, scale_of(one_), geometry_, inputs_, {.device = device_});
    const BoundsReport report =
        check_bounds(one_.problem, geometry_, expected, out_.download(), {});
    for (const Violation& v : report.violations) ADD_FAILURE() << when << ": " << v.what;
  }

  std::vector<float> result() const { return out_.download(); }

 private:
  CallOptions dense(void* stream) const {
    CallOptions options;
    if (!geometry_.q_lengths.empty()) options.q_lengths = TensorView(geometry_.q_lengths);
    if (!geometry_.kv_lengths.empty()) options.kv_lengths = TensorView(geometry_.kv_lengths);
    options.padding_is_finite = true;
    options.stream = stream;
    return options;
  }
  PackedOptions packed(void* stream) const {
    return {.offsets_q = geometry_.offsets_q,
            .offsets_kv = geometry_.offsets_kv,
            .padding_is_finite = true,
            .stream = stream};
  }

  Case one_;
  Device device_;
  Geometry geometry_;
  Inputs inputs_;
  DeviceTensor q_, k_, v_, out_;
};

}  // namespace batten::conformance
