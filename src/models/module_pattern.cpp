#include "models/module_pattern.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "text/split/python_regex.hpp"

namespace llmtrain {

ModulePattern DeckValue<ModulePattern>::parse(std::string_view text, const KeyInfo& info) {
  ModulePattern pattern;
  if (text.find_first_of("\\*+?()[]{}|^$") == std::string_view::npos) {
    pattern.names = DeckValue<std::vector<std::string>>::parse(text, info);
    return pattern;
  }
  if (text.find_first_of(" \t\n;#") != std::string_view::npos) {
    throw UserError(ExitCode::deck,
                    fmt::format("'{}': a regular expression for names of modules has no blanks, ; or #; "
                                "give one expression alone, such as .*\\.(q|v)_proj",
                                text));
  }
  pattern.regex = text;
  return pattern;
}

std::string DeckValue<ModulePattern>::print(const ModulePattern& pattern) {
  return pattern.regex.empty() ? DeckValue<std::vector<std::string>>::print(pattern.names) : pattern.regex;
}

bool names_all_linear(std::string_view text) {
  const auto same = [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; };
  return std::ranges::equal(text, std::string_view("all-linear"), same);
}

ModuleMatcher::ModuleMatcher(const ModulePattern& pattern, const std::string& place) : pattern_(pattern) {
  if (!pattern.regex.empty()) regex_ = std::make_unique<PythonRegex>(pattern.regex, place);
}

ModuleMatcher::~ModuleMatcher() = default;

bool ModuleMatcher::matches(std::string_view module) const {
  if (regex_) return regex_->matches(module);
  return std::ranges::any_of(pattern_.names, [&](const std::string& name) { return names(name, module); });
}

}  // namespace llmtrain
