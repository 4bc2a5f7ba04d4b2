// Scores of a panel to probabilities. Included once per SIMD target.
#if defined(BATTEN_CPU_SOFTMAX_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef BATTEN_CPU_SOFTMAX_INL_HPP
#undef BATTEN_CPU_SOFTMAX_INL_HPP
#else
#define BATTEN_CPU_SOFTMAX_INL_HPP
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/pack-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace batten::impl::cpu::HWY_NAMESPACE {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A scale in two parts whose product it is. The queries carry the sign, so that the largest score
// is the largest logit, and of a tiny scale a power of two as well: without it a score could leave
// float's range where the logit does not. Ordinary scales leave the queries' bits alone.
struct SplitScale {
  double queries = 1;  // a power of two with the scale's sign, or 0
  double rest = 0;     // not negative

  explicit SplitScale(double scale) {
    constexpr double kTiny = 0x1p-30;
    const double magnitude = std::fabs(scale);
    const double power = magnitude > 0 && magnitude < kTiny
                             ? std::ldexp(1.0, std::max(std::ilogb(magnitude), -126))
                             : 1.0;
    rest = magnitude / power;
    // What is left may still be no float: then every logit is 0 to any precision that a weight has.
    queries = static_cast<float>(std::min(rest, 1.0)) == 0 ? 0.0 : std::copysign(power, scale);
  }
};

// exp(scale * (score - maximum)) as 2^(factor * (score - maximum)).
struct Exponential {
  float factor;    // SplitScale's rest * log2(e), finite and not 0
  float smallest;  // score - maximum below it gives 0: the result would be subnormal

  explicit Exponential(double scale) {
    constexpr double kLog2E = 1.4426950408889634074;
    constexpr double kLargest = std::numeric_limits<float>::max();
    const auto rounded = static_cast<float>(std::min(SplitScale(scale).rest * kLog2E, kLargest));
    factor = rounded == 0 ? 1 : rounded;  // then the queries are 0
    smallest = static_cast<float>(std::max(-126.0 / static_cast<double>(factor), -kLargest));
  }

  // What queries are multiplied by.
  static float query_factor(double scale) { return static_cast<float>(SplitScale(scale).queries); }

  // For difference <= 0; NaN gives NaN, -inf gives 0. Relative error below 3e-7 down to exp(-10)
  // and 1.4e-6 at exp(-87): `factor` is rounded, and the small terms matter little.
  HWY_INLINE Vector operator()(Vector difference) const {
    const Floats df;
    const hn::RebindToSigned<Floats> di;
    const auto factors = hn::Set(df, factor);
    // x = n + r, n whole, |r| <= 1/2. Adding 1.5 * 2^23 rounds to a whole number and leaves it in
    // the low bits of the sum; 127 more is the bias of an exponent.
    const auto shifter = hn::Set(df, 0x1.8p23f + 127.0f);
    const auto biased = hn::MulAdd(difference, factors, shifter);
    const auto n = hn::Sub(biased, shifter);
    const auto r = hn::MulSub(difference, factors, n);
    // 2^r on [-1/2, 1/2], exact at 0: minimax in relative error, 9.2e-8 before rounding.
    auto p = hn::Set(df, 0x1.5bba14p-10f);
    p = hn::MulAdd(p, r, hn::Set(df, 0x1.3cea88p-7f));
    p = hn::MulAdd(p, r, hn::Set(df, 0x1.c6b752p-5f));
    p = hn::MulAdd(p, r, hn::Set(df, 0x1.ebf9bcp-3f));
    p = hn::MulAdd(p, r, hn::Set(df, 0x1.62e42ap-1f));
    p = hn::MulAdd(p, r, hn::Set(df, 1.0f));
    const auto power = hn::BitCast(df, hn::ShiftLeft<23>(hn::BitCast(di, biased)));
    return hn::IfThenZeroElse(hn::Lt(difference, hn::Set(df, smallest)), hn::Mul(p, power));
  }
};

// Scores of keys that a lane does not see become -inf; gives the maxima of the others.
// visible[lane]: the number of the tile's keys that it sees.
template <int kVectors>
HWY_NOINLINE void mask_scores(float* HWY_RESTRICT scores, std::int64_t keys,
                              const float* HWY_RESTRICT visible, float* HWY_RESTRICT maximum) {
  const Floats df;
  const auto hidden = hn::Set(df, -kInfinity);
  for (int n = 0; n < kVectors; ++n) {
    const auto limit = hn::Load(df, visible + n * kLanes);
    auto most = hn::Load(df, maximum + n * kLanes);
    for (std::int64_t key = 0; key < keys; ++key) {
      float* at = scores + (key * kVectors + n) * kLanes;
      const auto seen = hn::Lt(hn::Set(df, static_cast<float>(key)), limit);
      const auto score = hn::IfThenElse(seen, hn::Load(df, at), hidden);
      most = hn::Max(most, score);
      hn::Store(score, df, at);
    }
    hn::Store(most, df, maximum + n * kLanes);
  }
}

// Scores to probabilities relative to the new maximum, in place (pairs fill the first half).
// `maximum` and `sum` are brought up to date; rescale[lane] is what earlier results must be
// multiplied by.
template <class Math, int kVectors>
HWY_NOINLINE void softmax(const Exponential exponential, float* HWY_RESTRICT scores,
                          std::int64_t keys, const float* HWY_RESTRICT new_maximum,
                          float* HWY_RESTRICT maximum, float* HWY_RESTRICT sum,
                          float* HWY_RESTRICT rescale) {
  const Floats df;
  Vector most[kVectors];
  Vector total[kVectors];
  for (int n = 0; n < kVectors; ++n) {
    const auto old = hn::Load(df, maximum + n * kLanes);
    const auto now = hn::Load(df, new_maximum + n * kLanes);
    hn::Store(now, df, maximum + n * kLanes);
    // A lane that has seen no key yet: any finite number keeps -inf minus it at -inf.
    most[n] = hn::IfThenZeroElse(hn::Eq(now, hn::Set(df, -kInfinity)), now);
    hn::Store(exponential(hn::Sub(old, most[n])), df, rescale + n * kLanes);
    total[n] = hn::Zero(df);
  }
  const auto probability = [&](const float* at, int n) HWY_ATTR {
    const auto p = exponential(hn::Sub(hn::Load(df, at + n * kLanes), most[n]));
    total[n] = hn::Add(total[n], p);
    return p;
  };
  constexpr std::int64_t kWidth = kVectors * kLanes;
  for (std::int64_t key = 0; key < keys; key += Math::kPack) {
    const float* from = scores + key * kWidth;
    float* to = scores + key / Math::kPack * kWidth;
    HWY_UNROLL(3)
    for (int n = 0; n < kVectors; ++n) {
      auto p = probability(from, n);
      if constexpr (Math::kPack == 2) {
        p = Math::pair(p, key + 1 < keys ? probability(from + kWidth, n) : hn::Zero(df));
      }
      hn::Store(p, df, to + n * kLanes);
    }
  }
  for (int n = 0; n < kVectors; ++n) {
    const auto before = hn::Load(df, sum + n * kLanes);
    const auto factor = hn::Load(df, rescale + n * kLanes);
    hn::Store(hn::MulAdd(before, factor, total[n]), df, sum + n * kLanes);
  }
}

}  // namespace
}  // namespace batten::impl::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
