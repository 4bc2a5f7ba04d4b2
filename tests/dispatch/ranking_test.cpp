// The order of backends: by prediction, by what was measured of exactly this call, by preference.
#include "dispatch/ranking.hpp"

#include "dispatch/dispatch_test.hpp"

namespace batten::testing {
namespace {

using impl::predicted;
using impl::rank;
using impl::Ranking;
using impl::time_text;
using impl::why_first;

class RankingTest : public ::testing::Test {
 protected:
  RankingTest() {
    problem_.dtype = problem_.out_dtype = DType::bf16;
    problem_.num_heads = problem_.num_kv_heads = 4;
    problem_.head_dim = problem_.head_dim_v = 64;
    shape_.batch = 2;
    shape_.max_q = 5;
    shape_.max_kv = 7;
    native.takes(10);
    cudnn.takes(20);
  }

  // This very call took so long on the backends.
  void measured(std::vector<std::pair<std::string, double>> us) {
    card_.set_measured({{*impl::cost::measured_shape(problem_, shape_), std::move(us)}});
  }
  Ranking ranked(const impl::BackendOptions& options = {}) {
    const std::vector<const impl::Backend*> candidates{&native, &cudnn, &single};
    return rank(candidates, problem_, shape_, kGpu, options, &card_);
  }
  std::string first(const impl::BackendOptions& options = {}) {
    return std::string(ranked(options).serving.at(0).backend->name());
  }

  FakeBackend native{"native"}, cudnn{"cudnn"}, single{"single"};
  impl::Problem problem_;
  impl::Shape shape_;
  impl::cost::Card card_;
};

TEST_F(RankingTest, TheLeastTimeIsFirstAndNoPredictionLast) {
  cudnn.takes(5);
  const Ranking r = ranked();
  ASSERT_EQ(r.serving.size(), 3u);
  EXPECT_EQ(r.serving[0].backend, &cudnn);
  EXPECT_EQ(r.serving[1].backend, &native);
  EXPECT_EQ(r.serving[2].backend, &single);
  EXPECT_FALSE(r.serving[2].prediction);
  EXPECT_EQ(why_first(r.serving), "cudnn 5.0 us, native 10 us (estimated constants)");
}

TEST_F(RankingTest, WithoutACardTheOrderIsThatOfPreference) {
  cudnn.takes(5);
  const std::vector<const impl::Backend*> candidates{&single, &native, &cudnn};
  const Ranking r = rank(candidates, problem_, shape_, kGpu, {}, nullptr);
  EXPECT_EQ(r.serving[0].backend, &single);
  EXPECT_EQ(r.serving[2].backend, &cudnn);
  EXPECT_EQ(why_first(r.serving), "first that serves this call");
}

TEST_F(RankingTest, WhoDoesNotServeIsPassedOver) {
  native.refuse_shapes("too odd");
  cudnn.refuse_shapes("too even");
  const Ranking r = ranked();
  ASSERT_EQ(r.serving.size(), 1u);
  EXPECT_EQ(r.passed_over, "native: too odd; cudnn: too even");
}

TEST_F(RankingTest, AMeasuredCallComesBeforePredictions) {
  measured({{"native", 30}, {"cudnn", 25}});
  const Ranking r = ranked();
  EXPECT_EQ(r.serving[0].backend, &cudnn);
  EXPECT_TRUE(r.serving[0].prediction->exact);
  EXPECT_EQ(why_first(r.serving), "cudnn 25 us, native 30 us (measured)");
  ++shape_.max_q;
  EXPECT_EQ(first(), "native") << "it is of that call alone";
}

TEST_F(RankingTest, ABackendThatWasNotMeasuredIsStillPredicted) {
  measured({{"cudnn", 15}});
  EXPECT_EQ(first(), "native");
  EXPECT_EQ(why_first(ranked().serving), "native 10 us, cudnn 15 us (estimated constants)");
  measured({{"single", 1}});
  EXPECT_EQ(first(), "single");
}

TEST_F(RankingTest, AFormIsNotWhatWasMeasured) {
  measured({{"native", 30}, {"cudnn", 25}});
  EXPECT_EQ(first({.form = "packed"}), "native");
}

TEST_F(RankingTest, LengthsAreNotWhatWasMeasured) {
  measured({{"native", 30}, {"cudnn", 25}});
  shape_.kv_lengths = impl::Source::device;
  EXPECT_EQ(first(), "native");
}

TEST(TimeText, HasTwoDigitsOrMore) {
  EXPECT_EQ(time_text(0.04), "0.0 us");
  EXPECT_EQ(time_text(3.21), "3.2 us");
  EXPECT_EQ(time_text(9.94), "9.9 us");
  EXPECT_EQ(time_text(9.96), "10 us");
  EXPECT_EQ(time_text(12345.6), "12346 us");
}

}  // namespace
}  // namespace batten::testing
