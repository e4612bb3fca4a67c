#pragma once
// Steps from tokens to text: those of the tokenizers library. Bytes that are not UTF-8 are kept, while the library
// replaces them with U+FFFD.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/pipeline/normalizer.hpp"

namespace llmtrain {

/// Number of bytes that steps look back when tokens become text: see Tokenizer::decode_reach.
struct DecodeReach {
  static constexpr size_t unbounded = std::string::npos;
  size_t longest_token = 0;  ///< bytes
  bool joined = false;       ///< True if an earlier step has joined tokens
  size_t bytes = 0;

  void add(size_t more) { bytes = bytes == unbounded || more == unbounded ? unbounded : bytes + more; }
  /// Replaces every occurrence of `pattern` in joined tokens with `content`. A pattern of several characters can begin
  /// in tokens that are no longer known, or overlap itself.
  void add_replacement(std::string_view pattern, std::string_view content);
};

class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  /// Changes, joins or removes tokens in place.
  virtual void apply(std::vector<std::string>& tokens) const = 0;
  virtual void extend(DecodeReach& reach) const = 0;
};

std::unique_ptr<TokenDecoder> make_byte_level_decoder();
std::unique_ptr<TokenDecoder> make_byte_fallback_decoder();
std::unique_ptr<TokenDecoder> make_fuse_decoder();
std::unique_ptr<TokenDecoder> make_strip_decoder(char32_t content, size_t start, size_t stop);
std::unique_ptr<TokenDecoder> make_replace_decoder(const std::string& pattern, const std::string& content);
std::unique_ptr<TokenDecoder> make_regex_replace_decoder(const std::string& regex, std::string content,
                                                         const std::string& place);
std::unique_ptr<TokenDecoder> make_metaspace_decoder(char32_t replacement, bool keeps_first);
std::unique_ptr<TokenDecoder> make_word_piece_decoder(std::string prefix, bool cleanup);
std::unique_ptr<TokenDecoder> make_bpe_decoder(std::string suffix);

/// Returns the byte of "<0x41>", -1 for other tokens.
int byte_of_token(std::string_view token);

}  // namespace llmtrain
