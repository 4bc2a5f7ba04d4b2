#include "dispatch/choice.hpp"

#include <algorithm>
#include <string_view>

#include "core/env.hpp"
#include "core/error.hpp"
#include "dispatch/registry.hpp"

namespace batten::impl {
namespace {

constexpr const char* kOwnVariable = "BATTEN_BACKEND";
constexpr const char* kHostVariable = "FASTVIDEO_ATTENTION_BACKEND";
constexpr const char* kHostPrefill = "FASTVIDEO_FLASHINFER_PREFILL_BACKEND";

Choice parse(const std::string& text, const std::string& source) {
  const auto colon = text.find(':');
  const std::string name = text.substr(0, colon);
  Choice choice{.backend = nullptr, .form = {}, .source = source};
  if (text == "auto") return choice;
  choice.backend = Registry::instance().find(name);
  if (choice.backend == nullptr) {
    fail(ErrorCode::InvalidArgument, "{}: unknown backend '{}', expected one of {}", source, text,
         Registry::instance().legal_names());
  }
  if (colon == std::string::npos) return choice;
  choice.form = text.substr(colon + 1);
  const auto forms = choice.backend->forms();
  if (std::find(forms.begin(), forms.end(), choice.form) == forms.end()) {
    fail(ErrorCode::InvalidArgument, "{}: backend '{}' has no form '{}', expected {}", source, name,
         choice.form,
         forms.empty() ? std::string("none") : fmt::format("{}", fmt::join(forms, ", ")));
  }
  return choice;
}

// FASTVIDEO_ATTENTION_BACKEND=FLASHINFER selects the published backend; the second variable its
// implementation, `single` unless it is set.
Choice parse_host(const std::string& prefill, const std::string& source) {
  constexpr std::string_view kLegal[] = {"single", "cudnn", "native", "auto"};
  if (std::find(std::begin(kLegal), std::end(kLegal), prefill) == std::end(kLegal)) {
    fail(ErrorCode::InvalidArgument, "{}: unknown backend '{}', expected one of {}", kHostPrefill,
         prefill, fmt::join(kLegal, ", "));
  }
  return parse(prefill, source);
}

}  // namespace

Choice resolve_choice(const char* option) {
  if (option != nullptr && *option != '\0') return parse(option, "option");
  if (const auto own = environment(kOwnVariable))
    return parse(*own, fmt::format("{}={}", kOwnVariable, *own));
  if (environment(kHostVariable) == "FLASHINFER") {
    const auto prefill = environment(kHostPrefill);
    return parse_host(prefill.value_or("single"),
                      prefill ? fmt::format("{}={}", kHostPrefill, *prefill)
                              : fmt::format("{}=FLASHINFER", kHostVariable));
  }
  return {.backend = nullptr, .form = {}, .source = "default"};
}

}  // namespace batten::impl
