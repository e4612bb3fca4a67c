#include "convert/dataset_rules.hpp"

#include <fmt/format.h>

#include <cctype>
#include <filesystem>

#include "convert/system.hpp"

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

void add_dataset(Draft& draft, const std::string& text) {
  if (text.empty() || has_word(loaders, text)) return;
  const std::string_view kind = is_hub_name(text) ? "datasets_of_hub" : "dataset_files";
  const std::string before = fact_or_empty(draft, kind);
  draft.replace_fact(kind, before.empty() ? text : before + ", " + text);
  const std::string hub = fact_or_empty(draft, "datasets_of_hub"), files = fact_or_empty(draft, "dataset_files");
  const bool both = !hub.empty() && !files.empty();
  draft.replace_fact("dataset", both ? fmt::format("{} (and of {})", hub, files) : hub + files);
}

}  // namespace

std::string set_datasets(Draft& draft, const SettingValue& value) {
  if (value.is(Kind::list)) {
    for (const SettingValue& item : value.items) {
      if (std::string wrong = set_datasets(draft, item); !wrong.empty()) return wrong;
    }
    return "";
  }
  if (value.is(Kind::map)) return "data sets of several kinds, or too many: name their files in data.train";
  add_dataset(draft, value.text);
  return "";
}

std::string set_row_format(Draft& draft, std::string_view format) {
  const Draft::Given* const before = draft.find("data.format");
  if (before == nullptr) return draft.set_text("data.format", std::string(format));
  const bool messages = before->text == "sharegpt" && format == "messages";  // keys of messages told it
  if (before->text == format || messages) return "";
  std::string wrong = fmt::format(
      "rows of another format than {}: data.format = auto tells formats by the first row of each file; better write "
      "all rows in one format",
      before->origin);
  draft.replace("data.format", "auto");
  return wrong;
}

std::string set_row_format_of(Draft& draft, const SettingValue& value, std::string_view table) {
  if (value.is(Kind::list) || value.is(Kind::map)) return value.print() + " is no single name";
  std::string wrong;
  each_word(table, [&](std::string_view word) {
    const size_t equals = std::min(word.find('='), word.size());
    const std::string_view ours = word.substr(std::min(equals + 1, word.size()));
    if (word.substr(0, equals) != value.text) return;
    if (equals == word.size() || !ours.empty()) wrong = set_row_format(draft, ours.empty() ? word : ours);
  });
  return wrong;
}

std::string set_column(Draft& draft, std::string_view role, const SettingValue& column) {
  const bool scalar = !column.is(Kind::list) && !column.is(Kind::map);
  if (!scalar || column.text.empty() || column.text.find(',') != std::string::npos) {
    return column.print() + " is no name of a column";
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

std::string set_message_keys(Draft& draft, const SettingValue& value) {
  if (!value.is(Kind::map)) return value.print() + " is no map of names";
  for (const auto& [key, name] : value.members) {
    if (key != "role" && key != "content") return fmt::format("messages have role and content, and not {}", key);
    if (std::string wrong = set_column(draft, key, name); !wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace llmtrain::convert
