#pragma once
// Names and limits of the token file, shared by its reader and writer.

#include <cstdint>
#include <string>

#include "data/files/token_file_info.hpp"

namespace llmtrain::token_format {

inline constexpr int64_t version = 1;
inline constexpr const char* tokens = "tokens";            ///< uint16 if the vocabulary fits, otherwise uint32
inline constexpr const char* documents = "documents";      ///< uint64, n + 1 offsets
inline constexpr const char* mask = "mask";                ///< uint8, 1 = trained on as a target
inline constexpr const char* values = "values";            ///< float32, if there is a column: one a document, or more
inline constexpr const char* rows = "rows";                ///< uint8, StoredRow::text() of prompts, one after the other
inline constexpr const char* row_offsets = "row_offsets";  ///< uint64, n + 1 offsets of the documents' rows

inline constexpr const char* attribute_version = "format_version";
inline constexpr const char* attribute_vocabulary = "vocabulary_size";
inline constexpr const char* attribute_eos = "eos_id";
inline constexpr const char* attribute_characters = "characters";
inline constexpr const char* attribute_bytes = "bytes";
inline constexpr const char* attribute_skipped = "skipped_documents";
inline constexpr const char* attribute_tokenizer = "tokenizer";
inline constexpr const char* attribute_rows = "instruction_rows";  ///< this and the next four only if there are any
inline constexpr const char* attribute_untrained = "untrained_rows";
inline constexpr const char* attribute_duplicates = "duplicate_rows";
inline constexpr const char* attribute_borders = "merged_borders";
inline constexpr const char* attribute_without_stop = "rows_without_stop";
inline constexpr const char* attribute_group = "group";  ///< this and the next five only if /values or /rows exist
inline constexpr const char* attribute_column = "column";
inline constexpr const char* attribute_equal = "equal_pairs";
inline constexpr const char* attribute_empty = "empty_answers";
inline constexpr const char* attribute_first_equal = "first_equal_pair";
inline constexpr const char* attribute_first_empty = "first_empty_answer";
inline constexpr const char* attribute_irregular = "irregular_rows";  ///< this and the next only if there are any
inline constexpr const char* attribute_first_irregular = "first_irregular_row";
inline constexpr const char* attribute_tokenizer_hash = "tokenizer_hash";
inline constexpr const char* attribute_command = "command";
inline constexpr const char* attribute_sources = "sources";

inline constexpr int64_t max_vocabulary = int64_t{1} << 31;
inline constexpr int64_t max_attribute = int64_t{256} << 20;  ///< bytes

/// Returns the bytes of a stored id.
inline int id_width(int64_t vocabulary_size) { return vocabulary_size <= 65536 ? 2 : 4; }

/// A contiguous dataset: bytes [offset, offset + elements * width) of the file.
struct Region {
  int64_t offset = 0;
  int64_t elements = 0;
  int width = 0;
};

struct Layout {
  TokenFileInfo info;
  Region tokens;
  Region documents;
  Region mask;    ///< no elements = no mask
  Region values;  ///< no elements = no column
  Region rows;    ///< no elements = no prompts
  Region row_offsets;
};

/// Reads and checks everything except the contents of the datasets. Main thread only.
Layout read_layout(const std::string& path);

}  // namespace llmtrain::token_format
