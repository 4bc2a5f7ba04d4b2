#include "geometry.hpp"

#include <algorithm>

namespace batten::conformance {
namespace {

// How far a loose max_q or max_kv lies above the longest sample.
constexpr std::int64_t kLooseBy = 150;
// What wild lengths add to full samples; empty samples get its negative.
constexpr std::int32_t kWildBy = 100000;

std::int64_t length_or(const std::vector<std::int32_t>& lengths, std::size_t b, std::int64_t all) {
  return lengths.empty() ? all : lengths[b];
}

std::vector<std::int32_t> passed(const std::vector<std::int32_t>& lengths, std::int64_t room,
                                 bool wild) {
  std::vector<std::int32_t> values = lengths;
  if (!wild) return values;
  for (std::int32_t& value : values) {
    if (value == room) value += kWildBy;
    if (value == 0) value = -kWildBy;
  }
  return values;
}

// Lays one packed buffer out; returns its rows.
std::int64_t lay_out(const Case& one, const std::vector<std::int32_t>& lengths, std::int64_t all,
                     std::vector<std::int32_t>& offsets, std::vector<std::int32_t>& given,
                     std::int64_t& longest) {
  std::int64_t at = one.lead;
  longest = 0;
  for (std::size_t b = 0; b < static_cast<std::size_t>(one.batch); ++b) {
    const std::int64_t length = length_or(lengths, b, all);
    offsets.push_back(static_cast<std::int32_t>(at));
    if (one.gap > 0) given.push_back(static_cast<std::int32_t>(length));
    longest = std::max(longest, length + one.gap);
    at += length + one.gap;
  }
  offsets.push_back(static_cast<std::int32_t>(at));
  return at + one.tail;
}

}  // namespace

Geometry geometry_of(const Case& one) {
  Geometry g;
  const auto batch = static_cast<std::size_t>(one.batch);
  g.samples.resize(batch);
  if (one.form == Form::bshd) {
    g.q_rows = one.batch * one.q;
    g.kv_rows = one.batch * one.kv;
    g.q_lengths = passed(one.q_lengths, one.q, one.wild_lengths);
    g.kv_lengths = passed(one.kv_lengths, one.kv, one.wild_lengths);
    for (std::size_t b = 0; b < batch; ++b) {
      g.samples[b] = {.q_begin = static_cast<std::int64_t>(b) * one.q,
                      .q_length = length_or(one.q_lengths, b, one.q),
                      .q_rows = one.q,
                      .kv_begin = static_cast<std::int64_t>(b) * one.kv,
                      .kv_length = length_or(one.kv_lengths, b, one.kv)};
    }
    return g;
  }
  std::int64_t longest_q = 0;
  std::int64_t longest_kv = 0;
  g.q_rows = lay_out(one, one.q_lengths, one.q, g.offsets_q, g.q_lengths, longest_q);
  g.kv_rows = lay_out(one, one.kv_lengths, one.kv, g.offsets_kv, g.kv_lengths, longest_kv);
  for (std::size_t b = 0; b < batch; ++b) {
    const std::int64_t rows = length_or(one.q_lengths, b, one.q);
    g.samples[b] = {.q_begin = g.offsets_q[b],
                    .q_length = rows,
                    .q_rows = rows,
                    .kv_begin = g.offsets_kv[b],
                    .kv_length = length_or(one.kv_lengths, b, one.kv)};
  }
  // The host cannot take bounds from offsets that it may not read.
  if (one.loose_max || one.placement == Placement::device) {
    g.max_q = longest_q + (one.loose_max ? kLooseBy : 0);
    g.max_kv = longest_kv + (one.loose_max ? kLooseBy : 0);
  }
  return g;
}

std::int64_t visible_keys(Mask mask, std::int64_t i, const Sample& sample) noexcept {
  switch (mask) {
    case Mask::none:
      return sample.kv_length;
    case Mask::causal:
      return std::clamp(i + 1 + sample.kv_length - sample.q_length, std::int64_t{0},
                        sample.kv_length);
    case Mask::causal_top_left:
      return std::min(i + 1, sample.kv_length);
  }
  return 0;
}

double flops_of(const Problem& problem, const Geometry& geometry) noexcept {
  double pairs = 0;
  for (const Sample& s : geometry.samples)
    pairs += static_cast<double>(s.q_length) * static_cast<double>(s.kv_length);
  return 4.0 * pairs * problem.num_heads * problem.head_dim;
}

}  // namespace batten::conformance
