#pragma once
#include "parallel/job/runtime.hpp"
#include "train/config/config.hpp"

namespace llmtrain {

/// run.task = tokenizer: all ranks train the tokenizer of data.tokenizer = bpe. The run's directory then has the files
/// tokenizer.json and tokenizer_config.json that `llmtool tokenizer train` writes. Returns the exit code. Collective.
int run_tokenizer_task(Config& config, Runtime& runtime);

}  // namespace llmtrain
