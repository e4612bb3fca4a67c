#pragma once
// Readers of files that may be hostile, each as a function of bytes: for libFuzzer (entry.cpp) and for the replay of
// the corpus with mutations of it (replay.cpp). A target returns whatever the bytes are; UserError is the only
// exception that it may meet. Everything else (a crash, an exception of another kind, much memory, much time) is a bug.

#include <span>
#include <string_view>

namespace llmtrain::fuzz {

struct Target {
  std::string_view name;  ///< and of its folder in corpus/
  void (*run)(std::string_view bytes);
};

std::span<const Target> targets();

void run_deck(std::string_view bytes);
void run_json(std::string_view bytes);
void run_jsonl(std::string_view bytes);
void run_safetensors(std::string_view bytes);
void run_sentencepiece(std::string_view bytes);
void run_tiktoken(std::string_view bytes);
void run_token_file(std::string_view bytes);
void run_tokenizer_json(std::string_view bytes);
void run_weight_index(std::string_view bytes);

}  // namespace llmtrain::fuzz
