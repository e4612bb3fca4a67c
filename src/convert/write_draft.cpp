#include "convert/write_draft.hpp"

#include <fmt/format.h>

#include "core/deck/deck.hpp"
#include "core/deck/deck_parser.hpp"
#include "core/files/json_reader.hpp"

namespace llmtrain::convert {
namespace {

/// A comment in lines of a deck, at most 110 bytes each.
std::string comment(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  std::string out;
  while (!text.empty()) {
    constexpr size_t width = 108;
    size_t end = text.size() <= width ? text.size() : text.rfind(' ', width);
    if (end == std::string::npos || end == 0) end = std::min(text.size(), width);
    while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80) --end;
    out += fmt::format("# {}\n", text.substr(0, end));
    text.erase(0, end);
    text.erase(0, text.find_first_not_of(' '));
  }
  return out;
}

void add_value(std::string& out, std::string_view name, const Draft::Given& given) {
  const std::string line = fmt::format("{} = {}", name, given.text);
  if (line.size() + given.origin.size() < 100) {
    out += fmt::format("{:<44} ; {}\n", line, given.origin);
  } else {
    out += comment(given.origin) + deck_line(name, given.text) + "\n";
  }
}

}  // namespace

std::string write_draft(const Draft& draft, const std::string& title, const Conversion& conversion) {
  std::string out = comment(title);
  for (const std::string& remark : draft.remarks()) out += comment(remark);
  for (const Finding& finding : conversion.findings) {
    const bool left_out = finding.effect == Effect::unsupported || finding.effect == Effect::unknown;
    if (!left_out) continue;
    out += comment(fmt::format("Left out: {} (line {}): {}", printable(finding.key), finding.line, finding.text));
  }
  for (const DeckKeys::Section& section : draft.keys().sections()) {
    std::string lines;
    for (const DeckKeys::Key& key : draft.keys().keys()) {
      if (key.section != section.name) continue;
      if (const auto need = draft.needs().find(key.full_name()); need != draft.needs().end()) {
        lines += comment(fmt::format("{} = ...  required: {}", key.name, need->second));
      }
      if (const Draft::Given* const given = draft.find(key.full_name())) add_value(lines, key.name, *given);
    }
    if (!lines.empty()) out += fmt::format("\n[{}]\n{}", section.name, lines);
  }
  return out;
}

}  // namespace llmtrain::convert
