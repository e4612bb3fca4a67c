// number:COLUMN: 1 for a completion whose last number has the value of the last number of the column.

#include <fmt/format.h>

#include <charconv>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "rewards/row_reward.hpp"

namespace llmtrain {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

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

double column_number(std::string_view columns, const std::string& column) {
  const std::string text = column_text(columns, column);
  if (const std::optional<double> number = last_number(text)) return *number;
  throw UserError(ExitCode::bad_content, fmt::format("rewards.functions: the column {} of a row has no number: {}",
                                                     printable(column), printable(text.substr(0, 200))));
}

std::unique_ptr<RewardFunction> make_number_reward(const std::string& column) {
  return make_row_reward([column](const RewardRow& row) {
    return last_number(row.completion) == std::optional(column_number(row.columns, column)) ? 1.0 : 0.0;
  });
}

}  // namespace llmtrain
