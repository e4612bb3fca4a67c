#include "convert/tables.hpp"

#include <fmt/format.h>

#include <array>

#include "convert/rules/rules.hpp"
#include "core/assets.hpp"
#include "core/error.hpp"

namespace llmtrain {

extern const Asset convert_assets[];  ///< generated: src/convert/tables

}  // namespace llmtrain

namespace llmtrain::convert {
namespace {

std::string_view trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text = trimmed(text.substr(prefix.size()));
  return true;
}

class TableReader {
 public:
  TableReader(const std::vector<System>& all, System& system) : all_(all), system_(system) {}

  void run(std::string_view text) {
    each_table_line(text, [&](const std::string& line, int number) {
      line_ = number;
      take_line(line);
    });
    if (system_.title.empty() && !system_.entries.empty()) fail("there is no title");
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw Error(fmt::format("src/convert/tables/{}.txt:{}: {}", system_.name, line_, reason));
  }

  /// Takes the text before a separator away from `rest`.
  std::string_view cut(std::string_view& rest, std::string_view separator) const {
    const size_t at = rest.find(separator);
    if (at == std::string_view::npos) fail(fmt::format("\"{}\" is missing", separator));
    const std::string_view before = trimmed(rest.substr(0, at));
    rest = trimmed(rest.substr(at + separator.size()));
    return before;
  }

  /// Takes the tasks at the end of keys away: "key key (task task)".
  static std::string cut_tasks(std::string_view& keys) {
    const size_t at = keys.ends_with(')') ? keys.rfind(" (") : std::string_view::npos;
    if (at == std::string_view::npos) return "";
    std::string tasks(keys.substr(at + 2, keys.size() - at - 3));
    keys = trimmed(keys.substr(0, at));
    return tasks;
  }

  /// The beginning of keys that "beginning*" stands for.
  std::string beginning(std::string_view pattern) const {
    if (!pattern.ends_with('*')) fail(fmt::format("{}: must end in *", pattern));
    return std::string(pattern.substr(0, pattern.size() - 1));
  }

  /// Words with lists in place of their names.
  std::string expanded(std::string_view words) const {
    std::string out;
    each_word(words, [&](std::string_view word) {
      out += out.empty() ? "" : " ";
      if (!word.starts_with('{') || !word.ends_with('}')) {
        out += word;
        return;
      }
      const std::string_view name = word.substr(1, word.size() - 2);
      const auto list = system_.lists.find(name);
      if (list == system_.lists.end()) fail(fmt::format("no list {}", name));
      out += list->second;
    });
    return out;
  }

  void take_line(std::string_view line) {
    if (line.starts_with('[')) {
      section_ = line;
    } else if (section_ == "[keys]") {
      take_entry(line);
    } else {
      std::string_view value = line;
      const std::string_view name = cut(value, " =");
      take_pair(name, value);
    }
  }

  void take_pair(std::string_view name, std::string_view value) {
    if (section_ == "[includes]") {
      const System* const other = find_system(all_, value);
      if (other == nullptr) fail(fmt::format("no table {}", value));
      system_.includes.push_back({beginning(name), other});
    } else if (section_ == "[aliases]") {
      system_.aliases.push_back({beginning(name), beginning(value)});
    } else if (section_ == "[tasks]") {
      system_.hints.push_back({std::string(name), std::string(value)});
    } else if (section_ == "[defaults]") {
      take_default(name, value);
    } else if (section_ == "[lists]") {
      system_.lists[std::string(name)] = value;
    } else if (section_.empty() && name == "title") {
      system_.title = value;
    } else if (section_.empty() && name == "prefixes") {
      each_word(value, [&](std::string_view prefix) { system_.prefixes.emplace_back(prefix); });
    } else {
      fail(fmt::format("{}: unknown name", name));
    }
  }

  /// key (task task) with another = value
  void take_default(std::string_view key, std::string_view value) {
    Default one;
    one.value = value;
    if (const size_t with = key.find(" with "); with != std::string_view::npos) {
      one.with = trimmed(key.substr(with + 6));
      key = trimmed(key.substr(0, with));
    }
    one.task = cut_tasks(key);
    one.key = key;
    system_.defaults.push_back(std::move(one));
  }

  void take_entry(std::string_view line) {
    Entry entry;
    std::string_view keys = cut(line, "->");
    entry.task = cut_tasks(keys);
    entry.keys = keys;
    if (take_prefix(line, "fact ")) entry.fact = cut(line, "->");
    if (take_prefix(line, "rule ")) entry.rule = find_rule(cut(line, "->"));
    if (take_prefix(line, "no effect:")) {
      entry.effect = Effect::no_effect;
      entry.note = line;
    } else if (take_prefix(line, "not supported")) {
      entry.effect = Effect::unsupported;
      if (take_prefix(line, "unless "))
        entry.off = cut(line, ":");
      else if (!take_prefix(line, ":"))
        fail("not supported: what to do instead");
      entry.note = line;
    } else {
      take_target(line, entry);
    }
    if (entry.keys.empty()) fail("there is no key");
    if (entry.effect != Effect::mapped && entry.note.empty()) fail("there is no reason");
    system_.entries.push_back(std::move(entry));
  }

  /// section.key, section.key: values; note
  void take_target(std::string_view line, Entry& entry) const {
    const size_t semicolon = std::min(line.find(';'), line.size());
    if (semicolon < line.size()) entry.note = trimmed(line.substr(semicolon + 1));
    line = line.substr(0, semicolon);
    const size_t colon = std::min(line.find(':'), line.size());
    if (colon < line.size()) entry.values = expanded(line.substr(colon + 1));
    entry.target = trimmed(line.substr(0, colon));
    if (entry.target.find('.') == std::string::npos) fail(fmt::format("{}: must be keys of a deck", entry.target));
  }

  Rule find_rule(std::string_view text) const {
    const size_t space = std::min(text.find(' '), text.size());
    const std::string words = expanded(text.substr(space));
    Rule rule = bound_rule(text.substr(0, space), words);
    if (rule == nullptr)
      fail(fmt::format("no rule {} {}", text.substr(0, space), words.empty() ? "alone" : "of words"));
    return rule;
  }

  const std::vector<System>& all_;
  System& system_;
  int line_ = 0;
  std::string section_;
};

std::vector<System> read_systems() {
  std::vector<System> all;
  for (const std::string_view name : system_names()) all.emplace_back().name = name;
  System shared;
  shared.name = "shared";
  read_table(find_asset(convert_assets, "shared.txt"), System{}, all, shared);
  for (System& system : all) read_table(find_asset(convert_assets, system.name + ".txt"), shared, all, system);
  return all;
}

}  // namespace

std::span<const std::string_view> system_names() {
  static constexpr std::array<std::string_view, 14> names = {
      "transformers", "trl",     "peft",      "deepspeed",   "accelerate",       "llamafactory",    "axolotl",
      "torchtune",    "nanogpt", "llamafarm", "llm-trainer", "simplefoundation", "training-system", "llamahome"};
  return names;
}

const std::vector<System>& systems() {
  static const std::vector<System> all = read_systems();
  return all;
}

void read_table(std::string_view text, const System& shared, const std::vector<System>& all, System& system) {
  system.lists = shared.lists;
  TableReader(all, system).run(text);
}

}  // namespace llmtrain::convert
