#include "rewards/reward_function.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "rewards/command_reward.hpp"
#include "text/split/regex.hpp"

namespace llmtrain {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view stripped(std::string_view text) {
  constexpr std::string_view blank = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(blank);
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(blank) - begin + 1);
}

/// Returns the value of a column as text; that of a number or a bool is its JSON.
std::string column_text(std::string_view columns, const std::string& column) {
  const nlohmann::ordered_json row = parse_ordered_json(columns, {.values = int64_t{1} << 30}, columns.size());
  const auto found = row.find(column);
  if (found == row.end() || found->is_null() || found->is_structured()) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("rewards.functions: a row has no text or number in the column {}, only {}",
                                printable(column), printable(std::string(columns.substr(0, 200)))));
  }
  return found->is_string() ? found->get<std::string>() : json_text(*found);
}

/// Returns the last number of a column.
double column_number(std::string_view columns, const std::string& column) {
  const std::string text = column_text(columns, column);
  if (const std::optional<double> number = last_number(text)) return *number;
  throw UserError(ExitCode::bad_content, fmt::format("rewards.functions: the column {} of a row has no number: {}",
                                                     printable(column), printable(text.substr(0, 200))));
}

/// A function that scores rows one by one.
class RowReward : public RewardFunction {
 public:
  void score(std::span<const RewardRow> rows, std::span<double> rewards, const std::function<void()>& pause) final {
    for (size_t i = 0; i < rows.size(); ++i) {
      rewards[i] = reward_of(rows[i]);
      pause();
    }
  }

 private:
  virtual double reward_of(const RewardRow& row) = 0;
};

class ExactReward final : public RowReward {
 public:
  explicit ExactReward(std::string column) : column_(std::move(column)) {}

 private:
  double reward_of(const RewardRow& row) override {
    return stripped(row.completion) == stripped(column_text(row.columns, column_)) ? 1 : 0;
  }

  std::string column_;
};

class NumberReward final : public RowReward {
 public:
  explicit NumberReward(std::string column) : column_(std::move(column)) {}

 private:
  double reward_of(const RewardRow& row) override {
    return last_number(row.completion) == std::optional(column_number(row.columns, column_)) ? 1 : 0;
  }

  std::string column_;
};

/// A completion for which the search is given up counts as one without a match.
class RegexReward final : public RowReward {
 public:
  explicit RegexReward(const std::string& pattern) : regex_(pattern, "rewards.functions", Regex::Syntax::perl) {}
  int64_t take_unscored() override { return std::exchange(unscored_, 0); }

 private:
  double reward_of(const RewardRow& row) override {
    const std::optional<bool> found = regex_.found_in(row.completion);
    if (!found) ++unscored_;
    return found.value_or(false) ? 1 : 0;
  }

  Regex regex_;
  int64_t unscored_ = 0;
};

class LengthReward final : public RowReward {
 public:
  explicit LengthReward(int64_t length) : length_(length) {}

 private:
  double reward_of(const RewardRow& row) override {
    const int64_t beyond = std::clamp<int64_t>(std::ssize(row.completion_ids) - length_, 0, length_);
    return beyond == 0 ? 0 : -static_cast<double>(beyond) / static_cast<double>(length_);
  }

  int64_t length_;
};

/// Returns the end of the number whose first digit (or point) is at `begin`; appends it without separators.
size_t read_number(std::string_view text, size_t begin, std::string& number) {
  const auto digit_at = [&](size_t i) { return i < text.size() && is_digit(text[i]); };
  const auto three_at = [&](size_t i) { return digit_at(i) && digit_at(i + 1) && digit_at(i + 2) && !digit_at(i + 3); };
  size_t i = begin;
  const auto take_digits = [&] {
    while (digit_at(i)) number += text[i++];
  };
  take_digits();
  if (i > begin && i - begin <= 3) {
    while (i < text.size() && text[i] == ',' && three_at(i + 1)) {
      ++i;
      take_digits();
    }
  }
  if (i < text.size() && text[i] == '.' && digit_at(i + 1)) {
    number += text[i++];
    take_digits();
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    const size_t sign = i + 1 < text.size() && (text[i + 1] == '-' || text[i + 1] == '+') ? 1 : 0;
    if (digit_at(i + 1 + sign)) {
      number += text.substr(i, 1 + sign);
      i += 1 + sign;
      take_digits();
    }
  }
  return i;
}

/// Returns true for a minus before the number at `begin`.
bool is_negative(std::string_view text, size_t begin) {
  if (begin > 0 && text[begin - 1] == '$') --begin;
  if (begin == 0 || text[begin - 1] != '-') return false;
  if (begin == 1) return true;
  const char before = text[begin - 2];
  const bool is_letter = (before >= 'a' && before <= 'z') || (before >= 'A' && before <= 'Z');
  return !is_letter && !is_digit(before) && before != ')' && before != ']';
}

}  // namespace

std::optional<double> last_number(std::string_view text) {
  std::optional<double> last;
  std::string number;
  for (size_t i = 0; i < text.size();) {
    const bool point = text[i] == '.' && i + 1 < text.size() && is_digit(text[i + 1]);
    if (!is_digit(text[i]) && !point) {
      ++i;
      continue;
    }
    number = is_negative(text, i) ? "-" : "";
    i = read_number(text, i, number);
    double value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error == std::errc() && end == number.data() + number.size()) last = value;
  }
  return last;
}

std::unique_ptr<RewardFunction> make_reward_function(const RewardSpec& spec, Duration time_limit) {
  switch (spec.kind) {
    case RewardSpec::Kind::exact:
      return std::make_unique<ExactReward>(spec.argument);
    case RewardSpec::Kind::number:
      return std::make_unique<NumberReward>(spec.argument);
    case RewardSpec::Kind::regex:
      return std::make_unique<RegexReward>(spec.argument);
    case RewardSpec::Kind::length:
      return std::make_unique<LengthReward>(spec.length());
    case RewardSpec::Kind::command:
      return make_command_reward(spec.argument, time_limit);
    case RewardSpec::Kind::model:
      break;
  }
  LLMTRAIN_CHECK(false, "a reward model is not a function of texts");
}

std::vector<std::string> reward_names(const RewardFunctionsConfig& config) {
  std::vector<std::string> names;
  std::vector<int> count(enum_names<RewardSpec::Kind>.size());
  for (const RewardSpec& spec : config.specs()) {
    const int number = ++count[static_cast<size_t>(spec.kind)];
    const std::string_view kind = name_of(spec.kind);
    names.push_back(number == 1 ? std::string(kind) : fmt::format("{}_{}", kind, number));
  }
  return names;
}

void check_reward_columns(const RewardSpec& spec, std::string_view columns) {
  if (spec.kind == RewardSpec::Kind::exact) column_text(columns, spec.argument);
  if (spec.kind == RewardSpec::Kind::number) column_number(columns, spec.argument);
}

}  // namespace llmtrain
