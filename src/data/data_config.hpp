#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/deck/named_enum.hpp"
#include "core/deck/task.hpp"
#include "data/files/text_source.hpp"
#include "data/tokenize/tokenizer_config.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// Name of the example corpus in data.train and data.validation.
inline constexpr const char* builtin_stories = "builtin:stories";

/// [data]: source of text or tokens, and the division of documents into samples.
struct DataConfig {
  enum class Packing : uint8_t { none, wrap, greedy, first_fit, best_fit };
  enum class Overflow : uint8_t { split, truncate, truncate_left, drop, error };

  std::vector<std::string> train;       ///< files, globs or builtin:stories, in the order of the deck
  std::vector<std::string> validation;  ///< likewise; empty: validation_fraction of the training tokens
  double validation_fraction = 0.1;     ///< of the tokens, the last ones; 0 = none; no meaning when validation is named
  std::string tokenizer = "char";       ///< char, bytes, bpe, or a path (names_tokenizer_files)
  int64_t vocab_size = 32000;           ///< of bpe
  TokenizerConfig bpe;                  ///< [tokenizer]
  std::string eos_token;                ///< empty: as in the tokenizer's files
  std::vector<std::string> add_tokens;  ///< special tokens that the tokenizer gets
  std::string format = "auto";          ///< of rows: auto, or a name of the list in data/formats
  std::vector<std::string> columns;     ///< role:column
  Packing packing = Packing::wrap;
  std::string document_separator;    ///< exact text: "\n\n" for blank_line; empty: a file is one document
  std::string text_column = "text";  ///< column of .jsonl rows without input_ids
  bool add_bos = false;
  Overflow overflow = Overflow::split;  ///< treatment of documents longer than the sequence, with any packing but wrap
  bool cross_document_attention = false;
  bool shuffle = true;
  int64_t seed = 42;  ///< of the order of samples; run.seed unless given
  bool group_by_length = false;
  int64_t max_tokens_per_batch = 0;            ///< inputs of a micro-batch; 0: batch.micro samples
  int64_t min_length = 0;                      ///< tokens; shorter documents are left out
  int64_t row_limit = default_row_limit;       ///< bytes per row of JSON
  bool json_as_text = false;                   ///< True if only the names of files identify rows
  int64_t unpacked_limit = int64_t{64} << 30;  ///< bytes that a compressed file may unpack to
  std::string cache;                           ///< folder of token files; resolved to <run.output>/cache

  // Fields without keys. True if the deck itself sets `tokenizer`, which must then be the one of token files and ids.
  bool tokenizer_given = false;
  // True if the task reads rows of instruction data; otherwise rows are texts.
  bool instructions = false;
  // True if texts begin with BOS where the tokenizer puts it before a text, as rows of conversations do.
  bool begins_like_tokenizer = false;
  bool packing_given = false;
  bool overflow_given = false;
  // Data that the task takes.
  DataUse use = DataUse::any;
  // Column of rows of training data with their difficulty (curriculum.difficulty); empty: none is read.
  std::string difficulty;
  // Tokens that the prompt of a document of preference data keeps, the last ones, before `overflow` applies; 0: all.
  int64_t max_prompt_length = 0;
  // True if a score is read at the last token of each document of pairs: all of its tokens are inputs, the last row
  // counts, and there are no targets.
  bool scores_documents = false;
  // Tokens of a sample that belong to the completion of its prompt; above 0 with prompts only.
  int64_t completion_tokens = 0;
  /// Tokens at the end of a document that are not inputs.
  int64_t targets_behind() const { return scores_documents || use == DataUse::prompts ? 0 : 1; }
  /// Inputs that a document may have.
  int64_t room(int64_t sequence_length) const { return sequence_length - completion_tokens; }
  // Checkpoint to read the tokenizer from if the folder of `tokenizer` no longer exists.
  std::string tokenizer_from;
  bool has_tokenizer_files() const;
  // Embedding rows of an existing model: every token id must be below it. 0: the model gets as many rows as needed.
  int64_t embedding_rows = 0;
  const std::string& tokenizer_path() const { return tokenizer_from.empty() ? tokenizer : tokenizer_from; }
  /// Path of the tokenizer's files, which may be one file; empty if it has none.
  std::string tokenizer_folder() const { return has_tokenizer_files() ? tokenizer_path() : std::string(); }
  // Division of tokens with packing = wrap in a separate evaluation.
  bool keep_rest = false;  ///< True if the last window may be shorter
  int64_t stride = 0;  ///< above 0: windows of sequence_length tokens begin this far apart, and each target counts once

  /// Rules for validation data.
  TextFormat text_format() const;
  /// The same with the column of difficulties.
  TextFormat training_format() const;

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck, const std::string& output, Task task, int64_t run_seed);
  /// Rules for data with conversations: unless the deck says otherwise, each is a sample and loses its end if it is too
  /// long.
  DataConfig for_conversations() const;
  /// Tokens that a document may have with overflow = error; 0: any number, or samples decide.
  int64_t longest_document(int64_t sequence_length) const {
    const bool refused = packing != Packing::wrap && overflow == Overflow::error && max_prompt_length == 0;
    return refused ? room(sequence_length) + targets_behind() : 0;
  }
  /// A word that is not a path must be that of a kind of tokenizer, unless a file or folder has this name.
  void check_tokenizer_name(DeckLoader& deck) const;

 private:
  void resolve_rows(DeckLoader& deck, Task task);
  void resolve_preferences(DeckLoader& deck, Task task);
  void resolve_added_tokens(DeckLoader& deck, Task task);
};

/// Returns true if data.tokenizer is the path of a file or folder, even one that no longer exists.
bool names_tokenizer_files(std::string_view tokenizer);

/// Describes a document that data.overflow = error refuses.
std::string too_long_document(bool conversation, int64_t tokens, int64_t longest);

template <>
inline constexpr auto enum_names<DataConfig::Packing> = name_list("none", "wrap", "greedy", "first_fit", "best_fit");
template <>
inline constexpr auto enum_names<DataConfig::Overflow> = name_list("split", "truncate", "truncate_left", "drop",
                                                                   "error");

}  // namespace llmtrain
