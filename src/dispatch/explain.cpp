#include "dispatch/explain.hpp"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "cost/lookup.hpp"
#include "dispatch/choice.hpp"
#include "dispatch/ranking.hpp"
#include "dispatch/registry.hpp"
#include "problem/validate.hpp"

namespace batten::impl {
namespace {

using Json = nlohmann::ordered_json;

// All that the answers depend on.
struct Question {
  Problem problem;
  Shape shape;
  Device device;
  Choice choice;
  int num_threads = 0;
  bool elsewhere = false;                  // the card need not be here
  std::shared_ptr<const cost::Card> card;  // null: the CPU

  BackendOptions options_of(const Backend& backend) const {
    return {.form = &backend == choice.backend ? choice.form : std::string(),
            .num_threads = num_threads};
  }
};

struct Candidate {
  Ranked ranked;
  bool automatic = false;
  std::optional<std::string> why_not;
};

std::optional<std::string> why_not(const Question& q, const Backend& backend) {
  const BackendOptions options = q.options_of(backend);
  if (q.elsewhere) return backend.why_not_on(*q.card, q.problem, q.shape, options);
  if (const Availability a = backend.availability(q.device); !a.available) {
    return a.remedy.empty() ? a.reason : fmt::format("{}; {}", a.reason, a.remedy);
  }
  if (auto reason = backend.why_not(q.problem, q.device)) return reason;
  return backend.why_not(q.problem, q.shape, q.device, options);
}

Json rounded(double us) { return std::stod(fmt::format("{:.5g}", us)); }

Json card_json(const cost::Card& card) {
  const cost::CardProperties& p = card.properties();
  const auto file = cost::card_path(p);  // where `batten tune` keeps what it measures
  return {{"name", p.name},
          {"arch", p.arch},
          {"multiprocessors", p.multiprocessors},
          {"clock_mhz", p.clock_mhz},
          {"memory_gbps", p.memory_gbps},
          {"file", file ? Json(file->string()) : Json()}};
}

Json prediction_json(const cost::Prediction& p) {
  Json terms = Json::array();
  for (const cost::Term& term : p.terms) {
    if (term.count == 0) continue;
    terms.push_back({{"name", term.name},
                     {"count", term.count},
                     {"unit_us", rounded(term.unit_us)},
                     {"us", rounded(term.us())}});
  }
  return {{"kernel", p.kernel_text()},         {"form", p.form},
          {"constants", name_of(p.origin)},    {"measured", p.exact},
          {"terms", std::move(terms)},         {"power_us", rounded(p.power_us)},
          {"memory_us", rounded(p.memory_us)}, {"bound", p.bound}};
}

Json candidate_json(const Candidate& c, std::string_view chosen) {
  Json j{{"backend", c.ranked.backend->name()}, {"serves", !c.why_not}};
  const bool taken = c.ranked.backend->name() == chosen;
  j["taken"] = taken;
  if (c.why_not) {
    j["why"] = one_line(*c.why_not);
  } else if (!taken && !c.automatic) {
    j["why"] = "only when named";
  }
  if (!c.ranked.prediction) return j;
  j["predicted_us"] = rounded(c.ranked.prediction->us);
  j.update(prediction_json(*c.ranked.prediction));
  return j;
}

Question question_of(const batten_problem& raw, Device device, const batten_options& options,
                     const batten_call& call, const char* card) {
  Question q;
  q.elsewhere = card != nullptr && *card != '\0';
  if (q.elsewhere && device.is_cpu())
    fail(ErrorCode::InvalidArgument, "card '{}': a card is no CPU, ask for a cuda device", card);
  const ValidatedProblem problem = validate_problem(raw);
  q.problem = problem.problem;
  q.device = device;
  q.choice = resolve_choice(options.backend);
  q.num_threads = options.num_threads;
  if (q.elsewhere) {
    q.card = std::make_shared<const cost::Card>(cost::named_card(card));
  } else {
    check_device_exists(device);
    if (!device.is_cpu()) q.card = cost::card_of(device_runtime().properties(device.index));
  }
  q.shape = validate_call(problem, device, call, Pointers::ignored).shape;
  return q;
}

}  // namespace

std::string explain_json(const batten_problem& problem, Device device,
                         const batten_options& options, const batten_call& call, const char* card) {
  const Question q = question_of(problem, device, options, call, card);
  std::vector<Candidate> candidates;
  std::vector<Ranked> serving;  // those that `auto` may take
  for (const Registration& entry : Registry::instance().all()) {
    const Backend& backend = *entry.backend;
    Candidate c{{&backend, std::nullopt}, entry.automatic, why_not(q, backend)};
    if (!c.why_not && q.card != nullptr)
      c.ranked.prediction = predicted(backend, *q.card, q.problem, q.shape, q.options_of(backend));
    if (!c.why_not && entry.automatic) serving.push_back(c.ranked);
    candidates.push_back(std::move(c));
  }
  sort_by_time(serving);

  std::string chosen;
  std::string reason;
  if (q.choice.backend != nullptr) {
    chosen = q.choice.backend->name();
    reason = fmt::format("asked for by {}", q.choice.source);
  } else if (!serving.empty()) {
    chosen = serving.front().backend->name();
    reason =
        fmt::format("auto ({}): {}", q.choice.source, why_first(std::span(std::as_const(serving))));
  } else {
    reason = "no backend serves this call";
  }
  for (const Candidate& c : candidates) {
    if (c.ranked.backend != q.choice.backend || !c.why_not) continue;
    chosen.clear();
    reason += fmt::format(", which does not serve this call: {}", *c.why_not);
  }

  Json j;
  j["device"] = q.device.str();
  j["card"] = q.card != nullptr ? card_json(*q.card) : Json();
  if (q.elsewhere) j["elsewhere"] = true;
  j["flops"] = cost::flops_of(q.problem, q.shape);
  j["bytes"] = cost::bytes_of(q.problem, q.shape);
  j["chosen"] = chosen.empty() ? Json() : Json(chosen);
  j["reason"] = reason;
  j["candidates"] = Json::array();
  for (const Candidate& c : candidates) j["candidates"].push_back(candidate_json(c, chosen));
  return j.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace batten::impl
