// A good call that a test can spoil: the C structs, and the arrays that they point to.
#pragma once

#include <batten/batten.h>

#include <array>
#include <batten/types.hpp>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

namespace batten::testing {

// A problem with every member at its plainest.
batten_problem good_problem(DType dtype = DType::bf16, int heads = 4, int kv_heads = 2,
                            int head_dim = 64);

// A contiguous, row-major view of memory that nobody may touch.
batten_tensor tensor_at(std::uintptr_t address, DType dtype, std::vector<std::int64_t> shape,
                        Device device = Device::cpu());

// Tensors lie at made-up addresses, 4 GiB apart, because neither validation nor a fake backend
// reads them. Lengths and offsets are real memory, which stands for the device's where device is
// true.
class TestCall {
 public:
  struct Size {
    std::int64_t batch = 2, q = 5, kv = 7;
  };

  // BSHD.
  explicit TestCall(const batten_problem& problem, Device device = Device::cpu());
  TestCall(const batten_problem& problem, Device device, Size size);
  TestCall(const TestCall&) = delete;
  TestCall& operator=(const TestCall&) = delete;

  // Packed: buffers end where the last sample does.
  static std::unique_ptr<TestCall> packed(const batten_problem& problem, Device device,
                                          std::vector<std::int32_t> offsets_q,
                                          std::vector<std::int32_t> offsets_kv);

  TestCall& with_lse();
  TestCall& with_q_lengths(std::vector<std::int32_t> values, bool on_device = false);
  TestCall& with_kv_lengths(std::vector<std::int32_t> values, bool on_device = false);
  // Says that the offsets lie on the device; max_q and max_kv must then be given.
  TestCall& offsets_on_device(std::int64_t max_q, std::int64_t max_kv);

  batten_problem problem;
  Device device;
  batten_tensor q{}, k{}, v{}, out{}, lse{};
  batten_tensor q_lengths{}, kv_lengths{}, offsets_q{}, offsets_kv{};
  std::vector<std::int32_t> q_length_values, kv_length_values;
  std::vector<std::int32_t> offset_q_values, offset_kv_values;
  batten_call raw{};  // points to the members above
};

}  // namespace batten::testing
