// Cases of shapes: tile edges, lengths, packing, causal rules, head groups.
#include <algorithm>
#include <numeric>

#include "case_builder.hpp"

namespace batten::conformance {
namespace {

using Lengths = std::vector<std::int32_t>;

// Both sides of every multiple of a tile's height or width that kernels use.
void add_tails(CaseBuilder& builder) {
  std::vector<std::int64_t> rows{1, 16, 63, 64, 65, 127, 129};
  std::vector<std::int64_t> keys{1, 7, 31, 64, 65, 127, 128, 129, 193, 257};
  if (builder.on_gpu()) {
    rows.insert(rows.end(), {128, 191, 192, 193, 255, 257, 385});
    keys.insert(keys.end(), {63, 95, 97, 175, 177, 191, 192, 255, 256, 513});
  }
  std::size_t turn = 0;
  for (const std::int64_t q : rows)
    for (const std::int64_t kv : keys) {
      // 7 turns bring every mask with lse and without; the shape lists are no multiple of it.
      const std::size_t step = turn++ % 7;
      Case& one = builder.add("tails", fmt::format("q{}_kv{}", q, kv), step % 2 ? kMqa : kMha,
                              kMasks[step % 3], 1, q, kv);
      one.lse = step < 4;
      one.contents = step % 3 == 1 ? Contents::probe : Contents::randn;
      one.quick = turn % 9 == 1;
    }
}

void add_lengths(CaseBuilder& builder) {
  struct Shape {
    const char* what;
    Lengths q, kv;
  };
  const std::vector<Shape> shapes{
      {"shorter_keys", {}, {70, 3, 1, 69}},
      {"shorter_queries", {40, 1, 39, 17}, {}},
      {"both", {40, 5, 23, 1}, {9, 70, 64, 65}},
      {"one_without_keys", {}, {70, 0, 12, 70}},
      {"one_without_queries", {40, 0, 12, 40}, {}},
      {"one_without_anything", {40, 0, 12, 40}, {70, 0, 33, 1}},
      {"first_and_last_empty", {0, 5, 40, 0}, {3, 70, 20, 0}},
      {"no_keys_at_all", {}, {0, 0, 0, 0}},
      {"no_queries_at_all", {0, 0, 0, 0}, {}},
      {"nothing_at_all", {0, 0, 0, 0}, {0, 0, 0, 0}},
      {"one_each", {1, 1, 1, 1}, {1, 1, 1, 1}},
      {"all_full", {40, 40, 40, 40}, {70, 70, 70, 70}},
  };
  for (const Shape& shape : shapes)
    for (const Mask mask : kMasks)
      for (const Form form : {Form::bshd, Form::packed}) {
        const bool packed = form == Form::packed;
        Case& one = builder.add("lengths", fmt::format("{}{}", shape.what, packed ? "_packed" : ""),
                                mask == Mask::causal ? kGqa : kMha, mask, 4, 40, 70);
        one.form = form;
        one.q_lengths = shape.q;
        one.kv_lengths = shape.kv;
        one.lse = true;
        one.quick = mask == Mask::causal && !packed;
      }
  // Buffers that have no rows at all.
  builder.add("lengths", "buffer_without_keys", kMha, Mask::none, 2, 5, 0).lse = true;
  builder.add("lengths", "buffer_without_queries", kMha, Mask::none, 2, 0, 5).lse = true;
  builder.add("lengths", "buffers_without_rows", kGqa, Mask::causal, 2, 0, 0).lse = true;
}

void add_packed(CaseBuilder& builder) {
  for (const Mask mask : kMasks) {
    const auto add = [&](const char* what, Heads heads, Lengths q, Lengths kv) -> Case& {
      Case& one =
          builder.add("packed", what, heads, mask, static_cast<std::int64_t>(q.size()), 0, 0);
      one.form = Form::packed;
      one.q_lengths = std::move(q);
      one.kv_lengths = std::move(kv);
      one.lse = mask != Mask::causal_top_left;
      return one;
    };
    add("one_sample", kMha, {33}, {65});
    add("equal", kGqa, {16, 16, 16}, {48, 48, 48}).quick = true;
    add("ragged", kGqa, {3, 130, 64, 1}, {129, 64, 1, 7}).quick = true;
    add("fewer_tokens_than_samples", kMqa, {0, 1, 0, 1, 0, 0}, {2, 0, 0, 1, 0, 0}).quick = true;
    add("single_query_each", kGqa, {1, 0, 1, 1}, {70, 20, 0, 5});
    add("keys_shorter_than_queries", kMha, {65, 40, 2}, {1, 39, 1});
    Lengths many_q(33), many_kv(33);
    for (std::size_t i = 0; i < many_q.size(); ++i) {
      many_q[i] = static_cast<std::int32_t>(i * 7 % 19);
      many_kv[i] = static_cast<std::int32_t>(i * 11 % 37);
    }
    add("many_samples", kMha, many_q, many_kv);
    {
      Case& one = add("gaps", kGqa, {3, 33, 0, 20}, {65, 20, 7, 0});
      one.gap = 5;
      one.quick = true;
    }
    add("lead_and_tail", kMha, {9, 40}, {30, 31}).lead = 3;
    add("tail", kMha, {9, 40}, {30, 31}).tail = 70;
    {
      Case& one = add("gaps_everywhere", kMqa, {1, 64, 0}, {64, 3, 9});
      one.gap = 2;
      one.lead = 1;
      one.tail = 9;
    }
    add("loose_max", kMha, {5, 60}, {66, 30}).loose_max = true;
  }
}

void add_causal(CaseBuilder& builder) {
  struct Shape {
    std::int64_t q, kv;
  };
  // Square, more queries (rows without keys), more keys (an offset that is no multiple of a tile).
  constexpr Shape kShapes[] = {{1, 1},    {2, 1},     {1, 2},    {64, 64},   {65, 65},  {100, 37},
                               {130, 3},  {129, 1},   {37, 100}, {64, 192},  {66, 129}, {3, 200},
                               {128, 64}, {192, 128}, {2, 257},  {127, 128}, {128, 127}};
  for (const Shape& shape : kShapes)
    for (const Mask mask : {Mask::causal, Mask::causal_top_left}) {
      Case& one = builder.add("causal", fmt::format("q{}_kv{}", shape.q, shape.kv),
                              shape.q % 2 ? kGqa : kMha, mask, 2, shape.q, shape.kv);
      one.contents = Contents::probe;
      one.lse = true;
      one.quick = shape.q == 66 || shape.q == 100;
    }
  for (const Mask mask : {Mask::causal, Mask::causal_top_left}) {
    Case& one = builder.add("causal", "ragged", kMqa, mask, 5, 70, 90);
    one.q_lengths = {70, 1, 0, 66, 30};
    one.kv_lengths = {90, 64, 65, 2, 31};
    one.contents = Contents::probe;
    one.lse = true;
    one.quick = true;
  }
}

void add_heads(CaseBuilder& builder) {
  constexpr Heads kHeads[] = {{1, 1}, {5, 5}, {6, 2}, {8, 1}, {12, 4}, {12, 12}, {16, 8}, {40, 8}};
  for (const Heads& heads : kHeads)
    for (const std::int64_t q : {1, 33}) {
      Case& one = builder.add("heads", fmt::format("q{}", q), heads,
                              q == 1 ? Mask::causal : kMasks[static_cast<std::size_t>(heads.q) % 3],
                              2, q, 40);
      one.lse = true;
      one.quick = heads.q == 6 || heads.q == 12;
      // The shape in which some cuDNN versions write the lse of one head of each group only.
      Case& ragged = builder.add("heads", fmt::format("q{}_packed", q), heads, Mask::none, 3, 0, 0);
      ragged.form = Form::packed;
      const auto rows = static_cast<std::int32_t>(q);
      ragged.q_lengths = {rows, 1, rows};
      ragged.kv_lengths = {40, 17, 1};
      ragged.lse = true;
    }
}

// Long enough that a mistake in a loop over tiles shows, short enough for plain loops.
void add_medium(CaseBuilder& builder) {
  struct Shape {
    std::int64_t batch, q, kv;
  };
  std::vector<Shape> shapes{{1, 1, 4096}, {1, 17, 1500}, {1, 300, 300}, {3, 70, 520}, {8, 1, 700}};
  if (builder.on_gpu())
    shapes.insert(shapes.end(), {{4, 128, 4096},
                                 {2, 1024, 4096},
                                 {1, 1560, 1560},
                                 {8, 256, 4096},
                                 {1, 1560, 512},
                                 {1, 2048, 2048}});
  for (const Shape& shape : shapes)
    for (const Mask mask : kMasks)
      for (const Contents contents : {Contents::randn, Contents::probe}) {
        const bool probe = contents == Contents::probe;
        Case& one = builder.add(
            "medium",
            fmt::format("b{}_q{}_kv{}{}", shape.batch, shape.q, shape.kv, probe ? "_probe" : ""),
            builder.on_gpu() ? Heads{12, 4} : kMha, mask, shape.batch, shape.q, shape.kv);
        one.contents = contents;
        one.lse = probe;
        one.quick = shape.q == 17 && mask == Mask::none;
      }
}

}  // namespace

void add_shape_cases(CaseBuilder& builder) {
  add_tails(builder);
  add_lengths(builder);
  add_packed(builder);
  add_causal(builder);
  add_heads(builder);
  add_medium(builder);
}

}  // namespace batten::conformance
