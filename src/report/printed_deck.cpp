#include "report/printed_deck.hpp"

namespace llmtrain {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\r";
  const size_t begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

/// Appends an indented line to the value: to an item of a list, or to the half of a text before a backslash.
void continue_value(std::string& value, std::string_view line) {
  if (value.ends_with('\\')) {
    value.pop_back();
  } else {
    value += ' ';
  }
  value += line;
}

}  // namespace

std::vector<DeckEntry> read_printed_deck(std::string_view text) {
  std::vector<DeckEntry> entries;
  std::string section, comment;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::string_view content = trimmed(line);
    const size_t equals = content.find('=');
    if (content.starts_with('#')) {
      comment = trimmed(content.substr(1));
    } else if (content.starts_with('[') && content.ends_with(']')) {
      section = content.substr(1, content.size() - 2);
    } else if (!content.empty() && line.front() == ' ' && !entries.empty()) {
      continue_value(entries.back().value, content);
    } else if (equals != std::string_view::npos) {
      // Printed values have no bare semicolon. A value without a comment at its end has one in the line before.
      const size_t semicolon = content.find(" ;", equals);
      DeckEntry entry{section, std::string(trimmed(content.substr(0, equals))), "", comment};
      entry.value = trimmed(content.substr(equals + 1, std::min(semicolon, content.size()) - equals - 1));
      if (semicolon != std::string_view::npos) entry.provenance = trimmed(content.substr(semicolon + 2));
      entries.push_back(std::move(entry));
    }
  }
  return entries;
}

}  // namespace llmtrain
