// The suite must notice: each mutant fails, and by the check that is there for its fault.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "conformance.hpp"
#include "plain_subject.hpp"

namespace batten::conformance {
namespace {

struct Mutant {
  Fault fault;
  std::vector<Check> checks;  // the suite must fail it by each of these
};

void PrintTo(const Mutant& mutant, std::ostream* stream) { *stream << name_of(mutant.fault); }

const Mutant kMutants[] = {
    {Fault::tile_skipped, {Check::row, Check::whole_output, Check::lse}},
    {Fault::tile_skipped_once, {Check::row, Check::lse}},
    {Fault::last_key_dropped, {Check::row, Check::lse}},
    {Fault::rows_swapped, {Check::row, Check::whole_output}},
    {Fault::causal_late, {Check::row, Check::lse, Check::no_key}},
    {Fault::causal_early, {Check::row, Check::lse, Check::stray_nan}},
    {Fault::causal_other_rule, {Check::row, Check::whole_output, Check::lse}},
    {Fault::kv_length_ignored, {Check::stray_nan, Check::row}},
    {Fault::q_length_ignored, {Check::no_key}},
    {Fault::neighbours_length, {Check::row, Check::stray_nan}},
    {Fault::wrong_group, {Check::row, Check::whole_output, Check::lse}},
    {Fault::lse_base_2, {Check::lse}},
    {Fault::lse_of_first_head, {Check::unwritten}},
    {Fault::lse_without_scale, {Check::lse}},
    {Fault::row_unwritten, {Check::unwritten}},
    {Fault::padding_leaked, {Check::stray_nan}},
    {Fault::past_end_written, {Check::outside}},
    {Fault::scale_ignored, {Check::row, Check::whole_output, Check::lse}},
    {Fault::scale_of_first_call, {Check::row, Check::lse}},
    {Fault::strides_of_first_call, {Check::row}},
    {Fault::lengths_of_first_call, {Check::stray_nan}},
    {Fault::maximum_not_taken, {Check::stray_nan}},
    {Fault::no_key_is_nan, {Check::no_key}},
    {Fault::nan_swallowed, {Check::missing_nan}},
    {Fault::low_precision, {Check::row, Check::whole_output, Check::lse}},
    {Fault::moody, {Check::repeat}},
    {Fault::sociable, {Check::batch}},
    {Fault::scratch_overrun, {Check::workspace}},
    {Fault::input_changed, {Check::outside}},
    {Fault::plan_forgotten, {Check::plan}},
    {Fault::refuses_ragged, {Check::refusal}},
    {Fault::lies_about_backend, {Check::receipt}},
};

// Cases with their expected outputs, which all mutants of a process share.
PreparedCase& prepared_case(const Case& one) {
  static std::map<std::string, PreparedCase> prepared;
  return prepared.try_emplace(one.name, one, Oracle{}).first->second;
}

// A case of each group in turn, the cheapest first: each mutant soon meets the group that is there
// for it. That some case notices a mutant does not depend on the order; the time does.
std::vector<Case> quick_cases_in_turn() {
  std::vector<Case> list = cases(Set::quick, *find_served("reference"), DeviceType::cpu);
  const auto cost = [](const Case& one) { return flops_of(one.problem, geometry_of(one)); };
  std::stable_sort(list.begin(), list.end(),
                   [&](const Case& a, const Case& b) { return cost(a) < cost(b); });
  std::map<std::string, int> of_group;
  std::multimap<int, Case> turns;
  for (Case& one : list) turns.emplace(of_group[group_of(one)]++, std::move(one));
  list.clear();
  for (auto& [turn, one] : turns) list.push_back(std::move(one));
  return list;
}

const std::vector<Case>& quick_cases() {
  static const std::vector<Case> list = quick_cases_in_turn();
  return list;
}

class Mutation : public testing::TestWithParam<Mutant> {};

TEST_P(Mutation, IsNoticed) {
  const Mutant& mutant = GetParam();
  PlainSubject subject(mutant.fault);
  std::vector<Check> missing = mutant.checks;
  for (const Case& one : quick_cases()) {
    if (missing.empty()) break;
    const CaseResult result = run_case(prepared_case(one), subject);
    std::erase_if(missing, [&](Check check) { return result.failed_by(check); });
  }
  for (const Check check : missing) ADD_FAILURE() << "no quick case fails by " << name_of(check);
}

INSTANTIATE_TEST_SUITE_P(Quick, Mutation, testing::ValuesIn(kMutants),
                         [](const auto& mutant) { return name_of(mutant.param.fault); });

// The whole-output bound alone would let one bad row pass.
TEST(Bounds, OneBadRowFailsWhereTheWholeOutputPasses) {
  constexpr std::int64_t kRows = 2000;
  const Problem problem{.dtype = bf16, .num_heads = 2, .head_dim = 64};
  Geometry geometry;
  geometry.q_rows = kRows;
  geometry.samples = {
      {.q_begin = 0, .q_length = kRows, .q_rows = kRows, .kv_begin = 0, .kv_length = 100}};
  Expected expected;
  Random random(1);
  for (std::int64_t i = 0; i < kRows; ++i) expected.rows.push_back({0, i});
  for (std::int64_t i = 0; i < kRows * 2 * 64; ++i) expected.out.push_back(random.normal());
  expected.magnitude.assign(kRows * 2, 10.f);
  expected.lse.assign(kRows * 2, 4.f);
  expected.logit = expected.lse;

  std::vector<float> out = expected.out;
  EXPECT_TRUE(check_bounds(problem, geometry, expected, out, {}).passed());
  for (std::size_t d = 0; d < 64; ++d) out[(1234 * 2 + 1) * 64 + d] *= 1.15f;
  const BoundsReport report = check_bounds(problem, geometry, expected, out, {});
  ASSERT_EQ(report.violations.size(), 1u);
  EXPECT_EQ(report.violations[0].check, Check::row);
  EXPECT_EQ(report.row.row, 1234);
  EXPECT_EQ(report.row.head, 1);
  EXPECT_LT(report.rel_error, epsilon_of(bf16));
}

TEST(Bounds, LargeLogitsGetOnlyWhatTheirRoundingExplains) {
  EXPECT_EQ(logit_slack(10), 0);
  EXPECT_LT(logit_slack(100), epsilon_of(f16));
  EXPECT_GT(logit_slack(-1e5), 1e5 * 0x1p-24);
  EXPECT_LT(logit_slack(1e5), 0.1);
  EXPECT_LT(lse_tolerance(5, 1000), 5e-5);  // far below the step from base e to base 2
}

TEST(Bounds, SampledRowsSeeASkippedTile) {
  Case one;
  one.name = "bounds/sampled";
  one.problem = {.dtype = f16, .num_heads = 2, .head_dim = 64, .mask = Mask::causal};
  one.batch = 2;
  one.q = 300;
  one.kv = 200;
  one.lse = true;
  PreparedCase sampled(one, {.sample_above_flops = 0, .sampled_rows = 64});
  EXPECT_TRUE(sampled.expected().sampled);
  EXPECT_EQ(sampled.expected().rows.size(), 64u);
  PlainSubject good;
  EXPECT_EQ(run_case(sampled, good).status, Status::passed) << run_case(sampled, good).str();
  PlainSubject bad(Fault::tile_skipped);
  EXPECT_TRUE(run_case(sampled, bad).failed_by(Check::row));
}

// A backend must serve what its row lists; a form of it may serve less.
TEST(Refusals, AreFailuresOfBackendsAndNotOfForms) {
  Case one;
  one.name = "refusals/float16";
  one.problem = {.dtype = f16, .num_heads = 2, .head_dim = 64};
  one.batch = one.q = one.kv = 1;
  Served row = *find_served("cpu");
  BackendSubject subject("cpu:bf16dot", Device::cpu());  // which does not serve float16
  PreparedCase prepared(one, {.device = Device::cpu()});
  EXPECT_TRUE(run_case(prepared, subject, &row).failed_by(Check::refusal));
  row.may_refuse_anything = true;
  const CaseResult result = run_case(prepared, subject, &row);
  EXPECT_EQ(result.status, Status::refused) << result.str();
  EXPECT_NE(result.reason.find("bf16dot"), std::string::npos);
}

}  // namespace
}  // namespace batten::conformance
