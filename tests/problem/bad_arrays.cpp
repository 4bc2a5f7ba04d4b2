#include <cmath>
#include <cstdint>
#include <limits>

#include "problem/bad_input.hpp"

namespace batten::testing {

std::vector<BadCall> bad_arrays() {
  using C = TestCall;
  constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
  return {
      // ---- lengths
      {"NegativeQLength",
       Base::dense,
       [](C& c) { c.q_length_values[1] = -1; },
       {"q_lengths[1] is -1", "expected 0 to 5"}},
      {"QLengthPastTheEnd",
       Base::dense,
       [](C& c) { c.q_length_values[0] = 6; },
       {"q_lengths[0] is 6", "expected 0 to 5"}},
      {"NegativeKvLength",
       Base::dense,
       [](C& c) { c.kv_length_values[0] = kMin; },
       {"kv_lengths[0] is -2147483648", "expected 0 to 7"}},
      {"KvLengthPastTheEnd",
       Base::dense,
       [](C& c) { c.kv_length_values[1] = 8; },
       {"kv_lengths[1] is 8", "expected 0 to 7"}},
      {"TooFewLengths",
       Base::dense,
       [](C& c) { c.q_lengths.shape[0] = 1; },
       {"q_lengths: has 1 entries", "expected 2"}},
      {"TooManyLengths",
       Base::dense,
       [](C& c) { c.kv_lengths.shape[0] = 3; },
       {"kv_lengths: has 3 entries", "expected 2"}},
      {"LengthsOfAnotherDtype",
       Base::dense,
       [](C& c) { c.q_lengths.dtype = BATTEN_F32; },
       {"q_lengths: expected a one-dimensional int32 array", "float32"}},
      {"LengthsOfRankTwo",
       Base::dense,
       [](C& c) { c.kv_lengths.ndim = 2; },
       {"kv_lengths: expected a one-dimensional int32"}},
      {"LengthsOfWildRank", Base::dense, [](C& c) { c.q_lengths.ndim = -9; }, {"q_lengths: exp"}},
      {"LengthsStrided",
       Base::dense,
       [](C& c) { c.q_lengths.strides[0] = 2; },
       {"q_lengths: must be contiguous"}},
      {"LengthsNull",
       Base::dense,
       [](C& c) { c.kv_lengths.data = nullptr; },
       {"kv_lengths: null data pointer"},
       true},
      {"LengthsMisaligned",
       Base::gpu,
       [](C& c) { c.kv_lengths.data = static_cast<char*>(c.kv_lengths.data) + 2; },
       {"kv_lengths: data pointer is not aligned to 4 bytes"}},
      {"LengthsOnTheGpuOfACpuCall",
       Base::dense,
       [](C& c) {
         c.q_lengths.device = {BATTEN_CUDA, 0};
       },
       {"q_lengths: is on cuda:0", "runs on cpu"}},
      {"LengthsOnAnotherGpu",
       Base::gpu,
       [](C& c) { c.kv_lengths.device.index = 1; },
       {"kv_lengths: is on cuda:1", "runs on cuda:0"}},
      {"LengthsOnAnUnknownDevice",
       Base::gpu,
       [](C& c) { c.kv_lengths.device.type = -3; },
       {"kv_lengths: device type -3", "expected cpu or cuda"}},

      // ---- offsets
      {"OffsetsOfKeysMissing",
       Base::packed,
       [](C& c) { c.raw.offsets_kv = nullptr; },
       {"offsets_kv is missing", "offsets_q and offsets_kv"}},
      {"OffsetsOfQueriesMissing",
       Base::packed,
       [](C& c) { c.raw.offsets_q = nullptr; },
       {"offsets_q is missing", "offsets_q and offsets_kv"}},
      {"OffsetsOfDenseTensors",
       Base::dense,
       [](C& c) { c.raw.offsets_q = c.raw.offsets_kv = &c.q_lengths; },
       {"q: has 4 dimensions", "packed"}},
      {"NoOffsets",
       Base::packed,
       [](C& c) { c.offsets_q.shape[0] = 0; },
       {"offsets_q: expected", "B + 1 entries"}},
      {"OffsetsOfRankTwo", Base::packed, [](C& c) { c.offsets_q.ndim = 2; }, {"offsets_q: expec"}},
      {"OffsetsOfKeysOfRankTwo",
       Base::packed,
       [](C& c) { c.offsets_kv.ndim = 2; },
       {"offsets_kv: expected a one-dimensional int32"}},
      {"OffsetsOfAnotherDtype",
       Base::packed,
       [](C& c) { c.offsets_kv.dtype = BATTEN_F16; },
       {"offsets_kv: expected", "int32", "float16"}},
      {"OffsetCountsDiffer",
       Base::packed,
       [](C& c) { c.offsets_kv.shape[0] = 3; },
       {"offsets_kv: has 3 entries", "expected 4"}},
      {"OffsetsStrided",
       Base::packed,
       [](C& c) { c.offsets_q.strides[0] = -1; },
       {"offsets_q: must be contiguous"}},
      {"OffsetsNull",
       Base::packed,
       [](C& c) {
         c.offsets_q.data = nullptr;
         c.raw.max_q = 5;
       },
       {"offsets_q: null data pointer"},
       true},
      {"NegativeOffset",
       Base::packed,
       [](C& c) { c.offset_q_values[0] = -1; },
       {"offsets_q[0] is -1", "start at 0"}},
      {"NegativeOffsetOfKeys",
       Base::packed,
       [](C& c) { c.offset_kv_values[0] = kMin; },
       {"offsets_kv[0] is -2147483648"}},
      {"DecreasingOffsets",
       Base::packed,
       [](C& c) { c.offset_q_values[2] = 2; },
       {"offsets_q[2] is 2 after 3", "must not decrease"}},
      {"OffsetsThatFallBelowZero",
       Base::packed,
       [](C& c) { c.offset_kv_values[3] = kMin; },
       {"offsets_kv[3] is -2147483648 after 9"}},
      {"OffsetsPastTheEnd",
       Base::packed,
       [](C& c) { c.offset_q_values[3] = 9; },
       {"offsets_q[3] is 9", "past the end of a buffer of 8 tokens"}},
      {"OffsetsOfKeysPastTheEnd",
       Base::packed,
       [](C& c) { c.offset_kv_values[3] = kMax; },
       {"offsets_kv[3] is 2147483647", "past the end", "11 tokens"}},
      {"EmptySamplePastTheEnd",
       Base::packed,
       [](C& c) {
         c.offset_q_values = {9, 9, 9, 9};
         c.offsets_q.data = c.offset_q_values.data();
       },
       {"offsets_q[3] is 9", "past the end"}},
      {"OffsetsOnAnotherGpu",
       Base::gpu_packed,
       [](C& c) { c.offsets_q.device.index = 2; },
       {"offsets_q: is on cuda:2"}},
      {"TooManySamplesByOffsets",
       Base::gpu_packed,
       [](C& c) { c.offsets_q.shape[0] = c.offsets_kv.shape[0] = (1 << 24) + 2; },
       {"offsets_q", "16777217 samples", "16777216"}},

      // ---- bounds
      {"NegativeMaxQ",
       Base::packed,
       [](C& c) { c.raw.max_q = -1; },
       {"max_q is -1", "not be negative"}},
      {"NegativeMaxKv", Base::gpu_packed, [](C& c) { c.raw.max_kv = -5; }, {"max_kv is -5"}},
      {"MaxQTooSmall",
       Base::packed,
       [](C& c) { c.raw.max_q = 4; },
       {"max_q is 4", "sample 2 has 5 tokens"}},
      {"MaxKvTooSmall",
       Base::packed,
       [](C& c) { c.raw.max_kv = 3; },
       {"max_kv is 3", "sample 0 has 4 tokens"}},
      {"MaxQMissingForDeviceOffsets",
       Base::gpu_packed,
       [](C& c) { c.raw.max_q = 0; },
       {"max_q is missing", "upper bound", "device"}},
      {"MaxKvMissingForDeviceOffsets",
       Base::gpu_packed,
       [](C& c) { c.raw.max_kv = 0; },
       {"max_kv is missing", "upper bound", "device"}},

      // ---- lengths within packed rows
      {"PackedLengthNegative",
       Base::packed_lengths,
       [](C& c) { c.q_length_values[0] = -1; },
       {"q", "length -1 of sample 0"}},
      {"PackedLengthBeyondItsRows",
       Base::packed_lengths,
       [](C& c) { c.q_length_values[0] = 4; },
       {"length 4 of sample 0", "3 rows", "offsets_q"}},
      {"PackedKvLengthBeyondItsRows",
       Base::packed_lengths,
       [](C& c) { c.kv_length_values[1] = 7; },
       {"length 7 of sample 1", "6 rows", "offsets_kv"}},
      {"PackedLengthAboveTheBound",
       Base::packed_lengths,
       [](C& c) { c.raw.max_q = 4; },
       {"max_q is 4", "sample 1 has 5 tokens"}},
      {"NegativeHostLengthWithDeviceOffsets",
       Base::gpu_packed,
       [](C& c) {
         c.with_q_lengths({3, -1});
       },
       {"q_lengths[1] is -1", "expected 0 to 5"}},
      {"HostLengthAboveTheBoundWithDeviceOffsets",
       Base::gpu_packed,
       [](C& c) {
         c.with_kv_lengths({6, 1});
       },
       {"kv_lengths[0] is 6", "expected 0 to 5"}},

      // ---- values
      {"NanScale",
       Base::dense,
       [](C& c) {
         c.raw.has_scale = 1;
         c.raw.scale = std::nan("");
       },
       {"scale is nan", "finite"}},
      {"InfiniteScale",
       Base::gpu_packed,
       [](C& c) {
         c.raw.has_scale = 1;
         c.raw.scale = std::numeric_limits<double>::infinity();
       },
       {"scale is inf", "finite"}},
      {"ScaleBeyondFloat",
       Base::packed,
       [](C& c) {
         c.raw.has_scale = 1;
         c.raw.scale = -1e39;
       },
       {"scale is -1e+39", "finite as a float32"}},
      {"WorkspaceMisaligned",
       Base::gpu,
       [](C& c) {
         c.raw.workspace = reinterpret_cast<void*>(std::uintptr_t{0x1080});
         c.raw.workspace_size = 4096;
       },
       {"workspace: must be aligned to 256 bytes"}},
  };
}

}  // namespace batten::testing
