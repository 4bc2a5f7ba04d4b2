// Measures the calls of `batten tune` and asks the library what they are made of.
#pragma once

#include <batten/batten.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device_memory.hpp"
#include "support/environment.hpp"
#include "support/timer.hpp"
#include "support/tune_fit.hpp"

namespace batten::tools {

// Where times and counts come from: the device and the library, or a test.
struct TuneSources {
  // The library's counts for a call; nothing where the backend does not serve it, or has no model
  // for this kernel.
  std::function<std::optional<cost::Work>(const TuneCall&)> work;
  // Microseconds of a call; nothing where it turns out not to be served.
  std::function<std::optional<double>(const TuneCall&)> time;
  // Told before each measurement: how many are done, of how many, and the next.
  std::function<void(std::size_t, std::size_t, const TuneCall&)> progress;
};

// All calls that are served, in their order. Throws Interrupted.
std::vector<TuneSample> measure_calls(const std::vector<TuneCall>& calls, const TuneSources& from);

// The samples of one kernel each, and their fit.
struct TunedKernel {
  std::vector<TuneSample> samples;
  Fit fit;
};
std::vector<TunedKernel> fit_kernels(const std::vector<TuneSample>& samples);

// Each shape on each of `backends`; those that a prediction says are several times slower than the
// best are left out. Throws Interrupted.
std::vector<cost::Measured> measure_shapes(const std::vector<cost::MeasuredShape>& shapes,
                                           const std::vector<std::string>& backends,
                                           const std::function<Json(const TuneCall&)>& explain,
                                           const TuneSources& from);

// batten_explain for the call, as if its backend had been asked for.
Json explain_call(const TuneCall& call, Device device);

// The counts in explain_call()'s answer.
std::optional<cost::Work> work_in(const Json& answer, const TuneCall& call);

// Times calls by replays of a CUDA graph. Inputs are slices of one large piece of random numbers,
// so that a new shape costs neither memory nor time; the slices rotate, so that they do not sit in
// the cache.
class TuneTimer {
 public:
  explicit TuneTimer(Device device);

  // Nothing where the backend refuses the call or has no plan for it, or where it is too large for
  // the memory. Throws Error{Device}: after that nothing can be measured.
  std::optional<double> operator()(const TuneCall& call);

  // Why calls of a kernel ("cudnn d96 causal") could not be measured: the last reason of each.
  const std::map<std::string, std::string>& refusals() const noexcept { return refusals_; }

 private:
  struct Set {
    TensorView q, k, v, out;
  };
  std::vector<Set> sets_of(const TuneCall& call) const;
  Attention& attention_of(const TuneCall& call);
  double replay_us(const std::function<void()>& replay, std::size_t calls, double busy_ms);

  Device device_;
  std::unique_ptr<Timer> timer_;
  std::size_t cache_bytes_;
  conformance::DeviceMemory inputs_;
  conformance::DeviceMemory outputs_;
  std::map<std::string, std::unique_ptr<Attention>> attentions_;
  std::map<std::string, std::string> refusals_;
};

}  // namespace batten::tools
