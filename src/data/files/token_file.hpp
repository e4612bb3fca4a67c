#pragma once
// The HDF5 token file: /tokens, /documents, optional /mask, and attributes that say where it came from.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace llmtrain {

/// Attributes of a token file under their names there.
struct TokenFileInfo {
  std::string path;
  int64_t tokens = 0;
  int64_t documents = 0;
  int64_t vocabulary_size = 0;
  int32_t eos_id = -1;  ///< -1: the documents end without one (pre-tokenized input)
  bool has_mask = false;
  int64_t characters = 0;            ///< Unicode code points of the text, 0 when unknown
  int64_t bytes = 0;                 ///< bytes of the text, 0 when unknown
  int64_t skipped_documents = 0;     ///< empty ones
  std::string tokenizer;             ///< Tokenizer::serialized(), empty for pre-tokenized input
  std::string tokenizer_hash;        ///< 16 hex digits
  std::string command;               ///< that made it
  std::vector<std::string> sources;  ///< "name size hash"
};

/// Read access by range; immutable, threads may share it. A view on a range of documents or tokens of a file is one,
/// too.
class TokenFile {
 public:
  virtual ~TokenFile() = default;
  virtual const TokenFileInfo& info() const = 0;
  virtual int64_t tokens() const = 0;
  /// Offsets of documents, ascending, first 0, last tokens(). (n + 1 entries)
  virtual std::span<const uint64_t> documents() const = 0;
  /// UserError(bad_content) for an id outside the vocabulary, UserError(io) when the file cannot be read.
  virtual void read(int64_t begin, int64_t count, int32_t* ids) const = 0;
  /// 1 = trained on; all ones without a mask.
  virtual void read_mask(int64_t begin, int64_t count, uint8_t* mask) const = 0;
};

/// Opens and validates (links, storage, sizes, types, offsets ascending) before anything is allocated by them; ids are
/// compared with the vocabulary as they are read. With `rows` > 0 the vocabulary is at most so large, whatever the file
/// says. Main thread only. UserError(bad_content / missing_input).
std::shared_ptr<const TokenFile> open_token_file(const std::string& path, int64_t rows = 0);

/// The first tokens but a fraction, and the last fraction of them (the border is floor(tokens * (1 - fraction))); a
/// document that the border cuts becomes two.
struct SplitTokens {
  std::shared_ptr<const TokenFile> train;
  std::shared_ptr<const TokenFile> validation;  ///< null when empty
};
SplitTokens split_tokens(std::shared_ptr<const TokenFile> file, double validation_fraction);

/// A hash of what a file holds: its sizes, its tokenizer and ids at many places. Of a file that is too large to be read
/// for it, this tells others from it, not damage.
std::string content_of_tokens(const TokenFile& file);

/// Several files one after the other; they must agree on vocabulary, EOS and tokenizer.
std::shared_ptr<const TokenFile> concatenate_tokens(std::vector<std::shared_ptr<const TokenFile>> files);

}  // namespace llmtrain
