#pragma once
// Steps from tokens back to text: those of the tokenizers library. Where it puts U+FFFD for bytes that are no UTF-8,
// these keep the bytes.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/normalizer.hpp"

namespace llmtrain {

class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  /// Changes, joins or drops tokens in place.
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};

std::unique_ptr<TokenDecoder> make_byte_level_decoder();
std::unique_ptr<TokenDecoder> make_byte_fallback_decoder();
std::unique_ptr<TokenDecoder> make_fuse_decoder();
std::unique_ptr<TokenDecoder> make_strip_decoder(char32_t content, size_t start, size_t stop);
std::unique_ptr<TokenDecoder> make_replace_decoder(std::string pattern, std::string content);
/// nullptr for a regex that is not known.
std::unique_ptr<TokenDecoder> make_regex_replace_decoder(std::string_view regex, std::string content);
std::unique_ptr<TokenDecoder> make_metaspace_decoder(char32_t replacement, bool keeps_first);
std::unique_ptr<TokenDecoder> make_word_piece_decoder(std::string prefix, bool cleanup);
std::unique_ptr<TokenDecoder> make_bpe_decoder(std::string suffix);

/// The byte that "<0x41>" stands for, -1 for other tokens.
int byte_of_token(std::string_view token);

}  // namespace llmtrain
