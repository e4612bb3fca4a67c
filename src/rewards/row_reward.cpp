// Rules that score a completion by its text or length, row by row.
#include "rewards/row_reward.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "text/split/regex.hpp"

namespace llmtrain {
namespace {

std::string_view stripped(std::string_view text) {
  constexpr std::string_view blank = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(blank);
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(blank) - begin + 1);
}

/// exact:COLUMN: 1 for a completion that equals the column of its row, without white space at the ends.
class ExactReward final : public RowReward {
 public:
  explicit ExactReward(std::string column) : column_(std::move(column)) {}

 private:
  double reward_of(const RewardRow& row) override {
    return stripped(row.completion) == stripped(column_text(row.columns, column_)) ? 1 : 0;
  }

  std::string column_;
};

/// regex:PATTERN: 1 for a completion in which the pattern is found. A completion for which the search is given up
/// counts as one without a match.
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

/// length:N: punishes completions of more than N tokens.
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

}  // namespace

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

void check_reward_columns(const RewardSpec& spec, std::string_view columns) {
  if (spec.kind == RewardSpec::Kind::exact) column_text(columns, spec.argument);
  if (spec.kind == RewardSpec::Kind::number) column_number(columns, spec.argument);
}

std::unique_ptr<RewardFunction> make_exact_reward(const std::string& column) {
  return std::make_unique<ExactReward>(column);
}

std::unique_ptr<RewardFunction> make_regex_reward(const std::string& pattern) {
  return std::make_unique<RegexReward>(pattern);
}

std::unique_ptr<RewardFunction> make_length_reward(int64_t length) { return std::make_unique<LengthReward>(length); }

}  // namespace llmtrain
