// The plan cache by itself: what tells keys apart, what is kept, who builds.
#include "dispatch/plan_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "fakes/expect_error.hpp"
#include "fakes/fake_backend.hpp"
#include "fakes/meeting.hpp"

namespace batten::testing {
namespace {

using impl::Plan;
using impl::PlanCache;
using impl::PlanKey;

class NamedPlan final : public Plan {
 public:
  explicit NamedPlan(std::string name) { info_.kernel = std::move(name); }
  void run(const impl::Shape&, const impl::Call&, void*) const override {}
};

std::function<std::shared_ptr<const Plan>()> builds(std::string name) {
  return [name] { return std::make_shared<NamedPlan>(name); };
}

std::shared_ptr<const Plan> never() {
  ADD_FAILURE() << "was built";
  return std::make_shared<NamedPlan>("never");
}

PlanKey key_of(std::int64_t length) {
  PlanKey key;
  key.shape.max_q = length;
  return key;
}

// ---- keys
// -------------------------------------------------------------------------------------------

struct KeyChange {
  const char* name;
  std::function<void(PlanKey&)> change;
};

// One change for every member. The bindings stop compiling when a member is added: add a line then.
std::vector<KeyChange> all_changes() {
  const impl::Problem problem;
  [[maybe_unused]] const auto& [p1, p2, p3, p4, p5, p6, p7, p8] = problem;
  const impl::Shape shape;
  [[maybe_unused]] const auto& [s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15,
                                s16, s17, s18] = shape;
  const impl::BackendOptions options;
  [[maybe_unused]] const auto& [o1, o2] = options;
  const PlanKey key;
  [[maybe_unused]] const auto& [k1, k2, k3, k4, k5, k6] = key;
  static const FakeBackend another("another");

  std::vector<KeyChange> all{
      {"backend", [](PlanKey& k) { k.backend = &another; }},
      {"device index", [](PlanKey& k) { k.device.index = 1; }},
      {"device type", [](PlanKey& k) { k.device.type = DeviceType::cuda; }},
      {"form", [](PlanKey& k) { k.options.form = "packed"; }},
      {"settings", [](PlanKey& k) { k.settings = "sm80"; }},
      {"num_threads", [](PlanKey& k) { k.options.num_threads = 3; }},
      {"dtype", [](PlanKey& k) { k.problem.dtype = DType::f16; }},
      {"out_dtype", [](PlanKey& k) { k.problem.out_dtype = DType::f32; }},
      {"num_heads", [](PlanKey& k) { k.problem.num_heads = 3; }},
      {"num_kv_heads", [](PlanKey& k) { k.problem.num_kv_heads = 3; }},
      {"head_dim", [](PlanKey& k) { k.problem.head_dim = 3; }},
      {"head_dim_v", [](PlanKey& k) { k.problem.head_dim_v = 3; }},
      {"mask", [](PlanKey& k) { k.problem.mask = Mask::causal; }},
      {"batch_invariant", [](PlanKey& k) { k.problem.batch_invariant = true; }},
      {"batch", [](PlanKey& k) { k.shape.batch = 3; }},
      {"max_q", [](PlanKey& k) { k.shape.max_q = 3; }},
      {"max_kv", [](PlanKey& k) { k.shape.max_kv = 3; }},
      {"tokens_q", [](PlanKey& k) { k.shape.tokens_q = 3; }},
      {"tokens_kv", [](PlanKey& k) { k.shape.tokens_kv = 3; }},
      {"packed", [](PlanKey& k) { k.shape.packed = true; }},
      {"lse", [](PlanKey& k) { k.shape.lse = true; }},
      {"padding_is_finite", [](PlanKey& k) { k.shape.padding_is_finite = true; }},
      {"scale_is_positive", [](PlanKey& k) { k.shape.scale_is_positive = false; }},
      {"q_lengths", [](PlanKey& k) { k.shape.q_lengths = impl::Source::host; }},
      {"q_lengths on the device", [](PlanKey& k) { k.shape.q_lengths = impl::Source::device; }},
      {"kv_lengths", [](PlanKey& k) { k.shape.kv_lengths = impl::Source::host; }},
      {"offsets_q", [](PlanKey& k) { k.shape.offsets_q = impl::Source::host; }},
      {"offsets_kv", [](PlanKey& k) { k.shape.offsets_kv = impl::Source::device; }},
  };
  const std::pair<const char*, impl::Layout impl::Shape::*> layouts[] = {
      {"q", &impl::Shape::q},
      {"k", &impl::Shape::k},
      {"v", &impl::Shape::v},
      {"out", &impl::Shape::out},
      {"lse_layout", &impl::Shape::lse_layout}};
  for (const auto& [name, layout] : layouts) {
    all.push_back({name, [layout](PlanKey& k) { (k.shape.*layout).batch = 3; }});
    all.push_back({name, [layout](PlanKey& k) { (k.shape.*layout).row = 3; }});
    all.push_back({name, [layout](PlanKey& k) { (k.shape.*layout).head = 3; }});
  }
  return all;
}

TEST(PlanKey, ChangesWithEveryMember) {
  PlanCache cache;
  (void)cache.get(PlanKey{}, builds("base"));
  std::size_t size = 1;
  for (const KeyChange& change : all_changes()) {
    PlanKey key;
    change.change(key);
    EXPECT_FALSE(key == PlanKey{}) << change.name;
    EXPECT_FALSE(cache.get(key, builds(change.name)).reused) << change.name;
    EXPECT_EQ(cache.size(), ++size) << change.name;
  }
  for (const KeyChange& change : all_changes()) {
    PlanKey key;
    change.change(key);
    (void)cache.get(key, never);
  }
  EXPECT_EQ(cache.get(PlanKey{}, never).plan->info().kernel, "base");
}

TEST(PlanKey, HashesWellEnough) {
  // Equal keys must hash alike; most different ones should not.
  const impl::PlanKeyHash hash;
  std::vector<std::size_t> hashes{hash(PlanKey{})};
  EXPECT_EQ(hash(PlanKey{}), hash(PlanKey{}));
  for (const KeyChange& change : all_changes()) {
    PlanKey key;
    change.change(key);
    hashes.push_back(hash(key));
  }
  for (std::int64_t length = 100; length < 400; ++length) hashes.push_back(hash(key_of(length)));
  std::sort(hashes.begin(), hashes.end());
  const auto distinct = std::unique(hashes.begin(), hashes.end()) - hashes.begin();
  EXPECT_GT(static_cast<std::size_t>(distinct) * 10, hashes.size() * 9);
}

// ---- what is kept
// -------------------------------------------------------------------------------------

TEST(PlanCache, BuildsOnceAndReuses) {
  PlanCache cache;
  const auto first = cache.get(key_of(1), builds("one"));
  const auto second = cache.get(key_of(1), never);
  EXPECT_FALSE(first.reused);
  EXPECT_TRUE(second.reused);
  EXPECT_EQ(first.plan, second.plan);
  EXPECT_EQ(cache.size(), 1u);
}

TEST(PlanCache, ForgetsTheLeastRecentlyUsed) {
  PlanCache cache(3);
  for (const std::int64_t length : {1, 2, 3}) (void)cache.get(key_of(length), builds("x"));
  (void)cache.get(key_of(1), never);        // 2 is the oldest now
  (void)cache.get(key_of(4), builds("x"));  // takes its place
  EXPECT_EQ(cache.size(), 3u);
  for (const std::int64_t length : {1, 3, 4}) (void)cache.get(key_of(length), never);
  EXPECT_FALSE(cache.get(key_of(2), builds("again")).reused);
  EXPECT_FALSE(cache.get(key_of(1), builds("again")).reused) << "the oldest by then";
}

TEST(PlanCache, StaysBounded) {
  PlanCache cache(8);
  for (std::int64_t length = 0; length < 1000; ++length) {
    (void)cache.get(key_of(length), builds("x"));
    ASSERT_LE(cache.size(), 8u);
  }
  EXPECT_EQ(cache.size(), 8u);
  PlanCache one(1);
  (void)one.get(key_of(1), builds("x"));
  (void)one.get(key_of(2), builds("x"));
  EXPECT_EQ(one.size(), 1u);
  EXPECT_TRUE(one.get(key_of(2), never).reused);
}

TEST(PlanCache, AnEvictedPlanLivesWhileItIsHeld) {
  PlanCache cache(1);
  auto held = cache.get(key_of(1), builds("held")).plan;
  const std::weak_ptr<const Plan> watch = held;
  (void)cache.get(key_of(2), builds("other"));
  ASSERT_FALSE(watch.expired());
  EXPECT_EQ(held->info().kernel, "held");
  held.reset();
  EXPECT_TRUE(watch.expired()) << "and no longer";
}

TEST(PlanCache, ClearForgetsEverything) {
  PlanCache cache;
  const std::weak_ptr<const Plan> watch = cache.get(key_of(1), builds("x")).plan;
  cache.clear();
  EXPECT_EQ(cache.size(), 0u);
  EXPECT_TRUE(watch.expired());
  EXPECT_FALSE(cache.get(key_of(1), builds("x")).reused);
}

TEST(PlanCache, AFailureIsNotRemembered) {
  PlanCache cache;
  for (int i = 0; i < 2; ++i) {
    expect_error(ErrorCode::OutOfMemory, {"no room"}, [&] {
      (void)cache.get(key_of(1), []() -> std::shared_ptr<const Plan> {
        throw Error(ErrorCode::OutOfMemory, "no room");
      });
    });
    EXPECT_EQ(cache.size(), 0u);
  }
  EXPECT_FALSE(cache.get(key_of(1), builds("at last")).reused);
  EXPECT_EQ(cache.get(key_of(1), never).plan->info().kernel, "at last");
}

// ---- who builds
// ---------------------------------------------------------------------------------------

void run_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

TEST(PlanCache, OneThreadBuildsAndTheOthersWait) {
  PlanCache cache;
  std::atomic<int> built = 0;
  std::atomic<int> reused = 0;
  Meeting start(8);
  std::vector<std::shared_ptr<const Plan>> plans(8);
  run_threads(8, [&](int i) {
    (void)start.arrive_and_wait();
    const auto found = cache.get(key_of(1), [&] {
      ++built;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return std::make_shared<NamedPlan>("shared");
    });
    reused += found.reused ? 1 : 0;
    plans[static_cast<std::size_t>(i)] = found.plan;
  });
  EXPECT_EQ(built, 1);
  EXPECT_EQ(reused, 7);
  for (const auto& plan : plans) EXPECT_EQ(plan, plans[0]);
}

TEST(PlanCache, AFailureReachesAllWhoWaited) {
  PlanCache cache;
  std::atomic<int> built = 0;
  std::atomic<int> failed = 0;
  Meeting start(8);
  run_threads(8, [&](int) {
    (void)start.arrive_and_wait();
    try {
      (void)cache.get(key_of(1), [&]() -> std::shared_ptr<const Plan> {
        ++built;
        std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the others come meanwhile
        throw Error(ErrorCode::Device, "lost");
      });
    } catch (const Error& error) {
      failed += error.code() == ErrorCode::Device && std::string(error.what()) == "lost" ? 1 : 0;
    }
  });
  EXPECT_EQ(failed, 8);
  EXPECT_LT(built, 8) << "each waiting thread tried again by itself";
  EXPECT_EQ(cache.size(), 0u);
  EXPECT_FALSE(cache.get(key_of(1), builds("later")).reused);
  EXPECT_TRUE(cache.get(key_of(1), never).reused);
}

TEST(PlanCache, ASlowBuildHoldsUpNobodyElse) {
  PlanCache cache;
  Meeting building(1);
  Meeting done(1);
  std::thread slow([&] {
    (void)cache.get(key_of(1), [&] {
      building.arrive();
      EXPECT_TRUE(done.wait()) << "another key waited for this one";
      return std::make_shared<NamedPlan>("slow");
    });
  });
  EXPECT_TRUE(building.wait());
  EXPECT_FALSE(cache.get(key_of(2), builds("quick")).reused);
  EXPECT_TRUE(cache.get(key_of(2), never).reused);
  EXPECT_EQ(cache.size(), 2u);
  done.arrive();
  slow.join();
  EXPECT_EQ(cache.get(key_of(1), never).plan->info().kernel, "slow");
}

TEST(PlanCache, APlanThatIsEvictedWhileItIsBuiltReachesItsCaller) {
  PlanCache cache(1);
  Meeting building(1);
  Meeting evicted(1);
  std::shared_ptr<const Plan> plan;
  std::thread slow([&] {
    plan = cache
               .get(key_of(1),
                    [&] {
                      building.arrive();
                      EXPECT_TRUE(evicted.wait());
                      return std::make_shared<NamedPlan>("late");
                    })
               .plan;
  });
  EXPECT_TRUE(building.wait());
  (void)cache.get(key_of(2), builds("newer"));
  evicted.arrive();
  slow.join();
  EXPECT_EQ(plan->info().kernel, "late");
  EXPECT_EQ(cache.size(), 1u);
  EXPECT_TRUE(cache.get(key_of(2), never).reused);
}

TEST(PlanCache, AFailureAfterEvictionLeavesTheSuccessorAlone) {
  PlanCache cache(1);
  Meeting building(1);
  Meeting replaced(1);
  std::thread failing([&] {
    EXPECT_THROW((void)cache.get(key_of(1),
                                 [&]() -> std::shared_ptr<const Plan> {
                                   building.arrive();
                                   EXPECT_TRUE(replaced.wait());
                                   throw Error(ErrorCode::Device, "lost");
                                 }),
                 Error);
  });
  EXPECT_TRUE(building.wait());
  (void)cache.get(key_of(2), builds("x"));          // evicts the one that is being built
  (void)cache.get(key_of(1), builds("successor"));  // a new entry of the same key
  replaced.arrive();
  failing.join();
  EXPECT_EQ(cache.get(key_of(1), never).plan->info().kernel, "successor");
}

TEST(PlanCache, ManyThreadsAndFewPlacesAgree) {
  PlanCache cache(4);
  run_threads(8, [&](int thread) {
    for (int i = 0; i < 300; ++i) {
      const std::int64_t length = (i * 7 + thread * 3) % 11;
      const auto found = cache.get(key_of(length), builds(std::to_string(length)));
      ASSERT_EQ(found.plan->info().kernel, std::to_string(length));
    }
  });
  EXPECT_LE(cache.size(), 4u);
}

}  // namespace
}  // namespace batten::testing
