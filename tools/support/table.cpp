#include "support/table.hpp"

#include <algorithm>
#include <utility>

namespace batten::tools {
namespace {

constexpr std::string_view kGap = "  ";

// Columns of the screen: every byte but those that continue a UTF-8 character.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string line(const std::vector<Table::Column>& columns, const std::vector<Table::Cell>& cells) {
  std::string out;
  std::size_t pending = 0;  // blanks that are only written if something follows
  for (std::size_t i = 0; i < cells.size() && i < columns.size(); ++i) {
    const std::size_t width = width_of(cells[i].text);
    const std::size_t fill = columns[i].width > width ? columns[i].width - width : 0;
    if (i > 0) pending += kGap.size();
    if (columns[i].align == Align::right) pending += fill;
    if (width > 0) {
      out.append(std::exchange(pending, 0), ' ');
      out += paint(cells[i].color, cells[i].text);
    }
    if (columns[i].align == Align::left) pending += fill;
  }
  return out + '\n';
}

std::vector<Table::Cell> titles(const std::vector<Table::Column>& columns) {
  std::vector<Table::Cell> cells;
  cells.reserve(columns.size());
  for (const Table::Column& column : columns) cells.emplace_back(column.title, Color::bold);
  return cells;
}

}  // namespace

void Table::add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }

std::string Table::str() const {
  std::vector<Column> columns = columns_;
  for (Column& column : columns) column.width = std::max(column.width, width_of(column.title));
  for (const auto& cells : rows_) {
    for (std::size_t i = 0; i < cells.size() && i < columns.size(); ++i)
      columns[i].width = std::max(columns[i].width, width_of(cells[i].text));
  }
  std::string out = line(columns, titles(columns));
  for (const auto& cells : rows_) out += line(columns, cells);
  return out;
}

std::string Table::heading() const { return line(columns_, titles(columns_)); }

std::string Table::row(const std::vector<Cell>& cells) const { return line(columns_, cells); }

}  // namespace batten::tools
