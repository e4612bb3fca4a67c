#include "convert/draft.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/deck/deck_parser.hpp"
#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "core/files/json_reader.hpp"

namespace llmtrain::convert {

namespace {

/// Text of a deck that is read as `text`; references to variables of the environment stay.
std::string escaped(const std::string& text) {
  std::string out = print_text(text);
  constexpr std::string_view dollar = "\\x24{";
  for (size_t at = out.find(dollar); at != std::string::npos; at = out.find(dollar, at + 2)) {
    const size_t end = out.find('}', at);
    const std::string name = end == std::string::npos ? "" : out.substr(at + dollar.size(), end - at - dollar.size());
    const bool variable =
        !name.empty() && std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
    if (variable) out.replace(at, dollar.size(), "${");
  }
  return out;
}

/// An item of a list of texts; a text with commas is a list.
std::string joined_items(const SettingValue& value) {
  std::string out;
  const auto add = [&out](const std::string& item) { out += (out.empty() ? "" : ", ") + escaped(item); };
  for (const SettingValue& item : value.items) add(item.text);
  if (!value.is(SettingValue::Kind::list)) {
    for (size_t begin = 0; begin <= value.text.size();) {
      const size_t end = std::min(value.text.find(',', begin), value.text.size());
      std::string item = value.text.substr(begin, end - begin);
      item.erase(0, item.find_first_not_of(' '));
      if (!item.empty()) add(item.substr(0, item.find_last_not_of(' ') + 1));
      begin = end + 1;
    }
  }
  return out;
}

/// The value as the deck writes the key's type; nothing if it is of another type.
std::optional<std::string> deck_text(const DeckKeys::Key& key, const SettingValue& value) {
  const bool scalar = !value.is(SettingValue::Kind::list) && !value.is(SettingValue::Kind::map);
  if (key.list) {
    const bool flat = std::ranges::all_of(value.items, [](const SettingValue& item) {
      return !item.is(SettingValue::Kind::list) && !item.is(SettingValue::Kind::map);
    });
    if (value.is(SettingValue::Kind::map) || !flat) return {};
    return joined_items(value);
  }
  if (!scalar) return {};
  if (key.type == "true / false") {
    const std::optional<bool> flag = value.boolean();
    return flag ? std::optional<std::string>(*flag ? "true" : "false") : std::nullopt;
  }
  if (key.type == "count") {
    const std::optional<int64_t> count = value.integer();
    return count ? std::optional<std::string>(std::to_string(*count)) : std::nullopt;
  }
  if (key.type == "number") {
    const std::optional<double> number = value.number();
    return number ? std::optional<std::string>(print_number(*number)) : std::nullopt;
  }
  return escaped(value.text);
}

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

std::string Draft::set(std::string_view key, const SettingValue& value) {
  const DeckKeys::Key* const deck_key = keys_.find(key);
  if (deck_key == nullptr) return fmt::format("this version has no key {}", key);
  const std::optional<std::string> text = deck_text(*deck_key, value);
  if (!text) return fmt::format("{}: must be {}", value.print(), deck_key->type);
  return set_text(key, *text);
}

std::string Draft::set_text(std::string_view key, const std::string& text) {
  const Given* const before = find(key);
  if (before != nullptr) {
    if (before->text == text || is_default_) return "";
    return fmt::format("{} = {} comes from {} already", key, before->text, before->origin);
  }
  return replace(key, text);
}

std::string Draft::replace(std::string_view key, const std::string& text) {
  const DeckKeys::Key* const deck_key = keys_.find(key);
  if (deck_key == nullptr) return fmt::format("this version has no key {}", key);
  try {
    if (text.find("${") == std::string::npos) deck_key->parse(text);
  } catch (const UserError& error) {
    return error.what();
  }
  values_[std::string(key)] = {text, origin_, is_default_};
  return "";
}

std::string Draft::add_item(std::string_view key, const std::string& item) {
  const Given* const before = find(key);
  return replace(key, before == nullptr ? escaped(item) : before->text + ", " + escaped(item));
}

const Draft::Given* Draft::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

double Draft::number(std::string_view key, double otherwise) const {
  const Given* const given = find(key);
  return given == nullptr ? otherwise : plain_scalar(given->text, 0).number().value_or(otherwise);
}

const Draft::Refusal* Draft::refusal(const std::string& origin) const {
  const auto found = refusals_.find(origin);
  return found == refusals_.end() ? nullptr : &found->second;
}

void Draft::set_fact(std::string_view name, const std::string& text) {
  facts_.try_emplace(std::string(name), Given{text, origin_, is_default_});
}

void Draft::replace_fact(std::string_view name, const std::string& text) {
  facts_[std::string(name)] = {text, origin_, is_default_};
}

const Draft::Given* Draft::fact(std::string_view name) const {
  const auto found = facts_.find(name);
  return found == facts_.end() ? nullptr : &found->second;
}

std::optional<double> Draft::fact_number(std::string_view name) const {
  const Given* const given = fact(name);
  return given == nullptr ? std::nullopt : plain_scalar(given->text, 0).number();
}

std::optional<int64_t> Draft::fact_count(std::string_view name) const {
  const Given* const given = fact(name);
  return given == nullptr ? std::nullopt : plain_scalar(given->text, 0).integer();
}

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
