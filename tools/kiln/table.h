// Tables for people: columns as wide as their widest cell, two spaces apart, a rule below the head.
#pragma once

#include <string>
#include <vector>

namespace kiln::cli {

enum class Align { left, right };

struct Column {
  std::string title;
  Align align = Align::left;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void add(std::vector<std::string> cells);  // missing cells are empty
  bool empty() const { return rows_.empty(); }
  std::string text(int indent = 0) const;  // ends with a newline

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace kiln::cli
