#include "models/module_pattern.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "text/split/python_regex.hpp"

namespace llmtrain {

namespace {

constexpr std::string_view special = "\\*+?()[]{}|^$";  ///< characters of regular expressions, besides the dot

}  // namespace

ModulePattern DeckValue<ModulePattern>::parse(std::string_view text, const KeyInfo& info) {
  ModulePattern pattern;
  if (text.find_first_of(special) == std::string_view::npos) {
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

NameEnd::NameEnd(const std::string& pattern) {
  if (pattern.find_first_of(special) == std::string::npos) {
    name_ = pattern;
  } else {
    regex_ = std::make_unique<PythonRegex>("(?:.*\\.)?(?:" + pattern + ")", pattern);
  }
}

NameEnd::~NameEnd() = default;

bool NameEnd::matches(std::string_view module) const {
  if (regex_) return regex_->matches(module);
  if (module.size() < name_.size()) return false;
  const std::string_view begin = module.substr(0, module.size() - name_.size());
  const auto same = [](char pattern, char c) { return pattern == '.' || pattern == c; };
  return (begin.empty() || begin.ends_with('.')) && std::ranges::equal(name_, module.substr(begin.size()), same);
}

ModuleMatcher::ModuleMatcher(const ModulePattern& pattern) : pattern_(pattern) {
  if (!pattern.regex.empty()) regex_ = std::make_unique<PythonRegex>(pattern.regex);
}

ModuleMatcher::~ModuleMatcher() = default;

bool ModuleMatcher::matches(std::string_view module) const {
  if (regex_) return regex_->matches(module);
  return std::ranges::any_of(pattern_.names, [&](const std::string& name) { return names(name, module); });
}

}  // namespace llmtrain
