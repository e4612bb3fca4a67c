#pragma once
// A choice of modules as PEFT has it: a list of names, or one regular expression of Python's re module.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/deck/deck_value.hpp"

namespace llmtrain {

class PythonRegex;

struct ModulePattern {
  std::vector<std::string> names;  ///< q_proj names every module whose name is that or ends in .q_proj
  std::string regex;               ///< instead of names: matches whole names

  bool empty() const { return names.empty() && regex.empty(); }
};

/// Texts with one of \ * + ? ( ) [ ] { } | ^ $, which no module's name has, are regular expressions.
template <>
struct DeckValue<ModulePattern> {
  static ModulePattern parse(std::string_view text, const KeyInfo& info);
  static std::string print(const ModulePattern& pattern);
  static std::string type() { return "list of names, or a regular expression"; }
};

/// True for all-linear, PEFT's name of every linear layer but the head, in any letters.
bool names_all_linear(std::string_view text);

/// The rule of rank_pattern and alpha_pattern: a regular expression for a name, or for the end of it after a dot.
class NameEnd {
 public:
  /// Throws UserError for a regular expression that cannot be used.
  explicit NameEnd(const std::string& pattern);
  ~NameEnd();

  bool matches(std::string_view module) const;

 private:
  std::string name_;  ///< a pattern without special characters but dots; there can be one for every module
  std::unique_ptr<PythonRegex> regex_;
};

class ModuleMatcher {
 public:
  /// Throws UserError for a regular expression that cannot be used.
  explicit ModuleMatcher(const ModulePattern& pattern);
  ~ModuleMatcher();

  bool matches(std::string_view module) const;
  /// The same of one name of a list.
  static bool names(std::string_view name, std::string_view module) {
    return module == name || (module.ends_with(name) && module.substr(0, module.size() - name.size()).ends_with('.'));
  }

 private:
  const ModulePattern& pattern_;
  std::unique_ptr<PythonRegex> regex_;
};

}  // namespace llmtrain
