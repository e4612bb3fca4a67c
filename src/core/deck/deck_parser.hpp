#pragma once
// Parser from the text of a deck to keys with their lines. It collects errors of syntax; it does not interpret names
// and values.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"

namespace llmtrain {

/// Errors of one deck, each "file:line: section.key: reason", in the order of the lines, then the command line.
class DeckErrors {
 public:
  static constexpr int command_line = INT32_MAX;  ///< the line number of the command line
  static constexpr int no_line = 0;

  explicit DeckErrors(std::string deck_name) : deck_name_(std::move(deck_name)) {}

  /// `code`: exit code of the error, which differs from the deck's for files that the deck names.
  void add(int line, std::string_view key, std::string_view what, ExitCode code = ExitCode::deck);
  bool empty() const { return messages_.empty(); }
  /// Maximum number of printed errors; further ones are only counted.
  bool full() const { return messages_.size() >= max_messages; }
  std::string place(int line) const;
  /// Throws a UserError with all messages, if there are any. Of several codes, deck comes first, then missing_input,
  /// then the others.
  void raise() const;

 private:
  static constexpr size_t max_messages = 50;
  struct Message {
    int line;
    std::string text;
    ExitCode code;
  };
  std::string deck_name_;
  std::vector<Message> messages_;
  int64_t uncounted_ = 0;
};

/// One `key = value` as written; newlines join the lines of a list.
struct RawKey {
  std::string section;
  std::string name;
  std::string text;
  int line;  ///< its first line, or DeckErrors::command_line; negative when its value was already reported
};

struct RawSection {
  std::string name;
  int line;
};

struct RawDeck {
  std::vector<RawSection> sections;
  std::vector<RawKey> keys;
};

inline constexpr size_t max_deck_bytes = 1 << 20;
inline constexpr size_t max_deck_line = 199;  ///< inih cuts longer ones

RawDeck read_deck_text(std::string_view text, DeckErrors& errors);
/// Replaces ${NAME}; UserError when the variable is not set. A line break in a variable is text, not a line of the
/// deck.
std::string expand_environment(std::string_view text);
/// Parses arguments of the form section.key=value.
std::vector<RawKey> read_overrides(std::span<const std::string> arguments, DeckErrors& errors);

/// "name = value", with a value as printed, in lines of a deck: lists break after commas, long text after a backslash.
std::string deck_line(std::string_view name, std::string_view value);

}  // namespace llmtrain
