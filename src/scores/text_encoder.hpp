#pragma once
// Models that give embeddings of a text's tokens, for BERTScore: encoders of BERT's family, which read a text in both
// directions, and decoders, whose embedding of a token knows the text before it alone.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain {

/// Embeddings of a text's tokens: fp32 [tokens, width], row-major.
struct TokenEmbeddings {
  std::vector<int32_t> ids;
  std::vector<float> values;
};

class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  /// Kind and family: "encoder bert", "decoder gpt2".
  virtual std::string kind() const = 0;
  virtual int64_t layers() const = 0;  ///< whose output counts
  virtual int64_t width() const = 0;
  /// Tokens of a text, without white space around it, and those that the tokenizer puts around it. A text that is too
  /// long loses its end.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  /// Number of tokens around each text.
  virtual size_t around() const = 0;
  /// True for a token around texts that has no weight.
  virtual bool surrounds(int32_t id) const = 0;
  /// True if start() and embed() run on the device, which the caller has started.
  virtual bool needs_device() const { return false; }
  /// Reads what the constructor left. embed() does so if it was not called.
  virtual void start() {}
  virtual std::vector<TokenEmbeddings> embed(std::span<const std::string> texts) = 0;
};

/// Opens a Hugging Face folder of a BERT, a RoBERTa or a decoder that can be trained here, and checks its tokenizer and
/// its tensors. `layers`: number of layers whose output counts; 0: the one that bert-score uses for an encoder of this
/// shape, or all. Throws UserError.
std::unique_ptr<TextEncoder> open_text_encoder(const std::string& folder, int64_t layers = 0);

// One function per kind. A folder's model_type says which.
std::unique_ptr<TextEncoder> open_bert_encoder(const std::string& folder, int64_t layers);
std::unique_ptr<TextEncoder> open_decoder_encoder(const std::string& folder, int64_t layers);

/// A text without the white space around it that Python's strip() removes.
std::string_view stripped(std::string_view text);

}  // namespace llmtrain
