#include <cstdint>

#include "problem/bad_input.hpp"

namespace batten::testing {
namespace {

void* beside(const batten_tensor& t, std::intptr_t bytes) {
  return reinterpret_cast<void*>(reinterpret_cast<std::intptr_t>(t.data) + bytes);
}

// Lets `written` begin where the array does, in memory that holds both.
void lay_over(batten_tensor& written, batten_tensor& array, std::vector<std::int32_t>& values) {
  values.resize(4096);
  written.data = array.data = values.data();
}

}  // namespace

std::vector<BadCall> bad_overlaps() {
  using C = TestCall;
  // q and out: 2 x 5 x 4 x 64 elements of 2 bytes.
  constexpr std::intptr_t kQBytes = 2 * 5 * 4 * 64 * 2;
  return {
      {"OutIsQ",
       Base::dense,
       [](C& c) { c.out.data = c.q.data; },
       {"out and q overlap", "memory of its own"},
       true},
      {"OutIsK", Base::dense, [](C& c) { c.out.data = c.k.data; }, {"out and k overlap"}, true},
      {"OutIsV", Base::gpu, [](C& c) { c.out.data = c.v.data; }, {"out and v overlap"}, true},
      {"OutStartsOnTheLastRowOfQ",
       Base::dense,
       [](C& c) { c.out.data = beside(c.q, kQBytes - 2); },
       {"out and q overlap"},
       true},
      {"OutEndsOnTheFirstRowOfQ",
       Base::dense,
       [](C& c) { c.out.data = beside(c.q, 2 - kQBytes); },
       {"out and q overlap"},
       true},
      {"PackedOutIsV",
       Base::packed,
       [](C& c) { c.out.data = c.v.data; },
       {"out and v overlap"},
       true},
      {"LseIsQ", Base::dense, [](C& c) { c.lse.data = c.q.data; }, {"lse and q overlap"}, true},
      {"LseIsK", Base::dense, [](C& c) { c.lse.data = c.k.data; }, {"lse and k overlap"}, true},
      {"LseIsV", Base::packed, [](C& c) { c.lse.data = c.v.data; }, {"lse and v overlap"}, true},
      {"LseIsOut",
       Base::dense,
       [](C& c) { c.lse.data = c.out.data; },
       {"out and lse overlap"},
       true},
      {"OutIsQLengths",
       Base::dense,
       [](C& c) { lay_over(c.out, c.q_lengths, c.q_length_values); },
       {"out and q_lengths overlap", "memory of its own"},
       true},
      {"OutIsKvLengthsOnTheDevice",
       Base::gpu,
       [](C& c) { lay_over(c.out, c.kv_lengths, c.kv_length_values); },
       {"out and kv_lengths overlap"},
       true},
      {"OutIsOffsetsOfQueries",
       Base::gpu_packed,
       [](C& c) { lay_over(c.out, c.offsets_q, c.offset_q_values); },
       {"out and offsets_q overlap"},
       true},
      {"LseIsOffsetsOfKeys",
       Base::packed,
       [](C& c) { lay_over(c.lse, c.offsets_kv, c.offset_kv_values); },
       {"lse and offsets_kv overlap"},
       true},
      {"OutRowsBroadcast",
       Base::dense,
       [](C& c) { c.out.strides[1] = 0; },
       {"out: elements overlap each other", "must not repeat memory"}},
      {"OutHeadsOverlap",
       Base::packed,
       [](C& c) { c.out.strides[1] = 63; },
       {"out: elements overlap each other"}},
      {"OutSamplesOverlap",
       Base::gpu,
       [](C& c) { c.out.strides[0] = 4 * 256; },
       {"out: elements overlap each other"}},
      {"LseBroadcast",
       Base::dense,
       [](C& c) { c.lse.strides[0] = 0; },
       {"lse: elements overlap each other"}},
  };
}

}  // namespace batten::testing
