// Where a launch has few tiles, it divides them. Host and device.
#pragma once

#include <cstdint>

#include "backends/native/limits.hpp"
#include "backends/native/shared/divisor.hpp"

namespace batten::impl::native {

// What a tile has of its sample: consecutive rows of one query head, or all rows of several heads
// that share a key head.
struct TileRows {
  int sample = 0;
  int head = 0;   // the first
  int heads = 1;  // how many
  int row = 0;    // the first, of each
};

// The key blocks of all tiles, one tile after another, make units; shares are as many units each as
// can be (stream-K, https://arxiv.org/abs/2301.03598). Or each tile has shares of its own, as many
// as every other: a tile is a period then, else all are one. What a share has of a tile is a part
// of it: computed as if the part's keys were all, and put aside in the workspace (combine.cu).
//
// All tiles of a call, or the last ones in the order in which whole tiles are dealt out
// (schedule.cuh). Where all are divided, those with the same keys lie as far from each other as can
// be: CTAs whose shares begin in the same place of each go through the same keys at the same time.
struct Division {
  Divisor shares{1};  // of a period
  Divisor units{1};   // of a period: its tiles' blocks
  std::int32_t periods = 1;
  std::int32_t blocks = 0;  // of keys, in each tile; 0: tiles are not divided
  std::int32_t tiles = 0;   // that are divided
  std::int32_t whole = 0;   // that come before them and are not
  std::int32_t keys = 0;    // of a sample

  std::int32_t rows = 0;   // queries of a head
  std::int32_t group = 1;  // query heads of a key head
  std::int32_t heads_of_tile = 1;
  std::int32_t box_log2 = kTileRowsLog2;  // rows of a tile that one head has, if several share it
  Divisor row_tiles{1};                   // of one head
  Divisor key_heads{1};                   // of all samples
  Divisor key_heads_of_sample{1};
  Divisor heads_of_sample{1};

  constexpr bool divides() const { return blocks > 0; }

  constexpr int all_shares() const { return periods * shares.value(); }

  // Units of shares before this one. A period's units times its shares stay below 2^31.
  constexpr int begin(int share) const {
    const int period = shares.quotient(share);
    const int within = share - period * shares.value();
    return period * units.value() + shares.quotient(within * units.value());
  }
  constexpr int share_of(int unit) const {
    const int period = units.quotient(unit);
    const int within = unit - period * units.value();
    return period * shares.value() + units.quotient((within + 1) * shares.value() - 1);
  }

  // Parts of all tiles; those of one tile follow each other in the order of their keys. Each share
  // begins one, and so does each tile, if not with a share.
  constexpr int parts() const { return tiles + all_shares() - periods; }
  constexpr int part_of(int tile, int share) const {
    return tile + share - units.quotient(tile * blocks);
  }
  constexpr int first_part(int tile) const { return part_of(tile, share_of(tile * blocks)); }
  constexpr int end_part(int tile) const {
    return part_of(tile, share_of((tile + 1) * blocks - 1)) + 1;
  }

  constexpr TileRows rows_of(int tile) const { return whole > 0 ? in_order(tile) : by_keys(tile); }

 private:
  constexpr TileRows in_order(int tile) const {
    const int head = row_tiles.quotient(whole + tile);  // of all samples
    const int sample = heads_of_sample.quotient(head);
    return {.sample = sample,
            .head = head - sample * heads_of_sample.value(),
            .heads = 1,
            .row = (whole + tile - head * row_tiles.value()) * kTileRows};
  }

  constexpr TileRows by_keys(int tile) const {
    const int turn = key_heads.quotient(tile);  // among the tiles with the same keys
    const int key_head = tile - turn * key_heads.value();
    const int within = row_tiles.quotient(turn);
    const int sample = key_heads_of_sample.quotient(key_head);
    const int first = within * heads_of_tile;  // in the group
    const int left = group - first;
    return {.sample = sample,
            .head = (key_head - sample * key_heads_of_sample.value()) * group + first,
            .heads = left < heads_of_tile ? left : heads_of_tile,
            .row = (turn - within * row_tiles.value()) * kTileRows};
  }
};

}  // namespace batten::impl::native
