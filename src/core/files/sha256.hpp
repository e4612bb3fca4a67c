#pragma once
#include <string>
#include <string_view>

namespace llmtrain {

/// SHA-256 (FIPS 180-4) of a short text, 64 hex digits, for formats of others that name files so.
std::string sha256(std::string_view bytes);

}  // namespace llmtrain
