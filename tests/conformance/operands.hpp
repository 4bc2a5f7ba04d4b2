// The tensors of one case on a device, and the call over them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bounds.hpp"
#include "cases.hpp"
#include "contents.hpp"
#include "device_tensor.hpp"
#include "geometry.hpp"
#include "subject.hpp"

namespace batten::conformance {

class Operands {
 public:
  // `strides` and `lse` replace the case's own, for warm-up calls.
  Operands(const Case& one, const Geometry& geometry, const Inputs& inputs, Garbage garbage,
           Device device, Strides strides, bool lse);
  Operands(const Operands&) = delete;  // the call points into this object
  Operands& operator=(const Operands&) = delete;

  const Call& call() const noexcept { return call_; }

  // A dense or packed call of sample `b` alone, into `out` and `lse` of its own shape.
  Call call_of(std::size_t b, const DeviceTensor& out, const DeviceTensor* lse) const;
  // A dense call over keys [first, last) only, into other outputs.
  Call call_of_keys(std::int64_t first, std::int64_t last, const DeviceTensor& out,
                    const DeviceTensor& lse) const;

  // Fills out and lse with a NaN that no kernel computes.
  void poison();
  // Reads the outputs back. The calls must have ended.
  void fetch();

  // After fetch(): in row-major order of their shapes; lse empty when there is none.
  std::vector<float> out() const;
  std::vector<float> lse() const;
  // After fetch(): all bits, for comparing runs.
  const std::vector<std::uint32_t>& out_image() const noexcept { return out_image_; }
  const std::vector<std::uint32_t>& lse_image() const noexcept { return lse_image_; }

  // After fetch(): poison that should have been overwritten, and anything else that was not.
  void check_written(BoundsReport& report) const;
  // After fetch(): that nothing at all was written.
  bool untouched() const;
  // That q, k and v are what was uploaded.
  void check_inputs(BoundsReport& report) const;

 private:
  std::optional<TensorView> lengths_view(const std::vector<std::int32_t>& values,
                                         Placement placement);

  Case one_;
  Geometry geometry_;
  Device device_;
  DeviceTensor q_, k_, v_, out_;
  std::optional<DeviceTensor> lse_;
  std::vector<DeviceTensor> arrays_;  // device lengths and offsets
  // Host arrays of partial calls live as long as the calls.
  mutable std::vector<std::vector<std::int32_t>> partial_arrays_;
  Call call_;
  std::vector<std::uint32_t> q_image_, k_image_, v_image_;
  std::vector<std::uint32_t> out_image_, lse_image_;
};

}  // namespace batten::conformance
