#include "convert/flatten.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace llmtrain::convert {
namespace {

using Kind = SettingValue::Kind;

const SettingValue* find_dotted(const SettingValue& root, std::string_view name) {
  const SettingValue* at = &root;
  for (size_t begin = 0; begin <= name.size() && at != nullptr;) {
    const size_t end = std::min(name.find('.', begin), name.size());
    at = at->find(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return at;
}

/// Longer lists are settings as a whole, so that reports stay short.
constexpr size_t most_items = 64;

bool is_list_of_maps(const SettingValue& value) {
  const bool maps = std::ranges::all_of(
      value.items, [](const SettingValue& item) { return item.is(Kind::map) && !item.members.empty(); });
  return value.is(Kind::list) && !value.items.empty() && value.items.size() <= most_items && maps;
}

/// Drops items that are null, as an unquoted none is in YAML. A list of nothing else is null itself.
void drop_nulls(SettingValue& value) {
  for (SettingValue& item : value.items) drop_nulls(item);
  for (SettingMember& member : value.members) drop_nulls(member.second);
  if (!value.is(Kind::list)) return;
  const bool had_items = !value.items.empty();
  std::erase_if(value.items, [](const SettingValue& item) { return item.is(Kind::null); });
  if (had_items && value.items.empty()) value = SettingValue::scalar(Kind::null, "", value.line);
}

class Flattener {
 public:
  Flattener(const SettingValue& root, const std::string& file, const System& system)
      : root_(root), file_(file), system_(system) {}

  std::vector<Setting> run() {
    walk(root_, "", "");
    return std::move(settings_);
  }

 private:
  /// `prefix`: of names as in the file; `place`: the same without the numbers of list items.
  void walk(const SettingValue& map, const std::string& prefix, const std::string& place) {
    if (!map.items.empty()) {
      settings_.push_back(
          {file_, prefix + "#", "#", SettingValue::scalar(Kind::reference, map.print(), map.line), false});
    }
    for (const auto& [member, value] : map.members) {
      const std::string last = value.callee.empty() ? member : value.callee.substr(value.callee.rfind('.') + 1);
      const std::string name = prefix + last, key(without_prefix(system_, place + last));
      const bool entries_below = has_entries_below(system_, key);
      const bool divided =
          value.is(Kind::map) && !value.members.empty() && (find_entry(system_, key, "") == nullptr || entries_below);
      if (divided || (value.members.empty() && !value.items.empty() && !value.callee.empty())) {
        walk(value, name + ".", place + last + ".");
      } else if (entries_below && is_list_of_maps(value)) {
        for (size_t i = 0; i < value.items.size(); ++i) {
          walk(value.items[i], fmt::format("{}.{}.", name, i), place + last + ".");
        }
      } else {
        const bool has_nulls = std::ranges::any_of(value.items, [](const auto& item) { return item.is(Kind::null); });
        settings_.push_back({file_, name, key, interpolated(value), has_nulls});
      }
    }
  }

  SettingValue interpolated(SettingValue value) const {
    drop_nulls(value);
    constexpr int most = 16;  // references in a text
    for (int i = 0; i < most && value.is(Kind::text); ++i) {
      const size_t begin = value.text.find("${");
      const size_t end = begin == std::string::npos ? begin : value.text.find('}', begin);
      if (end == std::string::npos) break;
      std::string name = value.text.substr(begin + 2, end - begin - 2);
      const SettingValue* const other = find_dotted(root_, name);
      const size_t colon = name.find("env:");
      std::string text;
      if (other != nullptr && other->items.empty() && other->members.empty()) {
        text = other->text;
      } else if (colon != std::string::npos) {
        text = "${" + name.substr(colon + 4) + "}";
      } else {
        break;
      }
      value.text = value.text.substr(0, begin) + text + value.text.substr(end + 1);
      if (value.text.size() > 4096) break;
    }
    return value;
  }

  const SettingValue& root_;
  const std::string& file_;
  const System& system_;
  std::vector<Setting> settings_;
};

}  // namespace

std::vector<Setting> flatten(const SettingValue& root, const std::string& file, const System& system) {
  return Flattener(root, file, system).run();
}

}  // namespace llmtrain::convert
