// `batten explain`: what `auto` would take for a call, what each backend is predicted to take, and
// why.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <batten/batten.hpp>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "support/console.hpp"
#include "support/environment.hpp"
#include "support/exit_code.hpp"
#include "support/options.hpp"
#include "support/shape_option.hpp"
#include "support/table.hpp"
#include "verbs.hpp"

namespace batten::tools {
namespace {

struct ExplainOptions {
  std::vector<std::string> shapes;
  std::string dtype = "bfloat16";
  std::string mask;
  bool causal = false;
  bool packed = false;
  std::vector<std::int32_t> q_lengths;
  std::vector<std::int32_t> kv_lengths;
  bool lengths_on_device = false;
  bool padding_is_finite = false;
  std::string backend;
  std::string device;
  std::string gpu;
  bool json = false;
};

Problem problem_of(const ExplainOptions& o, const NamedShape& shape) {
  return {.dtype = parse_dtype(o.dtype),
          .num_heads = shape.num_heads,
          .num_kv_heads = shape.num_kv_heads,
          .head_dim = shape.head_dim,
          .mask = parse_mask(o.mask, o.causal)};
}

// Lengths of a sample each; all full where none are given.
std::vector<std::int32_t> lengths_of(const std::string& option,
                                     const std::vector<std::int32_t>& given,
                                     const NamedShape& shape, std::int64_t full) {
  if (given.empty()) {
    return std::vector<std::int32_t>(static_cast<std::size_t>(shape.batch),
                                     static_cast<std::int32_t>(full));
  }
  if (static_cast<std::int64_t>(given.size()) != shape.batch) {
    throw UsageError(
        fmt::format("{}: {} lengths for {} samples", option, given.size(), shape.batch));
  }
  return given;
}

std::vector<std::int32_t> offsets_of(const std::vector<std::int32_t>& lengths) {
  std::vector<std::int32_t> offsets(lengths.size() + 1);
  std::inclusive_scan(lengths.begin(), lengths.end(), offsets.begin() + 1);
  return offsets;
}

class Explainer {
 public:
  Explainer(const ExplainOptions& options, Device device) : o_(options), device_(device) {}

  // The library's answer. Tensors have a form and no memory.
  std::string operator()(const NamedShape& shape) const {
    return o_.packed ? packed(shape) : dense(shape);
  }

 private:
  TensorView tensor(const Problem& p, std::initializer_list<std::int64_t> shape) const {
    return {nullptr, p.dtype, shape, device_};
  }

  // On the device their values are not known, here or there.
  TensorView array(const std::vector<std::int32_t>& values) const {
    if (!o_.lengths_on_device) return values;
    return {nullptr, DType::i32, {static_cast<std::int64_t>(values.size())}, device_};
  }

  std::string dense(const NamedShape& s) const {
    const Problem p = problem_of(o_, s);
    const auto q_lengths = lengths_of("--q-lengths", o_.q_lengths, s, s.queries);
    const auto kv_lengths = lengths_of("--kv-lengths", o_.kv_lengths, s, s.keys);
    CallOptions call{.padding_is_finite = o_.padding_is_finite};
    if (!o_.q_lengths.empty()) call.q_lengths = array(q_lengths);
    if (!o_.kv_lengths.empty() || o_.lengths_on_device) call.kv_lengths = array(kv_lengths);
    const TensorView q = tensor(p, {s.batch, s.queries, s.num_heads, s.head_dim});
    const TensorView kv = tensor(p, {s.batch, s.keys, s.num_kv_heads, s.head_dim});
    return explain(p, device_, q, kv, kv, q, call, {.backend = o_.backend}, o_.gpu);
  }

  std::string packed(const NamedShape& s) const {
    const Problem p = problem_of(o_, s);
    const auto offsets_q = offsets_of(lengths_of("--q-lengths", o_.q_lengths, s, s.queries));
    const auto offsets_kv = offsets_of(lengths_of("--kv-lengths", o_.kv_lengths, s, s.keys));
    const TensorView q = tensor(p, {offsets_q.back(), s.num_heads, s.head_dim});
    const TensorView kv = tensor(p, {offsets_kv.back(), s.num_kv_heads, s.head_dim});
    return explain_packed(p, device_, q, kv, kv, q,
                          {.offsets_q = array(offsets_q),
                           .offsets_kv = array(offsets_kv),
                           .max_q = s.queries,
                           .max_kv = s.keys,
                           .padding_is_finite = o_.padding_is_finite},
                          {.backend = o_.backend}, o_.gpu);
  }

  const ExplainOptions& o_;
  Device device_;
};

std::string us_text(double us) {
  return us < 9.95 ? fmt::format("{:.1f}", us) : fmt::format("{:.0f}", us);
}

// "launches 1.5 + tiles 1 x 1.4 + key blocks 32 x 1.33", or what decides instead. They add up to
// the prediction. ", joined" behind them: as if that form had been named.
std::string terms_text(const Json& candidate) {
  if (candidate.value("measured", false)) return "this very call was measured";
  const std::string bound = candidate.value("bound", "");
  std::string text;
  for (const Json& term : candidate.value("terms", Json::array())) {
    const std::string name = term.value("name", "");
    const bool of_parts = name == "parts" || name == "merges";
    if (bound != "tiles" && name != "launches" && !(bound == "memory" && of_parts)) continue;
    text += fmt::format("{}{} {:.4g} x {:.3g}", text.empty() ? "" : " + ", name,
                        term.value("count", 0.0), term.value("unit_us", 0.0));
  }
  if (bound == "power")
    text += fmt::format(" + power limit {}", us_text(candidate.value("power_us", 0.0)));
  if (bound == "memory")
    text += fmt::format(" + memory {}", us_text(candidate.value("memory_us", 0.0)));
  if (const std::string form = candidate.value("form", ""); !form.empty()) text += ", " + form;
  return text;
}

std::string why_text(const Json& candidate, double best_us) {
  if (candidate.value("taken", false)) return "taken";
  std::string why = candidate.value("why", "");
  if (!why.empty()) return why;
  const double us = candidate.value("predicted_us", 0.0);
  if (us == 0) return "no prediction: only after those with one";
  return best_us > 0 ? fmt::format("{:.2f}x as long", us / best_us) : "";
}

// ", causal"
std::string mask_text(const ExplainOptions& o) {
  if (o.causal) return ", causal";
  return o.mask.empty() || o.mask == "none" ? "" : ", " + o.mask;
}

std::string page(const NamedShape& shape, const ExplainOptions& o, const Json& answer) {
  const Json& card = answer["card"];
  std::string text = fmt::format(
      "{}, {}{}{} on {}\n", shape.str(), o.dtype, mask_text(o), o.packed ? ", packed" : "",
      card.is_null() ? answer.value("device", "")
                     : fmt::format("{}, {} multiprocessors", card.value("name", ""),
                                   card.value("multiprocessors", 0)));
  double taken_us = 0;
  for (const Json& c : answer["candidates"]) {
    if (c.value("taken", false)) taken_us = c.value("predicted_us", 0.0);
  }
  Table table(
      {{"backend"}, {"us", Align::right}, {"constants"}, {"of which"}, {"taken, or why not"}});
  for (const Json& c : answer["candidates"]) {
    const bool predicted = c.contains("predicted_us");
    const bool taken = c.value("taken", false);
    table.add({{c.value("backend", ""), taken ? Color::green : Color::none},
               predicted ? us_text(c.value("predicted_us", 0.0)) : "",
               predicted ? c.value("constants", "") : "",
               predicted ? terms_text(c) : "",
               one_line(why_text(c, taken_us))});
  }
  return text + table.str() + answer.value("reason", "") + "\n";
}

// Without a GPU here and without --gpu the question is of the CPU.
Device device_of(const ExplainOptions& o) {
  if (!o.gpu.empty()) {
    if (!o.device.empty())
      throw UsageError("--gpu: a card that need not be here; leave --device away");
    return Device::cuda(0);
  }
  return choose_device(o.device, o.backend, parse_dtype(o.dtype), library_info());
}

int run_explain(const ExplainOptions& o) {
  static_cast<void>(parse_mask(o.mask, o.causal));
  if (!o.backend.empty()) check_backend_name("--backend", o.backend, library_info());
  std::vector<NamedShape> shapes;
  for (const std::string& text : o.shapes) shapes.push_back(parse_shape("--shape", text));
  const Explainer explainer(o, device_of(o));
  Json all = Json::array();
  bool served = true;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    Json answer = Json::parse(explainer(shapes[i]));
    served = served && !answer["chosen"].is_null();
    if (!o.json) fmt::print("{}{}", i == 0 ? "" : "\n", page(shapes[i], o, answer));
    Json entry{{"shape", o.shapes[i]}};
    entry.update(answer);
    all.push_back(std::move(entry));
  }
  if (o.json) fmt::print("{}\n", all.dump(2));
  return served ? kExitOk : kExitUnavailable;
}

}  // namespace

Verb add_explain(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand(
      "explain", "Say what `auto` takes for a call, each backend's predicted time, and why");
  auto o = std::make_shared<ExplainOptions>();
  app->add_option("--shape", o->shapes, "Batch, query and key/value length, heads; one or more")
      ->required()
      ->expected(1, -1)
      ->type_name("B,Sq,Skv,H[,Hkv[,D]]...");
  app->add_option("--dtype", o->dtype, "float16, bfloat16, or float32 (cpu)")
      ->capture_default_str()
      ->type_name("TYPE");
  app->add_option("--mask", o->mask, "none, causal (bottom-right) or causal-top-left [none]")
      ->type_name("MASK");
  app->add_flag("--causal", o->causal, "The same as --mask causal");
  app->add_option("--q-lengths", o->q_lengths, "Queries of each sample, on the host")
      ->expected(1, -1)
      ->type_name("N...");
  app->add_option("--kv-lengths", o->kv_lengths, "Keys of each sample, on the host")
      ->expected(1, -1)
      ->type_name("N...");
  app->add_flag("--lengths-on-device", o->lengths_on_device,
                "Lengths or offsets are given, but lie on the device");
  app->add_flag("--packed", o->packed, "A packed call; without lengths all samples are full");
  app->add_flag("--padding-is-finite", o->padding_is_finite,
                "The caller promises no Inf or NaN outside samples");
  app->add_option("--backend", o->backend, "The backend or form (cudnn:packed) to ask for [auto]")
      ->type_name("NAME");
  app->add_option("--device", o->device, kDeviceHelp)->type_name("DEVICE");
  app->add_option("--gpu", o->gpu,
                  "A card that need not be here, by the constants that come with batten: h200")
      ->type_name("NAME");
  app->add_flag("--json", o->json, "Print JSON");
  app->footer(R"(
Examples:
  batten explain --shape 4,128,4096,12,4
  batten explain --gpu h200 --shape 1,32760,32760,12 1,32760,512,12
  batten explain --gpu h200 --shape 4,2048,2048,16 --causal --json)");
  return {app, [o](const Console&) { return run_explain(*o); }};
}

}  // namespace batten::tools
