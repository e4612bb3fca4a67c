#pragma once
#include <arrow/type_fwd.h>

#include <cstdint>
#include <string>

namespace llmtrain {

/// Appends a value of an array as JSON. Throws UserError(bad_content) for a text that is not UTF-8; with `skips_binary`
/// such bytes of a column of bytes are null.
void append_arrow_value(const arrow::Array& array, int64_t row, bool skips_binary, std::string& out);

}  // namespace llmtrain
