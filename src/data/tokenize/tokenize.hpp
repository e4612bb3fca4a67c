#pragma once
// Converts text or rows to one token file, whose bytes do not depend on the number of ranks and threads.

#include "data/progress.hpp"
#include "data/tokenize/tokenize_jobs.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

/// Collective; `output` is in a folder that all ranks see. Text becomes encode(document) + EOS, with BOS before it if
/// add_bos. Rows of ids are copied, their labels become the mask. Rows of instruction data become what the encoder
/// makes of them; those without a target are left out, and so are pairs of equal answers and rows of preference data
/// with an empty one. Difficulties must be named for all files or for none.
void tokenize_to_file(const TokenizeRequest& request, Communicator& communicator, const ProgressReport& report);

}  // namespace llmtrain
