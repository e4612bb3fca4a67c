#include "fuzz/targets.hpp"

#include <array>

namespace llmtrain::fuzz {

std::span<const Target> targets() {
  static constexpr std::array<Target, 10> all = {{
      {"chat_template", run_chat_template},
      {"deck", run_deck},
      {"json", run_json},
      {"jsonl", run_jsonl},
      {"safetensors", run_safetensors},
      {"sentencepiece", run_sentencepiece},
      {"tiktoken", run_tiktoken},
      {"token_file", run_token_file},
      {"tokenizer_json", run_tokenizer_json},
      {"weight_index", run_weight_index},
  }};
  return all;
}

}  // namespace llmtrain::fuzz
