// Rules of data sets: their files, the format of their rows, and their columns.
#include <fmt/format.h>

#include <cctype>
#include <filesystem>

#include "convert/rules/rules.hpp"

namespace llmtrain::convert {
namespace {

using Kind = SettingValue::Kind;

constexpr std::string_view loaders = "json csv parquet arrow text pandas";

/// True for the name of a data set of the hub, such as owner/name: no path, and no file or folder that is here.
bool is_hub_name(const std::string& text) {
  if (text.starts_with('.') || text.starts_with('/') || text.starts_with('~') || text.starts_with('$')) return false;
  std::error_code ignored;
  const std::string ending = std::filesystem::path(text).extension().string();
  const bool version = ending.size() > 1 && std::isdigit(static_cast<unsigned char>(ending[1])) != 0;
  return (ending.empty() || version) && !std::filesystem::exists(text, ignored);
}

std::string fact_or_empty(const Draft& draft, std::string_view name) {
  const Draft::Given* const fact = draft.fact(name);
  return fact == nullptr ? "" : fact->text;
}

/// `fact`: of the resulting list.
void add_dataset(Draft& draft, const std::string& text, const std::string& fact) {
  if (text.empty() || has_word(loaders, text)) return;
  const std::string hub_fact = fact + " of the hub", files_fact = fact + " of files";
  const std::string& kind = is_hub_name(text) ? hub_fact : files_fact;
  const std::string before = fact_or_empty(draft, kind);
  draft.replace_fact(kind, before.empty() ? text : before + ", " + text);
  const std::string hub = fact_or_empty(draft, hub_fact), files = fact_or_empty(draft, files_fact);
  const bool both = !hub.empty() && !files.empty();
  draft.replace_fact(fact, both ? fmt::format("{} (and of {})", hub, files) : hub + files);
}

/// A data set, or a list of them, for a fact: files, folders, or names of the hub, whose rows the user has to bring.
/// Names of loaders (json, text) have no effect: data files beside them tell.
std::string add_datasets(Draft& draft, const SettingValue& value, std::string_view fact) {
  if (value.is(Kind::list)) {
    for (const SettingValue& item : value.items) {
      if (std::string wrong = add_datasets(draft, item, fact); !wrong.empty()) return wrong;
    }
    return "";
  }
  if (value.is(Kind::map)) return "data sets of several kinds, or too many: name their files in the deck";
  add_dataset(draft, value.text, std::string(fact));
  return "";
}

/// Makes rows tell their format where no single one holds for all data sets.
void leave_format_open(Draft& draft) { draft.replace("data.format", "auto"); }

/// Data sets with the shares of their rows: a map of numbers.
std::string set_dataset_shares(Draft& draft, const SettingValue& value) {
  if (!value.is(Kind::map)) return value.print() + ": must be a map of shares";
  std::string wrong;
  for (const auto& [name, share] : value.members) {
    add_dataset(draft, name, "dataset");
    if (share.number() != 1.0) wrong = fmt::format("a share of {} of {}: fewer rows in its file", share.print(), name);
  }
  return wrong;
}

/// The column of a role that tells the format, too: "format role".
std::string set_format_and_column(Draft& draft, const SettingValue& value, std::string_view words) {
  const size_t space = words.find(' ');
  const std::string wrong = set_row_format(draft, words.substr(0, space));
  return wrong.empty() ? set_column(draft, value, words.substr(space + 1)) : wrong;
}

/// The keys of messages: a map of role and content.
std::string set_message_keys(Draft& draft, const SettingValue& value) {
  if (!value.is(Kind::map)) return value.print() + ": must be a map of names";
  for (const auto& [key, name] : value.members) {
    if (key != "role" && key != "content") return fmt::format("messages have role and content, and not {}", key);
    if (std::string wrong = set_column(draft, name, key); !wrong.empty()) return wrong;
  }
  return "";
}

/// The column of texts, unless it has the usual name.
std::string set_text_field(Draft& draft, const SettingValue& value) {
  return value.text == "text" ? "" : set_column(draft, value, "text");
}

/// The column of words, as in the examples of Transformers for tokens.
std::string set_words(Draft& draft, const SettingValue& value) {
  const std::string wrong = draft.set_text("classify.kind", "token");
  return !wrong.empty() || value.text == "tokens" ? wrong : set_column(draft, value, "tokens");
}

constexpr NamedRule rules[] = {
    {"add_datasets", add_datasets},
    {"set_dataset_shares", set_dataset_shares},
    {"set_column", set_column},
    {"set_format_and_column", set_format_and_column},
    {"set_message_keys", set_message_keys},
    {"set_text_field", set_text_field},
    {"set_words", set_words},
};

}  // namespace

std::string set_row_format(Draft& draft, std::string_view format) {
  const Draft::Given* const before = draft.find("data.format");
  if (before == nullptr) return draft.set_text("data.format", std::string(format));
  const bool messages = before->text == "sharegpt" && format == "messages";  // keys of messages told it
  if (before->text == format || messages) return "";
  std::string wrong = fmt::format(
      "rows of a format other than {}: data.format = auto detects the format by the first row of each file; write all "
      "rows in one format",
      before->origin);
  leave_format_open(draft);
  return wrong;
}

std::string set_row_format_of(Draft& draft, const SettingValue& value, std::string_view table) {
  const std::optional<std::string> ours = translated(table, value.text);
  if (ours) return ours->empty() ? "" : set_row_format(draft, *ours);
  leave_format_open(draft);
  return value.print() + " has no counterpart here";
}

std::string use_template_of_rows(Draft& draft, std::string_view type, std::string_view name) {
  const Draft::Given* const before = draft.find("chat.template");
  if (before != nullptr && before->text != name) {
    draft.refuse(before->origin,
                 fmt::format("rows of the type {} have their own template: chat.template = {}", type, name));
  }
  return draft.replace("chat.template", std::string(name));
}

std::string set_column(Draft& draft, const SettingValue& column, std::string_view role) {
  const bool scalar = !column.is(Kind::list) && !column.is(Kind::map);
  if (!scalar || column.text.empty() || column.text.find(',') != std::string::npos) {
    return column.print() + ": must be the name of a column";
  }
  const std::string fact = fmt::format("column of {}", role);
  if (const Draft::Given* const before = draft.fact(fact)) {
    if (before->text == column.text) return "";
    return fmt::format("{} is another column than {} of {}: rename it in the rows", column.print(), before->text,
                       before->origin);
  }
  draft.set_fact(fact, column.text);
  const bool of_messages = draft.is("data.format", "messages") || !draft.has("data.format");
  if (role == "role" && column.text == "from" && of_messages) {
    draft.replace("data.format", "sharegpt");  // reads human and gpt, too
  }
  return draft.add_item("data.columns", fmt::format("{}:{}", role, column.text));
}

std::span<const NamedRule> dataset_rules() { return rules; }

}  // namespace llmtrain::convert
