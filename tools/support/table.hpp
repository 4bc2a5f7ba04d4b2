// Columns of text on stdout.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "support/console.hpp"

namespace batten::tools {

enum class Align { left, right };

class Table {
 public:
  struct Cell {
    Cell(std::string text_, Color color_ = Color::none)  // NOLINT: a text is a cell
        : text(std::move(text_)), color(color_) {}
    Cell(const char* text_) : text(text_) {}  // NOLINT: likewise
    std::string text;
    Color color = Color::none;
  };

  struct Column {
    std::string title;
    Align align = Align::left;
    std::size_t width = 0;  // at least; rows that are printed one by one need it
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // At most as many cells as there are columns.
  void add(std::vector<Cell> row);

  // The whole table with its heading, columns as wide as their widest cell.
  std::string str() const;

  // For tables that grow while the user watches: the heading, and one row.
  std::string heading() const;
  std::string row(const std::vector<Cell>& cells) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace batten::tools
