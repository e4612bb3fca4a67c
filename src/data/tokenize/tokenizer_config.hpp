#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;
struct TokenizerTraining;

/// [tokenizer]: how data.tokenizer = bpe is learnt from the training text.
struct TokenizerConfig {
  enum class Unit : uint8_t { line, document };

  std::string split = "gpt2";  ///< name of a split pattern
  Unit unit = Unit::line;
  int64_t min_frequency = 0;
  std::vector<std::string> special_tokens;  ///< besides the end of a text and, with data.add_bos, its beginning

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck, int64_t vocab_size, bool add_bos) const;  ///< checks only
  TokenizerTraining training(int64_t vocab_size, bool add_bos) const;
};

template <>
inline constexpr auto enum_names<TokenizerConfig::Unit> = name_list("line", "document");

}  // namespace llmtrain
