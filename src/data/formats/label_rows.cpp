#include "data/formats/label_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "core/batch.hpp"
#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "parallel/message.hpp"

namespace llmtrain {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void refuse(const std::string& column, const std::string& what) {
  throw UserError(ExitCode::bad_content, fmt::format("{}: {}", printable(column), what));
}

std::string shown(const Json& value) { return printable(value.dump(-1, ' ', false, Json::error_handler_t::replace)); }

void require_labels(const LabelledRow& row) {
  if (!row.labels.is_null()) return;
  refuse(row.column, "the row has no label; data.columns (llmtool: --columns) names another column");
}

/// A whole number, also one that a table keeps as 3.0.
std::optional<int64_t> whole_number(const Json& label) {
  if (label.is_number_integer()) return label.get<int64_t>();
  constexpr double limit = 0x1p53;
  if (!label.is_number_float()) return std::nullopt;
  const double value = label.get<double>();
  return std::abs(value) < limit && value == std::floor(value) ? std::optional(static_cast<int64_t>(value))
                                                               : std::nullopt;
}

/// The name of a label: its text; of numbers and truth values as JSON writes them.
std::string name_of_label(const Json& label, const std::string& column) {
  if (label.is_string()) return label.get<std::string>();
  if (label.is_boolean()) return label.get<bool>() ? "true" : "false";
  if (const std::optional<int64_t> number = whole_number(label)) return std::to_string(*number);
  std::string remedy;
  if (label.is_array()) remedy = "; for several labels of a text set classify.problem = multi";
  if (label.is_number()) remedy = "; to learn numbers set classify.problem = regression";
  refuse(column, fmt::format("{} is neither a label's name nor its number{}", shown(label), remedy));
}

bool is_whole_number(const std::string& name) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  return error == std::errc() && end == name.data() + name.size();
}

/// Index of a label: its name, or its index where no name is a number.
size_t index_of(const Json& label, const LabelRules& rules, const std::string& column) {
  const std::string name = name_of_label(label, column);
  const auto found = std::ranges::find(rules.names, name);
  if (found != rules.names.end()) return static_cast<size_t>(found - rules.names.begin());
  const std::optional<int64_t> number = whole_number(label);
  if (number && std::ranges::none_of(rules.names, is_whole_number)) {
    if (*number >= 0 && *number < std::ssize(rules.names)) return static_cast<size_t>(*number);
    refuse(column,
           fmt::format("{} is not the number of a label: there are {}, from 0 on", shown(label), rules.names.size()));
  }
  constexpr size_t most = 20;
  const std::vector<std::string_view> known(rules.names.begin(), rules.names.end());
  const std::span<const std::string> first(rules.names.data(), std::min(most, known.size()));
  refuse(column, fmt::format("{} is not one of the labels {}{}{}", shown(label), joined(first),
                             known.size() > most ? fmt::format(" and {} more", known.size() - most) : "",
                             did_you_mean(name, known)));
}

float number_of(const Json& label, const std::string& column) {
  if (!label.is_number())
    refuse(column, fmt::format("{} is not a number (classify.problem = regression)", shown(label)));
  const auto value = static_cast<float>(label.get<double>());
  if (!std::isfinite(value)) refuse(column, fmt::format("{} is not a finite number of fp32", shown(label)));
  return value;
}

bool is_ignored(const Json& label) { return label.is_number_integer() && label == int64_t{ignore_target}; }

const Json& list_of(const LabelledRow& row, std::string_view why) {
  if (!row.labels.is_array()) refuse(row.column, fmt::format("{} is not a list of labels, {}", shown(row.labels), why));
  return row.labels;
}

/// The space that words are encoded after: none where the tokenizer puts one before each text.
std::string_view space_before_words(const Tokenizer& tokenizer) {
  std::vector<int32_t> apart, together;
  try {
    for (const char* word : {"a", "b"}) tokenizer.encode(word, apart);
    tokenizer.encode("a b", together);
  } catch (const EncodeError&) {  // a vocabulary of few characters
    return " ";
  }
  return apart == together ? "" : " ";
}

}  // namespace

void FoundLabels::add_one(const Json& label, const std::string& column) {
  if (!whole_number(label)) all_numbers_ = false;
  names_.insert(name_of_label(label, column));
  if (names_.size() > max_labels) {
    refuse(column, fmt::format("there are more than {} labels: is this their column?", max_labels));
  }
}

void FoundLabels::add(const LabelledRow& row, const LabelRules& rules) {
  require_labels(row);
  if (!rules.tokens && rules.problem == LabelProblem::single) return add_one(row.labels, row.column);
  const std::string_view why = rules.tokens ? "one for each word" : "of which a text has any number";
  for (const Json& label : list_of(row, why)) {
    if (!rules.tokens || !is_ignored(label)) add_one(label, row.column);
  }
}

void FoundLabels::add(const FoundLabels& others) {
  names_.insert(others.names_.begin(), others.names_.end());
  all_numbers_ = all_numbers_ && others.all_numbers_;
}

std::vector<std::string> FoundLabels::names() const {
  std::vector<std::string> all(names_.begin(), names_.end());
  const auto refuse_all = [](const std::string& what) { throw UserError(ExitCode::bad_content, "the rows " + what); };
  if (all.size() < 2) refuse_all("have fewer than two labels: list all in classify.labels");
  if (all.size() > max_labels) refuse_all(fmt::format("have {} labels, more than {}", all.size(), max_labels));
  if (!all_numbers_) return all;
  std::ranges::sort(all, {}, [](const std::string& name) { return std::stoll(name); });
  if (all.front() != "0" || all.back() != std::to_string(all.size() - 1)) return all;
  for (std::string& name : all) name.insert(0, "LABEL_");
  return all;
}

std::string FoundLabels::packed() const {
  Message message;
  message.put(std::vector<int64_t>{all_numbers_ ? 1 : 0, std::ssize(names_)});
  for (const std::string& name : names_) message.put(name);
  return message.bytes();
}

FoundLabels FoundLabels::unpacked(const std::string& bytes) {
  Message message(bytes);
  std::vector<int64_t> facts;
  message.take(facts);
  FoundLabels found;
  found.all_numbers_ = facts.at(0) == 1;
  for (int64_t i = 0; i < facts.at(1); ++i) {
    std::string name;
    message.take(name);
    found.names_.insert(std::move(name));
  }
  return found;
}

void encode_labelled(const ChatEncoder& encoder, const Tokenizer& tokenizer, const RowDocuments& row,
                     LabelledTokens& tokens) {
  tokens.ids.clear();
  tokens.first_pieces.clear();
  if (const auto* conversation = std::get_if<Conversation>(&row.documents.front())) {
    thread_local EncodedRow encoded;
    const bool answered = conversation->messages.back()["role"] == "assistant";
    answered ? encoder.encode(*conversation, encoded) : encoder.encode_prompt(*conversation, encoded);
    tokens.ids = encoded.ids;
  } else if (row.labelled->words) {
    const std::string_view space = space_before_words(tokenizer);
    for (const InstructionRow& word : row.documents) {
      const auto first = std::ssize(tokens.ids);
      const std::string& text = std::get<PlainText>(word).text;
      tokenizer.encode(tokens.first_pieces.empty() ? text : fmt::format("{}{}", space, text), tokens.ids);
      tokens.first_pieces.push_back(text.empty() || std::ssize(tokens.ids) == first ? -1 : first);
    }
    std::vector<TextRange> ranges(tokens.ids.size(), TextRange{0, 1});
    const bool has_pieces = !tokens.ids.empty();
    tokenizer.add_special_tokens(tokens.ids, &ranges);
    const auto added = std::ranges::find(ranges, TextRange{0, 1}) - ranges.begin();
    for (int64_t& piece : tokens.first_pieces) piece += piece >= 0 && has_pieces ? added : 0;
    if (!has_pieces) tokens.ids.clear();
  } else {
    std::vector<int32_t> ids;
    for (const InstructionRow& text : row.documents) {
      ids.clear();
      tokenizer.encode(std::get<PlainText>(text).text, ids);
      tokenizer.add_special_tokens(ids, nullptr);
      tokens.ids.insert(tokens.ids.end(), ids.begin(), ids.end());
    }
  }
  if (tokens.ids.empty()) throw UserError(ExitCode::bad_content, "the row has no token");
}

void append_labels(const LabelledRow& row, const LabelRules& rules, const LabelledTokens& tokens,
                   std::vector<float>& values) {
  require_labels(row);
  if (rules.tokens) {
    const Json& labels = list_of(row, "one for each word");
    if (labels.size() != tokens.first_pieces.size()) {
      refuse(row.column,
             fmt::format("{} labels of {} words: each word has one", labels.size(), tokens.first_pieces.size()));
    }
    const size_t first = values.size();
    values.resize(first + tokens.ids.size(), no_label);
    for (size_t word = 0; word < labels.size(); ++word) {
      if (is_ignored(labels[word])) continue;
      const auto label = static_cast<float>(index_of(labels[word], rules, row.column));
      if (tokens.first_pieces[word] >= 0) values[first + static_cast<size_t>(tokens.first_pieces[word])] = label;
    }
  } else if (rules.problem == LabelProblem::multi) {
    const Json& labels = list_of(row, "of which a text has any number (classify.problem = multi)");
    const size_t first = values.size();
    values.resize(first + rules.names.size(), 0.0F);
    for (const Json& label : labels) values[first + index_of(label, rules, row.column)] = 1;
  } else if (rules.problem == LabelProblem::regression) {
    values.push_back(number_of(row.labels, row.column));
  } else {
    values.push_back(static_cast<float>(index_of(row.labels, rules, row.column)));
  }
}

}  // namespace llmtrain
