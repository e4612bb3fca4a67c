#pragma once
// Text or rows -> one token file. The file is the same, byte for byte, whatever the number of ranks and threads.

#include <string>
#include <vector>

#include "data/files/text_source.hpp"
#include "data/progress.hpp"
#include "parallel/communicator.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

struct TokenizeRequest {
  std::vector<InputFile> files;              ///< all text (also in rows) or all rows of ids
  SourceScan scan;                           ///< of these files
  const Tokenizer* tokenizer = nullptr;      ///< null for rows of ids
  const Tokenizer* ids_tokenizer = nullptr;  ///< names the ids of rows in messages; may be null
  bool add_bos = false;
  int64_t embedding_rows = 0;  ///< UserError(bad_content) where a token has an id that is not below it; 0: any may
  std::string output;
  std::string command;       ///< stored in the file
  bool with_digest = false;  ///< also writes <output>.digest: size and content hash of the file
};

/// Collective; `output` lies in a folder that all ranks see. Text: encode(document) + EOS, BOS before it with add_bos.
/// Rows of ids: as they are, their labels as the mask.
void tokenize_to_file(const TokenizeRequest& request, Communicator& communicator, const ProgressReport& report);

}  // namespace llmtrain
