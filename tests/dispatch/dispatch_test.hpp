// What the dispatch tests share: two fake devices, no real backend, a clean environment.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "dispatch/attention.hpp"
#include "fakes/environment.hpp"
#include "fakes/expect_error.hpp"
#include "fakes/fake_backend.hpp"
#include "fakes/fake_device.hpp"
#include "fakes/test_call.hpp"

namespace batten::testing {

inline constexpr Device kGpu = Device::cuda(0);
inline constexpr std::size_t kKiB = 1024;
inline constexpr std::size_t kMiB = 1024 * kKiB;

inline batten_options options_of(const char* backend, int num_threads = 0) {
  batten_options o{};
  o.struct_size = sizeof(o);
  o.backend = backend;
  o.num_threads = num_threads;
  return o;
}

inline batten_receipt empty_receipt() {
  batten_receipt r{};
  r.struct_size = sizeof(r);
  return r;
}

class DispatchTest : public ::testing::Test {
 protected:
  // For good_problem().
  impl::Attention attention(const char* backend = nullptr, Device device = kGpu) {
    return impl::Attention(good_problem(), device, options_of(backend));
  }
  static batten_receipt forward(impl::Attention& attention, const batten_call& call) {
    batten_receipt receipt = empty_receipt();
    attention.forward(call, &receipt);
    return receipt;
  }

  CleanEnvironment environment_;
  FakeDevices devices_{2};
  FakeBackends backends_;
};

}  // namespace batten::testing
