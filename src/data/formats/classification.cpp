// Rows of run.task = classify: {"text": "...", "label": ...}, with "text_pair" or messages in place of the text, and
// {"tokens": [...], "labels": [...]} with a label for each word. A row may lack its labels where they are only asked
// for. No row is recognised as one of these formats: rows of any task can have such columns.

#include "data/formats/message_list.hpp"

namespace llmtrain {
namespace {

bool never(const RowView& /*row*/) { return false; }

LabelledRow labels_of(const RowView& row, std::string_view role) {
  LabelledRow labels;
  if (row.has(role)) labels.labels = row.at(role).value();
  labels.column = row.column(role);
  return labels;
}

RowDocuments read_classification(const RowView& row) {
  RowDocuments result;
  result.labelled = labels_of(row, "label");
  if (!row.has("text") && row.has("messages")) {
    Conversation conversation;
    conversation.messages = read_messages(row, "messages");
    add_system(row, conversation.messages);
    conversation.tools = read_tools(row);
    result.documents.emplace_back(std::move(conversation));
    return result;
  }
  const OrderedJsonNode text = row.at("text");
  if (text.text().empty()) text.refuse("is empty: it has no token");
  result.documents.emplace_back(PlainText{text.text()});
  if (row.has("text_pair")) result.documents.emplace_back(PlainText{row.at("text_pair").text()});
  return result;
}

RowDocuments read_token_classification(const RowView& row) {
  RowDocuments result;
  result.labelled = labels_of(row, "labels");
  const OrderedJsonNode words = row.at("tokens");
  if (!words.value().is_array()) words.refuse_value("a list of words");
  if (words.size() == 0) words.refuse("is empty: it has no word");
  for (size_t i = 0; i < words.size(); ++i) result.documents.emplace_back(PlainText{words.at(i).text()});
  result.labelled->words = true;
  return result;
}

}  // namespace

const RowFormat& row_format_classification() {
  static constexpr std::array roles = {
      RowRole{"text", {"text", "sentence", "sentence1", "premise"}, RowRole::Place::usual},
      RowRole{"label", {"label", "labels"}, RowRole::Place::required},
      RowRole{"text_pair", {"text_pair", "sentence2", "hypothesis"}},
      RowRole{"messages", {"messages", "conversations"}},
      RowRole{"system", {"system"}},
      RowRole{"tools", {"tools"}},
      message_role,
      message_content};
  static const RowFormat format = {"classification", roles, never, nullptr, read_classification, 1, labels_column};
  return format;
}

const RowFormat& row_format_token_classification() {
  static constexpr std::array roles = {
      RowRole{"tokens", {"tokens", "words"}, RowRole::Place::required},
      RowRole{"labels", {"labels", "tags", "ner_tags", "pos_tags"}, RowRole::Place::required}};
  static const RowFormat format = {"token_classification", roles, never, nullptr, read_token_classification, 1,
                                   token_labels_column};
  return format;
}

}  // namespace llmtrain
