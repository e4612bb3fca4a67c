#pragma once
// HDF5 token file: /tokens, /documents, optional /mask, /values and /rows, and attributes that describe the origin.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/files/token_file_info.hpp"
#include "parallel/local_communicator.hpp"
#include "parallel/node_array.hpp"

namespace llmtrain {

/// Read access by range; immutable, so threads can share one. A view of a range of documents or tokens is also a
/// TokenFile.
class TokenFile {
 public:
  virtual ~TokenFile() = default;
  const TokenFileInfo& info() const { return info_; }
  int64_t tokens() const { return info_.tokens; }
  /// Offsets of documents: n + 1 ascending entries, the first 0, the last tokens().
  std::span<const uint64_t> documents() const { return documents_.values(); }
  /// Throws UserError(bad_content) for an id outside the vocabulary, UserError(io) if the file cannot be read.
  virtual void read(int64_t begin, int64_t count, int32_t* ids) const = 0;
  /// Values of the documents, as info().column names them; empty if it is.
  virtual std::span<const float> values() const { return {}; }
  /// Values of the documents [first, last), or of their tokens.
  std::span<const float> values_of(size_t first, size_t last) const;
  /// Reads what is stored of a prompt's row (StoredRow). Empty if the documents are not prompts.
  virtual std::string row_text(int64_t document) const;
  /// The ranks that opened the file together. They make views and indices of it together, too.
  virtual Communicator& ranks() const;
  /// Reads the mask: 1 = trained on; all ones without a mask.
  virtual void read_mask(int64_t begin, int64_t count, uint8_t* mask) const = 0;

 protected:
  TokenFileInfo info_;
  NodeArray<uint64_t> documents_;
};

/// The row of a prompt: its other columns, JSON text of an object on one line, and where it came from: the name of the
/// file and the offset of the row in its text. Files of earlier versions lack the origin.
struct StoredRow {
  std::string columns, name;
  int64_t offset = -1;  ///< -1: unknown

  std::string text() const;
  static StoredRow parse(std::string_view text);
};

/// Opens a file and validates it (links, storage, sizes, types, ascending offsets) before it allocates by its sizes;
/// reading compares ids with the vocabulary. A positive `rows` limits the vocabulary, whatever the file says.
/// Collective over `ranks`: rank 0 alone reads offsets and values, of which each node has one copy. Main thread only.
/// Throws UserError(bad_content / missing_input).
std::shared_ptr<const TokenFile> open_token_file(const std::string& path, int64_t rows = 0,
                                                 Communicator& ranks = this_process());

/// Splits off the last fraction of the tokens (the border is floor(tokens * (1 - fraction))); a document that the
/// border cuts becomes two, unless there are rows of instruction data: then the border moves back to the start of a
/// document, of pairs to the start of one.
struct SplitTokens {
  std::shared_ptr<const TokenFile> train;
  std::shared_ptr<const TokenFile> validation;  ///< null if empty
};
SplitTokens split_tokens(std::shared_ptr<const TokenFile> file, double validation_fraction);

/// A view of the documents with at least this many tokens, or of the pairs of such documents. Throws
/// UserError(bad_content) if there are none.
std::shared_ptr<const TokenFile> without_short_documents(std::shared_ptr<const TokenFile> file, int64_t min_length);

/// Returns a hash of sizes, tokenizer, and ids and mask at many positions. For a file that is too large to be read
/// completely, it detects other content, but not damage.
std::string content_of_tokens(const TokenFile& file);

/// Joins several files; they must agree on vocabulary, EOS and tokenizer, and on group and column. Difficulties that
/// some of them lack are left out.
std::shared_ptr<const TokenFile> concatenate_tokens(std::vector<std::shared_ptr<const TokenFile>> files);

}  // namespace llmtrain
