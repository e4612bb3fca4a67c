#include "convert/flatten.hpp"

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

class Flattener {
 public:
  Flattener(const SettingValue& root, const std::string& file, const System& system)
      : root_(root), file_(file), system_(system) {}

  std::vector<Setting> run() {
    walk(root_, "");
    return std::move(settings_);
  }

 private:
  void walk(const SettingValue& map, const std::string& prefix) {
    if (!map.items.empty()) {
      settings_.push_back({file_, prefix + "#", "#", SettingValue::scalar(Kind::reference, map.print(), map.line)});
    }
    for (const auto& [member, value] : map.members) {
      const std::string name =
          prefix + (value.callee.empty() ? member : value.callee.substr(value.callee.rfind('.') + 1));
      const std::string key(without_prefix(system_, name));
      const bool divided = value.is(Kind::map) && !value.members.empty() &&
                           (find_entry(system_, key, "") == nullptr || has_entries_below(system_, key));
      if (divided || (value.members.empty() && !value.items.empty() && !value.callee.empty())) {
        walk(value, name + ".");
      } else {
        settings_.push_back({file_, name, key, interpolated(value)});
      }
    }
  }

  SettingValue interpolated(SettingValue value) const {
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
