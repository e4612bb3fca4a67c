#pragma once
// JSON that may be hostile: config.json, weight indices, tokenizers, headers of safetensors. The parser keeps its stack
// on the heap; text, depth and number of values are bounded, so that memory is; what other readers take silently
// (duplicate keys, a byte order mark, NUL, bytes that are not UTF-8, anything behind the document) is refused.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/files/file_handle.hpp"

namespace llmtrain {

inline constexpr int max_json_depth = 64;

struct JsonLimits {
  int64_t bytes = int64_t{1} << 20;
  int64_t values = int64_t{1} << 20;  ///< and keys, of the whole document; each takes up to about 100 bytes
};

/// The document. UserError(bad_content) "source:line: byte N: what is wrong"; N counts from 1.
nlohmann::json parse_json(std::string_view text, const std::string& source, const JsonLimits& limits = {});
nlohmann::json read_json(const FileHandle& file, const JsonLimits& limits = {});

/// For documents too large to be kept: takes the events of the parser. A hook that returns fail(...) ends it.
class JsonHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  const std::string& problem() const { return problem_; }

  // What the parser calls.
  bool null() final { return take({}); }
  bool boolean(bool value) final { return take(value); }
  bool number_integer(number_integer_t value) final { return take(value); }
  bool number_unsigned(number_unsigned_t value) final { return take(value); }
  bool number_float(number_float_t value, const string_t&) final { return take(value); }
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
  virtual bool on_key(std::string& name) = 0;
  virtual bool on_open(bool object) = 0;  ///< of an object or array; depth() counts it already
  virtual bool on_close() = 0;            ///< depth() does not count it any more
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

  std::string problem_;
  int64_t values_left_;
  int depth_ = 0;
};

/// Runs the handler over `text`; errors as in parse_json.
void parse_json_events(std::string_view text, const std::string& source, JsonHandler& handler);

/// A text of a hostile file as part of a message: its first bytes, printable ASCII only.
std::string printable(std::string_view text);
/// The same of any value.
std::string printable_value(const nlohmann::json& value);

}  // namespace llmtrain
