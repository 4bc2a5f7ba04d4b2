// The oracle on the GPU: float64 throughout, plain loops, and no code in common with the kernels
// that it judges. The softmax takes two passes over the keys, as the text-book has it: the largest
// score and the sum of a row first, then the weighted sum of the values. Scores are computed in
// both, so that nothing of the size Sq * Skv is ever stored.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "backends/reference/reference.hpp"
#include "core/cuda_runtime.hpp"
// Not core/error.hpp: nvcc cannot compile fmt's compile-time checks.

namespace batten::impl {
namespace {

// One block computes kRows rows of one head, kColumns columns of the output; it takes kKeys keys at
// a time, and of the dot products kDims elements at a time.
constexpr int kThreads = 256;
constexpr int kRows = 32;
constexpr int kKeys = 32;
constexpr int kDims = 64;
constexpr int kColumns = 128;

// Samples of one launch when an array lies on the host: what fits in 4 KiB of kernel parameters,
// which is how the values reach the device without a copy, in a CUDA graph too.
constexpr int kHostSamples = 192;

// Lengths or offsets: an array on the device, or the values of this launch's samples.
struct Ints {
  Source source = Source::none;
  const std::int32_t* device = nullptr;  // of this launch's first sample
  std::int32_t host[kHostSamples + 1] = {};

  __device__ std::int64_t operator[](std::int64_t index) const {
    return source == Source::device ? device[index] : host[index];
  }
};

struct Params {
  const void* q;
  const void* k;
  const void* v;
  void* out;
  float* lse;
  Layout q_layout, k_layout, v_layout, out_layout, lse_layout;
  std::int64_t max_q, max_kv, tokens_q, tokens_kv;
  std::int64_t first_sample;
  double scale;
  std::int32_t num_heads, group, head_dim, head_dim_v;
  std::int32_t row_tiles, column_tiles;
  Mask mask;
  bool packed;
  bool out_is_f32;
  Ints q_lengths, kv_lengths, offsets_q, offsets_kv;
};
static_assert(sizeof(Params) <= 4096);

struct Tiles {
  union {
    struct {
      double q[kRows][kDims];
      double k[kKeys][kDims + 1];  // + 1: threads of a warp read 16 keys, in different banks
    };
    double v[kKeys][kColumns];
  };
  double scores[kRows][kKeys + 1];
  double maximum[kRows];
  double sum[kRows];
};

__device__ std::int64_t clamp(std::int64_t x, std::int64_t low, std::int64_t high) {
  return x < low ? low : x > high ? high : x;
}

// A sample's rows and keys. What the arrays say is clamped to the buffers, as on the host.
struct Extent {
  std::int64_t q_row, kv_row;  // packed: first token
  std::int64_t rows;           // of the output
  std::int64_t queries, keys;
};

__device__ Extent extent_of(const Params& p, std::int64_t sample) {
  Extent e{0, 0, p.max_q, p.max_q, p.max_kv};
  if (p.packed) {
    e.q_row = clamp(p.offsets_q[sample], 0, p.tokens_q);
    e.kv_row = clamp(p.offsets_kv[sample], 0, p.tokens_kv);
    e.queries = clamp(clamp(p.offsets_q[sample + 1], e.q_row, p.tokens_q) - e.q_row, 0, p.max_q);
    e.keys = clamp(clamp(p.offsets_kv[sample + 1], e.kv_row, p.tokens_kv) - e.kv_row, 0, p.max_kv);
  }
  if (p.q_lengths.source != Source::none) e.queries = clamp(p.q_lengths[sample], 0, e.queries);
  if (p.kv_lengths.source != Source::none) e.keys = clamp(p.kv_lengths[sample], 0, e.keys);
  if (p.packed) e.rows = e.queries;  // what lies past them is a gap
  return e;
}

// Row i sees the keys before this one.
__device__ std::int64_t end_of_row(Mask mask, std::int64_t i, const Extent& e) {
  if (i >= e.queries) return 0;
  if (mask == Mask::none) return e.keys;
  const std::int64_t shift = mask == Mask::causal ? e.keys - e.queries : 0;
  return clamp(i + shift + 1, 0, e.keys);
}

__device__ double to_double(float x) { return x; }
__device__ double to_double(__half x) { return __half2float(x); }
__device__ double to_double(__nv_bfloat16 x) { return __bfloat162float(x); }

// Rounded once, from double.
__device__ void store(float& out, double x) { out = static_cast<float>(x); }
__device__ void store(__half& out, double x) { out = __double2half(x); }
__device__ void store(__nv_bfloat16& out, double x) { out = __double2bfloat16(x); }

// tiles.scores = scale * q k^T of the block's rows and the keys [first, first + count); elements
// that a row does not see are not meant to be read. `q` and `k` begin at the head's first row and
// key.
template <class T>
__device__ void compute_scores(const Params& p, Tiles& tiles, const T* q, std::int64_t first_row,
                               int rows, const T* k, std::int64_t first, int count) {
  const int row = static_cast<int>(threadIdx.x) / 16 * 2;
  const int key = static_cast<int>(threadIdx.x) % 16;
  double sum[2][2] = {};
  for (int begin = 0; begin < p.head_dim; begin += kDims) {
    __syncthreads();  // the tiles are free
    for (int n = static_cast<int>(threadIdx.x); n < kRows * kDims; n += kThreads) {
      const int d = begin + n % kDims;
      const bool inside = n / kDims < rows && d < p.head_dim;
      tiles.q[n / kDims][n % kDims] =
          inside ? to_double(q[(first_row + n / kDims) * p.q_layout.row + d]) : 0;
    }
    for (int n = static_cast<int>(threadIdx.x); n < kKeys * kDims; n += kThreads) {
      const int d = begin + n % kDims;
      const bool inside = n / kDims < count && d < p.head_dim;
      tiles.k[n / kDims][n % kDims] =
          inside ? to_double(k[(first + n / kDims) * p.k_layout.row + d]) : 0;
    }
    __syncthreads();
    const int dims = min(kDims, p.head_dim - begin);
    for (int d = 0; d < dims; ++d) {
      for (int r = 0; r < 2; ++r) {
        for (int c = 0; c < 2; ++c) {
          sum[r][c] += tiles.q[row + r][d] * tiles.k[key + 16 * c][d];
        }
      }
    }
  }
  for (int r = 0; r < 2; ++r) {
    for (int c = 0; c < 2; ++c) tiles.scores[row + r][key + 16 * c] = p.scale * sum[r][c];
  }
  __syncthreads();
}

// Eight neighbouring threads share a row.
__device__ double row_max(double x) {
  for (int step = 4; step > 0; step /= 2) x = fmax(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
__device__ double row_sum(double x) {
  for (int step = 4; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2) attend(const __grid_constant__ Params p) {
  __shared__ Tiles tiles;
  const std::int64_t head = blockIdx.x / (p.row_tiles * p.column_tiles);
  const int tile = static_cast<int>(blockIdx.x) % (p.row_tiles * p.column_tiles);
  const std::int64_t first_row = static_cast<std::int64_t>(tile % p.row_tiles) * kRows;
  const int first_column = tile / p.row_tiles * kColumns;

  const Extent extent = extent_of(p, blockIdx.y);
  if (first_row >= extent.rows) return;
  const int rows = static_cast<int>(min(static_cast<std::int64_t>(kRows), extent.rows - first_row));
  const int queries = static_cast<int>(clamp(extent.queries - first_row, 0, rows));

  const std::int64_t sample = p.first_sample + blockIdx.y;
  const std::int64_t kv_head = head / p.group;
  const T* q = static_cast<const T*>(p.q) + sample * p.q_layout.batch +
               extent.q_row * p.q_layout.row + head * p.q_layout.head;
  const T* k = static_cast<const T*>(p.k) + sample * p.k_layout.batch +
               extent.kv_row * p.k_layout.row + kv_head * p.k_layout.head;
  const T* v = static_cast<const T*>(p.v) + sample * p.v_layout.batch +
               extent.kv_row * p.v_layout.row + kv_head * p.v_layout.head;

  // The last query sees the most keys.
  const std::int64_t end = queries == 0 ? 0 : end_of_row(p.mask, first_row + queries - 1, extent);

  // First pass: the largest score of each row and the sum of exp(score - largest). Each of a row's
  // eight threads does it for its own keys, then they agree.
  const int my_row = static_cast<int>(threadIdx.x) / 8;
  const int my_part = static_cast<int>(threadIdx.x) % 8;
  const std::int64_t my_end = end_of_row(p.mask, first_row + my_row, extent);
  double maximum = -std::numeric_limits<double>::infinity();
  double sum = 0;
  for (std::int64_t first = 0; first < end; first += kKeys) {
    const int count = static_cast<int>(min(static_cast<std::int64_t>(kKeys), end - first));
    compute_scores(p, tiles, q, first_row, queries, k, first, count);
    for (int key = my_part; key < count && first + key < my_end; key += 8) {
      const double score = tiles.scores[my_row][key];
      if (score > maximum) {
        sum = sum * exp(maximum - score) + exp(score - score);  // NaN for an infinite score
        maximum = score;
      } else {
        sum += exp(score - maximum);
      }
    }
  }
  const double largest = row_max(maximum);
  sum = row_sum(sum == 0 ? 0 : sum * exp(maximum - largest));  // 0: no key, or none yet
  if (my_part == 0) {
    tiles.maximum[my_row] = largest;
    tiles.sum[my_row] = sum;
  }

  // Second pass: a warp takes four rows, a thread every 32nd column.
  constexpr int kRowsOfWarp = kRows / (kThreads / 32);
  constexpr int kColumnsOfThread = kColumns / 32;
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * kRowsOfWarp;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  double result[kRowsOfWarp][kColumnsOfThread] = {};
  for (std::int64_t first = 0; first < end; first += kKeys) {
    const int count = static_cast<int>(min(static_cast<std::int64_t>(kKeys), end - first));
    compute_scores(p, tiles, q, first_row, queries, k, first, count);
    for (int key = my_part; key < kKeys; key += 8) {
      double& score = tiles.scores[my_row][key];
      score = exp(score - tiles.maximum[my_row]);
    }
    for (int n = static_cast<int>(threadIdx.x); n < kKeys * kColumns; n += kThreads) {
      const int column = first_column + n % kColumns;
      const bool inside = n / kColumns < count && column < p.head_dim_v;
      tiles.v[n / kColumns][n % kColumns] =
          inside ? to_double(v[(first + n / kColumns) * p.v_layout.row + column]) : 0;
    }
    __syncthreads();
    int seen[kRowsOfWarp];  // keys of this tile that the row sees
    for (int r = 0; r < kRowsOfWarp; ++r) {
      seen[r] = static_cast<int>(
          clamp(end_of_row(p.mask, first_row + warp_row + r, extent) - first, 0, count));
    }
    for (int key = 0; key < count; ++key) {
      for (int r = 0; r < kRowsOfWarp; ++r) {
        // Not a product with 0: a value that the row does not see may be NaN.
        if (key >= seen[r]) continue;
        const double weight = tiles.scores[warp_row + r][key];
        for (int c = 0; c < kColumnsOfThread; ++c) {
          result[r][c] += weight * tiles.v[key][lane + 32 * c];
        }
      }
    }
  }
  __syncthreads();  // tiles.sum, where there was no key

  for (int r = 0; r < kRowsOfWarp; ++r) {
    const std::int64_t i = first_row + warp_row + r;
    if (i >= extent.rows) break;
    const bool empty = end_of_row(p.mask, i, extent) == 0;
    const std::int64_t at = sample * p.out_layout.batch + (extent.q_row + i) * p.out_layout.row +
                            head * p.out_layout.head;
    for (int c = 0; c < kColumnsOfThread; ++c) {
      const int column = first_column + lane + 32 * c;
      if (column >= p.head_dim_v) break;
      const double value = empty ? 0 : result[r][c] / tiles.sum[warp_row + r];
      if (p.out_is_f32) {
        store(static_cast<float*>(p.out)[at + column], value);
      } else {
        store(static_cast<T*>(p.out)[at + column], value);
      }
    }
    if (p.lse != nullptr && first_column == 0 && lane == 0) {
      p.lse[sample * p.lse_layout.batch + (extent.q_row + i) * p.lse_layout.row +
            head * p.lse_layout.head] =
          empty ? -std::numeric_limits<float>::infinity()
                : static_cast<float>(tiles.maximum[warp_row + r] + log(tiles.sum[warp_row + r]));
    }
  }
}

class ReferenceCudaPlan : public Plan {
 public:
  ReferenceCudaPlan(const Problem& problem, const Shape& shape) : problem_(problem) {
    const bool lengths = shape.q_lengths != Source::none || shape.kv_lengths != Source::none;
    info_.form = shape.packed ? "packed" : lengths ? "lengths" : "dense";
    info_.kernel = "float64 two-pass on CUDA";
    info_.tile = std::to_string(kRows) + "x" + std::to_string(kKeys);
  }

  void run(const Shape& shape, const Call& call, void* /*workspace*/) const override {
    if (shape.batch == 0 || shape.max_q == 0) return;
    Params p{};
    p.q = call.q;
    p.k = call.k;
    p.v = call.v;
    p.out = call.out;
    p.lse = call.lse;
    p.q_layout = shape.q;
    p.k_layout = shape.k;
    p.v_layout = shape.v;
    p.out_layout = shape.out;
    p.lse_layout = shape.lse_layout;
    p.max_q = shape.max_q;
    p.max_kv = shape.max_kv;
    p.tokens_q = shape.tokens_q;
    p.tokens_kv = shape.tokens_kv;
    p.scale = call.scale;
    p.num_heads = problem_.num_heads;
    p.group = problem_.num_heads / problem_.num_kv_heads;
    p.head_dim = problem_.head_dim;
    p.head_dim_v = problem_.head_dim_v;
    p.mask = problem_.mask;
    p.packed = shape.packed;
    p.out_is_f32 = problem_.out_dtype == DType::f32;

    const std::int64_t row_tiles = (shape.max_q + kRows - 1) / kRows;
    const std::int64_t column_tiles = (problem_.head_dim_v + kColumns - 1) / kColumns;
    if (row_tiles > std::numeric_limits<std::int32_t>::max() / column_tiles / p.num_heads) {
      throw Error(ErrorCode::Unsupported,
                  "reference: " + std::to_string(shape.max_q) + " query rows of " +
                      std::to_string(p.num_heads) +
                      " heads are more than one CUDA grid takes; use a CPU device");
    }
    p.row_tiles = static_cast<std::int32_t>(row_tiles);
    p.column_tiles = static_cast<std::int32_t>(column_tiles);

    const bool host = shape.q_lengths == Source::host || shape.kv_lengths == Source::host ||
                      shape.offsets_q == Source::host || shape.offsets_kv == Source::host;
    const std::int64_t step = host ? kHostSamples : 65535;
    for (std::int64_t first = 0; first < shape.batch; first += step) {
      const std::int64_t count = std::min(step, shape.batch - first);
      p.first_sample = first;
      set(p.q_lengths, shape.q_lengths, call.q_lengths, first, count);
      set(p.kv_lengths, shape.kv_lengths, call.kv_lengths, first, count);
      set(p.offsets_q, shape.offsets_q, call.offsets_q, first, count + 1);
      set(p.offsets_kv, shape.offsets_kv, call.offsets_kv, first, count + 1);
      launch(p, count, static_cast<cudaStream_t>(call.stream));
    }
  }

 private:
  static void set(Ints& ints, Source source, const std::int32_t* values, std::int64_t first,
                  std::int64_t count) {
    ints.source = source;
    if (source == Source::device) ints.device = values + first;
    if (source == Source::host) std::copy_n(values + first, count, ints.host);
  }

  void launch(const Params& p, std::int64_t samples, cudaStream_t stream) const {
    const dim3 grid(static_cast<unsigned>(p.row_tiles * p.column_tiles * p.num_heads),
                    static_cast<unsigned>(samples));
    switch (problem_.dtype) {
      case DType::f16:
        attend<__half><<<grid, kThreads, 0, stream>>>(p);
        break;
      case DType::bf16:
        attend<__nv_bfloat16><<<grid, kThreads, 0, stream>>>(p);
        break;
      default:
        attend<float><<<grid, kThreads, 0, stream>>>(p);
        break;
    }
    check_cuda(cudaGetLastError(), "the launch of the reference kernel");
  }

  Problem problem_;
};

}  // namespace

Availability reference_cuda_availability(Device device) {
  DeviceRuntime& runtime = device_runtime();
  if (runtime.device_count() == 0) {
    return {.available = false,
            .reason = runtime.why_unavailable(),
            .remedy = "use a CPU device",
            .library = {}};
  }
  if (device.index < 0 || device.index >= runtime.device_count()) {
    return {.available = false,
            .reason = "there is no " + device.str() + ", only " +
                      std::to_string(runtime.device_count()) + " CUDA device(s)",
            .remedy = "name another device",
            .library = {}};
  }
  const DeviceProperties& properties = runtime.properties(device.index);
  if (properties.arch() < 80) {
    return {.available = false,
            .reason = properties.name + " has compute capability " +
                      std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                      ", below 8.0",
            .remedy = "use a CPU device",
            .library = {}};
  }
  return {.available = true, .reason = {}, .remedy = {}, .library = {}};
}

std::shared_ptr<const Plan> make_reference_cuda_plan(const Problem& problem, const Shape& shape,
                                                     Device device, const BackendOptions& options) {
  if (!options.form.empty()) {
    throw Error(
        ErrorCode::Unsupported,
        "reference:" + options.form + " runs on the CPU only; use 'reference' on " + device.str());
  }
  return std::make_shared<ReferenceCudaPlan>(problem, shape);
}

}  // namespace batten::impl
