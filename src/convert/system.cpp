#include "convert/system.hpp"

#include <cctype>

namespace llmtrain::convert {

const System* find_system(const std::vector<System>& all, std::string_view name) {
  const auto found = std::ranges::find(all, name, &System::name);
  return found == all.end() ? nullptr : &*found;
}

bool has_word(std::string_view text, std::string_view word) {
  bool found = false;
  each_word(text, [&](std::string_view one) { found = found || one == word; });
  return found;
}

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::optional<std::string> translated(std::string_view values, const std::string& theirs) {
  std::optional<std::string> ours;
  const std::string wanted = lower_case(theirs);
  each_word(values, [&](std::string_view word) {
    const size_t equals = std::min(word.find('='), word.size());
    if (lower_case(std::string(word.substr(0, equals))) != wanted || ours) return;
    ours = equals == word.size() ? std::string(word) : std::string(word.substr(equals + 1));
  });
  return ours;
}

const Entry* find_entry(const System& system, std::string_view key, std::string_view task) {
  const Entry* any_task = nullptr;
  for (const Entry& entry : system.entries) {
    if (!has_word(entry.keys, key)) continue;
    if (entry.task.empty() || task.empty() || has_word(entry.task, task)) return &entry;
    any_task = &entry;
  }
  for (const Include& include : system.includes) {
    if (!key.starts_with(include.prefix)) continue;
    const std::string_view rest = without_prefix(*include.system, key.substr(include.prefix.size()));
    if (const Entry* const entry = find_entry(*include.system, rest, task)) return entry;
  }
  for (const Alias& alias : system.aliases) {
    if (any_task != nullptr || !key.starts_with(alias.from)) continue;
    return find_entry(system, alias.to + std::string(key.substr(alias.from.size())), task);
  }
  return any_task;
}

bool has_entries_below(const System& system, std::string_view key) {
  const std::string map = std::string(key) + ".";
  bool found = false;
  for (const Entry& entry : system.entries) {
    each_word(entry.keys, [&](std::string_view name) { found = found || name.starts_with(map); });
  }
  for (const Alias& alias : system.aliases) found = found || alias.from == map;
  for (const Include& include : system.includes) {
    found = found || include.prefix.starts_with(map);
    if (key.starts_with(include.prefix)) {
      found = found || has_entries_below(*include.system, key.substr(include.prefix.size()));
    }
  }
  return found;
}

std::string_view without_prefix(const System& system, std::string_view key) {
  for (const std::string& prefix : system.prefixes) {
    if (key.starts_with(prefix) && key.size() > prefix.size()) return without_prefix(system, key.substr(prefix.size()));
  }
  return key;
}

std::vector<std::string> key_names(const System& system) {
  std::vector<std::string> names;
  for (const Entry& entry : system.entries) {
    each_word(entry.keys, [&names](std::string_view key) { names.emplace_back(key); });
  }
  for (const Include& include : system.includes) {
    for (const std::string& name : key_names(*include.system)) names.push_back(include.prefix + name);
  }
  return names;
}

}  // namespace llmtrain::convert
