#pragma once
// Rules for data sets, of which settings can list several: their files, the one format of their rows, and its columns.

#include <algorithm>
#include <string>

#include "convert/draft.hpp"

namespace llmtrain::convert {

/// A data set, or a list of them: files, folders, or names of the hub, whose rows the user has to bring. Names of
/// loaders (json, text) have no effect: data files beside them tell.
std::string set_datasets(Draft& draft, const SettingValue& value);
/// The same for data that are measured.
std::string set_validation_datasets(Draft& draft, const SettingValue& value);
/// Data sets with the shares of their rows: a map of numbers.
std::string set_dataset_shares(Draft& draft, const SettingValue& value);
/// A format of the deck for the rows of a data set. A second one is an error, and leaves data.format = auto.
std::string set_row_format(Draft& draft, std::string_view format);
/// The same for a value of a table "theirs=ours ..."; another value leaves data.format = auto.
std::string set_row_format_of(Draft& draft, const SettingValue& value, std::string_view table);
/// The template that a type of rows has, whatever the settings and the model have.
std::string use_template_of_rows(Draft& draft, std::string_view type, std::string_view name);
/// The column of a role in data.columns; one column for all data sets.
std::string set_column(Draft& draft, std::string_view role, const SettingValue& column);
/// Columns of several roles: "role:column,...".
std::string set_columns(Draft& draft, std::string_view columns);
/// The keys of messages: a map of role and content.
std::string set_message_keys(Draft& draft, const SettingValue& value);

/// The name of a format or a role, as an argument of a template.
template <size_t size>
struct RuleName {
  char text[size] = {};
  consteval RuleName(const char (&name)[size]) { std::copy_n(name, size, text); }
};

/// The rule of a key that names the column of a role, in rows of any format.
template <RuleName role>
std::string set_column_of(Draft& draft, const SettingValue& value) {
  return set_column(draft, role.text, value);
}

/// The same for a key that tells the format, too.
template <RuleName format, RuleName role>
std::string set_format_and_column(Draft& draft, const SettingValue& value) {
  const std::string wrong = set_row_format(draft, format.text);
  return wrong.empty() ? set_column(draft, role.text, value) : wrong;
}

}  // namespace llmtrain::convert
