#include "core/deck/deck_parser.hpp"

#include <fmt/format.h>
#include <ini.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/utf8.hpp"

namespace llmtrain {
namespace {

constexpr std::string_view blanks = " \t\r\n\v\f";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

/// Returns the text before a `;` that follows white space.
std::string_view without_comment(std::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == ';' && blanks.find(text[i - 1]) != std::string_view::npos) return trimmed(text.substr(0, i));
  }
  return trimmed(text);
}

/// Finds a `#` that looks like the beginning of a comment: at the start, or after white space.
size_t find_hash(std::string_view value) {
  for (size_t i = 0; i < value.size(); ++i) {
    if (value[i] == '#' && (i == 0 || blanks.find(value[i - 1]) != std::string_view::npos)) return i;
  }
  return std::string_view::npos;
}

bool continues(std::string_view text) {
  size_t backslashes = 0;
  while (backslashes < text.size() && text[text.size() - 1 - backslashes] == '\\') ++backslashes;
  return backslashes % 2 == 1;
}

/// Feeds inih line by line, counts the lines, and passes a blank line in place of each wrong one.
class Reader {
 public:
  Reader(std::string_view text, DeckErrors& errors) : rest_(text), errors_(errors) {
    constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
    if (rest_.starts_with(byte_order_mark)) rest_.remove_prefix(byte_order_mark.size());
  }

  RawDeck run() {
    const int result = ini_parse_stream(&Reader::next_line, this, &Reader::on_key, this);
    // a positive result names a line that inih rejects, such as a full one; see next_line
    LLMTRAIN_CHECK(result >= 0, "inih could not read");
    return std::move(deck_);
  }

 private:
  static char* next_line(char* buffer, int size, void* self) {
    return static_cast<Reader*>(self)->next_line(buffer, static_cast<size_t>(size));
  }
  static int on_key(void* self, const char*, const char*, const char* value) {
    static_cast<Reader*>(self)->take(value);
    return 1;
  }

  char* next_line(char* buffer, size_t size) {
    if (capacity_ == 0) capacity_ = size;
    if (full_ && size < capacity_) {  // inih since release 59 asks for the rest of a line that filled its buffer
      full_ = false;
      std::memcpy(buffer, "\n", 2);
      return buffer;
    }
    if (rest_.empty()) return nullptr;
    const size_t end = rest_.find('\n');
    std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++line_;
    if (!acceptable(line)) line = "";
    LLMTRAIN_CHECK(line.size() < size, "inih was built with shorter lines than 200 bytes");
    full_ = line.size() + 1 == size;
    std::memcpy(buffer, line.data(), line.size());
    buffer[line.size()] = '\0';
    return buffer;
  }

  bool reject(std::string_view what) {
    errors_.add(line_, {}, what);
    return false;
  }

  bool acceptable(std::string_view& line) {
    if (line.size() > max_deck_line) {
      return reject(
          fmt::format("the line has {} bytes, and at most {} are allowed: continue a list in indented lines, and a "
                      "text after a backslash at the end of the line",
                      line.size(), max_deck_line));
    }
    const bool control = std::ranges::any_of(
        line, [](char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7F; });
    if (control) return reject("the line contains a NUL or another control character");
    if (find_invalid_utf8(line) != std::string_view::npos) return reject("the line is not UTF-8");
    const std::string_view content = trimmed(line);
    if (content.empty() || content.front() == '#' || content.front() == ';') return true;
    continuation_ = in_key_ && content.data() > line.data();
    if (continuation_) return acceptable_continuation(content);
    in_key_ = false;  // every line ends the key before it
    line = content;   // inih must not read an indented key as a continuation
    if (content.front() == '[') return acceptable_section(content);
    return !skip_section_ && acceptable_key(content);
  }

  bool acceptable_continuation(std::string_view content) {
    if (key_rejected_ || acceptable_value(content)) return !key_rejected_;
    key_rejected_ = true;
    deck_.keys.back().line = -deck_.keys.back().line;
    return false;
  }

  bool acceptable_section(std::string_view content) {
    skip_section_ = true;  // reset if the header is well formed
    const size_t end = content.find(']');
    const std::string_view name = content.substr(1, end == std::string_view::npos ? end : end - 1);
    if (end == std::string_view::npos || trimmed(name) != name || name.empty() || name.find(';') != name.npos) {
      return reject("a section header must be [name]");
    }
    const std::string_view after = content.substr(end + 1);
    if (!without_comment(after).empty()) {
      return reject(fmt::format("'{}' follows the section header: inline comments begin with ';' after white space",
                                trimmed(after)));
    }
    in_section_ = true;
    skip_section_ = false;
    section_ = name;
    deck_.sections.push_back({section_, line_});
    return true;
  }

  bool acceptable_key(std::string_view content) {
    const size_t equals = content.find('=');
    const std::string_view name = trimmed(content.substr(0, equals));
    const bool good_name = !name.empty() && name.find_first_of(" \t;:") == std::string_view::npos;
    if (equals == std::string_view::npos || !good_name) {
      return reject(fmt::format("'{}' is neither [section] nor key = value", without_comment(content)));
    }
    if (!in_section_) return reject(fmt::format("{}: the key is before the first [section]: move it below one", name));
    name_ = name;
    in_key_ = true;
    key_rejected_ = !acceptable_value(content.substr(equals + 1));
    return !key_rejected_;
  }

  bool acceptable_value(std::string_view value) {
    const std::string_view plain = trimmed(without_comment(value));
    const size_t hash = find_hash(plain);
    if (hash == std::string_view::npos) return true;
    errors_.add(line_, section_ + "." + name_,
                fmt::format("'{}' continues after its value: inline comments begin with ';' after white space (write "
                            "\\x23 for a # in a text)",
                            plain));
    return false;
  }

  /// Section and name of the current line; inih cuts its own at 50 bytes.
  void take(const char* value) {
    const std::string_view part = without_comment(value);
    if (!continuation_) {
      deck_.keys.push_back({section_, name_, std::string(part), line_});
      return;
    }
    std::string& text = deck_.keys.back().text;
    if (continues(text)) {
      text.pop_back();
      text += part;
    } else {
      text += '\n';
      text += part;
    }
  }

  std::string_view rest_;
  DeckErrors& errors_;
  RawDeck deck_;
  std::string section_, name_;  // of the current line
  int line_ = 0;
  size_t capacity_ = 0;  // capacity of inih's buffer
  bool full_ = false;    // the last line passed to inih filled its buffer
  bool in_section_ = false;
  bool skip_section_ = false;  // its header was wrong
  bool in_key_ = false;        // an indented line continues a key
  bool key_rejected_ = false;  // that key has been reported; its further lines are skipped
  bool continuation_ = false;  // the last line passed to inih was a continuation
};

}  // namespace

void DeckErrors::add(int line, std::string_view key, std::string_view what, ExitCode code) {
  if (full()) {
    ++uncounted_;
    return;
  }
  const std::string subject = key.empty() ? std::string() : fmt::format("{}: ", key);
  messages_.push_back({line, fmt::format("{}: {}{}", place(line), subject, what), code});
}

std::string DeckErrors::place(int line) const {
  if (line == command_line) return "command line";
  return line == no_line ? deck_name_ : fmt::format("{}:{}", deck_name_, line);
}

void DeckErrors::raise() const {
  if (empty()) return;
  std::vector<Message> sorted = messages_;
  std::ranges::stable_sort(sorted, [](const Message& a, const Message& b) { return a.line < b.line; });
  std::string text;
  for (const Message& message : sorted) text += (text.empty() ? "" : "\n") + message.text;
  if (uncounted_ > 0) text += fmt::format("\nand {} more", uncounted_);
  ExitCode code = messages_.front().code;
  for (const ExitCode first : {ExitCode::missing_input, ExitCode::deck}) {
    if (std::ranges::any_of(messages_, [&](const Message& m) { return m.code == first; })) code = first;
  }
  throw UserError(code, text);
}

RawDeck read_deck_text(std::string_view text, DeckErrors& errors) {
  if (text.size() > max_deck_bytes) {
    errors.add(DeckErrors::no_line, {}, "a deck has at most 1 MiB; is this the right file?");
    return {};
  }
  return Reader(text, errors).run();
}

std::string expand_environment(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (text.substr(i, 2) != "${") {
      out += text[i++];
      continue;
    }
    const size_t end = text.find('}', i);
    const std::string name(text.substr(i + 2, end == std::string_view::npos ? 0 : end - i - 2));
    const bool valid = !name.empty() && name.find_first_not_of(
                                            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                            "0123456789_") == std::string::npos;
    if (!valid)
      throw UserError(ExitCode::deck, "'${' begins an environment variable: write ${NAME} (or \\x24 for a plain $)");
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) {
      throw UserError(ExitCode::deck, fmt::format("the environment variable {} is not set", name));
    }
    for (const char* c = value; *c != '\0'; ++c) out += *c == '\n' ? std::string("\\n") : std::string(1, *c);
    i = end + 1;
  }
  if (find_invalid_utf8(out) != std::string::npos) throw UserError(ExitCode::deck, "is not UTF-8");
  return out;
}

std::vector<RawKey> read_overrides(std::span<const std::string> arguments, DeckErrors& errors) {
  std::vector<RawKey> keys;
  for (const std::string& argument : arguments) {
    const size_t equals = argument.find('=');
    const size_t dot = argument.find('.');
    if (equals == std::string::npos || dot == std::string::npos || dot == 0 || dot + 1 >= equals) {
      errors.add(DeckErrors::command_line, argument, "an argument after the deck must be section.key=value");
      continue;
    }
    std::string text(trimmed(std::string_view(argument).substr(equals + 1)));
    for (size_t i = text.find('\n'); i != std::string::npos; i = text.find('\n', i + 2)) text.replace(i, 1, "\\n");
    keys.push_back(
        {argument.substr(0, dot), argument.substr(dot + 1, equals - dot - 1), text, DeckErrors::command_line});
  }
  return keys;
}

}  // namespace llmtrain
