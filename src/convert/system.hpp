#pragma once
// Tables of the settings of other programs: what each key becomes in a deck, why it has no effect here, or what to do
// instead. They convert files and make the pages of docs/settings. Their text is in src/convert/tables.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/settings.hpp"

namespace llmtrain::convert {

class Draft;

/// Sets keys of the draft from a value; returns what is wrong with the value, or "".
using Rule = std::function<std::string(Draft& draft, const SettingValue& value)>;

enum class Effect : uint8_t { mapped, no_effect, unsupported, unknown };

struct Entry {
  std::string keys;  ///< names of the key, separated by spaces; dots lead into maps
  Effect effect = Effect::mapped;
  std::string target;  ///< deck keys, separated by ", "; a rule and a fact may set others, too
  std::string values;  ///< the accepted values, as "theirs=ours ..."; "theirs=" sets nothing. Empty: any
  std::string note;    ///< remark, reason, or what to do instead
  std::string fact;    ///< the value is kept under this name until all settings are known (resolve.hpp)
  Rule rule;           ///< takes the value as it is given
  std::string off;     ///< of an unsupported key: further values that switch it off, separated by spaces
  std::string task;    ///< the tasks whose settings have this meaning, separated by spaces. Empty: all
};

/// A value that the other program uses where a key is not given, in words of its own. `task`: as in Entry. `with`: it
/// holds only beside this key, or the call of this Python class.
struct Default {
  std::string key;
  std::string value;
  std::string task;
  std::string with;
};

/// A key, or the name of a Python class, whose presence tells the task.
struct Hint {
  std::string key;
  std::string task;
};

struct System;
/// Another system's table for keys below a prefix.
struct Include {
  std::string prefix;
  const System* system;
};

/// Keys below `from` have the entries of those below `to`, unless they have their own.
struct Alias {
  std::string from;
  std::string to;
};

struct System {
  std::string name;   ///< --from
  std::string title;  ///< for people, with the version of the table
  std::vector<Entry> entries;
  std::vector<Default> defaults;
  std::vector<Hint> hints;
  std::vector<Include> includes;
  std::vector<std::string> prefixes;  ///< beginnings of keys that are left out
  std::vector<Alias> aliases;
  std::map<std::string, std::string, std::less<>> lists;  ///< of values, by the names that its entries use
};

/// The system of a name, or null.
const System* find_system(const std::vector<System>& all, std::string_view name);

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
