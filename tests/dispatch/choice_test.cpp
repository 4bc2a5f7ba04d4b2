// Who asks for a backend, and in which order they are heard.
#include "dispatch/choice.hpp"

#include <gtest/gtest.h>

#include "fakes/environment.hpp"
#include "fakes/expect_error.hpp"
#include "fakes/fake_backend.hpp"

namespace batten::testing {
namespace {

using impl::resolve_choice;

class ChoiceTest : public ::testing::Test {
 protected:
  ChoiceTest() { cudnn.answers().forms = {"dense", "packed"}; }

  CleanEnvironment environment_;
  FakeBackends backends_;
  FakeBackend& native = backends_.add("native");
  FakeBackend& cudnn = backends_.add("cudnn");
  FakeBackend& single = backends_.add("single");
  FakeBackend& cpu = backends_.add("cpu");
  FakeBackend& reference = backends_.add("reference", /*automatic=*/false);
};

TEST_F(ChoiceTest, IsAutoWhereNobodyAsks) {
  for (const char* option : {static_cast<const char*>(nullptr), ""}) {
    const impl::Choice choice = resolve_choice(option);
    EXPECT_EQ(choice.backend, nullptr);
    EXPECT_EQ(choice.form, "");
    EXPECT_EQ(choice.source, "default");
  }
}

TEST_F(ChoiceTest, AnOptionNamesAnyBackend) {
  for (FakeBackend* backend : {&native, &cudnn, &single, &cpu, &reference}) {
    const impl::Choice choice = resolve_choice(std::string(backend->name()).c_str());
    EXPECT_EQ(choice.backend, backend);
    EXPECT_EQ(choice.source, "option");
  }
}

TEST_F(ChoiceTest, TheOwnVariableNamesAnyBackend) {
  const ScopedVariable own("BATTEN_BACKEND", "reference");
  const impl::Choice choice = resolve_choice(nullptr);
  EXPECT_EQ(choice.backend, &reference);
  EXPECT_EQ(choice.source, "BATTEN_BACKEND=reference");
}

TEST_F(ChoiceTest, AnEmptyVariableIsUnset) {
  const ScopedVariable own("BATTEN_BACKEND", "");
  const ScopedVariable host("FASTVIDEO_ATTENTION_BACKEND", "FLASHINFER");
  const ScopedVariable prefill("FASTVIDEO_FLASHINFER_PREFILL_BACKEND", "");
  EXPECT_EQ(resolve_choice(nullptr).backend, &single);
}

TEST_F(ChoiceTest, FastVideosPairDefaultsToSingle) {
  const ScopedVariable host("FASTVIDEO_ATTENTION_BACKEND", "FLASHINFER");
  const impl::Choice choice = resolve_choice(nullptr);
  EXPECT_EQ(choice.backend, &single);
  EXPECT_EQ(choice.source, "FASTVIDEO_ATTENTION_BACKEND=FLASHINFER");
}

TEST_F(ChoiceTest, FastVideosPairNamesTheImplementation) {
  const ScopedVariable host("FASTVIDEO_ATTENTION_BACKEND", "FLASHINFER");
  const std::pair<const char*, const impl::Backend*> all[] = {
      {"single", &single}, {"cudnn", &cudnn}, {"native", &native}, {"auto", nullptr}};
  for (const auto& [name, backend] : all) {
    const ScopedVariable prefill("FASTVIDEO_FLASHINFER_PREFILL_BACKEND", name);
    const impl::Choice choice = resolve_choice(nullptr);
    EXPECT_EQ(choice.backend, backend) << name;
    EXPECT_EQ(choice.source, std::string("FASTVIDEO_FLASHINFER_PREFILL_BACKEND=") + name);
  }
}

TEST_F(ChoiceTest, FastVideosSecondVariableNeedsTheFirst) {
  const ScopedVariable prefill("FASTVIDEO_FLASHINFER_PREFILL_BACKEND", "cudnn");
  EXPECT_EQ(resolve_choice(nullptr).source, "default");
  // Values that FastVideo gives to its other backends are none of ours.
  for (const char* other : {"FLASH_ATTN", "TORCH_SDPA", "flashinfer", ""}) {
    const ScopedVariable host("FASTVIDEO_ATTENTION_BACKEND", other);
    EXPECT_EQ(resolve_choice(nullptr).source, "default") << other;
  }
}

TEST_F(ChoiceTest, FastVideosPairKnowsFourNamesOnly) {
  const ScopedVariable host("FASTVIDEO_ATTENTION_BACKEND", "FLASHINFER");
  for (const char* name : {"cpu", "reference", "fa3", "cudnn:packed", "SINGLE", "single "}) {
    const ScopedVariable prefill("FASTVIDEO_FLASHINFER_PREFILL_BACKEND", name);
    expect_error(ErrorCode::InvalidArgument,
                 {"FASTVIDEO_FLASHINFER_PREFILL_BACKEND", "'" + std::string(name) + "'",
                  "expected one of single, cudnn, native, auto"},
                 [] { (void)resolve_choice(nullptr); });
  }
}

TEST_F(ChoiceTest, TheOptionIsHeardBeforeTheEnvironment) {
  const ScopedVariable own("BATTEN_BACKEND", "cudnn");
  const ScopedVariable host("FASTVIDEO_ATTENTION_BACKEND", "FLASHINFER");
  EXPECT_EQ(resolve_choice("cpu").backend, &cpu);
  EXPECT_EQ(resolve_choice("auto").backend, nullptr);
  EXPECT_EQ(resolve_choice("auto").source, "option");
}

TEST_F(ChoiceTest, TheOwnVariableIsHeardBeforeFastVideos) {
  const ScopedVariable host("FASTVIDEO_ATTENTION_BACKEND", "FLASHINFER");
  const ScopedVariable prefill("FASTVIDEO_FLASHINFER_PREFILL_BACKEND", "native");
  {
    const ScopedVariable own("BATTEN_BACKEND", "cpu");
    EXPECT_EQ(resolve_choice(nullptr).backend, &cpu);
  }
  {
    const ScopedVariable own("BATTEN_BACKEND", "auto");
    EXPECT_EQ(resolve_choice(nullptr).backend, nullptr);
    EXPECT_EQ(resolve_choice(nullptr).source, "BATTEN_BACKEND=auto");
  }
  EXPECT_EQ(resolve_choice(nullptr).backend, &native);
}

TEST_F(ChoiceTest, WhoIsNotHeardIsNotJudged) {
  const ScopedVariable host("FASTVIDEO_ATTENTION_BACKEND", "FLASHINFER");
  const ScopedVariable prefill("FASTVIDEO_FLASHINFER_PREFILL_BACKEND", "nonsense");
  const ScopedVariable own("BATTEN_BACKEND", "rubbish");
  EXPECT_EQ(resolve_choice("cpu").backend, &cpu);
  const ScopedVariable better("BATTEN_BACKEND", "cudnn");
  EXPECT_EQ(resolve_choice(nullptr).backend, &cudnn);
}

TEST_F(ChoiceTest, AnUnknownNameIsRefusedWithTheLegalOnes) {
  for (const char* name : {"flash", "CPU", " cpu", "cpu ", "cp", "cpux", "auto:dense", ":packed"}) {
    const std::string quoted = "'" + std::string(name) + "'";
    expect_error(ErrorCode::InvalidArgument,
                 {"option", quoted, "expected one of auto, native, cudnn, single, cpu, reference"},
                 [&] { (void)resolve_choice(name); });
    const ScopedVariable own("BATTEN_BACKEND", name);
    expect_error(ErrorCode::InvalidArgument,
                 {"BATTEN_BACKEND", quoted, "auto, native, cudnn, single, cpu, reference"},
                 [] { (void)resolve_choice(nullptr); });
  }
}

TEST_F(ChoiceTest, AFormIsForcedAfterAColon) {
  const impl::Choice packed = resolve_choice("cudnn:packed");
  EXPECT_EQ(packed.backend, &cudnn);
  EXPECT_EQ(packed.form, "packed");
  EXPECT_EQ(resolve_choice("cudnn:dense").form, "dense");
  EXPECT_EQ(resolve_choice("cudnn").form, "");
  const ScopedVariable own("BATTEN_BACKEND", "cudnn:packed");
  EXPECT_EQ(resolve_choice(nullptr).form, "packed");
  EXPECT_EQ(resolve_choice(nullptr).source, "BATTEN_BACKEND=cudnn:packed");
}

TEST_F(ChoiceTest, AnUnknownFormIsRefusedWithTheLegalOnes) {
  for (const char* name : {"cudnn:", "cudnn:Packed", "cudnn:packed:dense", "cudnn:pack"}) {
    expect_error(ErrorCode::InvalidArgument, {"option", "'cudnn'", "no form", "dense, packed"},
                 [&] { (void)resolve_choice(name); });
  }
  expect_error(ErrorCode::InvalidArgument, {"'cpu' has no form 'dense'", "expected none"},
               [] { (void)resolve_choice("cpu:dense"); });
}

}  // namespace
}  // namespace batten::testing
