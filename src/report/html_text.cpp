#include "report/html_text.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "core/utf8.hpp"

namespace llmtrain {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

}  // namespace

std::string clean_text(std::string_view text) {
  std::string clean;
  while (!text.empty()) {
    const size_t invalid = std::min(find_invalid_utf8(text), text.size());
    for (const char c : text.substr(0, invalid)) {
      const auto byte = static_cast<uint8_t>(c);
      const bool control = (byte < 0x20 && c != '\t' && c != '\n') || byte == 0x7F;
      if (control) clean += replacement;
      if (!control) clean += c;
    }
    text.remove_prefix(invalid);
    if (text.empty()) break;
    clean += replacement;
    text.remove_prefix(1);
  }
  return clean;
}

std::string html_text(std::string_view text) {
  std::string escaped;
  for (const char c : clean_text(text)) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string json_string(std::string_view text) {
  std::string safe;
  for (const char c : nlohmann::json(clean_text(text)).dump(-1, ' ', true)) {
    if (c == '<') safe += "\\u003c";
    if (c != '<') safe += c;
  }
  return safe;
}

std::string json_number(double value) { return std::isfinite(value) ? fmt::format("{:.6g}", value) : "null"; }

}  // namespace llmtrain
