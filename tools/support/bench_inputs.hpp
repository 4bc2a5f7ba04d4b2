// The tensors of one benchmark case.
#pragma once

#include <batten/batten.hpp>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "contents.hpp"
#include "device_memory.hpp"
#include "support/bench_case.hpp"

namespace batten::tools {

// What every call of the benchmark states; the inputs have no padding, so the promise holds.
inline CallOptions bench_call(void* stream) {
  return {.padding_is_finite = true, .stream = stream};
}

// The sets that a case has: those asked for, or as many as exceed the device's cache.
std::size_t number_of_sets(const BenchOptions& options, const BenchCase& shape, Device device);

// Several sets of fresh normal inputs, each with its own output. Calls take the sets in turn, so
// that no call finds its inputs in the device's cache.
class BenchInputs {
 public:
  BenchInputs(const BenchOptions& options, const BenchCase& shape, Device device,
              std::uint64_t seed);

  struct Set {
    TensorView q, k, v, out;
  };
  std::size_t size() const noexcept { return sets_.size(); }
  const Set& operator[](std::size_t i) const noexcept { return sets_[i % sets_.size()].views; }

  // The first set on the host, for checking. The work that writes the output must have ended.
  conformance::Inputs first_inputs() const;
  std::vector<float> first_output() const;

 private:
  struct Stored {
    conformance::DeviceMemory q, k, v, out;
    Set views;
  };
  std::vector<float> download(const conformance::DeviceMemory& memory) const;

  DType dtype_;
  std::vector<Stored> sets_;
};

}  // namespace batten::tools
