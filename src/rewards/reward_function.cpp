#include "rewards/reward_function.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

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
  const nlohmann::json row = parse_json(columns, "the columns of a row", {int64_t{1} << 40, int64_t{1} << 30});
  const auto found = row.find(column);
  if (found == row.end() || found->is_null() || found->is_structured()) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("rewards.functions: a row has no text or number in the column {}, only {}",
                                printable(column), printable(std::string(columns.substr(0, 200)))));
  }
  return found->is_string() ? found->get<std::string>() : found->dump();
}

class ExactReward final : public RewardFunction {
 public:
  ExactReward(std::string name, std::string column) : RewardFunction(std::move(name)), column_(std::move(column)) {}
  void check_columns(std::string_view columns) const override { column_text(columns, column_); }
  void score(std::span<const RewardRow> rows, std::span<double> rewards) override {
    for (size_t i = 0; i < rows.size(); ++i) {
      rewards[i] = stripped(rows[i].completion) == stripped(column_text(rows[i].columns, column_)) ? 1 : 0;
    }
  }

 private:
  std::string column_;
};

class NumberReward final : public RewardFunction {
 public:
  NumberReward(std::string name, std::string column) : RewardFunction(std::move(name)), column_(std::move(column)) {}
  void check_columns(std::string_view columns) const override { expected(columns); }
  void score(std::span<const RewardRow> rows, std::span<double> rewards) override {
    for (size_t i = 0; i < rows.size(); ++i) {
      rewards[i] = last_number(rows[i].completion) == std::optional(expected(rows[i].columns)) ? 1 : 0;
    }
  }

 private:
  double expected(std::string_view columns) const {
    const std::string text = column_text(columns, column_);
    const std::optional<double> number = last_number(text);
    if (!number) {
      throw UserError(ExitCode::bad_content, fmt::format("rewards.functions: the column {} of a row has no number: {}",
                                                         printable(column_), printable(text.substr(0, 200))));
    }
    return *number;
  }

  std::string column_;
};

class RegexReward final : public RewardFunction {
 public:
  RegexReward(std::string name, const std::string& pattern)
      : RewardFunction(std::move(name)), regex_(pattern, "rewards.functions", Regex::Syntax::perl) {}
  void score(std::span<const RewardRow> rows, std::span<double> rewards) override {
    for (size_t i = 0; i < rows.size(); ++i) rewards[i] = regex_.found_in(rows[i].completion) ? 1 : 0;
  }

 private:
  Regex regex_;
};

class LengthReward final : public RewardFunction {
 public:
  LengthReward(std::string name, int64_t length) : RewardFunction(std::move(name)), length_(length) {}
  void score(std::span<const RewardRow> rows, std::span<double> rewards) override {
    for (size_t i = 0; i < rows.size(); ++i) {
      const int64_t beyond = std::clamp<int64_t>(std::ssize(rows[i].completion_ids) - length_, 0, length_);
      rewards[i] = beyond == 0 ? 0 : -static_cast<double>(beyond) / static_cast<double>(length_);
    }
  }

 private:
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

std::unique_ptr<RewardFunction> make_reward_function(const RewardSpec& spec, std::string name, Duration time_limit) {
  switch (spec.kind) {
    case RewardSpec::Kind::exact:
      return std::make_unique<ExactReward>(std::move(name), spec.argument);
    case RewardSpec::Kind::number:
      return std::make_unique<NumberReward>(std::move(name), spec.argument);
    case RewardSpec::Kind::regex:
      return std::make_unique<RegexReward>(std::move(name), spec.argument);
    case RewardSpec::Kind::length:
      return std::make_unique<LengthReward>(std::move(name), spec.length());
    case RewardSpec::Kind::command:
      return make_command_reward(std::move(name), spec.argument, time_limit);
    case RewardSpec::Kind::model:
      break;
  }
  LLMTRAIN_CHECK(false, "a reward model is no function of texts");
}

std::vector<std::string> reward_names(const RewardsConfig& config) {
  std::vector<std::string> names;
  std::vector<int> count(enum_names<RewardSpec::Kind>.size());
  for (const RewardSpec& spec : config.specs()) {
    const int number = ++count[static_cast<size_t>(spec.kind)];
    const std::string_view kind = name_of(spec.kind);
    names.push_back(number == 1 ? std::string(kind) : fmt::format("{}_{}", kind, number));
  }
  return names;
}

std::vector<std::unique_ptr<RewardFunction>> make_reward_functions(const RewardsConfig& config) {
  std::vector<std::unique_ptr<RewardFunction>> all;
  const std::vector<RewardSpec> specs = config.specs();
  const std::vector<std::string> names = reward_names(config);
  for (size_t i = 0; i < specs.size(); ++i) {
    const bool model = specs[i].kind == RewardSpec::Kind::model;
    all.push_back(model ? nullptr : make_reward_function(specs[i], names[i], config.time_limit));
  }
  return all;
}

}  // namespace llmtrain
