#include "data/sample_rules.hpp"

#include <fmt/format.h>

#include "data/formats/row_format.hpp"

namespace llmtrain {

TextFormat SampleRules::text_format() const {
  const bool prompts = use == DataUse::prompts && format == "auto";
  const bool labelled = use == DataUse::labels && format == "auto";
  const std::string rows = !instructions ? "text"
                           : prompts     ? "prompt"
                           : labelled    ? (labels.tokens ? "token_classification" : "classification")
                                         : format;
  return {document_separator, text_column, row_limit, json_as_text, rows, columns, use};
}

TextFormat SampleRules::training_format() const {
  TextFormat rules = text_format();
  if (!difficulty.empty()) rules.columns.push_back(fmt::format("{}:{}", difficulty_column, difficulty));
  return rules;
}

SampleRules SampleRules::for_conversations() const {
  SampleRules rules = *this;
  if (!packing_given) rules.packing = Packing::none;
  if (!overflow_given) rules.overflow = use == DataUse::prompts ? Overflow::truncate_left : Overflow::truncate;
  return rules;
}

SampleRules SampleRules::for_evaluation() const {
  SampleRules rules = *this;
  if (validation.empty()) return rules;
  rules.train = validation;
  rules.validation.clear();
  rules.validation_fraction = 0;
  return rules;
}

std::string too_long_document(bool conversation, int64_t tokens, int64_t longest) {
  return fmt::format(
      "the {} has {} tokens, more than the {} that batch.sequence_length allows; choose a longer sequence, or {}",
      conversation ? "conversation" : "document", tokens, longest,
      conversation ? "data.overflow = truncate, truncate_left or drop" : "data.overflow = split or truncate");
}

}  // namespace llmtrain
