#pragma once
#include <cstdint>
#include <string>

#include "core/label_rules.hpp"
#include "data/data_config.hpp"

namespace llmtrain {

/// How data become documents and samples: the keys of [data], and what the task, the model and other sections add.
/// Made once for a job (sample_rules() of its task), for the data set and its streams.
struct SampleRules : DataConfig {
  /// True if the deck itself sets `tokenizer`, which must then be the one of token files and ids.
  bool tokenizer_given = false;
  bool packing_given = false;
  bool overflow_given = false;
  bool instructions = false;           ///< TaskData::instructions
  bool begins_like_tokenizer = false;  ///< TaskData::begins_with_bos
  DataUse use = DataUse::any;
  LabelRules labels;  ///< of texts or tokens, with DataUse::labels
  /// Column of rows of training data with their difficulty (curriculum.difficulty); empty: none is read.
  std::string difficulty;
  /// Tokens that the prompt of a document of preference data keeps, the last ones, before `overflow` applies; 0: all.
  int64_t max_prompt_length = 0;
  /// True if a score is read at the last token of each document, or labels at some: all of its tokens are inputs, these
  /// rows count, and there are no targets.
  bool scores_documents = false;
  /// Tokens of a sample that belong to the completion of its prompt; above 0 with prompts only.
  int64_t completion_tokens = 0;
  /// Checkpoint to read the tokenizer from if the folder of `tokenizer` no longer exists.
  std::string tokenizer_from;
  /// Embedding rows of an existing model: every token id must be below it. 0: the model gets as many rows as needed.
  int64_t embedding_rows = 0;
  bool keep_rest = false;  ///< True if the last window of packing = wrap may be shorter
  int64_t stride = 0;  ///< above 0: windows of sequence_length tokens begin this far apart, and each target counts once

  /// Tokens at the end of a document that are not inputs.
  int64_t targets_behind() const { return scores_documents || use == DataUse::prompts ? 0 : 1; }
  /// Inputs that a document may have.
  int64_t room(int64_t sequence_length) const { return sequence_length - completion_tokens; }
  const std::string& tokenizer_path() const { return tokenizer_from.empty() ? tokenizer : tokenizer_from; }
  /// Path of the tokenizer's files, which may be one file; empty if it has none.
  std::string tokenizer_folder() const { return has_tokenizer_files() ? tokenizer_path() : std::string(); }

  /// Rules for validation data.
  TextFormat text_format() const;
  /// The same with the column of difficulties.
  TextFormat training_format() const;
  /// Rules for data with conversations: unless the deck says otherwise, each is a sample and loses its end if it is too
  /// long.
  SampleRules for_conversations() const;
  /// Rules for an evaluation by itself: of data.validation alone if it is given, else of data.train with its held-out
  /// part.
  SampleRules for_evaluation() const;
  /// Tokens that a document may have with overflow = error; 0: any number, or samples decide.
  int64_t longest_document(int64_t sequence_length) const {
    const bool refused = packing != Packing::wrap && overflow == Overflow::error && max_prompt_length == 0;
    return refused ? room(sequence_length) + targets_behind() : 0;
  }
};

/// Describes a document that data.overflow = error refuses.
std::string too_long_document(bool conversation, int64_t tokens, int64_t longest);

}  // namespace llmtrain
