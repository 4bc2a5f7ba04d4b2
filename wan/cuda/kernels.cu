// Between the products: norms with the residual's update and the modulation, RMS norm with the
// rotation, patches. Each reads and writes every row once, so memory's speed is theirs.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "wan/cuda/kernels.hpp"
#include "wan/random.hpp"

namespace batten::wan::cuda {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kElementThreads = 256;

__device__ float to_float(float x) { return x; }
__device__ float to_float(__half x) { return __half2float(x); }
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T>
__device__ T from_float(float x);
template <>
__device__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// V neighbouring elements, moved 16 bytes at a time where they fill them.
template <class T, int V>
struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) Vector {
  T values[V];
};

template <class T, int V>
__device__ void load(const T* from, float (&to)[V]) {
  const auto vector = *reinterpret_cast<const Vector<T, V>*>(from);
#pragma unroll
  for (int i = 0; i < V; ++i) to[i] = to_float(vector.values[i]);
}

template <class T, int V>
__device__ void store(T* to, const float (&from)[V]) {
  Vector<T, V> vector;
#pragma unroll
  for (int i = 0; i < V; ++i) vector.values[i] = from_float<T>(from[i]);
  *reinterpret_cast<Vector<T, V>*>(to) = vector;
}

__device__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// The sum over the block, for every thread. Consecutive calls must use different `parts`: the
// barrier of a call in between is what frees them.
__device__ float block_sum(float x, float (&parts)[32]) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned warps = blockDim.x / 32;
  x = warp_sum(x);
  if (lane == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  return warp_sum(lane < warps ? parts[lane] : 0.0f);
}

// A modulation's values at columns [column, column + V) of a row.
template <class T, int V>
__device__ void modulation(const Modulation& m, std::int64_t row, int column, float absent,
                           float (&to)[V]) {
  if (m.table == nullptr) {
#pragma unroll
    for (int i = 0; i < V; ++i) to[i] = absent;
    return;
  }
  load<float, V>(m.table + column, to);
  if (m.rows == nullptr) return;
  float added[V];
  load<T, V>(static_cast<const T*>(m.rows) + row * m.stride + column, added);
#pragma unroll
  for (int i = 0; i < V; ++i) to[i] += added[i];
}

// A block takes every gridDim.x-th row; a thread V columns of it. The modulation stays in registers
// while rows have the same timestep, as all of a sample do but for a given first frame.
template <class T, int V, bool kResidual>
__global__ void __launch_bounds__(kMaxThreads) norm_rows(const __grid_constant__ NormCall call) {
  __shared__ float sums[32];
  __shared__ float squares[32];
  const int d = static_cast<int>(call.d);
  const int column = static_cast<int>(threadIdx.x) * V;
  const bool active = column < d;
  const float inverse = 1.0f / static_cast<float>(d);
  const float eps = static_cast<float>(call.eps);
  float gate[V] = {};
  float scale[V] = {};
  float shift[V] = {};
  std::int64_t held = -1;
  for (std::int64_t row = blockIdx.x; row < call.rows; row += gridDim.x) {
    const std::int64_t at = row * call.d + column;
    float x[V] = {};
    if (active) load<T, V>(static_cast<const T*>(call.x) + at, x);
    const std::int64_t index = call.index != nullptr ? call.index[row] : 0;
    if (active && index != held) {
      if constexpr (kResidual) modulation<T, V>(call.gate, index, column, 1, gate);
      modulation<T, V>(call.scale, index, column, 0, scale);
      modulation<T, V>(call.shift, index, column, 0, shift);
      held = index;
    }
    if constexpr (kResidual) {
      if (active) {
        float y[V];
        load<T, V>(static_cast<const T*>(call.y) + at, y);
#pragma unroll
        // What is stored is what the norm sees, rounded as it is.
        for (int i = 0; i < V; ++i) x[i] = to_float(from_float<T>(fmaf(y[i], gate[i], x[i])));
        store<T, V>(static_cast<T*>(call.x) + at, x);
      }
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < V; ++i) sum += x[i];
    const float mean = block_sum(sum, sums) * inverse;
    float square = 0;
    if (active) {
#pragma unroll
      for (int i = 0; i < V; ++i) square += (x[i] - mean) * (x[i] - mean);
    }
    const float rstd = rsqrtf(block_sum(square, squares) * inverse + eps);
    if (active) {
      float out[V];
#pragma unroll
      for (int i = 0; i < V; ++i)
        out[i] = fmaf((x[i] - mean) * rstd, call.unit + scale[i], shift[i]);
      store<T, V>(static_cast<T*>(call.out) + at, out);
    }
  }
}

template <int V>
__device__ float sum_of_squares(const float (&v)[V]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < V; ++i) sum = fmaf(v[i], v[i], sum);
  return sum;
}

template <class T, int V>
__device__ void finish_rms(T* to, float (&v)[V], float factor, const float (&weight)[V],
                           const float (&angles)[V], bool rotate) {
#pragma unroll
  for (int i = 0; i < V; ++i) v[i] = v[i] * factor * weight[i];
  if (rotate) {
#pragma unroll
    for (int i = 0; i < V; i += 2) {
      const float a = v[i];
      const float b = v[i + 1];
      v[i] = a * angles[i] - b * angles[i + 1];
      v[i + 1] = a * angles[i + 1] + b * angles[i];
    }
  }
  store<T, V>(to, v);
}

// As norm_rows. q and k of a row turn by the same angles, which are read once.
template <class T, bool kBoth>
__global__ void __launch_bounds__(kMaxThreads) rms_rows(const __grid_constant__ RmsCall call) {
  constexpr int V = 8;
  __shared__ float sums[2][2][32];
  const int column = static_cast<int>(threadIdx.x) * V;
  const bool active = column < static_cast<int>(call.d);
  const float inverse = 1.0f / static_cast<float>(call.d);
  const float eps = static_cast<float>(call.eps);
  const bool rotate = call.rope != nullptr;
  const int in_head = column % static_cast<int>(call.head_dim);
  float weight_q[V] = {};
  float weight_k[V] = {};
  if (active) {
    load<float, V>(call.weight_q + column, weight_q);
    if constexpr (kBoth) load<float, V>(call.weight_k + column, weight_k);
  }
  int turn = 0;  // of the two sets of sums
  for (std::int64_t row = blockIdx.x; row < call.rows; row += gridDim.x, turn ^= 1) {
    T* const q_at = static_cast<T*>(call.q) + row * call.stride + column;
    T* const k_at = kBoth ? static_cast<T*>(call.k) + row * call.stride + column : nullptr;
    float q[V] = {};
    float k[V] = {};
    float angles[V] = {};
    if (active) {
      load<T, V>(q_at, q);
      if constexpr (kBoth) load<T, V>(k_at, k);
      if (rotate) load<float, V>(call.rope + row % call.tokens * call.head_dim + in_head, angles);
    }
    const float q_squares = block_sum(sum_of_squares(q), sums[turn][0]);
    if constexpr (kBoth) {
      const float k_squares = block_sum(sum_of_squares(k), sums[turn][1]);
      if (active) finish_rms(k_at, k, rsqrtf(k_squares * inverse + eps), weight_k, angles, rotate);
    }
    if (active) finish_rms(q_at, q, rsqrtf(q_squares * inverse + eps), weight_q, angles, rotate);
  }
}

template <class T>
__global__ void add_elements(T* a, const T* b, std::size_t vectors) {
  constexpr int V = 8;
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < vectors;
       i += step) {
    float x[V];
    float y[V];
    load<T, V>(a + i * V, x);
    load<T, V>(b + i * V, y);
#pragma unroll
    for (int j = 0; j < V; ++j) x[j] += y[j];
    store<T, V>(a + i * V, x);
  }
}

__device__ float apply(Activation activation, float x) {
  switch (activation) {
    case Activation::gelu_tanh:
      return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    case Activation::gelu_erf:
      return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
    case Activation::silu:
      return x / (1.0f + expf(-x));
    case Activation::none:
      break;
  }
  return x;
}

template <class In, class Out>
__global__ void activate_elements(const In* x, Out* out, std::size_t count, Activation activation) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step)
    out[i] = from_float<Out>(apply(activation, to_float(x[i])));
}

// Where latent element `i` lies: its patch, its channel and its place in the patch.
struct Place {
  std::int64_t row;
  std::int64_t channel;
  std::int64_t inner;
};

__device__ Place place_of(const PatchCall& p, std::int64_t i) {
  const std::int64_t w = i % p.width;
  const std::int64_t h = i / p.width % p.height;
  const std::int64_t f = i / (p.width * p.height) % p.frames;
  const std::int64_t image = i / (p.width * p.height * p.frames);
  const std::int64_t b = image / p.channels;
  const std::int64_t row =
      ((b * (p.frames / p.pt) + f / p.pt) * (p.height / p.ph) + h / p.ph) * (p.width / p.pw) +
      w / p.pw;
  return {row, image % p.channels, (f % p.pt * p.ph + h % p.ph) * p.pw + w % p.pw};
}

template <class T, bool kIn>
__global__ void move_patches(const __grid_constant__ PatchCall p, std::int64_t count) {
  const std::int64_t size = p.pt * p.ph * p.pw;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    const Place at = place_of(p, i);
    T* const row = static_cast<T*>(p.rows) + at.row * p.channels * size;
    if constexpr (kIn) {
      row[at.channel * size + at.inner] = from_float<T>(p.latents[i]);
    } else {
      p.latents[i] = to_float(row[at.inner * p.channels + at.channel]);
    }
  }
}

template <class T>
__global__ void random_elements(T* out, std::size_t count, float mean, float spread,
                                std::uint64_t seed) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step)
    out[i] = from_float<T>(mean + spread * uniform(seed, i));
}

int multiprocessors() {
  int device = 0;
  int count = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
  return count;
}

unsigned element_blocks(std::size_t count) {
  const std::size_t blocks = (count + kElementThreads - 1) / kElementThreads;
  return static_cast<unsigned>(
      std::clamp<std::size_t>(blocks, 1, static_cast<std::size_t>(multiprocessors()) * 32));
}

int row_threads(std::int64_t d, int vector) {
  const std::int64_t threads = (d + vector - 1) / vector;
  if (d % vector != 0 || threads > kMaxThreads) {
    throw Error(ErrorCode::Unsupported,
                "rows of " + std::to_string(d) + " elements, expected a multiple of " +
                    std::to_string(vector) + " up to " + std::to_string(vector * kMaxThreads));
  }
  return static_cast<int>((threads + 31) / 32 * 32);
}

// As many blocks as run at once: each keeps what it has loaded for all its rows.
template <class Kernel>
unsigned row_blocks(Kernel kernel, std::int64_t rows, int threads) {
  int blocks = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0), "occupancy");
  return static_cast<unsigned>(
      std::clamp<std::int64_t>(static_cast<std::int64_t>(blocks) * multiprocessors(), 1, rows));
}

// use(T{}) with the type that `dtype` stands for.
template <class Use>
void with_type(DType dtype, Use use) {
  switch (dtype) {
    case DType::bf16:
      return use(__nv_bfloat16{});
    case DType::f16:
      return use(__half{});
    case DType::f32:
      return use(float{});
    default:
      throw Error(ErrorCode::Internal, std::string("no kernel for ") + name_of(dtype));
  }
}

template <class T, int V>
void launch_norm(const NormCall& call, cudaStream_t stream) {
  const int threads = row_threads(call.d, V);
  const auto kernel = call.y != nullptr ? norm_rows<T, V, true> : norm_rows<T, V, false>;
  kernel<<<row_blocks(kernel, call.rows, threads), threads, 0, stream>>>(call);
}

}  // namespace

void norm(const NormCall& call, cudaStream_t stream) {
  with_type(call.dtype, [&](auto type) {
    using T = decltype(type);
    if (call.d % 8 == 0) {
      launch_norm<T, 8>(call, stream);
    } else {
      launch_norm<T, 4>(call, stream);
    }
  });
  check(cudaGetLastError(), "the launch of the norm kernel");
}

void rms(const RmsCall& call, cudaStream_t stream) {
  const int threads = row_threads(call.d, 8);
  with_type(call.dtype, [&](auto type) {
    using T = decltype(type);
    const auto kernel = call.k != nullptr ? rms_rows<T, true> : rms_rows<T, false>;
    kernel<<<row_blocks(kernel, call.rows, threads), threads, 0, stream>>>(call);
  });
  check(cudaGetLastError(), "the launch of the RMS kernel");
}

void add(void* a, const void* b, std::size_t count, DType dtype, cudaStream_t stream) {
  if (count % 8 != 0)
    throw Error(ErrorCode::Internal, "a sum of elements that are no multiple of 8");
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    add_elements<T><<<element_blocks(count / 8), kElementThreads, 0, stream>>>(
        static_cast<T*>(a), static_cast<const T*>(b), count / 8);
  });
  check(cudaGetLastError(), "the launch of the sum kernel");
}

void activate(const void* x, DType x_dtype, void* out, DType out_dtype, std::size_t count,
              Activation activation, cudaStream_t stream) {
  const auto run = [&](auto in, auto to) {
    using In = decltype(in);
    using Out = decltype(to);
    activate_elements<In, Out><<<element_blocks(count), kElementThreads, 0, stream>>>(
        static_cast<const In*>(x), static_cast<Out*>(out), count, activation);
  };
  if (x_dtype == DType::f32) {
    with_type(out_dtype, [&](auto to) { run(float{}, to); });
  } else if (x_dtype == out_dtype) {
    with_type(out_dtype, [&](auto to) { run(to, to); });
  } else {
    throw Error(ErrorCode::Internal, std::string("no activation from ") + name_of(x_dtype) +
                                         " to " + name_of(out_dtype));
  }
  check(cudaGetLastError(), "the launch of the activation kernel");
}

template <bool kIn>
static void launch_patches(const PatchCall& call, cudaStream_t stream) {
  const std::int64_t count = call.batch * call.channels * call.frames * call.height * call.width;
  with_type(call.dtype, [&](auto type) {
    using T = decltype(type);
    move_patches<T, kIn>
        <<<element_blocks(static_cast<std::size_t>(count)), kElementThreads, 0, stream>>>(call,
                                                                                          count);
  });
  check(cudaGetLastError(), "the launch of the patch kernel");
}

void patchify(const PatchCall& call, cudaStream_t stream) { launch_patches<true>(call, stream); }
void unpatchify(const PatchCall& call, cudaStream_t stream) { launch_patches<false>(call, stream); }

void fill_random(void* target, std::size_t count, DType dtype, float mean, float spread,
                 std::uint64_t seed, cudaStream_t stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    random_elements<T><<<element_blocks(count), kElementThreads, 0, stream>>>(
        static_cast<T*>(target), count, mean, spread, seed);
  });
  check(cudaGetLastError(), "the launch of the random kernel");
}

}  // namespace batten::wan::cuda
