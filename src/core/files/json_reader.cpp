#include "core/files/json_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

namespace llmtrain {
namespace {

[[noreturn]] void refuse(std::string_view text, const std::string& source, size_t byte, const std::string& what) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const auto line = 1 + std::ranges::count(before, '\n');
  throw UserError(ExitCode::bad_content, fmt::format("{}:{}: byte {}: {}", source, line, byte + 1, what));
}

/// A scalar in another kind of document.
nlohmann::json take_scalar(nlohmann::json& value, const nlohmann::json*) { return std::move(value); }
nlohmann::ordered_json take_scalar(nlohmann::json& value, const nlohmann::ordered_json*) {
  if (value.is_string()) return std::move(value.get_ref<std::string&>());
  return value;
}

template <class Json>
class DocumentBuilder final : public JsonHandler {
 public:
  explicit DocumentBuilder(int64_t max_values, size_t max_keys) : JsonHandler(max_values), max_keys_(max_keys) {}
  Json take_document() { return std::move(root_); }

 private:
  bool on_value(nlohmann::json value) override {
    *place() = take_scalar(value, &root_);
    return true;
  }
  bool on_float(double value, const std::string& text) override {
    if (!keeps_digits || text.find_first_not_of("-0123456789") != std::string::npos) return on_value(value);
    *place() = Json::binary({text.begin(), text.end()});
    return true;
  }
  bool on_key(std::string& name) override {
    auto& members = open_.back()->template get_ref<typename Json::object_t&>();
    if (members.size() >= max_keys_) return fail(fmt::format("an object with more than {} keys", max_keys_));
    const auto [place, is_new] = members.emplace(name, Json());
    next_ = &place->second;
    return is_new || fail(fmt::format("the key {} appears twice in one object", printable(name)));
  }
  bool on_open(bool object) override {
    Json* at = place();
    *at = object ? Json::object() : Json::array();
    open_.push_back(at);
    return true;
  }
  bool on_close() override {
    open_.pop_back();
    return true;
  }
  /// Target of the next value. Only the innermost open container grows, so that the pointers to open containers stay
  /// valid.
  Json* place() {
    if (open_.empty()) return &root_;
    if (open_.back()->is_object()) return next_;
    return &open_.back()->emplace_back();
  }

  static constexpr bool keeps_digits = std::is_same_v<Json, nlohmann::ordered_json>;
  size_t max_keys_;
  Json root_;
  std::vector<Json*> open_;
  Json* next_ = nullptr;  // value of the last key
};

/// Runs the handler; throws JsonError.
void run_events(std::string_view text, JsonHandler& handler) {
  // The parser takes a NUL as the end of its input, and skips a byte order mark.
  const size_t nul = text.find('\0');
  if (nul != std::string_view::npos) throw JsonError(nul, "a NUL");
  if (text.starts_with("\xEF\xBB\xBF")) throw JsonError(0, "a byte order mark: remove it");
  size_t read = 0;
  if (!parse_json_text(text, handler, read)) throw JsonError(std::max<size_t>(read, 1) - 1, handler.problem());
}

std::string dumped(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

/// Appends a document. The reader bounds its depth.
void write_json(const nlohmann::ordered_json& value, std::string& out) {
  if (is_big_integer(value)) {
    out += big_integer_text(value);
  } else if (value.is_structured()) {
    const bool is_object = value.is_object();
    const char* separator = is_object ? "{" : "[";
    for (const auto& [key, item] : value.items()) {
      out += separator;
      if (is_object) out += dumped(key) + ":";
      write_json(item, out);
      separator = ",";
    }
    out += value.empty() ? (is_object ? "{}" : "[]") : (is_object ? "}" : "]");
  } else {
    out += dumped(value);
  }
}

template <class Json>
std::string short_text_of(const Json& value) {
  if (value.is_string()) return printable(value.template get_ref<const std::string&>());
  const std::string text = printable(json_text(value));
  return text.substr(1, text.size() - 2);
}

}  // namespace

std::string reason_of_parse_error(const nlohmann::detail::exception& error) {
  const std::string_view text = error.what();
  const auto says = [&](std::string_view word) { return text.find(word) != std::string_view::npos; };
  return says("surrogate") || says("U+DC00..U+DFFF")                        ? ": a lone surrogate is not a character"
         : says("ill-formed UTF-8")                                         ? ": bytes that are not UTF-8"
         : says("control character")                                        ? ": control characters must be escaped"
         : says("unexpected end of input") || says("missing closing quote") ? ": the line ends too early"
                                                                            : "";
}

bool JsonHandler::parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) {
  constexpr int number_overflow = 406;  // of nlohmann::json::out_of_range
  parse_reason_ = reason_of_parse_error(error);
  return fail(error.id == number_overflow ? "the number does not fit a double" : "not valid JSON");
}

bool JsonHandler::count() {
  if (values_left_ == 0) return fail("the document has too many values");
  --values_left_;
  return true;
}

bool JsonHandler::open(bool object) {
  if (++depth_ > max_json_depth)
    return fail(fmt::format("the document is nested deeper than {} levels", max_json_depth));
  return count() && on_open(object);
}

void parse_json_events(std::string_view text, const std::string& source, JsonHandler& handler) {
  try {
    run_events(text, handler);
  } catch (const JsonError& error) {
    refuse(text, source, error.byte(), error.reason());
  }
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const JsonLimits& limits, size_t keys) {
  DocumentBuilder<nlohmann::ordered_json> builder(limits.values, keys);
  try {
    run_events(text, builder);
  } catch (const JsonError& error) {
    throw JsonError(error.byte(), error.reason() + builder.parse_reason());
  }
  return builder.take_document();
}

std::string big_integer_text(const nlohmann::ordered_json& value) {
  const auto& digits = value.get_binary();
  return {digits.begin(), digits.end()};
}

std::string json_text(const nlohmann::ordered_json& value) {
  std::string text;
  write_json(value, text);
  return text;
}

nlohmann::json parse_json(std::string_view text, const std::string& source, const JsonLimits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.bytes) {
    throw UserError(ExitCode::bad_content, fmt::format("{}: the file has {} bytes, and at most {} are allowed", source,
                                                       text.size(), limits.bytes));
  }
  DocumentBuilder<nlohmann::json> builder(limits.values, std::numeric_limits<size_t>::max());
  parse_json_events(text, source, builder);
  return builder.take_document();
}

nlohmann::json read_json(const FileHandle& file, const JsonLimits& limits) {
  return parse_json(file.read_text(limits.bytes), file.path(), limits);
}

std::string printable(std::string_view text) {
  constexpr size_t most = 100;
  std::string out = "'";
  for (const char c : text.substr(0, most)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte > 0x7E ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return out + (text.size() > most ? "...'" : "'");
}

std::string printable_value(const nlohmann::json& value) { return short_text_of(value); }
std::string printable_value(const nlohmann::ordered_json& value) { return short_text_of(value); }

}  // namespace llmtrain
