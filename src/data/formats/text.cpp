// Rows of plain text: {"text": "..."}.

#include "data/formats/row_format.hpp"

namespace llmtrain {

const RowFormat& row_format_text() {
  static constexpr std::array roles = {RowRole{"text", {"text"}, RowRole::Place::required}, difficulty_role};
  static const RowFormat format = {
      "text", roles, nullptr, [](const RowView& row) -> InstructionRow { return PlainText{row.at("text").text()}; }};
  return format;
}

}  // namespace llmtrain
