// Renders a Table. Cells are one line each; trailing blanks are cut so that output diffs well.
#include "tools/kiln/table.h"

#include <algorithm>

namespace kiln::cli {
namespace {

// Columns of a terminal that UTF-8 text takes, all of its characters being one wide.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

void Table::add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  for (std::string& cell : cells) std::replace(cell.begin(), cell.end(), '\n', ' ');
  rows_.push_back(std::move(cells));
}

std::string Table::text(int indent) const {
  std::vector<size_t> widths;
  std::vector<std::string> head;
  std::vector<std::string> rule;
  for (size_t i = 0; i < columns_.size(); ++i) {
    size_t width = width_of(columns_[i].title);
    for (const auto& row : rows_) width = std::max(width, width_of(row[i]));
    widths.push_back(width);
    head.push_back(columns_[i].title);
    rule.push_back(std::string(width, '-'));
  }

  std::string text;
  auto append = [&](const std::vector<std::string>& cells) {
    std::string line(static_cast<size_t>(indent), ' ');
    for (size_t i = 0; i < cells.size(); ++i) {
      if (i > 0) line += "  ";
      const std::string padding(widths[i] - width_of(cells[i]), ' ');
      line += columns_[i].align == Align::right ? padding + cells[i] : cells[i] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  append(head);
  append(rule);
  for (const auto& row : rows_) append(row);
  return text;
}

}  // namespace kiln::cli
