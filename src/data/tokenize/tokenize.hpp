#pragma once
// Converts text or rows to one token file, whose bytes do not depend on the number of ranks and threads, among which
// the reading and encoding of files is divided.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data/files/text_source.hpp"
#include "data/progress.hpp"
#include "parallel/communicator.hpp"
#include "text/chat/chat_encoder.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

struct TokenizeRequest {
  std::vector<InputFile> files;              ///< all of text (rows of text included) or all of rows of ids
  SourceScan scan;                           ///< scan of these files
  const Tokenizer* tokenizer = nullptr;      ///< null for rows of ids
  const ChatEncoder* encoder = nullptr;      ///< of rows of instruction data
  const Tokenizer* ids_tokenizer = nullptr;  ///< names the ids of rows in messages; may be null
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
};

/// The jobs of all files, in the order of the files' bytes.
std::vector<TokenizeJob> jobs_of(const TokenizeRequest& request);

/// Collective; `output` is in a folder that all ranks see. Text becomes encode(document) + EOS, with BOS before it if
/// add_bos. Rows of ids are copied, their labels become the mask. Rows of instruction data become what the encoder
/// makes of them; those without a target are left out, and so are pairs of equal answers and rows of preference data
/// with an empty one. Difficulties must be named for all files or for none.
void tokenize_to_file(const TokenizeRequest& request, Communicator& communicator, const ProgressReport& report);

}  // namespace llmtrain
