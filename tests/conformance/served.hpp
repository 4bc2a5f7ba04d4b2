// What each backend must serve: served.json, which is built into the library.
#pragma once

#include <batten/types.hpp>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace batten::conformance {

// How query heads share key/value heads.
enum class Grouping { mha, gqa, mqa };
const char* name_of(Grouping grouping) noexcept;

// One backend's row: it serves every combination of these lists.
struct Served {
  std::string name;
  std::vector<DeviceType> devices;
  std::vector<DType> dtypes;
  std::vector<int> head_dims;
  std::vector<Grouping> groupings;
  std::vector<Mask> masks;
  bool uniform = false;
  bool ragged = false;
  std::vector<bool> lse;
  std::map<std::string, std::string> may_refuse;  // feature, and the limitation behind it
  bool may_refuse_anything = false;  // not in the file: of forms that serve less than the backend

  bool on(DeviceType device) const;
};

// All rows that count in this environment. Throws batten::Error that names what is wrong in the
// text.
std::vector<Served> parse_served(std::string_view json);

// The rows of served.json as built in.
const std::vector<Served>& served_backends();

// The row of a backend; "name:form" falls back to the row of "name". Null when there is none.
const Served* find_served(std::string_view backend);

}  // namespace batten::conformance
