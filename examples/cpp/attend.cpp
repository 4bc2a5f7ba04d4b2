// Two requests of unequal length, packed one after another, attended in one call; then the same
// keys in two halves, merged.
#include <batten/batten.hpp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

namespace {

constexpr int kHeads = 4, kKvHeads = 2, kDim = 64;

std::vector<float> randn(std::int64_t tokens, int heads, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(tokens * heads * kDim));
  for (float& value : values) value = normal(generator);
  return values;
}

// The keys or values of tokens [first, first + tokens).
batten::TensorView rows(const std::vector<float>& data, std::int64_t first, std::int64_t tokens,
                        int heads) {
  return {data.data() + first * heads * kDim, batten::f32, {tokens, heads, kDim}};
}

}  // namespace

int main() try {
  // Offsets in tokens: request 0 has 5 queries and 7 keys, request 1 has 3 and 9.
  const std::vector<std::int32_t> offsets_q = {0, 5, 8}, offsets_kv = {0, 7, 16};
  const auto q = randn(8, kHeads, 1), k = randn(16, kKvHeads, 2), v = randn(16, kKvHeads, 3);
  std::vector<float> out(q.size()), lse(8 * kHeads);
  const batten::TensorView lse_view(lse.data(), batten::f32, {8, kHeads});

  batten::Attention attention(
      {.dtype = batten::f32, .num_heads = kHeads, .num_kv_heads = kKvHeads, .head_dim = kDim},
      batten::Device::cpu());
  const batten::Receipt receipt = attention.forward_packed(
      rows(q, 0, 8, kHeads), rows(k, 0, 16, kKvHeads), rows(v, 0, 16, kKvHeads),
      rows(out, 0, 8, kHeads), {.offsets_q = offsets_q, .offsets_kv = offsets_kv, .lse = lse_view});
  std::printf("batten %s: %s (%s), because %s\n", batten_version(), receipt.backend().data(),
              receipt.kernel().data(), receipt.reason().data());

  // The first 3 keys of each request, then the rest: lengths leave keys out, offsets start later.
  std::vector<float> first(out.size()), second(out.size()), first_lse(lse.size()),
      second_lse(lse.size());
  const std::vector<std::int32_t> three = {3, 3}, rest = {4, 6}, later = {3, 10, 16};
  const batten::TensorView first_lse_view(first_lse.data(), batten::f32, {8, kHeads});
  const batten::TensorView second_lse_view(second_lse.data(), batten::f32, {8, kHeads});
  attention.forward_packed(rows(q, 0, 8, kHeads), rows(k, 0, 16, kKvHeads),
                           rows(v, 0, 16, kKvHeads), rows(first, 0, 8, kHeads),
                           {.offsets_q = offsets_q,
                            .offsets_kv = offsets_kv,
                            .lse = first_lse_view,
                            .kv_lengths = three});
  attention.forward_packed(
      rows(q, 0, 8, kHeads), rows(k, 0, 16, kKvHeads), rows(v, 0, 16, kKvHeads),
      rows(second, 0, 8, kHeads),
      {.offsets_q = offsets_q, .offsets_kv = later, .lse = second_lse_view, .kv_lengths = rest});
  batten::merge(rows(first, 0, 8, kHeads), first_lse_view, rows(second, 0, 8, kHeads),
                second_lse_view);

  float worst = 0;
  for (std::size_t i = 0; i < out.size(); ++i)
    worst = std::fmax(worst, std::fabs(out[i] - first[i]));
  std::printf("whole and merged halves differ by at most %.1e\n", static_cast<double>(worst));
  return worst < 1e-5f ? 0 : 1;
} catch (const batten::Error& error) {
  std::fprintf(stderr, "%s: %s\n", batten::name_of(error.code()), error.what());
  return 1;
}
