#pragma once
// Rules: functions that take values which a line of a table cannot describe (src/convert/tables).

#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "convert/draft.hpp"
#include "convert/system.hpp"

namespace llmtrain::convert {

/// Sets keys of the draft from a value; returns what is wrong with the value, or "".
using RuleOfValue = std::string (*)(Draft& draft, const SettingValue& value);
/// The same with the words that a table gives it, such as the name of a column.
using RuleOfWords = std::string (*)(Draft& draft, const SettingValue& value, std::string_view words);

/// A rule and its name in tables.
struct NamedRule {
  std::string_view name;
  std::variant<RuleOfValue, RuleOfWords> rule;
};

std::span<const NamedRule> common_rules();
std::span<const NamedRule> dataset_rules();
std::span<const NamedRule> launch_rules();
std::span<const NamedRule> scratch_rules();
std::span<const NamedRule> axolotl_rules();
std::span<const NamedRule> torchtune_rules();

/// The rule of a name with these words, or without, where there are none. Empty: no such rule.
Rule bound_rule(std::string_view name, const std::string& words);

/// Target modules of LoRA: a list, a text with commas, or all.
std::string set_target_modules(Draft& draft, const SettingValue& value);

// Rows of data sets, of which settings can list several: one format, and its columns.

/// A format of the deck for the rows of a data set. A second one is an error, and leaves data.format = auto.
std::string set_row_format(Draft& draft, std::string_view format);
/// The same for a value of a table "theirs=ours ..."; another value leaves data.format = auto.
std::string set_row_format_of(Draft& draft, const SettingValue& value, std::string_view table);
/// The template that a type of rows has, whatever the settings and the model have.
std::string use_template_of_rows(Draft& draft, std::string_view type, std::string_view name);
/// The column of a role in data.columns; one column for all data sets.
std::string set_column(Draft& draft, const SettingValue& column, std::string_view role);

}  // namespace llmtrain::convert
