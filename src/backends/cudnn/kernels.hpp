// batten's own kernels around a cuDNN call. Each is queued on the call's stream and neither
// allocates nor synchronises; arrays of the host travel as kernel parameters, so that a captured
// call keeps them.
#pragma once

#include <cstdint>

#include "backends/cudnn/sample.hpp"
#include "core/device.hpp"

namespace batten::impl::cudnn {

// Which of a call's arrays the host holds; null members of Arrays are in neither place.
struct ArraySources {
  bool q_lengths = false;
  bool kv_lengths = false;
  bool offsets_q = false;
  bool offsets_kv = false;

  constexpr int host_count() const noexcept {
    return int{q_lengths} + int{kv_lengths} + int{offsets_q} + int{offsets_kv};
  }
};

// Where `prepare` writes; null pointers are left out.
struct Prepared {
  std::int32_t* lengths_q = nullptr;
  std::int32_t* lengths_kv = nullptr;
  std::int64_t* offsets_q = nullptr;  // in elements, [B + 1]
  std::int64_t* offsets_k = nullptr;
  std::int64_t* offsets_v = nullptr;
  std::int64_t* offsets_out = nullptr;
  std::int64_t* offsets_lse = nullptr;
  void* out = nullptr;   // rows that see no key become 0 here ...
  float* lse = nullptr;  // ... and -inf here
};

// Before cuDNN: writes each sample's lengths and offsets, and the output rows that cuDNN will not
// write. Leave `out` null where cuDNN writes them, and repair() them afterwards.
void prepare(const Batch& batch, const Arrays& arrays, const ArraySources& sources,
             const Prepared& to, Stream stream);

// Output rows [begin, end) of every sample of a BSHD call become 0, and -inf in the lse. With
// `first`, a device array, sample b's rows begin at first[b] instead.
struct Repair {
  const std::int32_t* first = nullptr;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  void* out = nullptr;
  float* lse = nullptr;  // optional
};
void repair(const Batch& batch, const Repair& rows, Stream stream);

// Loads both kernels, so that a first call inside a capture finds them.
void load_kernels();

// Samples whose arrays fit in the parameters of one launch, when the host holds `host_arrays` of
// the four.
inline constexpr int kParameterInts = 896;
constexpr std::int64_t samples_per_launch(int host_arrays) noexcept {
  // An array of offsets has one entry more than it has samples.
  return host_arrays == 0 ? INT64_MAX : kParameterInts / host_arrays - 1;
}

}  // namespace batten::impl::cudnn
