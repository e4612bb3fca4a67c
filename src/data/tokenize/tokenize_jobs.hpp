#pragma once
// What a tokenization is to do, and the division of the reading and encoding of files among threads and ranks.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/label_rules.hpp"
#include "data/files/text_source.hpp"
#include "data/tokenize/infilling.hpp"
#include "text/chat/chat_encoder.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

struct TokenizeRequest {
  std::vector<InputFile> files;              ///< all of text (rows of text included) or all of rows of ids
  SourceScan scan;                           ///< scan of these files
  const Tokenizer* tokenizer = nullptr;      ///< null for rows of ids
  const ChatEncoder* encoder = nullptr;      ///< of rows of instruction data
  const LabelRules* labels = nullptr;        ///< of rows with labels
  const Tokenizer* ids_tokenizer = nullptr;  ///< names the ids of rows in messages; may be null
  Infilling infilling;                       ///< of texts and rows of text
  bool add_bos = false;
  bool of_tokenizer = false;   ///< rows of text get what the tokenizer puts around a text
  bool once = false;           ///< no second BOS or EOS where a text begins or ends with its own
  int64_t embedding_rows = 0;  ///< limit of ids (UserError(bad_content)); 0: none
  int64_t longest = 0;         ///< limit of a document in tokens (UserError(bad_content)); 0: none
  std::string output;
  std::string command;       ///< stored in the file
  bool with_digest = false;  ///< True if <output>.digest is written, too: size and content hash of the file

  /// True if the rows have difficulties, which become the values of their documents.
  bool has_difficulties() const;
};

/// Consecutive bytes of one file: whole documents, or a segment of a long one; for rows a piece of the file.
struct TokenizeJob {
  size_t file;
  int64_t begin;
  int64_t end;
  size_t first_document = 0;  // index in the scan
  size_t documents = 0;       // 1 for a segment
  bool starts = true;         // the first document begins here
  bool ends = true;           // the last document ends here
  int64_t number = 0;         // of the first document in its file; of rows that are not blank; 0 without a scan
};

/// The jobs of all files, in the order of the files' bytes.
std::vector<TokenizeJob> jobs_of(const TokenizeRequest& request);

}  // namespace llmtrain
