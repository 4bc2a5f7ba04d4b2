// merge on the GPU against merge on the CPU.
#include <gtest/gtest.h>

#include "core/device.hpp"
#include "merge/merge_data.hpp"

#if BATTEN_WITH_CUDA
#include <cuda_runtime_api.h>

#include "core/cuda_runtime.hpp"
#endif

namespace batten::impl::merge_test {
namespace {

class MergeGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (device_runtime().device_count() == 0) {
      GTEST_SKIP() << "no GPU: " << device_runtime().why_unavailable();
    }
  }
};

#if BATTEN_WITH_CUDA

class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t bytes) { check_cuda(cudaMalloc(&data_, bytes), "cudaMalloc"); }
  explicit DeviceBuffer(const Buffer& buffer) : DeviceBuffer(buffer.bytes.size()) {
    check_cuda(cudaMemcpy(data_, buffer.bytes.data(), buffer.bytes.size(), cudaMemcpyHostToDevice),
               "cudaMemcpy");
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* get() const { return data_; }
  void copy_to(Buffer& buffer) const {
    check_cuda(cudaMemcpy(buffer.bytes.data(), data_, buffer.bytes.size(), cudaMemcpyDeviceToHost),
               "cudaMemcpy");
  }

 private:
  void* data_ = nullptr;
};

// Runs `first := merge(first, second)` on the device.
void merge_on_device(Partial& first, const Partial& second) {
  const DeviceBuffer out(first.out), lse(first.lse), out2(second.out), lse2(second.lse);
  MergeCall call = call_of(first, second);
  call.out = out.get();
  call.lse = static_cast<float*>(lse.get());
  call.out2 = out2.get();
  call.lse2 = static_cast<const float*>(lse2.get());
  merge_cuda(call, nullptr);
  check_cuda(cudaDeviceSynchronize(), "merge_cuda");
  out.copy_to(first.out);
  lse.copy_to(first.lse);
}

bool close(float x, float y, double tolerance) {
  if (std::isnan(x) || std::isnan(y)) return std::isnan(x) && std::isnan(y);
  return x == y || std::fabs(x - y) <= tolerance * (1 + std::fabs(x));
}

TEST_F(MergeGpu, AgreesWithTheCpuInEveryTypeAndLayout) {
  for (const std::int64_t head_dim : {128, 40, 7}) {
    const Dims dims{2, 33, 3, head_dim};
    for (const DType dtype : kDTypes) {
      for (const DType dtype2 : kDTypes) {
        for (const Order order : kOrders) {
          Partial first(dims, dtype, order);
          Partial second(dims, dtype2, order == Order::bshd ? Order::bhsd : Order::bshd);
          first.fill(1);
          second.fill(2);
          first.set_lse(3, NAN);
          second.set_lse(4, kInfinity);
          second.set(6, 0, NAN);
          Partial expected = first;
          merge_cpu(call_of(expected, second));
          merge_on_device(first, second);
          // Exponentials may differ in their last bits, which may round to neighbours.
          const double tolerance = dtype == DType::f32 ? 2e-6 : dtype == DType::f16 ? 1e-3 : 8e-3;
          for (std::int64_t n = 0; n < dims.count(); ++n) {
            ASSERT_TRUE(close(first.get_lse(n), expected.get_lse(n), 2e-6)) << "row " << n;
            for (std::int64_t d = 0; d < head_dim; ++d) {
              ASSERT_TRUE(close(first.get(n, d), expected.get(n, d), tolerance))
                  << name_of(dtype) << " " << name_of(dtype2) << " row " << n << " " << d << ": "
                  << first.get(n, d) << ", not " << expected.get(n, d);
            }
          }
        }
      }
    }
  }
}

TEST_F(MergeGpu, TouchesNothingBetweenRows) {
  const Dims dims{2, 5, 3, 16};
  Partial first(dims, DType::bf16, Order::padded);
  Partial second(dims, DType::f32, Order::bshd);
  for (std::int64_t n = 0; n < static_cast<std::int64_t>(first.out.bytes.size() / 2); ++n) {
    first.out.set(n, 77);
  }
  first.fill(1);
  second.fill(2);
  merge_on_device(first, second);
  for (std::int64_t n = 0; n < dims.count(); ++n) {
    for (std::int64_t d = 0; d < dims.head_dim; ++d) first.set(n, d, 77);
  }
  for (std::int64_t n = 0; n < static_cast<std::int64_t>(first.out.bytes.size() / 2); ++n) {
    ASSERT_EQ(first.out.get(n), 77) << n;
  }
}

TEST_F(MergeGpu, ReachesElementsPast2To31) {
  // Two rows 2^31 + 64 elements apart.
  const Dims dims{1, 2, 1, 64};
  const std::int64_t stride = (std::int64_t{1} << 31) + 64;
  Partial first(dims, DType::bf16, Order::bshd);
  Partial second(dims, DType::bf16, Order::bshd);
  first.fill(1);
  second.fill(2);
  first.set_lse(1, 0.5f);
  second.set_lse(1, 0.25f);
  Partial expected = first;
  merge_cpu(call_of(expected, second));

  const std::size_t row_bytes = 64 * 2;
  const DeviceBuffer out(static_cast<std::size_t>(stride) * 2 + row_bytes);
  const DeviceBuffer lse(first.lse), out2(second.out), lse2(second.lse);
  auto* far = static_cast<std::uint8_t*>(out.get()) + stride * 2;
  check_cuda(cudaMemcpy(out.get(), first.out.bytes.data(), row_bytes, cudaMemcpyHostToDevice),
             "cudaMemcpy");
  check_cuda(cudaMemcpy(far, first.out.bytes.data() + row_bytes, row_bytes, cudaMemcpyHostToDevice),
             "cudaMemcpy");
  MergeCall call = call_of(first, second);
  call.out = out.get();
  call.lse = static_cast<float*>(lse.get());
  call.out2 = out2.get();
  call.lse2 = static_cast<const float*>(lse2.get());
  call.out_layout.row = stride;
  merge_cuda(call, nullptr);
  check_cuda(cudaMemcpy(first.out.bytes.data() + row_bytes, far, row_bytes, cudaMemcpyDeviceToHost),
             "cudaMemcpy");
  for (std::int64_t d = 0; d < 64; ++d) {
    ASSERT_TRUE(close(first.get(1, d), expected.get(1, d), 8e-3)) << d;
  }
}

#else

TEST_F(MergeGpu, NeedsABuildWithCuda) { GTEST_SKIP() << "built without CUDA"; }

#endif

}  // namespace
}  // namespace batten::impl::merge_test
