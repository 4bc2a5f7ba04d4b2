#include "cost/document.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.hpp"

namespace batten::impl::cost {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "batten card";
// Far above anything real; a document beyond them was made by accident.
constexpr double kLargestNumber = 1e9;
constexpr std::size_t kMostEntries = 100'000;

[[noreturn]] void wrong(const std::string& where, const std::string& what) {
  fail(ErrorCode::InvalidArgument, "{}: {}", where, what);
}

// A member of an object, with the path to it for messages.
class Member {
 public:
  Member(const Json& object, std::string where, const char* name)
      : where_(where.empty() ? name : fmt::format("{}.{}", where, name)) {
    if (!object.is_object()) wrong(where, "expected an object");
    const auto found = object.find(name);
    if (found != object.end()) value_ = &*found;
  }

  bool given() const noexcept { return value_ != nullptr; }
  const std::string& where() const noexcept { return where_; }
  const Json& value() const {
    if (value_ == nullptr) wrong(where_, "is missing");
    return *value_;
  }
  std::string text() const {
    if (!value().is_string() || value().get_ref<const std::string&>().empty())
      wrong(where_, "expected a text");
    return one_line(value().get<std::string>());
  }
  bool flag() const {
    if (!value().is_boolean()) wrong(where_, "expected true or false");
    return value().get<bool>();
  }
  double number() const {
    if (!value().is_number()) wrong(where_, "expected a number");
    const auto n = value().get<double>();
    if (!(n >= 0 && n <= kLargestNumber)) {
      wrong(where_, fmt::format("{} is not between 0 and {}", n, kLargestNumber));
    }
    return n;
  }
  std::int64_t whole(std::int64_t least = 1,
                     std::int64_t most = std::numeric_limits<std::int32_t>::max()) const {
    const Json& v = value();
    if (!v.is_number_integer()) wrong(where_, "expected a whole number");
    const bool huge = v.is_number_unsigned() && v.get<std::uint64_t>() > std::uint64_t{1} << 62;
    const auto n = huge ? std::numeric_limits<std::int64_t>::max() : v.get<std::int64_t>();
    if (n < least || n > most)
      wrong(where_, fmt::format("{} is not between {} and {}", v.dump(), least, most));
    return n;
  }
  const Json& array() const {
    if (!value().is_array()) wrong(where_, "expected an array");
    if (value().size() > kMostEntries)
      wrong(where_, fmt::format("{} entries are too many", value().size()));
    return value();
  }

 private:
  std::string where_;
  const Json* value_ = nullptr;
};

template <class T>
T one_of(const Member& member, std::initializer_list<T> choices) {
  const std::string text = member.text();
  for (const T choice : choices) {
    if (text == name_of(choice)) return choice;
  }
  wrong(member.where(), fmt::format("'{}' is not known", text));
}

CardProperties parse_card(const Json& json) {
  CardProperties card;
  card.name = Member(json, "card", "name").text();
  card.arch = static_cast<int>(Member(json, "card", "arch").whole(10, 10'000));
  card.multiprocessors =
      static_cast<int>(Member(json, "card", "multiprocessors").whole(1, 100'000));
  card.clock_mhz = Member(json, "card", "clock_mhz").number();
  card.memory_gbps = Member(json, "card", "memory_gbps").number();
  return card;
}

Constants parse_constants(const Json& json, const std::string& where) {
  Constants c;
  c.kernel = Member(json, where, "kernel").text();
  c.head_dim = static_cast<int>(Member(json, where, "head_dim").whole(1, 4096));
  c.causal = Member(json, where, "causal").flag();
  for (const auto& [name, member] : kConstantMembers) {
    const Member given(json, where, name);
    if (given.given()) c.*member = given.number();
  }
  if (c.launch_us + c.tile_us + c.block_us <= 0) wrong(where, "all of its costs are 0");
  return c;
}

Measured parse_measured(const Json& json, const std::string& where) {
  const auto size = [&](const char* name) { return Member(json, where, name).whole(); };
  Measured m;
  m.shape = {.dtype = one_of(Member(json, where, "dtype"), {DType::f32, DType::f16, DType::bf16}),
             .mask = one_of(Member(json, where, "mask"),
                            {Mask::none, Mask::causal, Mask::causal_top_left}),
             .batch = size("batch_size"),
             .queries = size("query_length"),
             .keys = size("kv_length"),
             .num_heads = static_cast<std::int32_t>(size("num_heads")),
             .num_kv_heads = static_cast<std::int32_t>(size("num_kv_heads")),
             .head_dim = static_cast<std::int32_t>(size("head_size"))};
  const Member us(json, where, "us");
  if (!us.value().is_object() || us.value().empty()) wrong(us.where(), "expected times by backend");
  for (const auto& [backend, time] : us.value().items()) {
    const double n = Member(us.value(), us.where(), backend.c_str()).number();
    if (n <= 0) wrong(us.where(), fmt::format("{} takes no time", one_line(backend)));
    m.us.emplace_back(backend, n);
  }
  return m;
}

template <class T, class Parse>
std::vector<T> parse_array(const Member& member, const Parse& parse) {
  std::vector<T> all;
  const Json& array = member.array();
  for (std::size_t i = 0; i < array.size(); ++i)
    all.push_back(parse(array[i], fmt::format("{}[{}]", member.where(), i)));
  return all;
}

}  // namespace

Document parse_document(std::string_view text) {
  // Without exceptions of its own: their texts are long and quote the file.
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object())
    fail(ErrorCode::InvalidArgument, "it is no JSON object");
  if (Member(json, "", "format").text() != kFormat)
    wrong("format", fmt::format("expected \"{}\"", kFormat));
  const auto version = Member(json, "", "version").whole(0);
  if (version != kDocumentVersion) {
    wrong("version", fmt::format("is {}, this batten reads {}", version, kDocumentVersion));
  }
  Document d;
  d.card = parse_card(Member(json, "", "card").value());
  if (const Member origin(json, "", "origin"); origin.given()) {
    if (!origin.value().is_object()) wrong("origin", "expected an object");
    for (const auto& [name, value] : origin.value().items()) {
      if (value.is_string()) d.origin.emplace_back(name, value.get<std::string>());
    }
  }
  d.kernels = parse_array<Constants>(Member(json, "", "kernels"), parse_constants);
  for (std::size_t i = 0; i < d.kernels.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (d.kernels[i].str() == d.kernels[j].str())
        wrong(fmt::format("kernels[{}]", i), d.kernels[i].str() + " stands here twice");
    }
  }
  if (const Member measured(json, "", "measured"); measured.given())
    d.measured = parse_array<Measured>(measured, parse_measured);
  return d;
}

std::string to_json(const Document& d) {
  Json json{{"format", kFormat}, {"version", kDocumentVersion}};
  json["card"] = {{"name", d.card.name},
                  {"arch", d.card.arch},
                  {"multiprocessors", d.card.multiprocessors},
                  {"clock_mhz", d.card.clock_mhz},
                  {"memory_gbps", d.card.memory_gbps}};
  json["origin"] = Json::object();
  for (const auto& [name, value] : d.origin) json["origin"][name] = value;
  json["kernels"] = Json::array();
  for (const Constants& c : d.kernels) {
    Json k{{"kernel", c.kernel}, {"head_dim", c.head_dim}, {"causal", c.causal}};
    for (const auto& [name, member] : kConstantMembers) {
      // What a kernel does not have is left out; nobody reads more than four digits.
      if (c.*member > 0) k[name] = std::stod(fmt::format("{:.4g}", c.*member));
    }
    json["kernels"].push_back(std::move(k));
  }
  json["measured"] = Json::array();
  for (const Measured& m : d.measured) {
    Json us = Json::object();
    for (const auto& [backend, time] : m.us) us[backend] = std::stod(fmt::format("{:.4g}", time));
    const MeasuredShape& s = m.shape;
    json["measured"].push_back({{"dtype", name_of(s.dtype)},
                                {"mask", name_of(s.mask)},
                                {"batch_size", s.batch},
                                {"query_length", s.queries},
                                {"kv_length", s.keys},
                                {"num_heads", s.num_heads},
                                {"num_kv_heads", s.num_kv_heads},
                                {"head_size", s.head_dim},
                                {"us", std::move(us)}});
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace batten::impl::cost
