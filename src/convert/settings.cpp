#include "convert/settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "core/files/json_reader.hpp"
#include "core/utf8.hpp"

namespace llmtrain {
namespace {

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

std::optional<bool> word_as_boolean(std::string_view text) {
  const std::string word = lower_case(text);
  if (word == "true" || word == "yes" || word == "on") return true;
  if (word == "false" || word == "no" || word == "off") return false;
  return {};
}

/// Parses a decimal number with `_` between digits.
std::optional<double> text_as_number(std::string_view text) {
  std::string digits;
  for (const char c : text) {
    if (c != '_') digits += c;
  }
  std::string_view rest = digits;
  if (rest.starts_with('+')) rest.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (rest.empty() || error != std::errc() || end != rest.data() + rest.size() || !std::isfinite(value)) return {};
  return value;
}

}  // namespace

const SettingValue* SettingValue::find(std::string_view name) const {
  const auto found = std::ranges::find(members, name, [](const auto& member) { return member.first; });
  return found == members.end() ? nullptr : &found->second;
}

bool SettingValue::operator==(const SettingValue& other) const {
  return kind == other.kind && text == other.text && items == other.items && members == other.members &&
         callee == other.callee;
}

std::string SettingValue::print() const {
  std::string out = callee;
  switch (kind) {
    case Kind::null:
      return "null";
    case Kind::list:
      for (const SettingValue& item : items) out += (out.empty() ? "" : ", ") + item.print();
      return printable("[" + out + "]");
    case Kind::map:
      for (const auto& [name, value] : members) out += fmt::format(" {}: {}", name, value.print());
      return printable("{" + out + " }");
    default:
      return printable(text);
  }
}

std::optional<double> SettingValue::number() const {
  if (kind == Kind::number || kind == Kind::text) return text_as_number(text);
  return {};
}

std::optional<int64_t> SettingValue::integer() const {
  const std::optional<double> value = number();
  if (!value || std::floor(*value) != *value || std::fabs(*value) > 9e15) return {};
  return static_cast<int64_t>(*value);
}

std::optional<bool> SettingValue::boolean() const {
  if (kind == Kind::boolean) return text == "true";
  if (kind == Kind::text) return word_as_boolean(text);
  return {};
}

void SettingsBuilder::fail(int line, const std::string& reason) const {
  throw UserError(ExitCode::bad_content, fmt::format("{}:{}: {}", file_, line, reason));
}

void SettingsBuilder::count(int line, int64_t values) {
  values_ += values;
  if (values_ > max_settings_values) fail(line, fmt::format("more than {} values", max_settings_values));
}

void SettingsBuilder::check_depth(int depth, int line) const {
  if (depth > max_settings_depth) fail(line, fmt::format("nested deeper than {} levels", max_settings_depth));
}

void SettingsBuilder::add(SettingValue& map, const std::string& name, SettingValue value) const {
  const SettingValue* const before = map.find(name);
  if (before == nullptr) {
    map.members.push_back({name, std::move(value)});
  } else if (!(*before == value)) {
    fail(value.line, fmt::format("{} is given twice, as {} in line {} and as {} here; keep one", printable(name),
                                 before->print(), before->line, value.print()));
  }
}

SettingValue& SettingsBuilder::map_at(SettingValue& root, const std::string& dotted, int line) const {
  SettingValue* at = &root;
  for (size_t begin = 0; begin < dotted.size();) {
    const size_t end = std::min(dotted.find('.', begin), dotted.size());
    const std::string name = dotted.substr(begin, end - begin);
    if (at->find(name) == nullptr)
      at->members.push_back({name, SettingValue::scalar(SettingValue::Kind::map, "", line)});
    at = const_cast<SettingValue*>(at->find(name));
    if (!at->is(SettingValue::Kind::map))
      fail(line, printable(name) + " already has a value, so it cannot be a section");
    begin = end + 1;
  }
  return *at;
}

SettingValue plain_scalar(const std::string& text, int line) {
  using Kind = SettingValue::Kind;
  const std::string word = lower_case(text);
  if (word.empty() || word == "~" || word == "null" || word == "none")
    return SettingValue::scalar(Kind::null, "", line);
  if (const std::optional<bool> value = word_as_boolean(text)) {
    return SettingValue::scalar(Kind::boolean, *value ? "true" : "false", line);
  }
  return SettingValue::scalar(text_as_number(text) ? Kind::number : Kind::text, text, line);
}

SettingValue read_settings(const std::string& path) {
  struct Reader {
    std::string_view ending;
    SettingValue (*read)(std::string_view, const std::string&);
  };
  constexpr std::array<Reader, 7> readers{{{".json", read_json_settings},
                                           {".yaml", read_yaml_settings},
                                           {".yml", read_yaml_settings},
                                           {".toml", read_toml_settings},
                                           {".ini", read_ini_settings},
                                           {".cfg", read_ini_settings},
                                           {".py", read_python_settings}}};
  const std::string ending = lower_case(std::filesystem::path(path).extension().string());
  const auto reader = std::ranges::find(readers, ending, &Reader::ending);
  if (reader == readers.end()) {
    throw UserError(
        ExitCode::command_line,
        fmt::format("command line: {}: settings end in .json, .yaml, .yml, .toml, .ini, .cfg or .py", path));
  }
  std::string text = FileHandle::open_to_read(path).read_text(max_settings_bytes);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  if (text.find('\0') != std::string::npos || find_invalid_utf8(text) != std::string::npos) {
    throw UserError(ExitCode::bad_content, path + ": not a text in UTF-8");
  }
  return reader->read(text, path);
}

}  // namespace llmtrain
