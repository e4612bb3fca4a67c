// Rows of a prompt, its completion and a label, as TRL's KTO has them: {"prompt": "...", "completion": "...", "label":
// true}. Prompt and completion are two texts or two lists of messages.

#include "core/error.hpp"
#include "data/formats/message_list.hpp"

namespace llmtrain {
namespace {

/// Returns 1 or 0; -1 for a value that is no label.
int label_of(const nlohmann::ordered_json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (!value.is_number()) return -1;
  const auto number = value.get<double>();
  return number == 0 ? 0 : number == 1 ? 1 : -1;
}

/// Prompts and completions can have a label of another kind, such as the name of their topic.
bool has_label(const RowView& row) { return label_of(row.at("label").value()) >= 0; }

RowDocuments read_unpaired(const RowView& row) {
  const OrderedJsonNode label = row.at("label");
  const int value = label_of(label.value());
  if (value < 0) label.refuse_value("true or false, or 1 or 0");
  RowDocuments result;
  result.value = static_cast<float>(value);
  result.documents.push_back(read_divided(row, "prompt", "completion"));
  return result;
}

}  // namespace

const RowFormat& row_format_unpaired() {
  static constexpr std::array roles = {RowRole{"prompt", {"prompt"}, RowRole::Place::required},
                                       RowRole{"completion", {"completion"}, RowRole::Place::required},
                                       RowRole{"label", {"label"}, RowRole::Place::required},
                                       RowRole{"system", {"system"}},
                                       RowRole{"tools", {"tools"}},
                                       message_role,
                                       message_content};
  static const RowFormat format = {"unpaired", roles, has_label, nullptr, read_unpaired, 1, "label"};
  return format;
}

}  // namespace llmtrain
