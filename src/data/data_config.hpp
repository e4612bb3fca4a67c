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

constexpr DataUse use_of(TaskSamples samples) {
  if (samples == TaskSamples::texts || samples == TaskSamples::conversations) return DataUse::training;
  if (samples == TaskSamples::preferences) return DataUse::preferences;
  if (samples == TaskSamples::pairs) return DataUse::pairs;
  if (samples == TaskSamples::labelled) return DataUse::labels;
  return samples == TaskSamples::prompts ? DataUse::prompts : DataUse::any;
}

/// Data that a task takes, which follow from its samples (core/deck/task.hpp).
struct TaskData {
  explicit constexpr TaskData(Task of) : task(of) {}

  Task task;
  TaskSamples samples = samples_of(task);
  DataUse use = use_of(samples);
  bool instructions = instruction_tasks.contains(task);  ///< rows of instruction data; otherwise rows are texts
  /// Texts begin with BOS where the tokenizer puts it before a text, as conversations do.
  bool begins_with_bos = samples == TaskSamples::conversations;
  bool holds_out = samples != TaskSamples::prompts;  ///< data.validation and data.validation_fraction have a meaning
  bool is_tokenizer = samples == TaskSamples::vocabulary;  ///< a tokenizer is trained on it

  bool trains() const { return use != DataUse::any; }
};

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
  double fim_rate = 0;                             ///< share of texts that are cut for fill-in-the-middle
  double fim_spm_rate = 0.5;                       ///< share of these whose suffix comes first
  std::vector<std::string> fim_tokens = {"auto"};  ///< or the tokens for prefix, middle and suffix
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

  bool has_tokenizer_files() const;
  /// True if the tokenizer is known before the text is read.
  bool encodes_any_text() const { return has_tokenizer_files() || tokenizer == "bytes"; }

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck, const std::string& output, int64_t run_seed, const TaskData& task);
  /// Takes the tokenizer of a model's folder, unless the deck names one.
  void take_tokenizer(DeckLoader& deck, const std::string& path);
  /// A word that is not a path must be that of a kind of tokenizer, unless a file or folder has this name.
  void check_tokenizer_name(DeckLoader& deck) const;

 private:
  void resolve_rows(DeckLoader& deck, const TaskData& task);
  void resolve_preferences(DeckLoader& deck, const TaskData& task);
  void resolve_added_tokens(DeckLoader& deck, const TaskData& task);
  void resolve_infilling(DeckLoader& deck);
};

/// Returns true if data.tokenizer is the path of a file or folder, even one that no longer exists.
bool names_tokenizer_files(std::string_view tokenizer);

template <>
inline constexpr auto enum_names<DataConfig::Packing> = name_list("none", "wrap", "greedy", "first_fit", "best_fit");
template <>
inline constexpr auto enum_names<DataConfig::Overflow> = name_list("split", "truncate", "truncate_left", "drop",
                                                                   "error");

}  // namespace llmtrain
