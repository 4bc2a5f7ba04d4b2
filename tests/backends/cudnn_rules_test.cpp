// Which calls the cudnn backend takes, in which form, and what its plans bake in.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

#include "backends/cudnn/message.hpp"
#include "backends/cudnn/rules.hpp"

namespace batten::impl::cudnn {
namespace {

constexpr std::size_t kVersion = 91900;

Problem problem(Mask mask = Mask::none) {
  Problem p;
  p.dtype = p.out_dtype = DType::bf16;
  p.num_heads = 12;
  p.num_kv_heads = 4;
  p.head_dim = p.head_dim_v = 128;
  p.mask = mask;
  return p;
}

Layout rows(std::int64_t sample, std::int64_t heads, std::int64_t width) {
  return {sample * heads * width, heads * width, width};
}

Shape bshd(std::int64_t batch, std::int64_t q, std::int64_t kv) {
  Shape s;
  s.batch = batch;
  s.max_q = q;
  s.max_kv = kv;
  s.tokens_q = batch * q;
  s.tokens_kv = batch * kv;
  s.q = s.out = rows(q, 12, 128);
  s.k = s.v = rows(kv, 4, 128);
  return s;
}

Shape packed(std::int64_t batch, std::int64_t max_q, std::int64_t max_kv) {
  Shape s = bshd(batch, max_q, max_kv);
  s.packed = true;
  s.offsets_q = s.offsets_kv = Source::device;
  for (Layout* l : {&s.q, &s.k, &s.v, &s.out}) l->batch = 0;
  return s;
}

std::string refusal(const Problem& p, const Shape& s, const char* form = "") {
  return why_not(p, s, form, 90, kVersion).value_or("");
}

TEST(CudnnForm, UniformIsDense) {
  EXPECT_EQ(default_form(problem(), bshd(2, 128, 512)), Form::dense);
  EXPECT_EQ(default_form(problem(Mask::causal), bshd(2, 512, 128)), Form::dense);
}

TEST(CudnnForm, PackedCallsArePacked) {
  EXPECT_EQ(default_form(problem(), packed(2, 128, 512)), Form::packed);
}

TEST(CudnnForm, LengthsUnlessASampleMayHaveMoreQueriesThanKeys) {
  Shape s = bshd(2, 128, 512);
  s.kv_lengths = Source::device;
  EXPECT_EQ(default_form(problem(), s), Form::lengths);
  EXPECT_EQ(default_form(problem(Mask::causal_top_left), s), Form::lengths);
  EXPECT_EQ(default_form(problem(Mask::causal), s), Form::packed);
  Shape only_q = bshd(2, 128, 512);
  only_q.q_lengths = Source::host;
  EXPECT_EQ(default_form(problem(Mask::causal), only_q), Form::lengths);
  only_q.max_q = 1024;
  EXPECT_EQ(default_form(problem(Mask::causal), only_q), Form::packed);
}

TEST(CudnnForm, NamesParse) {
  for (const Form form : {Form::dense, Form::packed, Form::lengths}) {
    EXPECT_EQ(parse_form(name_of(form)), form);
    EXPECT_EQ(form_of(problem(), bshd(1, 1, 1), name_of(form)), form);
  }
  EXPECT_FALSE(parse_form(""));
  EXPECT_FALSE(parse_form("Dense"));
}

TEST(CudnnProblem, Refusals) {
  EXPECT_FALSE(why_not(problem(), 80, kVersion));
  EXPECT_FALSE(why_not(problem(), 121, kVersion));
  EXPECT_NE(why_not(problem(), 75, kVersion).value_or("").find("sm75"), std::string::npos);

  Problem p = problem();
  p.dtype = p.out_dtype = DType::f32;
  EXPECT_NE(why_not(p, 90, kVersion).value_or("").find("float32"), std::string::npos);
  p = problem();
  p.out_dtype = DType::f32;
  EXPECT_NE(why_not(p, 90, kVersion).value_or("").find("outputs"), std::string::npos);
  p = problem();
  p.batch_invariant = true;
  EXPECT_NE(why_not(p, 90, kVersion).value_or("").find("batch_invariant"), std::string::npos);
  for (const int dim : {4, 60, 100, 264, 512}) {
    p = problem();
    p.head_dim = dim;
    EXPECT_NE(why_not(p, 90, kVersion).value_or("").find("head_dim is"), std::string::npos) << dim;
    p = problem();
    p.head_dim_v = dim;
    EXPECT_NE(why_not(p, 90, kVersion).value_or("").find("head_dim_v is"), std::string::npos);
  }
  for (int dim = 8; dim <= 256; dim += 8) {
    p = problem();
    p.head_dim = p.head_dim_v = dim;
    EXPECT_FALSE(why_not(p, 90, kVersion)) << dim;
  }
}

TEST(CudnnShape, DenseIsServedWithoutAPromise) {
  for (const Mask mask : {Mask::none, Mask::causal, Mask::causal_top_left}) {
    EXPECT_EQ(refusal(problem(mask), bshd(3, 100, 77)), "");
    EXPECT_EQ(refusal(problem(mask), bshd(3, 77, 100), "dense"), "");
  }
}

TEST(CudnnShape, ScaleMustBePositive) {
  Shape s = bshd(2, 128, 256);
  s.scale_is_positive = false;
  const auto reason = why_not(problem(), s, "", 90, kVersion);
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("scales above 0"), std::string::npos) << *reason;
}

TEST(CudnnShape, PaddingNeedsThePromise) {
  Shape s = packed(3, 100, 100);
  EXPECT_NE(refusal(problem(), s).find("padding_is_finite"), std::string::npos);
  s.padding_is_finite = true;
  EXPECT_EQ(refusal(problem(), s), "");

  Shape lengths = bshd(3, 100, 100);
  lengths.kv_lengths = Source::host;
  EXPECT_NE(refusal(problem(), lengths).find("padding_is_finite"), std::string::npos);
  // All keys of each sample are real ones: nothing lies past them that cuDNN could load.
  Shape only_q = bshd(3, 100, 100);
  only_q.q_lengths = Source::host;
  EXPECT_EQ(refusal(problem(), only_q), "");
}

TEST(CudnnShape, ForcedPackedNeedsNoPromiseWhereTilesAreWhole) {
  EXPECT_EQ(refusal(problem(), bshd(4, 100, 4096), "packed"), "");
  EXPECT_NE(refusal(problem(), bshd(4, 100, 4100), "packed"), "");
}

TEST(CudnnShape, ForcedFormsThatCannotState) {
  EXPECT_NE(refusal(problem(), packed(2, 8, 8), "dense").find("one length"), std::string::npos);
  EXPECT_NE(refusal(problem(), packed(2, 8, 8), "lengths").find("BSHD"), std::string::npos);
  Shape s = bshd(2, 8, 8);
  s.kv_lengths = Source::device;
  s.padding_is_finite = true;
  EXPECT_NE(refusal(problem(), s, "dense").find("one length"), std::string::npos);
  EXPECT_EQ(refusal(problem(), s, "lengths"), "");
  EXPECT_NE(refusal(problem(Mask::causal), s, "lengths").find("cudnn:packed"), std::string::npos);
  EXPECT_NE(refusal(problem(Mask::causal), bshd(2, 9, 8), "lengths"), "");
  EXPECT_EQ(refusal(problem(Mask::causal), bshd(2, 8, 9), "lengths"), "");
}

TEST(CudnnShape, NothingToComputeIsNeverRefused) {
  EXPECT_EQ(refusal(problem(), packed(0, 0, 0)), "");
  EXPECT_EQ(refusal(problem(), packed(3, 0, 9)), "");
  EXPECT_EQ(refusal(problem(), packed(3, 9, 0)), "");
  EXPECT_EQ(plan_key(problem(), packed(3, 9, 0), ""), Shape{});
  EXPECT_TRUE(is_trivial(plan_key(problem(), bshd(0, 4, 4), "")));
}

TEST(CudnnShape, OffsetsBelowSm90NeedANewerLibrary) {
  Shape s = packed(2, 8, 8);
  s.padding_is_finite = true;
  EXPECT_TRUE(why_not(problem(), s, "", 80, 91700));
  EXPECT_FALSE(why_not(problem(), s, "", 90, 91700));
  EXPECT_FALSE(why_not(problem(), s, "", 80, 91801));
}

TEST(CudnnBucket, FewAndNeverShort) {
  EXPECT_EQ(bucket(1), 128);
  EXPECT_EQ(bucket(128), 128);
  EXPECT_EQ(bucket(129), 256);
  EXPECT_EQ(bucket(1024), 1024);
  EXPECT_EQ(bucket(1025), 1280);
  EXPECT_EQ(bucket(4096), 4096);
  EXPECT_EQ(bucket(32760), 32768);
  EXPECT_EQ(bucket(75600), 81920);
  EXPECT_EQ(bucket(2147483647), 2147483648);
}

RC_GTEST_PROP(CudnnBucket, Holds, ()) {
  const auto length = *rc::gen::inRange<std::int64_t>(1, std::int64_t{1} << 31);
  const std::int64_t declared = bucket(length);
  RC_ASSERT(declared >= length);
  RC_ASSERT(declared % 128 == 0);
  RC_ASSERT(declared < length + 128 || 4 * (declared - length) <= length);
  RC_ASSERT(bucket(declared) == declared);
}

TEST(CudnnKey, PackedCallsOfManyLengthsShareAPlan) {
  const Problem p = problem(Mask::causal);
  Shape a = packed(4, 1000, 3000);
  Shape b = packed(4, 900, 2900);
  b.tokens_q = 5;
  b.tokens_kv = 77777;
  b.offsets_q = Source::host;
  b.kv_lengths = Source::device;
  b.padding_is_finite = true;
  EXPECT_EQ(plan_key(p, a, ""), plan_key(p, b, ""));
  b.batch = 5;
  EXPECT_NE(plan_key(p, a, ""), plan_key(p, b, ""));
}

TEST(CudnnKey, BshdInPackedFormIsAPackedCall) {
  const Problem p = problem(Mask::causal);
  Shape ragged = bshd(4, 1000, 1000);
  ragged.kv_lengths = Source::host;
  const Shape key = plan_key(p, ragged, "");
  EXPECT_EQ(key, plan_key(p, packed(4, 1000, 1000), ""));
  EXPECT_EQ(form_of(p, key, ""), Form::packed);
  EXPECT_EQ(form_of(p, plan_key(p, bshd(4, 1000, 1000), "packed"), "packed"), Form::packed);
}

TEST(CudnnKey, KeepsWhatAPlanBakesIn) {
  const Problem p = problem();
  const Shape base = bshd(2, 100, 300);
  const auto differs = [&](auto change, const char* form = "") {
    Shape other = base;
    change(other);
    return plan_key(p, other, form) != plan_key(p, base, form);
  };
  EXPECT_TRUE(differs([](Shape& s) { s.max_q = 101; }));
  EXPECT_TRUE(differs([](Shape& s) { s.max_kv = 301; }));
  EXPECT_TRUE(differs([](Shape& s) { s.batch = 3; }));
  EXPECT_TRUE(differs([](Shape& s) { s.lse = true; }));
  EXPECT_TRUE(differs([](Shape& s) { s.q_lengths = Source::host; }));
  for (Layout Shape::*tensor : {&Shape::q, &Shape::k, &Shape::v, &Shape::out}) {
    EXPECT_TRUE(differs([&](Shape& s) { (s.*tensor).row += 8; }));
    EXPECT_TRUE(differs([&](Shape& s) { (s.*tensor).head += 8; }));
    EXPECT_TRUE(differs([&](Shape& s) { (s.*tensor).batch += 8; }));
    EXPECT_TRUE(differs([&](Shape& s) { (s.*tensor).row += 8; }, "packed"));
    // Where samples begin is data in this form.
    EXPECT_FALSE(differs([&](Shape& s) { (s.*tensor).batch += 8; }, "packed"));
  }
  EXPECT_FALSE(differs([](Shape& s) { s.padding_is_finite = true; }));
  EXPECT_FALSE(differs([](Shape& s) { s.lse_layout = {1, 2, 3}; }));  // no lse is asked for
}

GraphKey graph_of(const Problem& p, const Shape& s, const char* form = "") {
  const Shape key = plan_key(p, s, form);
  return graph_key(p, key, form_of(p, key, form));
}

TEST(CudnnGraph, MasksOfDenseCalls) {
  EXPECT_EQ(graph_of(problem(), bshd(1, 8, 9)).diagonal, Diagonal::none);
  EXPECT_EQ(graph_of(problem(Mask::causal), bshd(1, 8, 9)).diagonal, Diagonal::bottom_right);
  EXPECT_EQ(graph_of(problem(Mask::causal), bshd(1, 9, 9)).diagonal, Diagonal::top_left);
  EXPECT_EQ(graph_of(problem(Mask::causal_top_left), bshd(1, 9, 8)).diagonal, Diagonal::top_left);
}

TEST(CudnnGraph, MoreQueriesThanKeysLeavesASquare) {
  const Shape s = bshd(2, 300, 200);
  const GraphKey g = graph_of(problem(Mask::causal), s);
  EXPECT_EQ(g.rows_q, 200);
  EXPECT_EQ(g.rows_kv, 200);
  EXPECT_EQ(g.diagonal, Diagonal::top_left);
  EXPECT_EQ(g.q, s.q);
  EXPECT_EQ(dense_head_rows(Mask::causal, s), 100);
  EXPECT_EQ(dense_head_rows(Mask::none, s), 0);
  EXPECT_EQ(dense_head_rows(Mask::causal_top_left, s), 0);
}

TEST(CudnnGraph, TopLeftKeysPastTheLastQueryAreLeftOut) {
  const GraphKey g = graph_of(problem(Mask::causal_top_left), bshd(2, 200, 300));
  EXPECT_EQ(g.rows_kv, 200);
  EXPECT_EQ(g.diagonal, Diagonal::top_left);
}

TEST(CudnnGraph, OneQueryHasNoMask) {
  EXPECT_EQ(graph_of(problem(Mask::causal), bshd(2, 1, 300)).diagonal, Diagonal::none);
  EXPECT_EQ(graph_of(problem(Mask::causal), bshd(2, 1, 300)).rows_kv, 300);
  // Top-left: the query sees the first key.
  EXPECT_EQ(graph_of(problem(Mask::causal_top_left), bshd(2, 1, 300)).rows_kv, 1);
  EXPECT_EQ(graph_of(problem(Mask::causal_top_left), bshd(2, 1, 300)).diagonal, Diagonal::none);
  // One key: a square of one.
  EXPECT_EQ(graph_of(problem(Mask::causal), bshd(2, 300, 1)).rows_q, 1);
  EXPECT_EQ(graph_of(problem(Mask::causal), bshd(2, 300, 1)).diagonal, Diagonal::none);
}

TEST(CudnnGraph, PackedNeverDeclaresOneQuery) {
  const GraphKey g = graph_of(problem(Mask::causal), packed(3, 1, 300));
  EXPECT_EQ(g.rows_q, 128);
  EXPECT_EQ(g.diagonal, Diagonal::bottom_right);
  EXPECT_EQ(g.q.batch, 128 * g.q.row);
}

TEST(CudnnGraph, SharedHeadsAreOneHead) {
  Shape s = bshd(2, 100, 300);
  s.k.head = s.v.head = 0;
  GraphKey g = graph_of(problem(), s);
  EXPECT_EQ(g.num_k_heads, 1);
  EXPECT_EQ(g.num_v_heads, 1);
  EXPECT_EQ(g.k.head, 128);
  s.v.head = 128;
  g = graph_of(problem(), s);
  EXPECT_EQ(g.num_k_heads, 1);
  EXPECT_EQ(g.num_v_heads, 4);
}

TEST(CudnnGraph, SharedSamples) {
  Shape s = bshd(3, 100, 300);
  s.k.batch = s.v.batch = 0;
  EXPECT_EQ(sharing_of(problem(), s), Sharing::merged);
  GraphKey g = graph_of(problem(), s);
  EXPECT_EQ(g.batch, 1);
  EXPECT_EQ(g.rows_q, 300);
  EXPECT_EQ(g.rows_kv, 300);
  EXPECT_EQ(g.k.batch, 300 * 4 * 128);

  EXPECT_EQ(sharing_of(problem(Mask::causal), s), Sharing::repeated);
  g = graph_of(problem(Mask::causal), s);
  EXPECT_EQ(g.batch, 1);
  EXPECT_EQ(g.rows_q, 100);
  // More queries than keys: the graph is of the square, as always.
  Shape tall = bshd(3, 300, 100);
  tall.k.batch = tall.v.batch = 0;
  EXPECT_EQ(graph_of(problem(Mask::causal), tall).rows_q, 100);

  Shape apart = s;
  apart.q.batch += 8;
  EXPECT_EQ(sharing_of(problem(), apart), Sharing::repeated);
  Shape only_k = bshd(3, 100, 300);
  only_k.k.batch = 0;
  EXPECT_EQ(sharing_of(problem(), only_k), Sharing::repeated);
  EXPECT_EQ(sharing_of(problem(), bshd(3, 100, 300)), Sharing::none);
  EXPECT_EQ(sharing_of(problem(), bshd(1, 100, 300)), Sharing::none);

  s.kv_lengths = Source::device;
  s.padding_is_finite = true;
  EXPECT_EQ(default_form(problem(), s), Form::packed);
  EXPECT_EQ(refusal(problem(), s), "");
  EXPECT_NE(refusal(problem(), s, "lengths").find("share"), std::string::npos);
}

TEST(CudnnShape, StridesOfZeroThatNoFormStates) {
  for (Layout Shape::*tensor : {&Shape::q, &Shape::k, &Shape::v}) {
    Shape s = bshd(2, 100, 256);
    (s.*tensor).row = 0;
    EXPECT_NE(refusal(problem(), s).find("stride of 0"), std::string::npos);
    EXPECT_NE(refusal(problem(), s, "packed").find("stride of 0"), std::string::npos);
  }
  Shape s = bshd(2, 100, 256);
  s.q.head = 0;
  EXPECT_NE(refusal(problem(), s).find("queries"), std::string::npos);
  s = bshd(2, 100, 256);
  s.q.batch = 0;
  EXPECT_NE(refusal(problem(), s).find("queries"), std::string::npos);
  EXPECT_EQ(refusal(problem(), s, "packed"), "");
}

TEST(CudnnGraph, TextTellsKeysApart) {
  const GraphKey a = graph_of(problem(), bshd(2, 100, 300));
  GraphKey b = a;
  EXPECT_EQ(a.text(), b.text());
  EXPECT_EQ(a.text().find('\n'), std::string::npos);
  b.k.head = 0;
  EXPECT_NE(a.text(), b.text());
  b = a;
  b.dtype = DType::f16;
  EXPECT_NE(a.text(), b.text());
  b = a;
  b.diagonal = Diagonal::top_left;
  EXPECT_NE(a.text(), b.text());
}

TEST(CudnnVersion, Text) {
  EXPECT_EQ(version_text(91900), "9.19.0");
  EXPECT_EQ(version_text(91002), "9.10.2");
}

TEST(CudnnMessage, OneLine) {
  EXPECT_EQ(one_line("[cudnn_frontend] Error: No valid execution plans built."),
            "No valid execution plans built");
  EXPECT_EQ(one_line("a\n  b\t\tc\r\n"), "a b c");
  EXPECT_EQ(one_line(""), "no reason given");
  EXPECT_EQ(one_line(std::string(500, 'x')).size(), 200u);
}

TEST(CudnnMessage, KernelName) {
  const std::string serialized =
      std::string("\0{\"name\":\"", 9) +
      "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_"
      "cga1x1x1_kernel0_0\"}";
  EXPECT_EQ(kernel_name(serialized, "eng9"),
            "sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1");
  EXPECT_EQ(kernel_name("nothing here", "eng9_k24=7"), "eng9_k24=7");
  EXPECT_EQ(kernel_name("cudnn_generated_", "eng9"), "eng9");
}

}  // namespace
}  // namespace batten::impl::cudnn
