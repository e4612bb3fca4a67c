#include "rewards/row_reward.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"

namespace llmtrain {

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

}  // namespace llmtrain
