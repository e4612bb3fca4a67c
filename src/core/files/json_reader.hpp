#pragma once
// Reader of untrusted JSON: config.json, weight indices, tokenizers, headers of safetensors. The parser keeps its stack
// on the heap; text, depth and number of values are bounded, and so is memory. It refuses what other readers accept
// silently (duplicate keys, a byte order mark, NUL, bytes that are not UTF-8, anything after the document).

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/files/file_handle.hpp"

namespace llmtrain {

inline constexpr int max_json_depth = 64;

struct JsonLimits {
  int64_t bytes = int64_t{1} << 20;
  int64_t values = int64_t{1} << 20;  ///< values and keys of the whole document; each takes up to about 100 bytes
};

/// Parses the document. UserError(bad_content) "source:line: byte N: reason"; N counts from 1.
nlohmann::json parse_json(std::string_view text, const std::string& source, const JsonLimits& limits = {});
nlohmann::json read_json(const FileHandle& file, const JsonLimits& limits = {});

/// Error at a byte of a JSON text; the byte is an offset.
class JsonError : public UserError {
 public:
  JsonError(size_t byte, const std::string& reason)
      : UserError(ExitCode::bad_content, "byte " + std::to_string(byte + 1) + ": " + reason),
        byte_(byte),
        reason_(reason) {}
  size_t byte() const { return byte_; }
  const std::string& reason() const { return reason_; }

 private:
  size_t byte_;
  std::string reason_;
};

/// Parses a document whose objects keep the order of their keys and have at most `keys` of them. An integer beyond 64
/// bits keeps its digits (is_big_integer). Throws JsonError.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const JsonLimits& limits, size_t keys);

/// True for an integer that does not fit 64 bits. JSON has no binary data, which hold its digits.
inline bool is_big_integer(const nlohmann::ordered_json& value) { return value.is_binary(); }
/// Its decimal digits, after a minus if it is negative.
std::string big_integer_text(const nlohmann::ordered_json& value);
/// Writes a document of parse_ordered_json on one line, as dump() writes it, with the digits of big integers. Bytes
/// that are not UTF-8 are replaced.
std::string json_text(const nlohmann::ordered_json& value);

/// Iterator that tells how many bytes of the text the parser has read.
class JsonPosition {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  JsonPosition(const char* at, size_t* read) : at_(at), read_(read) {}
  reference operator*() const { return *at_; }
  JsonPosition& operator++() {
    ++at_;
    ++*read_;
    return *this;
  }
  bool operator==(const JsonPosition& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  size_t* read_;
};

/// Runs a handler of the parser's events over the text. `read` is the number of bytes that were read, at every event
/// and afterwards. Returns false where the handler or the parser refuses the text.
template <class Handler>
bool parse_json_text(std::string_view text, Handler& handler, size_t& read) {
  read = 0;
  return nlohmann::json::sax_parse(JsonPosition(text.data(), &read), JsonPosition(text.data() + text.size(), &read),
                                   &handler);
}

/// A handler of the parser's events, for documents too large to keep. A hook that returns fail(...) ends the parse.
class JsonHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  const std::string& problem() const { return problem_; }
  /// Detail of a problem that the parser found, in a text of one line.
  const std::string& parse_reason() const { return parse_reason_; }

  // Interface of the parser.
  bool null() final { return take({}); }
  bool boolean(bool value) final { return take(value); }
  bool number_integer(number_integer_t value) final { return take(value); }
  bool number_unsigned(number_unsigned_t value) final { return take(value); }
  bool number_float(number_float_t value, const string_t& text) final { return count() && on_float(value, text); }
  bool string(string_t& value) final { return take(std::move(value)); }
  bool binary(binary_t&) final { return fail("binary data"); }
  bool start_object(size_t) final { return open(true); }
  bool start_array(size_t) final { return open(false); }
  bool key(string_t& name) final { return count() && on_key(name); }
  bool end_object() final { return close(); }
  bool end_array() final { return close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) final;

 protected:
  explicit JsonHandler(int64_t max_values) : values_left_(max_values) {}
  virtual bool on_value(nlohmann::json value) = 0;  ///< a scalar
  /// A number with a fraction, an exponent or more than 64 bits, and how the document writes it.
  virtual bool on_float(double value, const std::string&) { return on_value(value); }
  virtual bool on_key(std::string& name) = 0;
  virtual bool on_open(bool object) = 0;  ///< start of an object or array, already counted by depth()
  virtual bool on_close() = 0;            ///< depth() no longer counts it
  int depth() const { return depth_; }
  bool fail(std::string what) {
    if (problem_.empty()) problem_ = std::move(what);
    return false;
  }

 private:
  bool count();
  bool take(nlohmann::json value) { return count() && on_value(std::move(value)); }
  bool open(bool object);
  bool close() { return --depth_, on_close(); }

  std::string problem_, parse_reason_;
  int64_t values_left_;
  int depth_ = 0;
};

/// Tells why the parser refused a line of JSON, as far as its error says it: ": the line ends too early".
std::string reason_of_parse_error(const nlohmann::detail::exception& error);

/// Runs the handler over `text`; errors are those of parse_json.
void parse_json_events(std::string_view text, const std::string& source, JsonHandler& handler);

/// Shortens untrusted text for a message: its first bytes, printable ASCII only.
std::string printable(std::string_view text);
/// The same of any value.
std::string printable_value(const nlohmann::json& value);
std::string printable_value(const nlohmann::ordered_json& value);

}  // namespace llmtrain
