#pragma once
// Readers of possibly hostile files, each as a function of bytes: for libFuzzer (entry.cpp) and for the replay of the
// corpus with mutations of it (replay.cpp). A target must return for any bytes; UserError is the only exception that it
// may catch. Everything else (a crash, a different exception, much memory, much time) is a bug.

#include <span>
#include <string_view>

namespace llmtrain::fuzz {

struct Target {
  std::string_view name;  ///< also the name of its folder in corpus/
  void (*run)(std::string_view bytes);
};

std::span<const Target> targets();

void run_chat_template(std::string_view bytes);
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
