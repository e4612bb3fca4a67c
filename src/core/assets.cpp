#include "core/assets.hpp"

#include <sstream>

#include "core/error.hpp"

namespace llmtrain {

std::string_view find_asset(const Asset* assets, std::string_view name) {
  for (const Asset* found = assets; !found->name.empty(); ++found) {
    if (found->name == name) return found->content;
  }
  throw Error("no file " + std::string(name) + " is embedded");
}

void each_table_line(std::string_view table, const std::function<void(const std::string& line, int number)>& take) {
  std::istringstream lines{std::string(table)};
  std::string whole;
  int first = 0, number = 0;
  const auto finish = [&] {
    if (!whole.empty()) take(whole, first);
    whole.clear();
  };
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const bool continues = line.starts_with(' ') && !whole.empty();
    line.erase(0, line.find_first_not_of(' '));
    if (continues) {
      whole += " " + line;
      continue;
    }
    finish();
    first = number;
    if (!line.starts_with('#')) whole = line;
  }
  finish();
}

}  // namespace llmtrain
