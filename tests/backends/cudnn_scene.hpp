// A call on the GPU with everything around it: inputs, guards, the float64 answer. For the tests of
// the cudnn backend against the real library.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/cuda_runtime.hpp"
#include "core/half.hpp"
#include "problem/problem.hpp"

namespace batten::impl::cudnn {

class DeviceBytes {
 public:
  explicit DeviceBytes(std::size_t bytes) : bytes_(bytes) {
    check_cuda(cudaMalloc(&data_, bytes == 0 ? 1 : bytes), "cudaMalloc");
  }
  ~DeviceBytes() { (void)cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  template <class T>
  explicit DeviceBytes(const std::vector<T>& values) : DeviceBytes(values.size() * sizeof(T)) {
    put(values);
  }
  template <class T>
  void put(const std::vector<T>& values) {
    check_cuda(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyDefault),
               "cudaMemcpy");
  }
  template <class T>
  std::vector<T> get() const {
    std::vector<T> values(bytes_ / sizeof(T));
    check_cuda(cudaMemcpy(values.data(), data_, values.size() * sizeof(T), cudaMemcpyDefault),
               "cudaMemcpy");
    return values;
  }
  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// A 16-bit number that no computation here gives, and a float likewise: rows that must stay.
inline constexpr std::uint16_t kUntouched = 0x4a4b;
inline constexpr float kUntouchedLse = 12345.5f;

struct Scene {
  Problem problem;
  Shape shape;
  std::vector<std::uint16_t> q, k, v;
  std::vector<std::int32_t> q_lengths, kv_lengths, offsets_q, offsets_kv;
  std::size_t out_elements = 0;
  std::size_t lse_elements = 0;
  double scale = 0.1;

  float value(std::uint16_t bits) const {
    return problem.dtype == DType::bf16 ? bfloat16_to_float(bits) : half_to_float(bits);
  }
  std::uint16_t bits(float value) const {
    return problem.dtype == DType::bf16 ? float_to_bfloat16(value) : float_to_half(value);
  }
  Call host_call() const {
    const auto data = [](const std::vector<std::int32_t>& v) {
      return v.empty() ? nullptr : v.data();
    };
    Call c;
    c.q_lengths = data(q_lengths);
    c.kv_lengths = data(kv_lengths);
    c.offsets_q = data(offsets_q);
    c.offsets_kv = data(offsets_kv);
    c.scale = scale;
    return c;
  }
};

inline Problem make_problem(int heads, int kv_heads, int dim, Mask mask,
                            DType dtype = DType::bf16) {
  Problem p;
  p.dtype = p.out_dtype = dtype;
  p.num_heads = heads;
  p.num_kv_heads = kv_heads;
  p.head_dim = p.head_dim_v = dim;
  p.mask = mask;
  return p;
}

inline std::vector<std::uint16_t> random_values(const Scene& scene, std::size_t count,
                                                unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> values(count);
  for (auto& x : values) x = scene.bits(normal(random));
  return values;
}

// Contiguous BSHD tensors, each with `tail` rows more behind its last sample.
inline Scene bshd_scene(const Problem& p, std::int64_t batch, std::int64_t q, std::int64_t kv,
                        std::int64_t tail = 0) {
  Scene s;
  s.problem = p;
  Shape& shape = s.shape;
  shape.batch = batch;
  shape.max_q = q;
  shape.max_kv = kv;
  shape.tokens_q = batch * q;
  shape.tokens_kv = batch * kv;
  shape.lse = true;
  const std::int64_t hq = p.num_heads, hk = p.num_kv_heads, d = p.head_dim, dv = p.head_dim_v;
  shape.q = {q * hq * d, hq * d, d};
  shape.k = {kv * hk * d, hk * d, d};
  shape.v = {kv * hk * dv, hk * dv, dv};
  shape.out = {q * hq * dv, hq * dv, dv};
  shape.lse_layout = {q * hq, hq, 1};
  const auto count = [](std::int64_t rows, std::int64_t width) {
    return static_cast<std::size_t>(rows * width);
  };
  s.q = random_values(s, count(batch * q + tail, hq * d), 1);
  s.k = random_values(s, count(batch * kv + tail, hk * d), 2);
  s.v = random_values(s, count(batch * kv + tail, hk * dv), 3);
  s.out_elements = count(batch * q + tail, hq * dv);
  s.lse_elements = count(batch * q + tail, hq);
  s.scale = 1 / std::sqrt(static_cast<double>(d));
  return s;
}

// A packed call; the buffers have `tail` tokens past the last offset.
inline Scene packed_scene(const Problem& p, std::vector<std::int32_t> offsets_q,
                          std::vector<std::int32_t> offsets_kv, Source source,
                          std::int64_t tail = 0) {
  const auto longest = [](const std::vector<std::int32_t>& offsets) {
    std::int32_t most = 0;
    for (std::size_t b = 0; b + 1 < offsets.size(); ++b) {
      most = std::max(most, offsets[b + 1] - offsets[b]);
    }
    return most;
  };
  Scene s = bshd_scene(p, 1, offsets_q.back() + tail, offsets_kv.back() + tail);
  Shape& shape = s.shape;
  shape.packed = true;
  shape.batch = static_cast<std::int64_t>(offsets_q.size()) - 1;
  shape.max_q = longest(offsets_q);
  shape.max_kv = longest(offsets_kv);
  shape.offsets_q = shape.offsets_kv = source;
  for (Layout* l : {&shape.q, &shape.k, &shape.v, &shape.out, &shape.lse_layout}) l->batch = 0;
  s.offsets_q = std::move(offsets_q);
  s.offsets_kv = std::move(offsets_kv);
  return s;
}

// What the scene's rows are, in float64; rows of nobody keep the untouched values.
struct Answer {
  std::vector<float> out, lse;
  std::vector<bool> written;  // of each row and head, by lse index
};

inline Answer answer_of(const Scene& s) {
  Answer a;
  a.out.assign(s.out_elements, s.value(kUntouched));
  a.lse.assign(s.lse_elements, kUntouchedLse);
  a.written.assign(s.lse_elements, false);
  const Call call = s.host_call();
  const Problem& p = s.problem;
  const int group = p.num_heads / p.num_kv_heads;
  std::vector<double> weights;
  for (std::int64_t b = 0; b < s.shape.batch; ++b) {
    const Sample sample = sample_of(s.shape, call, b);
    for (std::int64_t i = 0; i < sample.q_rows; ++i) {
      const std::int64_t keys =
          i < sample.q_length ? visible_keys(p.mask, i, sample.q_length, sample.kv_length) : 0;
      for (int h = 0; h < p.num_heads; ++h) {
        const std::int64_t q = sample.q_offset + i * s.shape.q.row + h * s.shape.q.head;
        const std::int64_t k = sample.k_offset + (h / group) * s.shape.k.head;
        const std::int64_t v = sample.v_offset + (h / group) * s.shape.v.head;
        const std::int64_t out = sample.out_offset + i * s.shape.out.row + h * s.shape.out.head;
        const auto lse = static_cast<std::size_t>(sample.lse_offset + i * s.shape.lse_layout.row +
                                                  h * s.shape.lse_layout.head);
        weights.assign(static_cast<std::size_t>(keys), 0);
        double most = -std::numeric_limits<double>::infinity(), sum = 0;
        for (std::int64_t j = 0; j < keys; ++j) {
          double dot = 0;
          for (int d = 0; d < p.head_dim; ++d) {
            dot += static_cast<double>(s.value(s.q[static_cast<std::size_t>(q + d)])) *
                   s.value(s.k[static_cast<std::size_t>(k + j * s.shape.k.row + d)]);
          }
          weights[static_cast<std::size_t>(j)] = dot * s.scale;
          most = std::max(most, dot * s.scale);
        }
        for (double& w : weights) sum += w = std::exp(w - most);
        for (int d = 0; d < p.head_dim_v; ++d) {
          double value = 0;
          for (std::int64_t j = 0; j < keys; ++j) {
            value += weights[static_cast<std::size_t>(j)] *
                     s.value(s.v[static_cast<std::size_t>(v + j * s.shape.v.row + d)]);
          }
          a.out[static_cast<std::size_t>(out + d)] =
              keys == 0 ? 0.0f : static_cast<float>(value / sum);
        }
        a.lse[lse] = keys == 0 ? -std::numeric_limits<float>::infinity()
                               : static_cast<float>(most + std::log(sum));
        a.written[lse] = true;
      }
    }
  }
  return a;
}

// How far a result is from the answer.
struct Difference {
  int wrong = 0;    // elements of out and lse
  int nans = 0;     // of them
  int touched = 0;  // elements of nobody that were written
  std::string first;

  bool none() const { return wrong == 0 && touched == 0; }
};

inline Difference compare(const Scene& s, const Answer& a, const std::vector<std::uint16_t>& out,
                          const std::vector<float>& lse) {
  Difference d;
  const double tolerance = s.problem.dtype == DType::bf16 ? 4e-2 : 8e-3;
  const float untouched = s.value(kUntouched);
  const auto note = [&](const char* what, std::size_t at, double got, double expected) {
    if (d.first.empty()) {
      d.first = std::string(what) + "[" + std::to_string(at) + "] is " + std::to_string(got) +
                ", expected " + std::to_string(expected);
    }
  };
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double got = s.value(out[i]), expected = a.out[i];
    if (a.out[i] == untouched) {
      if (out[i] != kUntouched) ++d.touched, note("out", i, got, expected);
    } else if (!(std::abs(got - expected) <= tolerance * (0.1 + std::abs(expected)))) {
      ++d.wrong;
      d.nans += std::isnan(got);
      note("out", i, got, expected);
    }
  }
  for (std::size_t i = 0; i < lse.size(); ++i) {
    if (!a.written[i]) {
      if (lse[i] != kUntouchedLse) ++d.touched, note("lse", i, lse[i], a.lse[i]);
    } else if (lse[i] != a.lse[i] && !(std::abs(lse[i] - a.lse[i]) <= 1e-2)) {
      ++d.wrong;
      d.nans += std::isnan(lse[i]);
      note("lse", i, lse[i], a.lse[i]);
    }
  }
  return d;
}

}  // namespace batten::impl::cudnn
