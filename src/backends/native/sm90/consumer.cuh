// A consumer warpgroup: 64 query rows of each tile. Two of them take turns at the tensor cores.
//
// A thread holds two rows of its group (8 apart) and of each eight columns two, as the products
// leave them in its registers: element 4 i + 2 r + c is row r, column 8 i + c of its own.
#pragma once

#include "backends/native/shared/elements.cuh"
#include "backends/native/shared/redone.cuh"
#include "backends/native/sm90/producer.cuh"

namespace batten::impl::native::sm90 {

// The weight of a key is 2^(score * scale_log2 - reference) for a reference that is any number of
// about the size of the row's largest logit: it cancels when the output is divided by the sum of
// weights. Online softmax takes the largest logit so far, and so must look for it in each block and
// rescale the output when it grows.
//
// Lazy softmax takes the largest logit of a tile's first keys and keeps it. (Under either causal
// mask a row that sees any key sees the first.) A weight keeps its relative precision up to the top
// of its format, 2^127 in bf16 and in fp32, 2^16 in fp16; a later logit further above the reference
// makes it infinite, and with it the sum or the output, which never become finite again. So it is
// enough to look at both when a tile ends. A tile in which one is not finite is computed again,
// online.
template <class P>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(SharedMemory<P>& shared, const Arguments& a, int group)
      : shared_(shared), a_(a), group_(group) {
    // Kept in a register where the compiler would read the special register again in each step:
    // kernels that did were 2.5 % slower. Where it would not, some were slower for this
    // (docs/kernels/sm90.md, "Experiments").
    if constexpr (P::kDeals) asm volatile("" : "+r"(thread_));
  }

  // All tiles with lazy softmax. The products of block n + 1's scores and of block n's values are
  // issued together, so that the exponentials of n + 1 are computed while the tensor cores are busy
  // with n and with the other group. Tiles follow each other without a break.
  __device__ __forceinline__ void run_lazy() {
    if (group_ == 1) pass_turn();  // group 0 begins
    TileRecord tile;
    fetch_queries();
    if (next_tile(tile)) {
      begin(tile);
#pragma unroll 1
      while (advance()) {
      }
      drain();
    }
    if (group_ == 0) take_turn();  // group 1's last pass
    release_queries();             // where it said that there are no more
  }

  // The tiles of SharedMemory::redo with online softmax, one product after the other.
  __device__ __forceinline__ void run_online() {
    // The stores of the same rows before must not come later.
    cuda::ptx::cp_async_bulk_wait_group(cuda::ptx::n32_t<0>{});
    if constexpr (P::kJoins) second_pass_ = true;
    TileRecord tile;
    for (;;) {
      fetch_queries();
      if (!next_tile(tile)) break;
      begin_tile(tile);
      compute_online();
      ++redone_;
    }
  }

  __device__ __forceinline__ void finish() {
    if (group_ == 0 && thread() == 0 && redone_ > 0 && a_.redone != nullptr) {
      report_redone(a_, redone_);
    }
    if constexpr (P::kJoins) erase_others();
    // Shared memory must outlive the stores that read it.
    cuda::ptx::cp_async_bulk_wait_group(cuda::ptx::n32_t<0>{});
  }

 private:
  // ---- who this thread is --------------------------------------------------------------------
  __device__ __forceinline__ int thread() const {
    return P::kDeals ? thread_ : static_cast<int>(threadIdx.x % 128);
  }
  __device__ __forceinline__ int lane() const {
    return P::kDeals ? thread_ % 32 : static_cast<int>(threadIdx.x % 32);
  }
  __device__ __forceinline__ int warp() const { return thread() / 32; }
  // Its first row and column; the second row is 8 further.
  __device__ __forceinline__ int row_in_tile() const {
    return group_ * P::kGroupRows + warp() * P::kWarpRows + lane() / 4;
  }
  __device__ __forceinline__ int first_column() const { return lane() % 4 * 2; }

  // ---- turns ----------------------------------------------------------------------------------
  __device__ __forceinline__ void take_turn() const {
    named_barrier_sync(kFirstTurn + group_, 2 * 128);
  }
  __device__ __forceinline__ void pass_turn() const {
    named_barrier_arrive(kFirstTurn + 1 - group_, 2 * 128);
  }
  __device__ __forceinline__ void release(Barrier& barrier) const {
    if (thread() == 0) arrive(barrier);
  }

  // ---- tiles ----------------------------------------------------------------------------------

  // What is still needed of a tile when the next one has begun.
  struct Ended {
    Place place;
    float inverse[2] = {0, 0};  // of the sums; 0: the row's output is 0
    int round = 0;
    bool finite = true;  // the sums
    // Where parts are joined: the Role, and the logarithms of both rows' sums, base 2.
    int role = kAlone;
    float log[2] = {0, 0};
  };

  // All keys of the tile have been weighed, the last values may not have arrived.
  __device__ __forceinline__ Ended end_of_tile() const {
    Ended ended{.place = place_, .round = round_};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = row_sum(sum_[r]);
      const bool live = visible_[r] > 0;
      // Beyond 2^126 the reciprocal would be subnormal.
      if (live) ended.inverse[r] = __fdividef(1, sum);
      ended.finite &= !live || sum < 0x1p126f;
      if constexpr (P::kJoins) {
        ended.role = role_;
        ended.log[r] = live ? reference_[r] + __log2f(sum) : -INFINITY;
        continue;
      }
      const int row = place_.row + row_in_tile() + 8 * r;
      if (a_.lse != nullptr && lane() % 4 == 0 && row < place_.end(a_)) {
        *lse_of_row(a_, place_, row) = live ? fmaf(reference_[r], kLn2, __logf(sum)) : -INFINITY;
      }
    }
    return ended;
  }

  // Waits for the next tile's queries, and moves them to registers: the products of a tile read
  // them as often as there are blocks. The last product that reads the ones before is done.
  __device__ __forceinline__ void fetch_queries() {
    const int stage = tiles_ % P::kQueryStages;
    wait(shared_.full_q[stage][group_], tiles_ / P::kQueryStages & 1);
    if constexpr (P::kQueriesInRegisters) {
      if (from_lane_0(&shared_.tile[stage][group_].blocks) > 0) load_queries(stage);
    }
  }

  // The tile whose queries were fetched; false: there is none, all have been computed.
  __device__ __forceinline__ bool next_tile(TileRecord& tile) {
    const int stage = tiles_ % P::kQueryStages;
    ++tiles_;
    const TileRecord& record = shared_.tile[stage][group_];
    tile.place = {from_lane_0(&record.place.head), from_lane_0(&record.place.row),
                  from_lane_0(&record.place.sample_or_end)};
    tile.blocks = from_lane_0(&record.blocks);
    tile.end_of_queries = from_lane_0(&record.end_of_queries);
    tile.keys = from_lane_0(&record.keys);
    tile.shift = from_lane_0(&record.shift);
    tile.round = from_lane_0(&record.round);
    query_stage_ = stage;
    return tile.blocks > 0;
  }

  // Who reads the record is who says that it has been read.
  __device__ __forceinline__ int from_lane_0(const std::int32_t* word) const {
    return __shfl_sync(~0u, lane() == 0 ? *word : 0, 0);
  }

  __device__ __forceinline__ void load_queries(int stage) {
#pragma unroll
    for (int i = 0; i < P::kHeadDim / 16; ++i) {
      std::uint32_t blocks[4];
      load_blocks(blocks, of_sixteen_columns(shared_.q[stage][group_], i));
#pragma unroll
      for (int j = 0; j < 4; ++j) queries_[4 * i + j] = blocks[j];
    }
  }

  // The tile's queries and record may be overwritten. Queries that move to registers: once a
  // product has been issued with them, and not before, because a load that is still waiting for its
  // turn at shared memory does not hold up an arrival that comes after it. Others: when the last
  // product that reads them is done.
  __device__ __forceinline__ void release_queries() {
    __syncwarp();
    if (lane() == 0) arrive(shared_.empty_q[query_stage_][group_]);
  }
  __device__ __forceinline__ void first_scores_are_issued() {
    if constexpr (P::kQueriesInRegisters) release_queries();
  }

  // The scores of the tile's last block are there.
  __device__ __forceinline__ void last_scores_are_done() {
    if constexpr (!P::kQueriesInRegisters) release_queries();
  }

  // Where this lane's row of four 8x8 blocks is: lanes 0-15 have the left eight columns of the i-th
  // sixteen, the others the right, for the sixteen rows of the warp.
  __device__ __forceinline__ std::uint32_t of_sixteen_columns(
      const typename SharedMemory<P>::Rows& rows, int i) const {
    const int row = warp() * P::kWarpRows + lane() % 16;
    const int chunk = i % 4 * 2 + lane() / 16;  // of 16 bytes
    return shared_address(rows.panel[i / 4]) + row * kPanelRowBytes + ((chunk ^ row % 8) << 4);
  }

  __device__ __forceinline__ static int visible_keys(const TileRecord& tile, int row) {
    if (row >= tile.end_of_queries) return 0;
    return P::kCausal ? min(max(row + 1 + tile.shift, 0), tile.keys) : tile.keys;
  }

  __device__ __forceinline__ void begin_tile(const TileRecord& tile) {
    place_ = tile.place;
    const int row = tile.place.row + row_in_tile();
    visible_[0] = visible_keys(tile, row);
    visible_[1] = visible_keys(tile, row + 8);
    // The group's first row sees the fewest keys.
    first_masked_ = visible_keys(tile, tile.place.row + group_ * P::kGroupRows) / P::kBlockKeys;
    blocks_ = tile.blocks;
    inner_ = min(first_masked_, blocks_ - 1);
    block_ = 0;
    round_ = tile.round;
    if constexpr (P::kJoins) role_ = tile.shift;
  }

  // ---- products -------------------------------------------------------------------------------

  // With head dim 256 there are more descriptors than registers to keep them in: this makes the
  // compiler compute them where they are used.
  static __device__ __forceinline__ Operand here(Operand operand) {
    if constexpr (P::kHeadDim > 128) asm volatile("" : "+r"(operand));
    return operand;
  }

  // scores_ = Q K^T of the block in a stage.
  __device__ __forceinline__ void issue_scores(int stage) {
    constexpr int kStepsPerPanel = kPanelColumns / 16;
    const Operand k = here(operand_along_k(shared_.k[stage].panel[0]));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < P::kHeadDim / 16; ++i) {
      const int panel = i / kStepsPerPanel;
      const int step = i % kStepsPerPanel;
      const Operand keys = k + panel * (P::kBlockPanelBytes >> 4) + step * kColumnStep;
      if constexpr (P::kQueriesInRegisters) {
        Wgmma<Element, P::kBlockKeys>::registers_along_k(scores_, queries_ + 4 * i, keys, i > 0);
      } else {
        const Operand q = here(operand_along_k(shared_.q[query_stage_][group_].panel[0]));
        Wgmma<Element, P::kBlockKeys>::shared_shared(
            scores_, q + panel * (P::kRowsPanelBytes >> 4) + step * kColumnStep, keys, i > 0);
      }
    }
    wgmma_commit();
  }

  // out_ (+)= P V of the block in a stage.
  __device__ __forceinline__ void issue_values(int stage, bool accumulate) {
    const Operand v = here(operand_along_n<P::kBlockPanelBytes>(shared_.v[stage].panel[0]));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < P::kBlockKeys / 16; ++i) {
      Wgmma<Element, P::kHeadDim>::registers_along_n(out_, weights_ + 4 * i, v + i * kRowStep,
                                                     accumulate || i > 0);
    }
    wgmma_commit();
  }

  // ---- lazy softmax ---------------------------------------------------------------------------

  // The first block of the first tile: there are no values to go along with.
  __device__ __forceinline__ void begin(const TileRecord& tile) {
    begin_tile(tile);
    wait(shared_.full_k[0], 0);
    take_turn();
    issue_scores(0);
    pass_turn();
    first_scores_are_issued();
    wgmma_wait<0>();
    wgmma_arrived(scores_);
    release(shared_.empty_k[0]);
    if (blocks_ == 1) {
      last_scores_are_done();
      fetch_queries();
    }
    if (first_masked_ == 0) mask_scores();
    set_reference();
    compute_weights();
    pack_weights();
    count_ = 1;
    block_ = 1;
  }

  enum class Kind {
    inner,  // neither of the first two nor last of its tile, and every row sees all of its keys
    outer,
    first,   // of its tile; the values that come along are the last of the tile before
    second,  // whose scores are computed while the tile before is stored
  };

  // Takes in the next block of the stream, and the values of the one before it. False when there is
  // no next one.
  __device__ __forceinline__ bool advance() {
    TileRecord tile{};
    if (ended_is_pending_ && block_ < blocks_) {
      step<Kind::second>(tile);
    } else if (block_ < inner_) {
      step<Kind::inner>(tile);
    } else if (block_ < blocks_) {
      step<Kind::outer>(tile);
    } else {
      if (!next_tile(tile)) return false;
      step<Kind::first>(tile);
    }
    return true;
  }

  // The stream's last values.
  __device__ __forceinline__ void drain() {
    const int stage = stage_of(count_ - 1);
    if (ended_is_pending_) end_tile();
    take_turn();
    wait(shared_.full_v[stage], parity_of(count_ - 1));
    issue_values(stage, accumulate_);
    pass_turn();
    flush_store();
    ended_ = end_of_tile();
    wgmma_wait<0>();
    wgmma_arrived(out_);
    release(shared_.empty_v[stage]);
    bool is_complete = true;
    if constexpr (P::kJoins) is_complete = join(ended_);
    if (is_complete) {
      end_tile();
    } else {
      list_ended();
    }
    flush_store();
  }

  template <Kind kind>
  __device__ __forceinline__ void step(const TileRecord& tile) {
    const int stage = stage_of(count_);
    if constexpr (kind == Kind::first) {
      if (ended_is_pending_) end_tile();  // the tile in between had one block
    }
    wait(shared_.full_k[stage], parity_of(count_));
    take_turn();
    issue_scores(stage);
    if constexpr (kind == Kind::second) end_tile();
    wait(shared_.full_v[1 - stage], parity_of(count_ - 1));
    issue_values(1 - stage, accumulate_);
    pass_turn();
    flush_store();

    if constexpr (kind == Kind::first) {
      ended_ = end_of_tile();
      ended_is_pending_ = true;
      begin_tile(tile);
      first_scores_are_issued();
    }
    wgmma_wait<1>();
    wgmma_arrived(scores_);
    release(shared_.empty_k[stage]);
    if constexpr (kind == Kind::inner) {
      compute_weights();
      // The branch in this keeps the compiler from moving the exponentials behind the wait for the
      // values.
      wait(shared_.full_k[1 - stage], parity_of(count_ + 1));
    } else {
      if (block_ + 1 == blocks_) {
        last_scores_are_done();
        fetch_queries();
      }
      if (block_ >= first_masked_) mask_scores();
      if constexpr (kind == Kind::first) set_reference();
      compute_weights();
    }

    wgmma_wait<0>();
    wgmma_arrived(out_);
    release(shared_.empty_v[1 - stage]);
    pack_weights();
    accumulate_ = kind != Kind::first;
    ++count_;
    ++block_;
  }

  // Stores the output of the tile before, or puts the tile on the list.
  __device__ __forceinline__ void end_tile() {
    ended_is_pending_ = false;
    if (!store(ended_)) list_ended();
  }

  __device__ __forceinline__ void list_ended() {
    if (lane() != 0) return;
    const int bit = ended_.round >> a_.redo_shift;
    atomicOr(&shared_.redo[bit / 32], 1u << bit % 32);
  }

  // Scores of keys that a row does not see become what has weight 0 under either sign of the scale.
  __device__ __forceinline__ void mask_scores() {
    const float unseen = a_.scale_log2 < 0 ? INFINITY : -INFINITY;
    const int first = block_ * P::kBlockKeys + first_column();
    const int ends[2] = {visible_[0] - first, visible_[1] - first};
#pragma unroll
    for (int i = 0; i < P::kScores; ++i) {
      if (i / 4 * 8 + i % 2 >= ends[i / 2 % 2]) scores_[i] = unseen;
    }
  }

  // The largest logits among the block's first keys, for both rows; 0 where no key is seen.
  __device__ __forceinline__ void set_reference() {
    constexpr int kChains = 8;  // that need not wait for each other
    float extreme[kChains];
#pragma unroll
    for (int i = 0; i < kChains; ++i) extreme[i] = scores_[i];
    if (a_.scale_log2 > 0) {
#pragma unroll
      for (int i = kChains; i < P::kReferenceScores; ++i) {
        extreme[i % kChains] = fmaxf(extreme[i % kChains], scores_[i]);
      }
    } else {
#pragma unroll
      for (int i = kChains; i < P::kReferenceScores; ++i) {
        extreme[i % kChains] = fminf(extreme[i % kChains], scores_[i]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float logit = extreme[2 * r] * a_.scale_log2;
#pragma unroll
      for (const int i : {2 * r + 1, 2 * r + 4, 2 * r + 5}) {
        logit = fmaxf(logit, extreme[i] * a_.scale_log2);
      }
      logit = row_maximum(logit);
      reference_[r] = logit == -INFINITY ? 0 : logit;
      // Later keys may be below what weights can tell from 0: the tile is computed again.
      sum_[r] = logit == -INFINITY ? INFINITY : 0;
    }
  }

  __device__ __forceinline__ void compute_weights() {
#pragma unroll
    for (int i = 0; i < P::kScores; ++i) {
      scores_[i] = exp2_fast(fmaf(scores_[i], a_.scale_log2, -reference_[i / 2 % 2]));
    }
    float sums[2] = {scores_[0] + scores_[1], scores_[2] + scores_[3]};
#pragma unroll
    for (int i = 4; i < P::kScores; ++i) sums[i / 2 % 2] += scores_[i];
    sum_[0] += sums[0];
    sum_[1] += sums[1];
    // Pinned: else the compiler moves the exponentials behind waits.
#pragma unroll
    for (int i = 0; i < P::kScores; ++i) asm volatile("" : "+f"(scores_[i])::"memory");
  }

  // Weights as the left operand of the next product. Pinned: else the compiler moves the
  // exponentials behind the barrier at which the other group waits.
  __device__ __forceinline__ void pack_weights() {
#pragma unroll
    for (int i = 0; i < P::kScores / 2; ++i) {
      weights_[i] = pack<Element>(scores_[2 * i], scores_[2 * i + 1]);
    }
#pragma unroll
    for (int i = 0; i < P::kScores / 2; ++i) asm volatile("" : "+r"(weights_[i])::"memory");
    asm volatile("" : "+f"(sum_[0]), "+f"(sum_[1])::"memory");
  }

  // Over the four threads that share a row.
  static __device__ __forceinline__ float row_maximum(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
  }
  static __device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
  }

  // ---- online softmax (online.cuh) --------------------------------------------------------------

  __device__ __forceinline__ void compute_online();
  __device__ __forceinline__ void take_set_aside();
  __device__ __forceinline__ void add_set_aside(const typename SharedMemory<P>::SetAside& aside);

  // ---- output (output.cuh) ----------------------------------------------------------------------

  __device__ __forceinline__ bool store(const Ended& ended);
  __device__ __forceinline__ float2 divided(const Ended& ended, int i) const;
  __device__ __forceinline__ bool shares_its_box(const Place& place) const;
  __device__ __forceinline__ bool store_rows(const Ended& ended);
  __device__ __forceinline__ void flush_store();
  template <class T>
  __device__ __forceinline__ bool store_direct(const Ended& ended) const;

  // ---- parts that are joined (joined_output.cuh) ------------------------------------------------

  struct BoxRow {
    Place place;  // of the row itself
    bool is_real = false;
  };
  __device__ __forceinline__ int share() const;
  __device__ __forceinline__ int slot(int share) const;
  __device__ __forceinline__ bool put_aside(const Ended& ended);
  __device__ __forceinline__ bool other_is_ready(int share) const;
  __device__ __forceinline__ bool join(Ended& ended);
  __device__ __forceinline__ void erase_others() const;
  __device__ __forceinline__ BoxRow box_row(const Place& place, int row) const;
  __device__ __forceinline__ bool has_rows(const Place& place) const;
  __device__ __forceinline__ void store_lse(const Ended& ended) const;
  __device__ __forceinline__ bool store_boxes(const Ended& ended) const;

  using Element = typename P::Element;
  static constexpr float kLn2 = 0.693147181f;

  SharedMemory<P>& shared_;
  const Arguments& a_;
  const int group_;
  int thread_ = static_cast<int>(threadIdx.x) % 128;

  std::uint32_t queries_[P::kQueriesInRegisters ? P::kHeadDim / 4 : 1];
  float scores_[P::kScores];
  std::uint32_t weights_[P::kScores / 2];
  float out_[P::kOutputs];
  float reference_[2];
  float sum_[2];  // of this thread's weights, before they are rounded

  // The tile whose block was taken in last.
  Place place_;
  int visible_[2];           // keys that this thread's rows see; 0: the row's output is 0
  int round_ = 0;            // in which the tile was dealt
  int block_ = 0;            // of the tile, that comes next
  int blocks_ = 0;           // of the tile
  int first_masked_ = 0;     // block from which on some row of the group does not see all keys
  int inner_ = 0;            // blocks before this one are not masked, and not the tile's last
  bool accumulate_ = false;  // the values that come next are not the first of their tile
  int count_ = 0;            // blocks taken in, of all tiles
  int tiles_ = 0;            // records read
  int query_stage_ = 0;      // of the last of them
  int asides_ = 0;           // uses of set_aside
  unsigned redone_ = 0;
  // Where parts are joined.
  int role_ = kAlone;
  bool second_pass_ = false;
  bool is_put_aside_ = false;  // this warp's rows of the part

  // The tile before, while its output is still in out_.
  Ended ended_;
  bool ended_is_pending_ = false;

  // The tile whose output lies in shared memory and is not yet on its way.
  Place staged_;
  bool is_staged_ = false;
};

}  // namespace batten::impl::native::sm90
