// What a CTA has of tiles that are divided and joined in the same launch. Host and device.
#pragma once

#include "backends/native/shared/division.hpp"

namespace batten::impl::native {

// What becomes of a piece of a share.
enum Role : int {
  kAlone = 0,  // it is a whole tile
  kAside = 1,  // it is put aside
  kFirst = 2,  // it has the tile's first keys: those put aside are added to it
};

// Key blocks of a tile that a share has.
struct SharePiece {
  int tile = 0;
  int first = 0;
  int end = 0;
  Role role = kAlone;
};

// The pieces of a share: the part that others wait for comes first, and the one that waits for
// others last.
class Share {
 public:
  constexpr Share() = default;
  constexpr Share(const Division& d, int number)
      : begin_(d.begin(number)), end_(d.begin(number + 1)) {}

  // The CTA has the share with as many after it as CTAs come before it: those whose parts it waits
  // for are running or done.
  static constexpr int number_of(const Division& d, int cta) { return d.all_shares() - 1 - cta; }

  constexpr bool is_done() const { return begin_ == end_; }

  constexpr SharePiece next(const Division& d) const {
    const int tile = begin_ / d.blocks;
    const int first = begin_ - tile * d.blocks;
    const int left = end_ - tile * d.blocks;
    const int end = left < d.blocks ? left : d.blocks;
    return {tile, first, end, first > 0 ? kAside : end < d.blocks ? kFirst : kAlone};
  }
  constexpr void pass(const SharePiece& piece) { begin_ += piece.end - piece.first; }

 private:
  // Units that are left.
  int begin_ = 0;
  int end_ = 0;
};

// The shares whose parts are added to a share's kFirst: from `first` to before `end`.
struct Others {
  int first = 0;
  int end = 0;
};
constexpr Others others_of(const Division& d, int share) {
  const int end = d.begin(share + 1);
  const int tile = (end - 1) / d.blocks;
  if (d.begin(share) > tile * d.blocks) return {};
  return {share + 1, d.share_of((tile + 1) * d.blocks - 1) + 1};
}

}  // namespace batten::impl::native
