// The objects that serve problems: made once each, found again by what makes them differ.
#pragma once

#include <batten/batten.h>
#include <nanobind/nanobind.h>

#include <array>
#include <batten/batten.hpp>
#include <compare>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace batten_python {

namespace nb = nanobind;

// What makes two problems differ. The scale is given with each call.
struct Problem {
  std::int32_t dtype = 0, out_dtype = 0;
  std::int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0, head_dim_v = 0;
  std::int32_t mask = 0, device_type = 0, device_index = 0;
  std::string backend = {};     // empty: the environment decides
  std::size_t environment = 0;  // which values of the variables; filled in by Layers

  auto operator<=>(const Problem&) const = default;
};

// One batten_attention.
class Layer {
 public:
  explicit Layer(const Problem& p) {
    batten_problem problem{};
    problem.struct_size = sizeof(problem);
    problem.dtype = p.dtype;
    problem.out_dtype = p.out_dtype;
    problem.num_heads = size("num_heads", p.num_heads);
    problem.num_kv_heads = size("num_kv_heads", p.num_kv_heads);
    problem.head_dim = size("head_dim", p.head_dim);
    problem.head_dim_v = size("head_dim_v", p.head_dim_v);
    problem.mask = p.mask;
    batten_options options{};
    options.struct_size = sizeof(options);
    options.backend = p.backend.empty() ? nullptr : p.backend.c_str();
    int status = BATTEN_OK;
    {
      // Loading a vendor's library takes its time.
      const nb::gil_scoped_release release;
      status =
          batten_attention_create(&problem, {p.device_type, p.device_index}, &options, &handle_);
    }
    batten::capi::check(status);
  }
  ~Layer() { batten_attention_destroy(handle_); }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  batten_attention* handle() const { return handle_; }

 private:
  // 0 means "the default" to the C ABI; a tensor that has no heads, or no head dim, is an error.
  static std::int32_t size(const char* name, std::int64_t value) {
    if (value < 1 || value > std::numeric_limits<std::int32_t>::max()) {
      throw batten::Error(
          batten::ErrorCode::InvalidArgument,
          std::string(name) + " is " + std::to_string(value) + ", expected 1 to 2147483647");
    }
    return static_cast<std::int32_t>(value);
  }

  batten_attention* handle_ = nullptr;
};

// The layers of a process. All members are called under the interpreter's lock. A layer is never
// destroyed: a captured CUDA graph may use what belongs to it.
class Layers {
 public:
  std::shared_ptr<Layer> get(Problem problem) {
    problem.environment = environment();
    if (const auto found = layers_.find(problem); found != layers_.end()) return found->second;
    auto layer = std::make_shared<Layer>(problem);
    // Another thread may have been faster while this one had let go of the lock.
    return layers_.try_emplace(std::move(problem), std::move(layer)).first->second;
  }

 private:
  // What a new layer reads.
  static constexpr std::array kVariables{"BATTEN_BACKEND", "FASTVIDEO_ATTENTION_BACKEND",
                                         "FASTVIDEO_FLASHINFER_PREFILL_BACKEND", "BATTEN_CHECK",
                                         "BATTEN_NUM_THREADS"};
  using Values = std::array<std::string, kVariables.size()>;

  // A number for the variables' values. They are looked at each time, so that one set later counts
  // from then on. The C environment is asked: os.environ writes through to it, and a lookup is far
  // cheaper there.
  std::size_t environment() {
    bool changed = current_ == 0;
    for (std::size_t i = 0; i < kVariables.size(); ++i) {
      const char* value = std::getenv(kVariables[i]);
      const std::string_view now = value != nullptr ? value : "";
      if (now == values_[i]) continue;
      values_[i] = now;
      changed = true;
    }
    if (changed) current_ = known_.try_emplace(values_, known_.size() + 1).first->second;
    return current_;
  }

  Values values_;
  std::size_t current_ = 0;
  std::map<Values, std::size_t> known_;
  std::map<Problem, std::shared_ptr<Layer>> layers_;
};

}  // namespace batten_python
