#pragma once
// A deck in the making: keys with the settings that they come from, and facts that are kept until all are known.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/settings.hpp"
#include "convert/system.hpp"
#include "core/deck/deck.hpp"

namespace llmtrain::convert {

/// Result for one key of the settings.
struct Finding {
  std::string file;
  int line;
  std::string key;
  Effect effect;
  std::string text;  ///< deck keys with their values, the reason, what to do instead, or the nearest known key
};

struct Conversion {
  const System* system;
  std::string deck;
  std::vector<Finding> findings;     ///< one for each key, in the order of the files
  std::vector<std::string> remarks;  ///< sentences about the deck as a whole
  std::vector<std::string> needs;    ///< "section.key: what to give": required keys that the settings cannot tell

  size_t count(Effect effect) const;
};

/// Most GPUs, passes or sequences in one number of the settings.
inline constexpr int64_t max_batch = 1 << 20;

class Draft {
 public:
  /// A value with its origin, a comment for the deck.
  struct Given {
    std::string text;
    std::string origin;
    bool is_default = false;  ///< of the other program, not in the settings
  };

  /// Keys and values are checked against `keys`, whose fields are overwritten.
  Draft(const DeckKeys& keys, int64_t ranks) : keys_(keys), ranks_(ranks) {}

  /// Sets the origin of what is set from here on.
  void from(std::string origin, bool is_default) {
    origin_ = std::move(origin);
    is_default_ = is_default;
  }
  const std::string& origin() const { return origin_; }
  bool is_default() const { return is_default_; }

  /// Sets a key to a value of the other program. Returns what is wrong, or "". A key that is set keeps its value.
  std::string set(std::string_view key, const SettingValue& value);
  /// Sets a key to a text as a deck has it.
  std::string set_text(std::string_view key, const std::string& text);
  /// Replaces what was set.
  std::string replace(std::string_view key, const std::string& text);
  /// Appends an item to a list of the deck.
  std::string add_item(std::string_view key, const std::string& item);
  void erase(std::string_view key) { values_.erase(std::string(key)); }
  const Given* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }
  bool is(std::string_view key, std::string_view text) const { return has(key) && find(key)->text == text; }
  double number(std::string_view key, double otherwise) const;

  /// Why the deck does not have the value of a setting, which is not supported or has no effect.
  struct Refusal {
    std::string why;
    Effect effect;
  };
  /// Keeps the reason by the setting's origin.
  void refuse(const std::string& origin, const std::string& why, Effect effect = Effect::unsupported) {
    refusals_.try_emplace(origin, Refusal{why, effect});
  }
  /// The reason, or null.
  const Refusal* refusal(const std::string& origin) const;

  void set_fact(std::string_view name, const std::string& text);
  void replace_fact(std::string_view name, const std::string& text);
  const Given* fact(std::string_view name) const;
  bool is_fact(std::string_view name, std::string_view text) const { return fact(name) && fact(name)->text == text; }
  std::optional<double> fact_number(std::string_view name) const;
  std::optional<int64_t> fact_count(std::string_view name) const;

  /// A key that the user has to give; the deck gets it as a comment.
  void need(std::string_view key, std::string what) { needs_[std::string(key)] = std::move(what); }
  void met(std::string_view key) { needs_.erase(std::string(key)); }
  /// A sentence for the report and the deck.
  void remark(std::string text) { remarks_.push_back(std::move(text)); }

  int64_t ranks() const { return ranks_; }
  const DeckKeys& keys() const { return keys_; }
  const std::map<std::string, Given, std::less<>>& values() const { return values_; }
  const std::map<std::string, std::string, std::less<>>& needs() const { return needs_; }
  const std::vector<std::string>& remarks() const { return remarks_; }
  std::string folder;              ///< of the settings, where further files may be
  std::vector<std::string> files;  ///< further files of settings that the settings name

 private:
  const DeckKeys& keys_;
  int64_t ranks_;
  std::string origin_;
  bool is_default_ = false;
  std::map<std::string, Given, std::less<>> values_, facts_;
  std::map<std::string, std::string, std::less<>> needs_;
  std::map<std::string, Refusal> refusals_;
  std::vector<std::string> remarks_;
};

/// The deck's text: its keys in the order of the manual, each with its origin; keys that are needed, as comments; and
/// what was left out.
std::string write_draft(const Draft& draft, const std::string& title, const Conversion& conversion);

}  // namespace llmtrain::convert
