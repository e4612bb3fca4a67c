#pragma once
// Tables of the settings of other programs: what each key becomes in a deck, why it has no effect here, or what to do
// instead. They convert files and make the pages of docs/settings.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "convert/settings.hpp"

namespace llmtrain::convert {

class Draft;

/// Sets keys of the draft from a value; returns what is wrong with the value, or "".
using Rule = std::string (*)(Draft& draft, const SettingValue& value);

enum class Effect : uint8_t { mapped, no_effect, unsupported, unknown };

struct Entry {
  std::string_view keys;  ///< names of the key, separated by spaces; dots lead into maps
  Effect effect;
  std::string_view target;       ///< deck keys, separated by ", "; a rule and a fact may set others, too
  std::string_view values = {};  ///< the accepted values, as "theirs=ours ..."; "theirs=" sets nothing. Empty: any
  std::string_view note = {};    ///< remark, reason, or what to do instead
  std::string_view fact = {};    ///< the value is kept under this name until all settings are known (resolve.hpp)
  Rule rule = nullptr;           ///< takes the value as it is given
  std::string_view off = {};     ///< of an unsupported key: further values that switch it off, separated by spaces
  std::string_view task = {};    ///< the tasks whose settings have this meaning, separated by spaces. Empty: all

  constexpr Entry for_tasks(std::string_view tasks) const {
    Entry copy = *this;
    copy.task = tasks;
    return copy;
  }
};

constexpr Entry mapped(std::string_view keys, std::string_view target, std::string_view values = {},
                       std::string_view note = {}) {
  return {keys, Effect::mapped, target, values, note};
}
constexpr Entry derived(std::string_view keys, std::string_view fact, std::string_view target,
                        std::string_view values = {}, std::string_view note = {}) {
  return {keys, Effect::mapped, target, values, note, fact};
}
constexpr Entry ruled(std::string_view keys, Rule rule, std::string_view target, std::string_view note = {}) {
  return {keys, Effect::mapped, target, {}, note, {}, rule};
}
constexpr Entry no_effect(std::string_view keys, std::string_view why) {
  return {keys, Effect::no_effect, {}, {}, why};
}
constexpr Entry unsupported(std::string_view keys, std::string_view instead, std::string_view off = {}) {
  return {keys, Effect::unsupported, {}, {}, instead, {}, nullptr, off};
}

/// A value that the other program uses where a key is not given, in words of its own. `task`: as in Entry. `with`: it
/// holds only beside this key, or the call of this Python class.
struct Default {
  std::string_view key;
  std::string_view value;
  std::string_view task = {};
  std::string_view with = {};
};

/// A key, or the name of a Python class, whose presence tells the task.
struct Hint {
  std::string_view key;
  std::string_view task;
};

struct System;
/// Another system's table for keys below a prefix.
struct Include {
  std::string_view prefix;
  const System* system;
};

/// Keys below `from` have the entries of those below `to`, unless they have their own.
struct Alias {
  std::string_view from;
  std::string_view to;
};

struct System {
  std::string_view name;   ///< --from
  std::string_view title;  ///< for people, with the version of the table
  std::span<const Entry> entries;
  std::span<const Default> defaults = {};
  std::span<const Hint> hints = {};
  std::span<const Include> includes = {};
  std::span<const std::string_view> prefixes = {};  ///< beginnings of keys that are left out
  std::span<const Alias> aliases = {};
};

/// All systems, in the order in which --from auto prefers them.
std::span<const System* const> systems();

extern const System transformers, trl, peft, accelerate, llama_factory, axolotl, torchtune, deepspeed, nanogpt,
    llama_farm, simple_foundation, llm_trainer, llama_home, training_system;

/// Finds the entry of a key for a task, or null.
const Entry* find_entry(const System& system, std::string_view key, std::string_view task);
/// Tells whether there are entries for keys below `key`, in a map.
bool has_entries_below(const System& system, std::string_view key);
/// Removes the system's prefixes.
std::string_view without_prefix(const System& system, std::string_view key);
/// All names of keys, for suggestions.
std::vector<std::string> key_names(const System& system);
/// Calls take(word) for the words of a text between separators.
template <class Take>
void each_word(std::string_view text, char separator, const Take& take) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    if (end > begin) take(text.substr(begin, end - begin));
    begin = end + 1;
  }
}
template <class Take>
void each_word(std::string_view text, const Take& take) {
  each_word(text, ' ', take);
}
bool has_word(std::string_view text, std::string_view word);
std::string lower_case(std::string text);
/// Our name of one of their values in a table "theirs=ours ...": nothing where the table has none.
std::optional<std::string> translated(std::string_view values, const std::string& theirs);

}  // namespace llmtrain::convert
