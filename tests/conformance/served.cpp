#include "served.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

namespace batten::conformance {

extern const std::string_view kServedJson;

namespace {

using nlohmann::json;

// Parses a list of words with the enumerators that they may name.
template <class T, std::size_t N>
std::vector<T> words(const json& list, const std::array<std::pair<const char*, T>, N>& legal) {
  std::vector<T> values;
  for (const json& item : list) {
    const auto word = item.get<std::string>();
    const auto* found = std::find_if(legal.begin(), legal.end(),
                                     [&](const auto& entry) { return word == entry.first; });
    if (found == legal.end())
      throw Error(ErrorCode::InvalidArgument, fmt::format("served.json: unknown word '{}'", word));
    values.push_back(found->second);
  }
  return values;
}

constexpr std::array kDevices{std::pair{"cpu", DeviceType::cpu},
                              std::pair{"cuda", DeviceType::cuda}};
constexpr std::array kDTypes{std::pair{"float32", DType::f32}, std::pair{"float16", DType::f16},
                             std::pair{"bfloat16", DType::bf16}};
constexpr std::array kGroupings{std::pair{"mha", Grouping::mha}, std::pair{"gqa", Grouping::gqa},
                                std::pair{"mqa", Grouping::mqa}};
constexpr std::array kMasks{std::pair{"none", Mask::none}, std::pair{"causal", Mask::causal},
                            std::pair{"causal_top_left", Mask::causal_top_left}};
constexpr std::array kBatches{std::pair{"uniform", false}, std::pair{"ragged", true}};

Served parse_row(const json& row) {
  Served served;
  served.name = row.at("name").get<std::string>();
  served.devices = words(row.at("devices"), kDevices);
  served.dtypes = words(row.at("dtypes"), kDTypes);
  served.head_dims = row.at("head_dims").get<std::vector<int>>();
  served.groupings = words(row.at("groupings"), kGroupings);
  served.masks = words(row.at("masks"), kMasks);
  for (const bool ragged : words(row.at("batches"), kBatches))
    (ragged ? served.ragged : served.uniform) = true;
  served.lse = row.at("lse").get<std::vector<bool>>();
  served.may_refuse = row.at("may_refuse").get<std::map<std::string, std::string>>();
  return served;
}

// Whether the environment is the one that the row is of.
bool counts(const json& row) {
  const auto variable = row.find("variable");
  if (variable == row.end()) return true;
  const char* value = std::getenv(variable->at("name").get<std::string>().c_str());
  return value != nullptr && variable->at("value").get<std::string>() == value;
}

void add_or_replace(std::vector<Served>& rows, Served served) {
  const auto same = std::find_if(rows.begin(), rows.end(),
                                 [&](const Served& row) { return row.name == served.name; });
  if (same == rows.end()) {
    rows.push_back(std::move(served));
  } else {
    *same = std::move(served);
  }
}

}  // namespace

const char* name_of(Grouping grouping) noexcept {
  switch (grouping) {
    case Grouping::mha:
      return "mha";
    case Grouping::gqa:
      return "gqa";
    case Grouping::mqa:
      return "mqa";
  }
  return "unknown";
}

bool Served::on(DeviceType device) const {
  return std::find(devices.begin(), devices.end(), device) != devices.end();
}

std::vector<Served> parse_served(std::string_view text) {
  std::vector<Served> rows;
  try {
    const json document = json::parse(text);
    for (const json& row : document.at("backends")) {
      if (counts(row)) add_or_replace(rows, parse_row(row));
    }
  } catch (const json::exception& error) {
    throw Error(ErrorCode::InvalidArgument, fmt::format("served.json: {}", error.what()));
  }
  return rows;
}

const std::vector<Served>& served_backends() {
  static const std::vector<Served> rows = parse_served(kServedJson);
  return rows;
}

const Served* find_served(std::string_view backend) {
  for (const std::string_view name : {backend, backend.substr(0, backend.find(':'))})
    for (const Served& row : served_backends())
      if (row.name == name) return &row;
  return nullptr;
}

}  // namespace batten::conformance
