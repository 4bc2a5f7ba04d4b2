// How a CTA computes a tile, or a part of one, which is a tile with other keys.
//
// Each warp has its own rows. A thread holds of each 16 of them two, 8 apart, and of each eight
// columns two, as the products leave them in its registers: element [t][n][2 r + c] is row
// 16 t + 8 r, column 8 n + c of its own.
#pragma once

#include "backends/native/sm80/copies.cuh"

namespace batten::impl::native::sm80 {

// The weight of a key is 2^(score * scale_log2 - reference); sm90/consumer.cuh says what the
// reference is in lazy and in online softmax, and why the latter is the rarer one.
enum class Softmax { lazy, online };

template <class P>
class Tile {
 public:
  __device__ __forceinline__ Tile(SharedMemory<P>& shared, const Arguments& a)
      : shared_(shared),
        a_(a),
        // As the whole warp has it: then it takes no register of each thread.
        warp_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0)) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kAddresses; ++i) {
      fragment_[i] = offset_of<P>(lane % 8 + lane / 16 * 8, 2 * i + lane / 8 % 2);
    }
  }

  // Copies a tile's queries and its first keys.
  __device__ __forceinline__ void fetch(const Task& task) const {
    keys_of(task, 0).all();
    fetch_queries(task);
  }

  // All of the current tile, which was fetched. Fetches the next one while it computes the last
  // block.
  template <Softmax softmax>
  __device__ __forceinline__ void compute() {
    const Task& task = shared_.current;
    const TileRecord& tile = task.tile;
    clear();
    wait_for_copies();
    __syncthreads();  // the task is known, and its first keys are there
    keep_queries();
    if (lane() == 0) unmasked() = unmasked_blocks(tile);
    __syncwarp();
    int block = 0;
#pragma unroll 1
    for (;;) {
      const bool is_last = block + 1 == tile.blocks;
      // Behind the last tile comes one without keys.
      const Task& coming = is_last ? shared_.next : task;
      const int coming_block = is_last ? 0 : block + 1;
      begin_scores();
      compute_scores(values_of(task, block));
      // The last scores of the tile that read its queries: others read those of a pair.
      if (P::kSides == 1 && is_last && shared_.next.tile.blocks > 0) fetch_queries(shared_.next);
      if (block >= unmasked()) mask_scores(tile, block);
      if constexpr (softmax == Softmax::online) {
        follow_maximum();
      } else if (block == 0) {
        set_reference();
      }
      wait_for_copies();
      __syncthreads();  // the values are there, and nobody reads the keys any more
      if (P::kSides > 1 && is_last && shared_.next.tile.blocks > 0) fetch_queries(shared_.next);
      if constexpr (softmax == Softmax::online) {
        if (is_on_diagonal(tile, block)) take_out_nonfinite();
      }
      compute_values(keys_of(coming, coming_block));
      if constexpr (softmax == Softmax::online) {
        if (is_on_diagonal(tile, block)) add_nonfinite(tile, block);
      }
      if (++block >= tile.blocks) break;
      wait_for_copies();
      __syncthreads();  // the keys are there, and nobody reads the values before any more
    }
  }

 protected:
  using Element = typename P::Element;
  static constexpr int kEights = P::kWarpColumns / 8;  // groups of columns of the output

  // What follows from it is computed anew each time, else it would be kept from tile to tile.
  static __device__ __forceinline__ int lane() { return here(static_cast<int>(threadIdx.x)) % 32; }

  __device__ __forceinline__ std::int32_t& unmasked() const {
    return shared_.unmasked[here(static_cast<int>(threadIdx.x)) / 32];
  }

  // Which rows the warp has, and which part of their keys and columns.
  __device__ __forceinline__ int group() const {
    return P::kSides > 1 ? warp_ % P::kGroups : warp_;
  }
  __device__ __forceinline__ int side() const { return P::kSides > 1 ? warp_ / P::kGroups : 0; }

  // A row of the tile that the thread has.
  __device__ __forceinline__ int row_in_tile(int t, int r) const {
    return group() * P::kWarpRows + lane() / 4 + 16 * t + 8 * r;
  }

  // Keys that a row of the tile sees; `otherwise`: where there is no query.
  __device__ __forceinline__ int visible_keys(const TileRecord& tile, int r, int otherwise) const {
    const int row = tile.place.row + r;
    if (row >= tile.end_of_queries) return otherwise;
    return a_.causal != 0 ? min(max(row + 1 + tile.shift, 0), tile.keys) : tile.keys;
  }

  // Blocks that all of the warp's rows see. The first row sees the fewest keys. If it has no query,
  // none has, and nothing is to be masked.
  __device__ __forceinline__ int unmasked_blocks(const TileRecord& tile) const {
    return visible_keys(tile, group() * P::kWarpRows, tile.keys) / P::kBlockKeys;
  }

  // A number of each row that a thread has.
  using OfRows = float[P::kRowTiles][2];

  // Shows the other warp of a pair a number of each row. Behind a barrier of the pair it is there.
  template <class Number>
  __device__ __forceinline__ void show_rows(int slot, const Number& number) {
#pragma unroll
    for (int t = 0; t < P::kRowTiles; ++t) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float x = number(t, r);
        if (lane() % 4 == 0) shared_.pair.shown[slot][side()][row_in_tile(t, r)] = x;
      }
    }
  }
  __device__ __forceinline__ float shown(int slot, int of_side, int t, int r) const {
    return shared_.pair.shown[slot][of_side][row_in_tile(t, r)];
  }
  __device__ __forceinline__ float larger_shown(int slot, int t, int r) const {
    return fmaxf(shown(slot, 0, t, r), shown(slot, 1, t, r));
  }

  float out_[P::kRowTiles][kEights][4];
  OfRows references_;
  OfRows sums_;  // of this thread's weights, before they are rounded

  SharedMemory<P>& shared_;
  const Arguments& a_;
  const int warp_;

 private:
  // ---- copies -----------------------------------------------------------------------------------

  __device__ __forceinline__ void fetch_queries(const Task& task) const {
    __syncwarp();
    copy_queries<P>(shared_.q, a_, task.source, warp_);
  }

  __device__ __forceinline__ BlockCopy<P> keys_of(const Task& task, int block) const {
    return copy_of(shared_.k, kKeys, task, block, false);
  }
  __device__ __forceinline__ BlockCopy<P> values_of(const Task& task, int block) const {
    return copy_of(shared_.v, kValues, task, block, true);
  }
  __device__ __forceinline__ BlockCopy<P> copy_of(std::uint8_t* to, Operand operand,
                                                  const Task& task, int block,
                                                  bool exchanged) const {
    const std::int64_t row_bytes = a_.operands[operand].layout.row * 2;
    const int first = block * P::kBlockKeys;
    return {to, task.source.begin[operand] + first * row_bytes, row_bytes, task.tile.keys - first,
            exchanged};
  }

  // ---- products ---------------------------------------------------------------------------------

  // The address of a fragment of 16 rows and 32 bytes. A lane has few different ones within 16
  // rows, which differ in a bit or two; all others lie at constant distances.
  static constexpr int kAddresses = kBanks<P> / 2;
  __device__ __forceinline__ std::uint32_t fragment(std::uint32_t base, int row16, int step) const {
    return base + fragment_[step % kAddresses] +
           (row16 * 16 * P::kRowBytes + step / kAddresses * kAddresses * 32);
  }

  // Fragments are loaded one ahead of the products that take them: a load takes as long as several
  // products.
  __device__ __forceinline__ void load_queries(int step) {
    const std::uint32_t base = shared_address(shared_.q) + group() * (P::kWarpRows * P::kRowBytes);
#pragma unroll
    for (int t = 0; t < P::kRowTiles; ++t) {
      load_blocks(queries_[step % 2][t], fragment(base, t, step));
    }
  }
  __device__ __forceinline__ void keep_queries() {
    const std::uint32_t base = shared_address(shared_.q) + group() * (P::kWarpRows * P::kRowBytes);
#pragma unroll
    for (int step = 0; step < P::kKeptSteps; ++step) {
#pragma unroll
      for (int t = 0; t < P::kRowTiles; ++t) load_blocks(kept_[step][t], fragment(base, t, step));
    }
  }
  __device__ __forceinline__ void load_keys(int i) {
    const std::uint32_t base = shared_address(shared_.k) + side() * (P::kWarpKeys * P::kRowBytes);
    load_blocks(loaded_[i % 2], fragment(base, i % P::kWarpKeySteps, i / P::kWarpKeySteps));
  }
  __device__ __forceinline__ void load_values(int i) {
    const int step = i / P::kColumnSteps;
    // First come the keys whose weights the warp has itself.
    const bool is_own = step < P::kWarpKeySteps;
    const std::uint32_t base = shared_address(shared_.v) + side() * (P::kWarpColumns * 2) +
                               (is_own ? side() : 1 - side()) * (P::kWarpKeys * P::kRowBytes);
    static_assert(P::kSides == 1 || P::kColumnSteps % kAddresses == 0);
    load_transposed(loaded_[i % 2], fragment(base, step % P::kWarpKeySteps, i % P::kColumnSteps));
  }

  __device__ __forceinline__ void begin_scores() {
    if (P::kKeptSteps < P::kHeadSteps) load_queries(P::kKeptSteps);
    load_keys(0);
  }

  // scores_ = Q K^T of the block. `copy` is done beside the products: what is computed for it, and
  // its instructions, have time between them.
  __device__ __forceinline__ void compute_scores(BlockCopy<P> copy) {
    constexpr int kFragments = P::kHeadSteps * P::kWarpKeySteps;
    constexpr int kWhenQueriesAreLoaded = P::kWarpKeySteps > 2 ? P::kWarpKeySteps - 2 : 0;
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      const int step = i / P::kWarpKeySteps;
      const int n = i % P::kWarpKeySteps;
      if (i + 1 < kFragments) load_keys(i + 1);
      const bool loads_queries = step >= P::kKeptSteps && step + 1 < P::kHeadSteps;
      if (loads_queries && n == kWhenQueriesAreLoaded) load_queries(step + 1);
      copy.beside(i, kFragments);
      const std::uint32_t(&keys)[4] = loaded_[i % 2];
#pragma unroll
      for (int t = 0; t < P::kRowTiles; ++t) {
        const std::uint32_t(&queries)[4] =
            step < P::kKeptSteps ? kept_[step % kKept][t] : queries_[step % 2][t];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float(&scores)[4] = scores_[t][2 * n + half];
          if (step == 0) {
            multiply_first<Element>(scores, queries, keys[2 * half], keys[2 * half + 1]);
          } else {
            multiply<Element>(scores, queries, keys[2 * half], keys[2 * half + 1]);
          }
        }
      }
    }
  }

  // out_ += P V of the block. The weights of 16 keys are computed between the products
  // of the 16 before: with a reference that is known, none has to wait for the others.
  __device__ __forceinline__ void compute_values(BlockCopy<P> copy) {
    constexpr int kFragments = P::kKeySteps * P::kColumnSteps;
    constexpr int kWeights = 8 * P::kRowTiles;  // of 16 keys
    load_values(0);
#pragma unroll
    for (int i = 0; i < kWeights; ++i) compute_weight(0, i);
    std::uint32_t weights[P::kRowTiles][4];
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      const int step = i / P::kColumnSteps;
      const int n = i % P::kColumnSteps;
      if (n == 0 && step < P::kWarpKeySteps) {
        pack_weights(step, weights);
        if constexpr (P::kSides > 1) give_weights(step, weights);
      } else if (n == 0) {
        if constexpr (P::kSides > 1) take_weights(step - P::kWarpKeySteps, weights);
      }
      if (i + 1 < kFragments) load_values(i + 1);
      copy.beside(i, kFragments);
      const std::uint32_t(&values)[4] = loaded_[i % 2];
#pragma unroll
      for (int t = 0; t < P::kRowTiles; ++t) {
        multiply<Element>(out_[t][2 * n], weights[t], values[0], values[1]);
        multiply<Element>(out_[t][2 * n + 1], weights[t], values[2], values[3]);
      }
      if (step + 1 >= P::kWarpKeySteps) continue;
#pragma unroll
      for (int w = n * kWeights / P::kColumnSteps; w < (n + 1) * kWeights / P::kColumnSteps; ++w) {
        compute_weight(step + 1, w);
      }
    }
  }

  // Between the two warps of a pair, as registers hold them.
  __device__ __forceinline__ void give_weights(int step,
                                               const std::uint32_t (&weights)[P::kRowTiles][4]) {
#pragma unroll
    for (int t = 0; t < P::kRowTiles; ++t) {
      shared_.pair.weights[warp_][step][t][lane()] =
          make_uint4(weights[t][0], weights[t][1], weights[t][2], weights[t][3]);
    }
  }
  __device__ __forceinline__ void take_weights(int step,
                                               std::uint32_t (&weights)[P::kRowTiles][4]) {
    if (step == 0) pair_barrier(group());
    const int other = (warp_ + P::kGroups) % P::kWarps;
#pragma unroll
    for (int t = 0; t < P::kRowTiles; ++t) {
      const uint4 four = shared_.pair.weights[other][step][t][lane()];
      weights[t][0] = four.x;
      weights[t][1] = four.y;
      weights[t][2] = four.z;
      weights[t][3] = four.w;
    }
  }

  // ---- softmax ----------------------------------------------------------------------------------

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int t = 0; t < P::kRowTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out_[t][n][i] = 0;
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        references_[t][r] = -INFINITY;
        sums_[t][r] = 0;
      }
    }
  }

  // The i-th weight of 16 keys.
  __device__ __forceinline__ void compute_weight(int step, int i) {
    const int t = i / 8;
    const int r = i % 4 / 2;
    float& score = scores_[t][2 * step + i % 8 / 4][i % 4];
    score = exp2_fast(fmaf(score, a_.scale_log2, -references_[t][r]));
    sums_[t][r] += score;
  }

  // Weights of 16 keys as the left operand of their product.
  __device__ __forceinline__ void pack_weights(int step,
                                               std::uint32_t (&weights)[P::kRowTiles][4]) const {
#pragma unroll
    for (int t = 0; t < P::kRowTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&pair)[4] = scores_[t][2 * step + i / 2];
        weights[t][i] = pack<Element>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
      }
    }
  }

  // Scores of keys that a row does not see become what has weight 0 under either sign of the scale.
  __device__ __forceinline__ void mask_scores(const TileRecord& tile, int block) {
    const float unseen = a_.scale_log2 < 0 ? INFINITY : -INFINITY;
#pragma unroll
    for (int t = 0; t < P::kRowTiles; ++t) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int first = block * P::kBlockKeys + side() * P::kWarpKeys + lane() % 4 * 2;
        const int end = visible_keys(tile, row_in_tile(t, r), 0) - first;
#pragma unroll
        for (int n = 0; n < P::kWarpKeys / 8; ++n) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            if (8 * n + c >= end) scores_[t][n][2 * r + c] = unseen;
          }
        }
      }
    }
  }

  // The largest logit of a row's scores of the first 8 * eights keys.
  template <int eights>
  __device__ __forceinline__ float largest_logit(int t, int r) const {
    float high = -INFINITY, low = INFINITY;
    if (a_.scale_log2 > 0) {
#pragma unroll
      for (int n = 0; n < eights; ++n) {
        high = fmaxf(high, fmaxf(scores_[t][n][2 * r], scores_[t][n][2 * r + 1]));
      }
      return row_maximum(high * a_.scale_log2);
    }
#pragma unroll
    for (int n = 0; n < eights; ++n) {
      low = fminf(low, fminf(scores_[t][n][2 * r], scores_[t][n][2 * r + 1]));
    }
    return row_maximum(low * a_.scale_log2);
  }

  // Lazy: the largest logits among the first block's first keys.
  __device__ __forceinline__ void set_reference() {
    if constexpr (P::kSides > 1) {
      show_rows(0, [&](int t, int r) { return largest_logit<P::kReferenceEights>(t, r); });
      pair_barrier(group());
    }
#pragma unroll
    for (int t = 0; t < P::kRowTiles; ++t) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float logit;
        if constexpr (P::kSides > 1) {
          logit = larger_shown(0, t, r);
        } else {
          logit = largest_logit<P::kReferenceEights>(t, r);
        }
        references_[t][r] = logit == -INFINITY ? 0 : logit;
        // Later keys may be below what weights can tell from 0: the tile is computed again.
        sums_[t][r] = logit == -INFINITY ? INFINITY : 0;
      }
    }
  }

  // Online: the reference so far; nothing has been weighed yet where the sum is 0.
  __device__ __forceinline__ float reference_before(int t, int r) {
    return row_maximum(sums_[t][r] == 0 ? -INFINITY : references_[t][r]);
  }

  // Online: the largest logits so far; what was weighed with smaller ones shrinks.
  __device__ __forceinline__ void follow_maximum() {
    constexpr int kAll = P::kWarpKeys / 8;
    if constexpr (P::kSides > 1) {
      show_rows(0, [&](int t, int r) { return reference_before(t, r); });
      show_rows(1, [&](int t, int r) { return largest_logit<kAll>(t, r); });
      pair_barrier(group());
    }
#pragma unroll
    for (int t = 0; t < P::kRowTiles; ++t) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float before, largest;
        if constexpr (P::kSides > 1) {
          before = larger_shown(0, t, r);
          largest = fmaxf(before, larger_shown(1, t, r));
        } else {
          before = reference_before(t, r);
          largest = fmaxf(before, largest_logit<kAll>(t, r));
        }
        const float reference = largest == -INFINITY ? 0 : largest;
        const float shrink = exp2_fast(before - reference);
        references_[t][r] = reference;
        sums_[t][r] *= shrink;
#pragma unroll
        for (int n = 0; n < kEights; ++n) {
          out_[t][n][2 * r] *= shrink;
          out_[t][n][2 * r + 1] *= shrink;
        }
      }
    }
  }

  // ---- values that are not finite ---------------------------------------------------------------

  // Whether some rows of the tile see a key of the block that others do not.
  __device__ __forceinline__ bool is_on_diagonal(const TileRecord& tile, int block) const {
    const int whole = min(max(tile.place.row + 1 + tile.shift, 0), tile.keys);
    return a_.causal != 0 && whole - block * P::kBlockKeys < P::kBlockKeys;
  }

  // Products of a weight of 0 and what is not finite would be NaN, and reach rows that do not see
  // the key. Of a block on the diagonal such values are taken out, and it is noted from which key
  // on a row sees them. For the whole CTA.
  __device__ __forceinline__ void take_out_nonfinite() {
    const int thread = here(static_cast<int>(threadIdx.x));
    if (thread == 0) shared_.nonfinite = 0;
    __syncthreads();
#pragma unroll 1
    for (int column = thread; column < P::kHeadDim; column += P::kThreads) {
      take_out_of_column(column);
    }
    __syncthreads();
  }

  __device__ __forceinline__ void take_out_of_column(int column) {
    constexpr unsigned kInfinity = std::is_same_v<Element, __half> ? 0x7c00 : 0x7f80;
    constexpr unsigned kNegative = 0x8000;
    int plus = P::kBlockKeys;
    int minus = P::kBlockKeys;
#pragma unroll 1
    for (int row = P::kBlockKeys - 1; row >= 0; --row) {
      auto& bits = reinterpret_cast<std::uint16_t*>(
          shared_.v + offset_of<P>(row, column / 8, true))[column % 8];
      const unsigned value = bits;
      if ((value & kInfinity) != kInfinity) continue;
      bits = 0;
      // A NaN is both.
      if (value != (kInfinity | kNegative)) plus = row;
      if (value != kInfinity) minus = row;
    }
    shared_.plus[column] = static_cast<std::uint8_t>(plus);
    shared_.minus[column] = static_cast<std::uint8_t>(minus);
    if (min(plus, minus) < P::kBlockKeys) atomicOr(&shared_.nonfinite, 1u << column / 8);
  }

  // Here they come to the rows that see them.
  __device__ __forceinline__ void add_nonfinite(const TileRecord& tile, int block) {
    int seen[P::kRowTiles][2];
#pragma unroll
    for (int t = 0; t < P::kRowTiles; ++t) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        seen[t][r] =
            min(visible_keys(tile, row_in_tile(t, r), 0) - block * P::kBlockKeys, P::kBlockKeys);
      }
    }
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      // A branch each, else the compiler would load all of them before it uses one.
      if ((shared_.nonfinite >> (side() * kEights + n) & 1) == 0) continue;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = side() * P::kWarpColumns + 8 * n + lane() % 4 * 2 + c;
#pragma unroll
        for (int t = 0; t < P::kRowTiles; ++t) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            if (shared_.plus[column] < seen[t][r]) out_[t][n][2 * r + c] += INFINITY;
            if (shared_.minus[column] < seen[t][r]) out_[t][n][2 * r + c] -= INFINITY;
          }
        }
      }
    }
  }

  std::uint32_t fragment_[kAddresses];  // offsets
  static constexpr int kKept = P::kKeptSteps > 0 ? P::kKeptSteps : 1;
  std::uint32_t kept_[kKept][P::kRowTiles][4];  // queries, for all of a tile
  std::uint32_t queries_[2][P::kRowTiles][4];
  std::uint32_t loaded_[2][4];  // keys or values
  float scores_[P::kRowTiles][P::kWarpKeys / 8][4];
};

}  // namespace batten::impl::native::sm80
