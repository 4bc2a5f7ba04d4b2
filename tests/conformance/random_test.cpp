// Random problems and shapes on the cpu backend. RapidCheck prints the seed and, after a failure,
// the smallest shape that still fails; RC_PARAMS="seed=N" runs the same again.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "conformance.hpp"
#include "suite.hpp"

namespace batten::conformance {
namespace {

// A test draws for this long, then lets the remaining draws pass.
constexpr std::chrono::seconds kBudget{12};
constexpr int kDraws = 1000;

// Small numbers are the simple ones, so that shrinking ends at simple calls.
template <class T>
rc::Gen<T> one_of(const std::vector<T>& simplest_first) {
  return rc::gen::map(rc::gen::inRange<std::size_t>(0, simplest_first.size()),
                      [simplest_first](std::size_t i) { return simplest_first[i]; });
}

// Lengths in [0, n], with the edges of tiles more often than chance would have them.
rc::Gen<std::int32_t> length_up_to(std::int32_t n) {
  std::vector<std::int32_t> edges;
  for (const std::int32_t edge : {0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129})
    if (edge <= n) edges.push_back(edge);
  edges.push_back(n);
  return rc::gen::oneOf(one_of(edges), rc::gen::inRange<std::int32_t>(0, n + 1));
}

std::vector<std::int32_t> lengths_up_to(std::int64_t batch, std::int64_t n) {
  return *rc::gen::container<std::vector<std::int32_t>>(static_cast<std::size_t>(batch),
                                                        length_up_to(static_cast<std::int32_t>(n)));
}

Case draw_case() {
  Case one;
  one.name = fmt::format("random/{}", *rc::gen::inRange(0, 1000000));
  const int kv_heads = *rc::gen::inRange(1, 4);
  one.problem = {.dtype = *one_of<DType>({f32, bf16, f16}),
                 .num_heads = kv_heads * *rc::gen::inRange(1, 4),
                 .num_kv_heads = kv_heads,
                 .head_dim = 8 * *rc::gen::inRange(1, 33),
                 .mask = *one_of<Mask>({Mask::none, Mask::causal, Mask::causal_top_left}),
                 .batch_invariant = *rc::gen::arbitrary<bool>()};
  if (*rc::gen::arbitrary<bool>()) one.problem.out_dtype = f32;
  if (*rc::gen::arbitrary<bool>())
    one.problem.scale = *one_of<double>({1.0, 0.125, 0.0, -0.25, 7.0});
  one.form = *one_of<Form>({Form::bshd, Form::packed});
  one.batch = *rc::gen::inRange(1, 5);
  one.q = *length_up_to(140);
  one.kv = *length_up_to(200);
  if (one.form == Form::packed || *rc::gen::arbitrary<bool>())
    one.q_lengths = lengths_up_to(one.batch, one.q);
  if (one.form == Form::packed || *rc::gen::arbitrary<bool>())
    one.kv_lengths = lengths_up_to(one.batch, one.kv);
  one.lse = *rc::gen::arbitrary<bool>();
  one.contents =
      *one_of<Contents>({Contents::randn, Contents::probe, Contents::peaked, Contents::jumps,
                         Contents::equal_logits, Contents::huge_logits});
  one.garbage = *one_of<Garbage>({Garbage::nan, Garbage::infinity});
  one.strides = *one_of<Strides>({Strides::contiguous, Strides::heads_first, Strides::padded,
                                  Strides::sequence_first, Strides::shared_heads});
  if (one.form == Form::packed) {
    one.gap = *rc::gen::inRange(0, 4);
    one.lead = *rc::gen::inRange(0, 4);
    one.tail = *rc::gen::inRange(0, 70);
    one.loose_max = *rc::gen::arbitrary<bool>();
  }
  one.flow = *one_of<Flow>({Flow::plain, Flow::repeated, Flow::prepared, Flow::own_workspace});
  if (one.problem.batch_invariant && one.gap == 0) one.flow = Flow::batch_invariant;
  return one;
}

std::string describe(const Case& one) {
  const auto list = [](const std::vector<std::int32_t>& values) {
    return fmt::format("[{}]", fmt::join(values, " "));
  };
  return fmt::format(
      "{} {} D {} heads {}/{} mask {} scale {} {} B {} q {} {} kv {} {} gap {} lead {} tail {} lse "
      "{} "
      "contents {} strides {} flow {} invariant {}",
      one.name, name_of(one.problem.dtype), one.problem.head_dim, one.problem.num_heads,
      one.problem.num_kv_heads, name_of(one.problem.mask), scale_of(one),
      one.form == Form::packed ? "packed" : "bshd", one.batch, one.q, list(one.q_lengths), one.kv,
      list(one.kv_lengths), one.gap, one.lead, one.tail, one.lse, static_cast<int>(one.contents),
      static_cast<int>(one.strides), static_cast<int>(one.flow), one.problem.batch_invariant);
}

// Draws cases for the subject until there are enough or the time is up.
void draw_against(const std::string& backend, const Oracle& oracle) {
  const auto end = std::chrono::steady_clock::now() + kBudget;
  BackendSubject subject(backend, Device::cpu());
  int drawn = 0;
  bool failed = false;
  const auto property = [&] {
    // Once one has failed the time is for shrinking it.
    if (!failed && std::chrono::steady_clock::now() > end) return;
    const Case one = draw_case();
    PreparedCase prepared(one, oracle);
    const CaseResult result = run_case(prepared, subject);
    ++drawn;
    if (result.status == Status::passed) return;
    failed = true;
    RC_FAIL(describe(one) + "\n" + result.str());
  };
  rc::detail::TestMetadata metadata;
  metadata.id = metadata.description = backend + " against " + oracle.backend;
  rc::detail::TestParams params = rc::detail::configuration().testParams;
  if (set_of_environment() == Set::full) params.maxSuccess = std::max(params.maxSuccess, kDraws);
  const auto result = rc::detail::checkTestable(property, metadata, params);
  std::cout << drawn << " random cases\n";
  if (result.is<rc::detail::SuccessResult>()) return;
  std::ostringstream text;
  rc::detail::printResultMessage(result, text);
  FAIL() << text.str();
}

TEST(Random, CpuAgreesWithReference) { draw_against("cpu", {}); }

TEST(Random, ReferenceAgreesWithItsOnlineForm) {
  draw_against("reference", {.backend = "reference:online"});
}

}  // namespace
}  // namespace batten::conformance
