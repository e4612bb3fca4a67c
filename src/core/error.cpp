#include "core/error.hpp"

#include <fmt/format.h>

#include <cstdint>

#include "core/utf8.hpp"

namespace llmtrain {

std::string without_controls(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const auto lead = static_cast<uint8_t>(text[0]);
    const std::string_view character = text.substr(0, lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4);
    const bool control = lead < 0x20 ? lead != '\n' && lead != '\t' : lead == 0x7F;
    const bool second_set = lead == 0xC2 && character < "\xC2\xA0";  // U+0080 to U+009F
    if (control || second_set || find_invalid_utf8(character) != std::string_view::npos) {
      out += fmt::format("\\x{:02x}", lead);
      text.remove_prefix(1);
    } else {
      out += character;
      text.remove_prefix(character.size());
    }
  }
  return out;
}

void fail_check(const char* condition, const char* file, int line, const std::string& message) {
  throw Error(fmt::format("{}:{}: {} (expected: {})", file, line, message, condition));
}

}  // namespace llmtrain
