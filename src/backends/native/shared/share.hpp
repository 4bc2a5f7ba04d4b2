// What a CTA has of tiles that are divided and joined in the same launch. Host and device.
#pragma once

#include "backends/native/shared/division.hpp"

namespace batten::impl::native {

// What becomes of a piece of a share.
enum Role : int {
  kAlone = 0,  // it is a whole tile
  kAside = 1,  // it is put aside
  kLast = 2,   // it has the tile's last keys: those put aside are added to it
};

// Key blocks of a tile that a share has.
struct SharePiece {
  int tile = 0;
  int first = 0;
  int end = 0;
  Role role = kAlone;
};

// The pieces of a share, from its end backwards: the part that others wait for comes first, and the
// one that waits for others last. Those others are shares with lower numbers.
class Share {
 public:
  constexpr Share() = default;
  constexpr Share(const Division& d, int number)
      : begin_(number < d.all_shares() ? d.begin(number) : 0),
        end_(number < d.all_shares() ? d.begin(number + 1) : 0) {}

  constexpr bool is_done() const { return begin_ == end_; }

  constexpr SharePiece next(const Division& d) const {
    const int tile = (end_ - 1) / d.blocks;
    const int before = begin_ - tile * d.blocks;
    const int first = before > 0 ? before : 0;
    const int end = end_ - tile * d.blocks;
    return {tile, first, end, end < d.blocks ? kAside : first > 0 ? kLast : kAlone};
  }
  constexpr void pass(const SharePiece& piece) { end_ -= piece.end - piece.first; }

 private:
  // Units that are left.
  int begin_ = 0;
  int end_ = 0;
};

// The shares whose parts are added to a share's kLast: from `first` to before `end`.
struct Others {
  int first = 0;
  int end = 0;
};
constexpr Others others_of(const Division& d, int share) {
  if (share >= d.all_shares()) return {};
  const int tile = d.begin(share) / d.blocks;
  if (d.begin(share + 1) < (tile + 1) * d.blocks) return {};
  return {d.share_of(tile * d.blocks), share};
}

}  // namespace batten::impl::native
