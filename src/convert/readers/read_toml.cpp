// Settings in TOML.
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <sstream>

#include "convert/settings.hpp"

namespace llmtrain {
namespace {

using Kind = SettingValue::Kind;

SettingValue value_of(const toml::node& node, SettingsBuilder& builder, int depth) {
  const int line = static_cast<int>(node.source().begin.line);
  builder.count(line);
  builder.check_depth(depth, line);
  SettingValue out = SettingValue::scalar(Kind::text, "", line);
  if (const toml::table* const table = node.as_table()) {
    out.kind = Kind::map;
    for (const auto& [key, member] : *table) {
      SettingValue value = value_of(member, builder, depth + 1);
      value.line = static_cast<int>(key.source().begin.line);
      builder.add(out, std::string(key.str()), std::move(value));
    }
  } else if (const toml::array* const array = node.as_array()) {
    out.kind = Kind::list;
    for (const toml::node& item : *array) out.items.push_back(value_of(item, builder, depth + 1));
  } else if (const auto text = node.value_exact<std::string>()) {
    out.text = *text;
  } else if (const auto flag = node.value_exact<bool>()) {
    out.kind = Kind::boolean;
    out.text = *flag ? "true" : "false";
  } else if (node.is_number()) {
    out.kind = Kind::number;
    const auto integer = node.value_exact<int64_t>();
    out.text = integer ? std::to_string(*integer) : fmt::format("{}", node.value_or(0.0));
  } else {  // dates and times
    std::ostringstream stream;
    node.visit([&stream](const auto& one) {
      if constexpr (toml::is_chronological<decltype(one)>) stream << one.get();
    });
    out.text = stream.str();
  }
  return out;
}

/// Sorts members by their lines: tables have none of their own order.
void sort_by_line(SettingValue& value) {
  std::ranges::stable_sort(value.members, {}, [](const auto& member) { return member.second.line; });
  for (auto& member : value.members) sort_by_line(member.second);
}

}  // namespace

SettingValue read_toml_settings(std::string_view text, const std::string& file) {
  SettingsBuilder builder(file);
  try {
    SettingValue root = value_of(toml::parse(text, file), builder, 1);
    sort_by_line(root);
    return root;
  } catch (const toml::parse_error& error) {
    builder.fail(static_cast<int>(error.source().begin.line), std::string(error.description()));
  }
}

}  // namespace llmtrain
