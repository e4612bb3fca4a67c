#pragma once
// The deck: one listing of keys per section struct (its visit) parses, validates, prints --help, writes the resolved
// deck and generates the manual.
//
//   void BatchConfig::visit(DeckKeys& keys) {
//     keys.section("batch", "How many tokens an optimizer step takes.");
//     keys.key("micro", micro, {.unit = "sequences", .range = at_least(1), .doc = "..."});
//   }

#include <functional>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/deck/deck_parser.hpp"
#include "core/deck/deck_value.hpp"

namespace llmtrain {

/// The keys of some section structs, in order. It refers to their fields, which must outlive it.
class DeckKeys {
 public:
  struct Key {
    std::string_view section;
    std::string_view name;
    KeyInfo info;
    std::string type;
    bool list = false;
    Change change = Change::breaks;
    TaskSet tasks = all_tasks;
    bool strict = false;
    std::function<void(std::string_view)> parse;  ///< parses into the field; throws UserError
    std::function<std::string()> print;           ///< prints the field
    std::string full_name() const { return std::string(section) + "." + std::string(name); }
  };
  struct Section {
    std::string_view name;
    std::string_view doc;
    Change change;  ///< default for its keys
    TaskSet tasks;  ///< tasks that use it, default for its keys
    bool strict;    ///< its keys are errors with other tasks; else they have no effect there
  };

  void section(std::string_view name, std::string_view doc, Change change = Change::breaks, TaskSet tasks = all_tasks,
               bool strict = false) {
    sections_.push_back({name, doc, change, tasks, strict});
  }

  template <class Codec = void, class T>
  void key(std::string_view name, T& field, const KeyInfo& info) {
    using Value = std::conditional_t<std::is_void_v<Codec>, DeckValue<T>, Codec>;
    keys_.push_back({sections_.back().name, name, info, Value::type(), Value::type().starts_with("list"),
                     info.change.value_or(sections_.back().change), info.tasks.value_or(sections_.back().tasks),
                     sections_.back().strict,
                     [&field, info](std::string_view text) { field = Value::parse(text, info); },
                     [&field] { return Value::print(field); }});
  }

  const std::vector<Section>& sections() const { return sections_; }
  const std::vector<Key>& keys() const { return keys_; }
  const Key* find(std::string_view full_name) const;
  std::vector<std::string_view> section_names() const;
  std::vector<std::string_view> names_in(std::string_view section) const;

 private:
  std::vector<Section> sections_;
  std::vector<Key> keys_;
};

/// Origin of a value. `unused`: the key has no effect beside the others and is not written.
enum class Origin : uint8_t { default_value, deck, command_line, family, automatic, unused };
template <>
inline constexpr auto enum_names<Origin> = name_list("default", "deck", "command line", "family", "automatic",
                                                     "unused");

class Provenance {
 public:
  struct Entry {
    Origin origin = Origin::default_value;
    int line = DeckErrors::no_line;
    std::string note;  ///< reason, for automatic and unused
  };

  explicit Provenance(std::string deck_name = "deck") : deck_name_(std::move(deck_name)) {}
  const Entry& at(std::string_view key) const;
  Entry& operator[](std::string_view key) { return entries_[std::string(key)]; }
  void set(std::string_view key, Origin origin, std::string note = {});
  /// True if the deck or the command line sets the key.
  bool given(std::string_view key) const;
  /// "deck.ini:7: data.train" or "command line: data.train", as the beginning of an error message.
  std::string where(std::string_view key) const;
  const std::string& deck_name() const { return deck_name_; }

 private:
  std::string deck_name_;
  std::map<std::string, Entry, std::less<>> entries_;
};

/// Reads a deck into the fields of `keys` and then helps to check keys against each other.
class DeckLoader {
 public:
  /// Two exclusive keys: an argument replaces the deck's and earlier arguments; both in the deck are an error.
  using ExclusiveKeys = std::pair<std::string_view, std::string_view>;

  DeckLoader(const DeckKeys& keys, std::string deck_name);
  /// `needed` returns true if the required key must be given; it is called when all keys before it are parsed. Empty:
  /// always.
  void load(std::string_view text, std::span<const std::string> overrides, std::span<const ExclusiveKeys> exclusive,
            const std::function<bool(const DeckKeys::Key&)>& needed = {});

  bool given(std::string_view key) const { return provenance_.given(key); }
  /// True if all of them have a value without error (given, or not required), so that a check across keys makes sense.
  bool sound(std::initializer_list<std::string_view> keys) const;
  /// Reports an error at the first key if the condition fails and all keys are sound.
  void check(bool condition, std::initializer_list<std::string_view> keys, const std::string& what);
  /// The same at the first key that is given, if any is: where `what` is about all of them.
  void check_together(bool condition, std::initializer_list<std::string_view> keys, const std::string& what);
  void fail(std::string_view key, const std::string& what, ExitCode code = ExitCode::deck);
  /// Adds a note for the user; it is not an error.
  void note(std::string_view key, const std::string& what);
  /// Marks a key that has no effect beside others, or none yet: the user gets a note if it is given, and the resolved
  /// deck has it as a comment only.
  void unused(std::string_view key, const std::string& why);
  void set(std::string_view key, Origin origin, std::string note = {}) {
    provenance_.set(key, origin, std::move(note));
  }

  /// Throws all errors, if any.
  void finish() const { errors_.raise(); }
  const Provenance& provenance() const { return provenance_; }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  void check_sections(const RawDeck& deck);
  void choose(const RawKey& raw);
  void apply_exclusive(const ExclusiveKeys& pair);
  void parse(const DeckKeys::Key& key, const RawKey& raw);

  const DeckKeys& keys_;
  DeckErrors errors_;
  Provenance provenance_;
  std::map<std::string, RawKey, std::less<>> chosen_;  ///< by full name
  std::map<std::string, bool, std::less<>> broken_;    ///< true for keys with an error
  std::vector<std::string> notes_;
};

/// The values as a deck, each with a comment that says where it comes from. Reading it gives the same values.
std::string write_deck(const DeckKeys& keys, const Provenance& provenance, std::string_view title);

/// Help on all keys (empty topic), on those of a task or a section, or on section.key. An unknown topic is a
/// UserError(ExitCode::command_line). `defaults` lists the fields of default-constructed structs.
std::string deck_help(const DeckKeys& defaults, std::string_view topic);

/// The manual's page, docs/deck.md.
std::string deck_manual(const DeckKeys& defaults);

}  // namespace llmtrain
