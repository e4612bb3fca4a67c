#include "data/formats/row_format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/deck/suggestion.hpp"
#include "core/find_entry.hpp"
#include "data/files/jsonl.hpp"

namespace llmtrain {

#define LLMTRAIN_ROW_FORMAT_DECLARATION(name) const RowFormat& row_format_##name();
LLMTRAIN_ROW_FORMATS(LLMTRAIN_ROW_FORMAT_DECLARATION)
#undef LLMTRAIN_ROW_FORMAT_DECLARATION

namespace {

bool is_of_labels(std::string_view column) { return column == labels_column || column == token_labels_column; }

/// "prompt, completion", for messages: at most this much of an untrusted row.
std::string columns_text(const nlohmann::ordered_json& row) {
  constexpr size_t max_bytes = 200;
  std::string text;
  for (const auto& [name, value] : row.items()) {
    text += (text.empty() ? "" : ", ") + printable(name);
    if (text.size() > max_bytes) return text + ", ...";
  }
  return text.empty() ? "no columns" : text;
}

bool has_roles(const RowFormat& format, const ColumnNames& columns) {
  return std::ranges::all_of(columns, [&](const auto& entry) { return format.find(entry.first) != nullptr; });
}

bool is_row_of(const RowFormat& format, const nlohmann::ordered_json& row, const ColumnNames& columns) {
  if (!has_roles(format, columns)) return false;
  const RowView view(format, columns, row, true);
  const auto missing = [&](const RowRole& role) {
    return role.place == RowRole::Place::required && !view.has(role.name);
  };
  return std::ranges::none_of(format.roles, missing) && (format.fits == nullptr || format.fits(view));
}

/// "alpaca (instruction, output)": the columns that its rows must have.
std::string shape_text(const RowFormat& format) {
  std::vector<std::string_view> required;
  for (const RowRole& role : format.roles) {
    const bool shown = role.place == RowRole::Place::required || role.place == RowRole::Place::usual;
    if (shown) required.push_back(role.columns.front());
  }
  return fmt::format("{} ({})", format.name, joined(required));
}

[[noreturn]] void refuse_columns(const nlohmann::ordered_json& row) {
  std::vector<std::string> shapes;
  for (const RowFormat* format : row_formats()) {
    if (format->column != prompt_column && !is_of_labels(format->column)) shapes.push_back(shape_text(*format));
  }
  throw UserError(
      ExitCode::bad_content,
      fmt::format("the columns of the row fit no format: {}. Formats and their columns: {}. Name the format "
                  "in data.format (llmtool: --format), and other columns in data.columns (--columns), such as "
                  "prompt:question, response:answer",
                  columns_text(row), joined(shapes)));
}

void append_texts(const nlohmann::ordered_json& json, std::string& all) {
  if (json.is_string()) all += json.get_ref<const std::string&>();
  if (json.is_structured()) {
    for (const auto& [key, item] : json.items()) {
      if (key != "type" || !json.is_object() || !json.contains("text")) append_texts(item, all);
    }
  }
}

float difficulty_of(const RowView& row) {
  const OrderedJsonNode node = row.at(difficulty_column);
  const auto value = static_cast<float>(node.number());
  if (!std::isfinite(value)) node.refuse("is too large for fp32");
  return value;
}

std::vector<std::string_view> role_names(std::string_view format) {
  std::vector<std::string_view> names;
  for (const RowFormat* known : row_formats()) {
    if (format != "auto" && format != known->name) continue;
    for (const RowRole& role : known->roles) {
      if (std::ranges::find(names, role.name) == names.end()) names.push_back(role.name);
    }
  }
  return names;
}

}  // namespace

const RowRole* RowFormat::find(std::string_view role) const { return find_entry(roles, role, &RowRole::name); }

std::string RowView::column_of(const OrderedJsonNode& object, std::string_view role) const {
  const auto named = std::ranges::find(columns_, role, &ColumnNames::value_type::first);
  if (named != columns_.end()) return named->second;
  const RowRole* known = format_.find(role);
  LLMTRAIN_CHECK(known != nullptr, "a role that the format does not have");
  for (const std::string_view column : known->columns) {
    if (!column.empty() && object.has(column)) return std::string(column);
  }
  return std::string(known->columns.front());
}

bool RowView::names(std::string_view role) const {
  return std::ranges::find(columns_, role, &ColumnNames::value_type::first) != columns_.end();
}

bool RowView::has(std::string_view role) const {
  return format_.find(role) != nullptr && row_.has(column_of(row_, role));
}

OrderedJsonNode RowView::at(std::string_view role) const {
  const std::string column = column_of(row_, role);
  if (!row_.value().contains(column)) {
    refuse(
        fmt::format("there is no column {} ({} of format {}), only {}; data.columns = {}:NAME (llmtool: --columns) "
                    "gives it another name",
                    printable(column), role, format_.name, columns_text(row_.value()), role));
  }
  read_.push_back(column);
  return row_.at(column);
}

std::string RowView::text_or_empty(std::string_view role) const { return has(role) ? at(role).text() : std::string(); }

std::vector<std::string> RowView::unread_texts(std::string_view texts) const {
  std::vector<std::string> unread;
  for (const auto& [name, value] : row_.value().items()) {
    if (!value.is_string() || std::ranges::find(read_, name) != read_.end()) continue;
    const bool repeated = texts.find(value.get_ref<const std::string&>()) != std::string_view::npos;
    if (!repeated) unread.push_back(name);
  }
  return unread;
}

std::string RowView::other_columns() const {
  nlohmann::ordered_json others = nlohmann::ordered_json::object();
  for (const auto& column : row_.value().items()) {
    const bool used = std::ranges::any_of(format_.roles, [&](const RowRole& role) {
      return role.place != RowRole::Place::in_message && column_of(row_, role.name) == column.key();
    });
    if (!used) others[column.key()] = column.value();
  }
  return json_text(others);
}

std::string RowView::key_in(const OrderedJsonNode& message, std::string_view role) const {
  return column_of(message, role);
}

std::span<const RowFormat* const> row_formats() {
#define LLMTRAIN_ROW_FORMAT_ENTRY(name) &row_format_##name(),
  static const std::array formats = {LLMTRAIN_ROW_FORMATS(LLMTRAIN_ROW_FORMAT_ENTRY)};
#undef LLMTRAIN_ROW_FORMAT_ENTRY
  return formats;
}

const RowFormat* find_row_format(std::string_view name) {
  const auto found = std::ranges::find(row_formats(), name, &RowFormat::name);
  return found == row_formats().end() ? nullptr : *found;
}

std::string refused_use(DataUse use, int64_t group, std::string_view column) {
  const bool pairs = group > 1, prompts = column == prompt_column, labels = is_of_labels(column);
  const bool preferences = pairs || (!column.empty() && !prompts && !labels);
  if (use == DataUse::labels && !labels) {
    return "they have no labels: run.task = classify needs rows with the columns text and label, or (classify.kind = "
           "token) tokens and labels. Name other columns in data.columns, such as text:review";
  }
  if (labels && use != DataUse::labels) {
    return "they have labels, which run.task = classify is for: set it, or name another format of the rows in "
           "data.format";
  }
  if (use == DataUse::prompts && !prompts) {
    return "they are not prompts: run.task = ppo and grpo need rows with the column prompt, or messages that end with "
           "a turn of the user. Name other columns in data.columns, such as prompt:question";
  }
  if (prompts && use != DataUse::prompts && use != DataUse::any) {
    return "they are prompts without an answer, which run.task = ppo and grpo are for: set it, or name another format "
           "of the rows in data.format";
  }
  if (use == DataUse::training && preferences) {
    return fmt::format("{}, which run.task = {} for: set it, or name another format of the rows in data.format",
                       pairs ? "they are pairs of a chosen and a rejected answer" : "they are answers with a label",
                       pairs ? "dpo and reward are" : "dpo with dpo.loss = kto is");
  }
  if (use == DataUse::preferences && !preferences) {
    return "they have no preference: run.task = dpo needs rows with the columns chosen and rejected, or (dpo.loss = "
           "kto) prompt, completion and label. Name other columns in data.columns, such as chosen:better, or set "
           "run.task = sft";
  }
  if (use == DataUse::pairs && !pairs) {
    return "they are not pairs: a reward model needs rows with the columns chosen and rejected. Name other columns in "
           "data.columns, such as chosen:better";
  }
  return {};
}

const RowFormat* common_preference_format(const std::vector<InputFile>& files) {
  const auto format_of = [](const InputFile& file) -> const RowFormat* {
    if (file.kind != InputKind::instruction_rows) return nullptr;
    const RowFormat* format = find_row_format(file.format.row_format);
    return format != nullptr && format->is_preference() ? format : nullptr;
  };
  const RowFormat* common = files.empty() ? nullptr : format_of(files.front());
  for (const InputFile& file : files) {
    const RowFormat* format = format_of(file);
    if (format == common) continue;
    const auto text = [](const RowFormat* of) { return of == nullptr ? "no preferences" : of->name; };
    throw UserError(ExitCode::bad_content,
                    fmt::format("{} has {} and {} has {}: use files of one kind, such as rows of format preference",
                                files.front().path, text(common), file.path, text(format)));
  }
  return common;
}

FormatRecognition::FormatRecognition(std::string_view format, const std::vector<std::string>& columns)
    : format_(format),
      automatic_(format == "auto"),
      entries_(columns),
      columns_(automatic_ ? parse_columns(columns, format) : ColumnNames()) {}

void FormatRecognition::add(std::string_view line) {
  if (!wants_more()) return;
  if (automatic_) recognise(line);
  ++rows_;
  try {
    for (std::string& column : RowReader(format_, entries_, true).unread_texts(line)) {
      if (std::ranges::find(unread_, column) == unread_.end()) unread_.push_back(std::move(column));
    }
  } catch (const UserError&) {  // reading the row reports it
  }
}

std::string FormatRecognition::unread_columns() const {
  constexpr size_t most = 8;
  if (unread_.empty()) return {};
  std::vector<std::string> names;
  for (const std::string& column : std::span(unread_).first(std::min(most, unread_.size()))) {
    names.push_back(printable(column));
  }
  return fmt::format(
      "format {} does not read these columns of text: {}{}; data.columns (llmtool: --columns) names columns by their "
      "roles, such as prompt:question",
      format_, joined(names), unread_.size() > most ? fmt::format(" and {} more", unread_.size() - most) : "");
}

void FormatRecognition::recognise(std::string_view line) {
  const nlohmann::ordered_json row = parse_json_row(line);
  std::vector<std::string_view> fitting;
  bool same = false;
  for (const RowFormat* format : row_formats()) {
    if (!is_row_of(*format, row, columns_)) continue;
    same = same || format->name == format_;
    // A row of messages fits sharegpt too, and a row of any format may have a text beside its columns.
    const bool is_general = format->name == "sharegpt" || format->name == "text";
    // Preference data often keep a prompt, a completion or messages beside the columns that make them preference data.
    const bool is_preference = !fitting.empty() && find_row_format(fitting.front())->is_preference();
    if (fitting.empty() || (!is_general && !is_preference)) fitting.push_back(format->name);
  }
  if (fitting.size() > 1) {
    throw UserError(
        ExitCode::bad_content,
        fmt::format("the columns of the row fit the formats {}: name one in data.format (llmtool: --format)",
                    joined(fitting)));
  }
  if (rows_ == 0) {
    if (fitting.empty()) refuse_columns(row);
    format_ = fitting.front();
  } else if (!fitting.empty() && !same) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("the row is of format {}, and the first row of format {}: divide the file, or name "
                                "the format of all rows in data.format (llmtool: --format)",
                                fitting.front(), format_));
  }
}

ColumnNames parse_columns(const std::vector<std::string>& entries, std::string_view format) {
  const std::vector<std::string_view> known = role_names(format);
  ColumnNames columns;
  for (const std::string& entry : entries) {
    const size_t colon = entry.find(':');
    const std::string role = entry.substr(0, colon);
    if (colon == std::string::npos || colon == 0 || colon + 1 == entry.size()) {
      throw UserError(ExitCode::deck, fmt::format("{} must be role:column, e.g. prompt:question", printable(entry)));
    }
    if (std::ranges::find(known, role) == known.end()) {
      const std::string of =
          format == "auto" ? "any format; their roles are" : fmt::format("format {}, which has", format);
      throw UserError(ExitCode::deck, fmt::format("{} is not a role of {} {}{}", printable(role), of, joined(known),
                                                  did_you_mean(role, known)));
    }
    if (std::ranges::find(columns, role, &ColumnNames::value_type::first) != columns.end()) {
      throw UserError(ExitCode::deck, fmt::format("{} has two columns; name one", role));
    }
    columns.emplace_back(role, entry.substr(colon + 1));
  }
  return columns;
}

std::string named_column(const std::vector<std::string>& entries, std::string_view role) {
  const auto names_role = [&](const std::string& entry) { return entry.substr(0, entry.find(':')) == role; };
  const auto entry = std::ranges::find_if(entries, names_role);
  return entry == entries.end() ? std::string() : entry->substr(role.size() + 1);
}

std::string texts_of(const InstructionRow& row) {
  if (const auto* text = std::get_if<PlainText>(&row)) return text->text;
  if (const auto* texts = std::get_if<PromptCompletion>(&row)) return texts->prompt + texts->completion;
  const auto& conversation = std::get<Conversation>(row);
  std::string all;
  for (const nlohmann::ordered_json* json : {&conversation.messages, &conversation.tools}) append_texts(*json, all);
  return all;
}

std::string texts_of(const RowDocuments& row) {
  std::string all;
  for (const InstructionRow& document : row.documents) all += texts_of(document);
  return all;
}

bool has_empty_completion(const InstructionRow& row) {
  if (const auto* texts = std::get_if<PromptCompletion>(&row)) return texts->completion.empty();
  const auto* conversation = std::get_if<Conversation>(&row);
  if (conversation == nullptr || conversation->prompt_messages < 0) return false;
  for (auto i = static_cast<size_t>(conversation->prompt_messages); i < conversation->messages.size(); ++i) {
    std::string content;
    append_texts(conversation->messages[i].value("content", nlohmann::ordered_json()), content);
    if (!content.empty() || conversation->messages[i].contains("tool_calls")) return false;
  }
  return true;
}

RowReader::RowReader(std::string_view format, const std::vector<std::string>& columns, bool templated)
    : format_(find_row_format(format)), columns_(parse_columns(columns, "auto")), templated_(templated) {
  LLMTRAIN_CHECK(format_ != nullptr, "unknown format");
  std::erase_if(columns_, [&](const auto& entry) { return format_->find(entry.first) == nullptr; });
}

bool RowReader::has_difficulties() const {
  return std::ranges::find(columns_, difficulty_column, &ColumnNames::value_type::first) != columns_.end();
}

float RowReader::read_difficulty(std::string_view line) const {
  const nlohmann::ordered_json json = parse_json_row(line);
  return difficulty_of(RowView(*format_, columns_, json, templated_));
}

RowDocuments RowReader::read_documents(std::string_view line) const {
  const nlohmann::ordered_json json = parse_json_row(line);
  try {
    return read_row(RowView(*format_, columns_, json, templated_));
  } catch (const LeftOutRow& row) {
    return {.documents = {}, .left_out = row.what()};
  }
}

std::vector<std::string> RowReader::unread_texts(std::string_view line) const {
  const nlohmann::ordered_json json = parse_json_row(line);
  const RowView row(*format_, columns_, json, templated_);
  const RowDocuments read = read_row(row);
  std::vector<std::string> unread = row.unread_texts(texts_of(read));
  if (read.is_prompt()) {  // which keeps its other columns
    const nlohmann::ordered_json kept = nlohmann::ordered_json::parse(*read.columns);
    std::erase_if(unread, [&](const std::string& column) { return kept.contains(column); });
  }
  return unread;
}

RowDocuments RowReader::read_row(const RowView& row) const {
  if (format_->is_preference()) return format_->read_preference(row);
  RowDocuments single;
  single.documents.push_back(format_->read(row));
  if (has_difficulties()) single.value = difficulty_of(row);
  return single;
}

}  // namespace llmtrain
