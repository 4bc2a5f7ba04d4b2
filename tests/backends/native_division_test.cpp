// How calls with few tiles are divided, by the arithmetic that the kernels compile too.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "backends/native/division.hpp"
#include "backends/native/rules.hpp"
#include "backends/native/shared/share.hpp"
#include "fakes/environment.hpp"

namespace batten::impl::native {
namespace {

constexpr int kMultiprocessors = 132;

struct Call {
  std::int64_t batch = 1, q = 1, kv = 1;
  int heads = 1, kv_heads = 1, head_dim = 128;
};

Problem problem_of(const Call& c) {
  return {.dtype = DType::bf16,
          .num_heads = c.heads,
          .num_kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .head_dim_v = c.head_dim};
}

Shape shape_of(const Call& c) {
  Shape shape;
  shape.batch = c.batch;
  shape.max_q = c.q;
  shape.max_kv = c.kv;
  return shape;
}

DivisionChoice choose(const Call& c, const char* form = "",
                      int multiprocessors = kMultiprocessors) {
  return choose_division(problem_of(c), shape_of(c), form, 128,
                         sm90_workers(multiprocessors, /*can_join=*/true));
}

const Call kCalls[] = {{.batch = 4, .q = 128, .kv = 4096, .heads = 12, .kv_heads = 4},
                       {.batch = 16, .q = 128, .kv = 4096, .heads = 12, .kv_heads = 4},
                       {.q = 1, .kv = 75600, .heads = 40, .kv_heads = 8},
                       {.q = 1, .kv = 1, .heads = 1},
                       {.q = 1, .kv = 4096, .heads = 12, .kv_heads = 12},
                       {.q = 16, .kv = 4096, .heads = 40, .kv_heads = 40},
                       {.q = 64, .kv = 32760, .heads = 40, .kv_heads = 8},
                       {.q = 65, .kv = 300, .heads = 40, .kv_heads = 8},
                       {.batch = 3, .q = 5, .kv = 1000, .heads = 42, .kv_heads = 2},
                       {.q = 1560, .kv = 1560, .heads = 12, .kv_heads = 12},
                       {.batch = 2, .q = 300, .kv = 130, .heads = 6, .kv_heads = 3},
                       {.batch = 200, .q = 2, .kv = 10, .heads = 12, .kv_heads = 4}};

// Goes through all shares as CTAs do: calls use(share, tile, first block, end block).
template <class Use>
void go_through(const Division& d, const Use& use) {
  for (int share = 0; share < d.all_shares(); ++share) {
    int unit = d.begin(share);
    const int end = d.begin(share + 1);
    while (unit < end) {
      const int tile = unit / d.blocks;
      const int last = std::min(end, (tile + 1) * d.blocks);
      use(share, tile, unit - tile * d.blocks, last - tile * d.blocks);
      unit = last;
    }
  }
}

TEST(NativeDivision, EveryBlockIsInOnePartAndPartsAreInOrder) {
  for (const Call& c : kCalls) {
    for (const int multiprocessors : {1, 7, 132}) {
      const Division d = choose(c, kDivided, multiprocessors).division;
      ASSERT_TRUE(d.divides());
      std::map<int, std::tuple<int, int, int>> parts;  // tile, first and end block
      go_through(d, [&](int share, int tile, int first, int end) {
        ASSERT_LT(first, end);
        EXPECT_EQ(d.share_of(tile * d.blocks + first), share);
        EXPECT_EQ(d.share_of(tile * d.blocks + end - 1), share);
        ASSERT_TRUE(parts.emplace(d.part_of(tile, share), std::tuple{tile, first, end}).second)
            << "two parts have one number";
      });
      int next_part = 0;
      for (int tile = 0; tile < d.tiles; ++tile) {
        ASSERT_GE(d.first_part(tile), next_part) << tile;
        ASSERT_LT(d.first_part(tile), d.end_part(tile));
        int next_block = 0;
        for (int n = d.first_part(tile); n < d.end_part(tile); ++n) {
          const auto [of, first, end] = parts.at(n);
          EXPECT_EQ(of, tile);
          EXPECT_EQ(first, next_block);
          next_block = end;
        }
        EXPECT_EQ(next_block, d.blocks);
        next_part = d.end_part(tile);
      }
      EXPECT_LE(next_part, d.parts());
      EXPECT_LE(parts.rbegin()->first, d.parts() - 1);
    }
  }
}

// As the kernel that joins parts goes through its shares (share.hpp).
TEST(NativeDivision, WhoHasATilesFirstPartAddsTheOthersWhichComeBefore) {
  for (const Call& c : kCalls) {
    for (const int multiprocessors : {1, 7, 20, 132}) {
      const DivisionChoice choice = choose(c, kJoined, multiprocessors);
      if (!choice.joins) continue;
      const Division& d = choice.division;
      ASSERT_LE(d.all_shares(), multiprocessors);
      std::map<int, std::set<int>> aside;  // of a tile: the shares that put a part aside
      std::map<int, int> own;              // of a tile: the share that adds them
      std::map<int, int> blocks;           // of a tile, in all its parts
      for (int number = 0; number < d.all_shares(); ++number) {
        Role before = kAlone;
        for (Share share(d, number); !share.is_done();) {
          const SharePiece piece = share.next(d);
          share.pass(piece);
          ASSERT_LT(piece.first, piece.end);
          EXPECT_NE(before, kFirst) << "nothing comes after it";
          if (piece.role == kAside) {
            EXPECT_TRUE(before == kAlone) << "at most one, and first";
            aside[piece.tile].insert(number);
          } else {
            EXPECT_TRUE(own.emplace(piece.tile, number).second);
          }
          EXPECT_EQ(piece.role == kAlone, piece.first == 0 && piece.end == d.blocks);
          blocks[piece.tile] += piece.end - piece.first;
          before = piece.role;
        }
      }
      for (int number = 0; number < d.all_shares(); ++number) {
        const Others others = others_of(d, number);
        std::set<int> expected;
        for (int other = others.first; other < others.end; ++other) expected.insert(other);
        std::set<int> found;
        for (const auto& [tile, share] : own)
          if (share == number && aside.contains(tile)) found = aside[tile];
        EXPECT_EQ(found, expected) << number;
        if (!expected.empty()) {
          EXPECT_GT(others.first, number) << "they have CTAs before its own";
        }
      }
      EXPECT_EQ(static_cast<int>(own.size()), d.tiles);
      for (int tile = 0; tile < d.tiles; ++tile) EXPECT_EQ(blocks[tile], d.blocks);
    }
  }
}

TEST(NativeDivision, EveryQueryIsInOneTileWithItsKeyHead) {
  for (const Call& c : kCalls) {
    Division d = choose(c, kDivided).division;
    if (d.whole > 0) continue;
    const int group = c.heads / c.kv_heads;
    std::set<std::tuple<int, int, int>> seen;
    for (int tile = 0; tile < d.tiles; ++tile) {
      const TileRows rows = d.rows_of(tile);
      for (int r = 0; r < kTileRows; ++r) {
        const int head = r >> d.box_log2;
        const int query = rows.row + (r & ((1 << d.box_log2) - 1));
        if (head >= rows.heads || query >= c.q) continue;
        EXPECT_EQ((rows.head + head) / group, rows.head / group) << "another key head";
        EXPECT_TRUE(seen.emplace(rows.sample, rows.head + head, query).second);
      }
    }
    EXPECT_EQ(static_cast<std::int64_t>(seen.size()), c.batch * c.heads * c.q);
  }
}

TEST(NativeDivision, WhatIsLeftAfterFullRoundsIsDivided) {
  const Call calls[] = {{.batch = 4, .q = 512, .kv = 8192, .heads = 12, .kv_heads = 4},
                        {.batch = 16, .q = 128, .kv = 4096, .heads = 12, .kv_heads = 4},
                        {.batch = 3, .q = 1000, .kv = 30000, .heads = 6, .kv_heads = 2}};
  for (const Call& c : calls) {
    const Division d = choose(c).division;
    ASSERT_TRUE(d.divides());
    EXPECT_GT(d.whole, 0);
    EXPECT_EQ(d.whole % kMultiprocessors, 0);
    const auto row_tiles = static_cast<int>((c.q + kTileRows - 1) / kTileRows);
    ASSERT_EQ(d.whole + d.tiles, c.batch * c.heads * row_tiles);
    for (int tile = 0; tile < d.tiles; ++tile) {
      // As schedule.cuh deals whole tiles out: a head's follow each other.
      const int index = d.whole + tile;
      const TileRows rows = d.rows_of(tile);
      EXPECT_EQ(rows.sample, index / row_tiles / c.heads);
      EXPECT_EQ(rows.head, index / row_tiles % c.heads);
      EXPECT_EQ(rows.row, index % row_tiles * kTileRows);
      EXPECT_EQ(rows.heads, 1);
    }
  }
}

TEST(NativeDivision, SharesDifferByOneBlockAtMost) {
  for (const Call& c : kCalls) {
    const Division d = choose(c, kDivided).division;
    int least = d.units.value(), most = 0;
    for (int share = 0; share < d.all_shares(); ++share) {
      const int units = d.begin(share + 1) - d.begin(share);
      least = std::min(least, units);
      most = std::max(most, units);
    }
    EXPECT_GE(least, 1);
    EXPECT_LE(most - least, 1);
    EXPECT_EQ(d.begin(d.all_shares()), d.tiles * d.blocks);
  }
}

TEST(NativeDivision, HeadsShareATileWhereRowsAreFew) {
  const auto box = [](std::int64_t q, int heads, int kv_heads) {
    const Division d =
        choose({.q = q, .kv = 4096, .heads = heads, .kv_heads = kv_heads}, kDivided).division;
    return std::pair{d.box_log2, d.heads_of_tile};
  };
  EXPECT_EQ(box(128, 12, 4), (std::pair{7, 1}));
  EXPECT_EQ(box(65, 12, 4), (std::pair{7, 1}));
  EXPECT_EQ(box(64, 12, 4), (std::pair{6, 2}));
  EXPECT_EQ(box(33, 12, 4), (std::pair{6, 2}));
  EXPECT_EQ(box(32, 12, 4), (std::pair{5, 3}));
  EXPECT_EQ(box(1, 40, 1), (std::pair{3, 16}));
  EXPECT_EQ(box(1, 12, 12), (std::pair{7, 1}));
}

TEST(NativeDivision, FewTilesAreDividedAndFullRoundsAreNot) {
  EXPECT_TRUE(choose(kCalls[0]).division.divides());
  EXPECT_TRUE(choose({.q = 1, .kv = 75600, .heads = 40, .kv_heads = 8}).division.divides());
  EXPECT_TRUE(choose({.q = 256, .kv = 4096, .heads = 12, .kv_heads = 12}).division.divides());
  EXPECT_FALSE(choose({.q = 132 * 128, .kv = 4096}).division.divides()) << "one full round";
  EXPECT_FALSE(choose({.q = 32760, .kv = 512, .heads = 12, .kv_heads = 12}).division.divides());
  EXPECT_FALSE(choose({.q = 1, .kv = 100}).division.divides()) << "nothing to divide";
  EXPECT_FALSE(choose(kCalls[0], kWhole).division.divides());
}

TEST(NativeDivision, TilesThatShareKeysBeyondTheCacheAreNotTakenApart) {
  // 37 tiles a head: after full rounds the tiles of the last heads are left.
  const Division d = choose({.q = 4680, .kv = 32760, .heads = 12, .kv_heads = 12}).division;
  EXPECT_EQ(d.whole, 3 * kMultiprocessors);
  // Two tiles a head begin in the same place of their shares.
  EXPECT_EQ(choose({.q = 256, .kv = 32760, .heads = 40, .kv_heads = 40}).division.periods, 1);
}

// With less than a tile each, CTAs read them nearly together, and one round would leave some idle.
TEST(NativeDivision, ATileOrLessForEachCtaIsDividedWhateverTheCacheHolds) {
  for (const std::int64_t kv : {32760, 75600}) {
    const Division d = choose({.q = 256, .kv = kv, .heads = 40, .kv_heads = 8}).division;
    EXPECT_TRUE(d.divides()) << kv;
    EXPECT_EQ(d.all_shares(), kMultiprocessors) << kv;
  }
}

TEST(NativeDivision, WhatIsNotDivided) {
  const Call c = kCalls[0];
  const auto divides = [](const Problem& problem, const Shape& shape) {
    return choose_division(problem, shape, "", 128, sm90_workers(kMultiprocessors))
        .division.divides();
  };
  ASSERT_TRUE(divides(problem_of(c), shape_of(c)));
  const auto refused = [&](const Problem& problem, const Shape& shape, const char* why) {
    EXPECT_FALSE(divides(problem, shape)) << why;
    EXPECT_NE(why_not_divided(problem, shape).value_or("").find(why), std::string::npos);
    EXPECT_FALSE(choose_division(problem, shape, kDivided, 128, sm90_workers(kMultiprocessors))
                     .division.divides());
  };
  Problem problem = problem_of(c);
  problem.mask = Mask::causal;
  refused(problem, shape_of(c), "mask");
  problem = problem_of(c);
  problem.batch_invariant = true;
  refused(problem, shape_of(c), "batch");
  Shape shape = shape_of(c);
  shape.kv_lengths = Source::device;
  refused(problem_of(c), shape, "lengths");
  shape = shape_of(c);
  shape.packed = true;
  refused(problem_of(c), shape, "lengths");
}

TEST(NativeDivision, AMaskThatHidesNothingIsNone) {
  const auto mask = [](Mask mask, std::int64_t q, Source lengths) {
    Problem problem = problem_of({});
    problem.mask = mask;
    Shape shape = shape_of({.q = q, .kv = 100});
    shape.kv_lengths = lengths;
    return without_idle_mask(problem, shape).mask;
  };
  EXPECT_EQ(mask(Mask::causal, 1, Source::none), Mask::none);
  EXPECT_EQ(mask(Mask::causal, 2, Source::none), Mask::causal);
  EXPECT_EQ(mask(Mask::causal_top_left, 1, Source::none), Mask::causal_top_left);
  EXPECT_EQ(mask(Mask::causal, 1, Source::host), Mask::causal) << "its sample may have no query";
}

TEST(NativeDivision, SizesThatNothingCountsAreNotDivided) {
  const Call huge{.batch = 1 << 24, .q = 1, .kv = 1, .heads = 2, .kv_heads = 1, .head_dim = 256};
  EXPECT_FALSE(choose(huge, kDivided).division.divides());
  Shape shape = shape_of({.q = 128, .kv = (std::int64_t{1} << 31) - 1, .heads = 3});
  for (Layout* layout : {&shape.q, &shape.k, &shape.v, &shape.out}) layout->row = 128;
  EXPECT_NE(why_not(problem_of({.heads = 3}), shape).value_or("").find("31 bits"),
            std::string::npos);
}

TEST(NativeDivision, ASmallWorkspaceLeavesTilesWhole) {
  {
    const batten::testing::ScopedVariable cap("BATTEN_WORKSPACE_MIB", "4");
    EXPECT_FALSE(choose(kCalls[0]).division.divides()) << "96 parts of 66 KB";
    EXPECT_TRUE(choose(kCalls[0], kDivided).division.divides()) << "asked for";
  }
  EXPECT_TRUE(choose(kCalls[0]).division.divides());
}

TEST(NativeDivision, ScratchStaysBelowTheDefaultCapUnlessForced) {
  const Call c{.batch = 40, .q = 1560, .kv = 1560, .heads = 12, .kv_heads = 12, .head_dim = 256};
  EXPECT_FALSE(choose(c).division.divides());
  const Division d = choose(c, kDivided).division;
  EXPECT_EQ(part_output_bytes(d, 256), std::size_t(d.parts()) * 128 * 256 * 4);
  EXPECT_EQ(part_lse_bytes(d), std::size_t(d.parts()) * 128 * 4);
}

}  // namespace
}  // namespace batten::impl::native
