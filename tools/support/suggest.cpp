#include "support/suggest.hpp"

#include <algorithm>
#include <cctype>
#include <limits>
#include <numeric>

namespace batten::tools {
namespace {

constexpr std::size_t kNotMeant = std::numeric_limits<std::size_t>::max();

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// How far `candidate` is from being the tensor `name`; both in lower case.
std::size_t tensor_distance(const std::string& name, const std::string& candidate) {
  if (candidate == name) return 0;
  std::size_t start = 0;
  for (;;) {  // a part between '.', '_' or '/'
    const std::size_t end = candidate.find_first_of("._/", start);
    if (candidate.substr(start, end - start) == name) return 1;
    if (end == std::string::npos) break;
    start = end + 1;
  }
  if (candidate.starts_with(name)) return 2;
  const std::size_t distance = edit_distance(name, candidate);
  return distance <= name.size() / 3 ? 2 + distance : kNotMeant;
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(word.size() / 3, 1) + 1;
  for (const std::string& candidate : known) {
    const std::size_t distance = edit_distance(lower(word), lower(candidate));
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string nearest_tensor(std::string_view name, const std::vector<std::string>& known) {
  std::string best;
  std::size_t best_distance = kNotMeant;
  for (const std::string& candidate : known) {
    const std::size_t distance = tensor_distance(lower(name), lower(candidate));
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace batten::tools
