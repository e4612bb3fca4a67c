// Rows of instructions as Alpaca and LLaMA-Factory have them: {"instruction": "...", "input": "...", "output": "..."},
// optionally with "system", "tools" and the turns before: "history": [["question", "answer"], ...]. The user's turn is
// the instruction and, on a new line, the input.

#include "data/formats/message_list.hpp"

namespace llmtrain {
namespace {

InstructionRow read_alpaca(const RowView& row) {
  InstructionRow question = read_question(row);
  return with_answer(std::move(question), row.at("response").text());
}

}  // namespace

const RowFormat& row_format_alpaca() {
  static constexpr std::array roles = {RowRole{"prompt", {"instruction"}, RowRole::Place::required},
                                       RowRole{"query", {"input"}},
                                       RowRole{"response", {"output"}, RowRole::Place::required},
                                       RowRole{"system", {"system"}},
                                       RowRole{"history", {"history"}},
                                       RowRole{"tools", {"tools"}},
                                       difficulty_role};
  static const RowFormat format = {"alpaca", roles, nullptr, read_alpaca};
  return format;
}

}  // namespace llmtrain
