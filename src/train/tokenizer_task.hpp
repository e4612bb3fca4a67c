#pragma once
#include "parallel/job/runtime.hpp"
#include "train/config/config.hpp"

namespace llmtrain {

/// run.task = tokenizer: all ranks learn data.tokenizer = bpe; tokenizer.json and tokenizer_config.json lie in the
/// run's directory then, the files that `llmtool tokenizer train` writes. Returns the exit code. Collective.
int run_tokenizer_task(Config& config, Runtime& runtime);

}  // namespace llmtrain
