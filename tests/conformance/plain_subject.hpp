// Attention by plain loops over the views of a call, with faults on demand. Without one it is a
// third formulation beside the reference's two and shares no code with them; with one it is a
// mutant that the suite must catch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "subject.hpp"

namespace batten::conformance {

enum class Fault {
  none,
  tile_skipped,       // every seventh row misses keys 64 to 127
  tile_skipped_once,  // one row and head of the whole call does
  last_key_dropped,   // where the keys end one past a tile
  rows_swapped,       // two rows, in one head of one sample
  causal_late,        // sees one key too many
  causal_early,       // sees one key too few
  causal_other_rule,  // top-left for bottom-right and the reverse
  kv_length_ignored,  // of one sample
  q_length_ignored,   // rows past it are attended
  neighbours_length,  // a sample gets the next one's key length
  wrong_group,        // heads interleaved over the key/value heads
  lse_base_2,
  lse_of_first_head,  // the other heads of a group are left out
  lse_without_scale,
  row_unwritten,
  padding_leaked,    // zero weights times what lies behind the last key
  past_end_written,  // one row behind a sample's last
  scale_ignored,
  scale_of_first_call,
  strides_of_first_call,
  lengths_of_first_call,
  maximum_not_taken,  // exp of the bare logits
  no_key_is_nan,      // 0 / 0
  nan_swallowed,      // a NaN logit counts as masked
  low_precision,      // weights of 5 bits
  moody,              // the last bit depends on how often it was called
  sociable,           // the last bit depends on the batch
  scratch_overrun,
  input_changed,
  plan_forgotten,
  refuses_ragged,
  lies_about_backend,
};
const char* name_of(Fault fault) noexcept;

class PlainSubject final : public Subject {
 public:
  explicit PlainSubject(Fault fault = Fault::none) : fault_(fault) {}

  std::string backend() const override { return "reference"; }  // and must serve what that does
  Device device() const override { return Device::cpu(); }
  void construct(const Problem& problem) override;
  Receipt forward(const Call& call) override;
  std::uint64_t prepare(const Call& call) override;

 private:
  struct Rows;  // one sample of a call
  struct Head;  // one query head of it, with the keys and values it looks at

  bool has(Fault fault) const noexcept { return fault_ == fault; }
  Rows rows_of(const Call& call, std::int64_t b) const;
  std::int64_t keys_seen(const Rows& rows, std::int64_t i) const;
  bool skips(const Rows& rows, std::int64_t i, int head, std::int64_t key) const;
  std::vector<double> weights_of(const Call& call, const Rows& rows, const Head& head,
                                 std::int64_t i, double scale, double& maximum) const;
  Head head_of(const Call& call, const Rows& rows, int index) const;
  double scale_of_call(const Call& call) const;
  void attend(const Call& call, const Rows& rows, const Head& head, std::int64_t i);

  Fault fault_;
  Problem problem_;
  std::optional<double> first_scale_;
  std::optional<Call> first_call_;
  std::int32_t first_kv_length_ = -1;
  int forwards_ = 0;
};

}  // namespace batten::conformance
