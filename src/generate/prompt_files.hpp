#pragma once
// The prompts of run.task = generate: lines of text, or rows of JSON.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/formats/row_format.hpp"
#include "parallel/communicator.hpp"
#include "text/chat/chat_encoder.hpp"

namespace llmtrain {

/// A prompt and the columns of its row. The row of a line of text has the column prompt.
struct Prompt {
  nlohmann::ordered_json row;
  std::vector<int32_t> ids;  ///< not empty
  int64_t dropped = 0;       ///< number of tokens at its begin that are left out
};

struct PromptRules {
  std::vector<std::string> columns;  ///< role:column, of rows
  int64_t row_limit = default_row_limit;
  int64_t max_tokens = 0;  ///< that a prompt may have
  bool truncates = true;   ///< True if a longer one loses its beginning; otherwise it is an error
  int64_t vocabulary = 0;  ///< number of tokens with an embedding row
};

class PromptFiles {
 public:
  /// Finds the prompts of files or globs; rank 0 reads them. Lines of white space are not prompts. Collective. Throws
  /// UserError. The tokenizer must outlive it.
  PromptFiles(const std::vector<std::string>& files, PromptRules rules, const Tokenizer& tokenizer,
              const ChatConfig& chat, const ChatFiles& templates, Communicator& communicator);

  const std::vector<std::string>& names() const { return names_; }
  int64_t size() const { return static_cast<int64_t>(places_.size()); }
  /// Reads a prompt by its number. Throws UserError(bad_content) "file:line: message".
  Prompt read(int64_t number) const;

 private:
  struct Place {
    uint32_t file;
    int64_t offset;
  };
  void find_places(const std::vector<std::string>& patterns);

  PromptRules rules_;
  const Tokenizer& tokenizer_;
  ChatEncoder encoder_;
  RowReader text_reader_, row_reader_;
  std::vector<std::string> names_;
  std::vector<uint8_t> holds_rows_;  ///< of each file: 1 = rows, 0 = lines of text
  std::vector<FileHandle> files_;
  std::vector<Place> places_;
};

/// Checks that the files exist and are such files, without reading prompts. Throws UserError.
void check_prompt_files(const std::vector<std::string>& files, int64_t row_limit);

}  // namespace llmtrain
