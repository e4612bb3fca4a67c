#pragma once
// Labels of rows, and rows with labels as tokens.

#include <set>
#include <string>
#include <vector>

#include "core/label_rules.hpp"
#include "data/formats/row_format.hpp"
#include "text/chat/chat_encoder.hpp"

namespace llmtrain {

/// Value of a token without a label.
inline constexpr float no_label = -1;

/// Labels that occur in rows, where the deck does not list them.
class FoundLabels {
 public:
  /// Throws UserError(bad_content) for labels that are neither names nor whole numbers, without the place of the row.
  void add(const LabelledRow& row, const LabelRules& rules);
  void add(const FoundLabels& others);
  /// Names in the order of their bytes, numbers in their own. Numbers from 0 on without a gap are indices, whose names
  /// are those of Transformers, LABEL_0 and so on; others are names. Throws UserError(bad_content) if there are fewer
  /// than two labels, or too many.
  std::vector<std::string> names() const;
  std::string packed() const;
  static FoundLabels unpacked(const std::string& bytes);

 private:
  void add_one(const nlohmann::ordered_json& label, const std::string& column);

  std::set<std::string> names_;
  bool all_numbers_ = true;
};

/// A row as tokens.
struct LabelledTokens {
  std::vector<int32_t> ids;
  std::vector<int64_t> first_pieces;  ///< number of each word's first token, -1 for a word without one; of words alone
};

/// Encodes a text, a pair of them, a conversation, or words. Texts have what the tokenizer puts around them, as
/// tokenizer(text) of Transformers; those of a pair follow each other. A conversation that ends with a question has the
/// header of an answer. Each word is encoded by itself, after a space unless it is the first. Throws EncodeError, and
/// UserError(bad_content) for a row without tokens.
void encode_labelled(const ChatEncoder& encoder, const Tokenizer& tokenizer, const RowDocuments& row,
                     LabelledTokens& tokens);

/// Appends the values of a row's labels: LabelRules::width() of a text, one for each token of words (no_label where it
/// is not the first of a word). Throws UserError(bad_content) for labels that are missing or none of the rules'.
void append_labels(const LabelledRow& row, const LabelRules& rules, const LabelledTokens& tokens,
                   std::vector<float>& values);

}  // namespace llmtrain
