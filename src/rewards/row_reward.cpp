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

class RowReward final : public RewardFunction {
 public:
  using RewardOf = std::function<std::optional<double>(const RewardRow& row)>;
  explicit RowReward(RewardOf reward_of) : reward_of_(std::move(reward_of)) {}

  void score(std::span<const RewardRow> rows, std::span<double> rewards, const std::function<void()>& pause) override {
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::optional<double> reward = reward_of_(rows[i]);
      if (!reward) ++unscored_;
      rewards[i] = reward.value_or(0);
      pause();
    }
  }
  int64_t take_unscored() override { return std::exchange(unscored_, 0); }

 private:
  RewardOf reward_of_;
  int64_t unscored_ = 0;
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

std::unique_ptr<RewardFunction> make_row_reward(std::function<std::optional<double>(const RewardRow& row)> reward_of) {
  return std::make_unique<RowReward>(std::move(reward_of));
}

/// exact:COLUMN: 1 for a completion that equals the column of its row, without white space at the ends.
std::unique_ptr<RewardFunction> make_exact_reward(const std::string& column) {
  return make_row_reward([column](const RewardRow& row) {
    return stripped(row.completion) == stripped(column_text(row.columns, column)) ? 1.0 : 0.0;
  });
}

/// regex:PATTERN: 1 for a completion in which the pattern is found. A completion for which the search is given up
/// counts as one without a match.
std::unique_ptr<RewardFunction> make_regex_reward(const std::string& pattern) {
  const auto regex = std::make_shared<const Regex>(pattern, "rewards.functions", Regex::Syntax::perl);
  return make_row_reward([regex](const RewardRow& row) -> std::optional<double> {
    const std::optional<bool> found = regex->found_in(row.completion);
    return found ? std::optional(*found ? 1.0 : 0.0) : std::nullopt;
  });
}

/// length:N: punishes completions of more than N tokens.
std::unique_ptr<RewardFunction> make_length_reward(int64_t length) {
  return make_row_reward([length](const RewardRow& row) {
    const int64_t beyond = std::clamp<int64_t>(std::ssize(row.completion_ids) - length, 0, length);
    return beyond == 0 ? 0.0 : -static_cast<double>(beyond) / static_cast<double>(length);
  });
}

}  // namespace llmtrain
