// Whatever answers attention calls: a backend of the library, or a faulty stand-in for one.
#pragma once

#include <batten/batten.hpp>
#include <cstdint>
#include <optional>
#include <string>

namespace batten::conformance {

// A call of either form. A dense one does not use the offsets and bounds of `options`.
struct Call {
  bool packed = false;
  TensorView q = {}, k = {}, v = {}, out = {};
  PackedOptions options = {};
};

// The options of a dense call.
CallOptions dense_options(const PackedOptions& options);

// Functions throw batten::Error as batten::Attention does.
class Subject {
 public:
  virtual ~Subject() = default;

  // As in served.json, with the form: "cudnn:packed".
  virtual std::string backend() const = 0;
  virtual Device device() const = 0;

  // Called once before the calls of one problem.
  virtual void construct(const Problem& problem) = 0;
  // A call on the GPU may still be running when this returns.
  virtual Receipt forward(const Call& call) = 0;
  virtual std::uint64_t prepare(const Call& call) = 0;
};

// A backend through batten::Attention.
class BackendSubject final : public Subject {
 public:
  BackendSubject(std::string backend, Device device, int num_threads = 0);

  std::string backend() const override { return options_.backend; }
  Device device() const override { return device_; }
  void construct(const Problem& problem) override;
  Receipt forward(const Call& call) override;
  std::uint64_t prepare(const Call& call) override;

  Attention& attention() { return *attention_; }

 private:
  Options options_;
  Device device_;
  std::optional<Attention> attention_;
};

// The library's own words on why a backend cannot run on a device; nothing: it can.
std::optional<std::string> why_unavailable(const std::string& backend, Device device);

}  // namespace batten::conformance
