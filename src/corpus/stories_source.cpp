#include <algorithm>

#include "core/assets.hpp"
#include "corpus/stories.hpp"

namespace llmtrain {

extern const Asset corpus_assets[];  ///< generated: stories.txt

namespace {

/// Takes the text before a separator, or all, away from `rest`.
std::string cut(std::string_view& rest, std::string_view separator) {
  const size_t at = std::min(rest.find(separator), rest.size());
  std::string before(rest.substr(0, at));
  rest.remove_prefix(std::min(at + separator.size(), rest.size()));
  return before;
}

/// name (forms): word, word
WordList read_list(std::string_view line) {
  WordList list;
  list.name = cut(line, " (");
  list.forms = cut(line, "): ");
  while (!line.empty()) list.entries.push_back(cut(line, ", "));
  return list;
}

/// name: list, name: list except others, name: list joined another
GrammarVariable read_variable(std::string_view line) {
  GrammarVariable variable;
  variable.name = cut(line, ": ");
  variable.list = cut(line, " ");
  const bool excepts = cut(line, " ") == "except";
  (excepts ? variable.except : variable.joined) = line;
  return variable;
}

/// name: "alternative"; \n is a line end.
void add_alternative(std::string_view line, std::vector<GrammarRule>& rules) {
  const std::string name = cut(line, ": ");
  std::string text(line.substr(1, line.size() - 2));
  for (size_t at = text.find("\\n"); at != std::string::npos; at = text.find("\\n", at)) text.replace(at, 2, "\n");
  if (rules.empty() || rules.back().name != name) rules.push_back({name, {}});
  rules.back().alternatives.push_back({1, std::move(text)});
}

GrammarSource read_source() {
  GrammarSource source;
  std::string section;
  each_table_line(find_asset(corpus_assets, "stories.txt"), [&](const std::string& line, int /*number*/) {
    if (line.starts_with('[')) {
      section = line;
    } else if (section == "[lists]") {
      source.lists.push_back(read_list(line));
    } else if (section == "[variables]") {
      source.variables.push_back(read_variable(line));
    } else {
      add_alternative(line, source.rules);
    }
  });
  return source;
}

}  // namespace

const GrammarSource& stories_source() {
  static const GrammarSource source = read_source();
  return source;
}

}  // namespace llmtrain
