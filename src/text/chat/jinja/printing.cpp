#include "text/chat/jinja/printing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/chat/jinja/python_text.hpp"

namespace llmtrain::jinja {

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[64];
  const auto scientific = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific);
  const std::string shortest(digits, scientific.ptr);
  const int exponent = std::atoi(shortest.c_str() + shortest.find('e') + 1);
  if (exponent < -4 || exponent >= 16) return shortest;
  const auto fixed = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed);
  std::string text(digits, fixed.ptr);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

std::string quoted(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos,
             has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string result(1, quote);
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const char32_t c = next_code_point(text, i);
    static constexpr std::string_view named = "\n\r\t\\", letters = "nrt\\";
    const size_t letter = c < 0x80 ? named.find(static_cast<char>(c)) : std::string_view::npos;
    if (letter != std::string_view::npos) {
      result += '\\';
      result += letters[letter];
    } else if (c == static_cast<char32_t>(quote)) {
      result += '\\';
      result += quote;
    } else if (is_printable(c)) {
      result += text.substr(begin, i - begin);
    } else {
      const auto code = static_cast<uint32_t>(c);
      result += code < 0x100     ? fmt::format("\\x{:02x}", code)
                : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                                 : fmt::format("\\U{:08x}", code);
    }
  }
  return result + quote;
}

namespace {

/// Writes a text and collects the marks of what it is made from, which then hold for the whole.
class Writer {
 public:
  explicit Writer(Evaluator& evaluator) : evaluator_(evaluator) {}
  void put(std::string_view text) {
    text_ += text;
    evaluator_.check_text(text_.size());
    evaluator_.charge(1 + static_cast<int64_t>(text.size() / 16));
  }
  void put_marked(const MarkedText& text, std::string_view written) {
    marks_ = join_marks(marks_, text.all_marks());
    put(written);
  }
  MarkedText finish() { return MarkedText(std::move(text_), marks_); }
  [[noreturn]] void refuse(const Value& value) const {
    evaluator_.fail("the template writes a " + value.type_name() + ", whose text in Python is not supported");
  }

 private:
  Evaluator& evaluator_;
  std::string text_;
  Marks marks_ = 0;
};

void write_scalar(Writer& writer, const Value& value) {
  if (value.is_none()) return writer.put("None");
  if (value.as_bool() != nullptr) return writer.put(*value.as_bool() ? "True" : "False");
  if (value.as_int() != nullptr) return writer.put(std::to_string(*value.as_int()));
  if (value.as_big() != nullptr) return writer.put(value.as_big()->digits);
  if (value.as_float() != nullptr) return writer.put(float_text(*value.as_float()));
  if (!value.is_undefined()) writer.refuse(value);
  writer.put("Undefined");
}

void write_repr(Writer& writer, const Value& value) {
  if (const MarkedText* text = value.as_text()) {
    writer.put_marked(*text, quoted(text->bytes()));
  } else if (const Dict* dict = value.as_dict()) {
    const char* separator = "{";
    for (const auto& [key, entry] : dict->entries) {
      writer.put(separator);
      write_repr(writer, key);
      writer.put(": ");
      write_repr(writer, entry);
      separator = ", ";
    }
    writer.put(dict->entries.empty() ? "{}" : "}");
  } else if (const Sequence* items = value.as_sequence();
             items != nullptr && items->kind != SequenceKind::generator && items->kind != SequenceKind::range) {
    const bool is_tuple = items->kind == SequenceKind::tuple, is_view = items->kind >= SequenceKind::keys;
    writer.put(is_view ? value.type_name() + "([" : is_tuple ? "(" : "[");
    for (size_t i = 0; i < items->items.size(); ++i) {
      if (i > 0) writer.put(", ");
      write_repr(writer, items->items[i]);
    }
    if (is_tuple && items->items.size() == 1) writer.put(",");
    writer.put(is_view ? "])" : is_tuple ? ")" : "]");
  } else {
    write_scalar(writer, value);
  }
}

class JsonWriter {
 public:
  JsonWriter(Evaluator& evaluator, const JsonOptions& options)
      : evaluator_(evaluator), options_(options), writer_(evaluator) {}

  void write(const Value& value, size_t level) {
    if (const MarkedText* text = value.as_text()) {
      writer_.put_marked(*text, json_string(text->bytes()));
    } else if (const Dict* dict = value.as_dict()) {
      write_dict(*dict, level);
    } else if (const Sequence* items = value.as_sequence(); items != nullptr && items->kind <= SequenceKind::tuple) {
      write_list(*items, level);
    } else {
      writer_.put(json_scalar(value));
    }
  }
  MarkedText finish() { return writer_.finish(); }

 private:
  std::string json_scalar(const Value& value) {
    if (value.is_none()) return "null";
    if (value.as_bool() != nullptr) return *value.as_bool() ? "true" : "false";
    if (value.as_int() != nullptr) return std::to_string(*value.as_int());
    if (value.as_big() != nullptr) return value.as_big()->digits;
    if (value.as_float() == nullptr) evaluator_.fail("a " + value.type_name() + " cannot be written as JSON");
    const double number = *value.as_float();
    return std::isnan(number)   ? "NaN"
           : std::isinf(number) ? (number < 0 ? "-Infinity" : "Infinity")
                                : float_text(number);
  }

  std::string json_string(std::string_view text) const {
    std::string result = "\"";
    for (size_t i = 0; i < text.size();) {
      const size_t begin = i;
      const char32_t c = next_code_point(text, i);
      static constexpr std::string_view named = "\"\\\n\r\t\f\b", letters = "\"\\nrtfb";
      const size_t letter = c < 0x80 ? named.find(static_cast<char>(c)) : std::string_view::npos;
      if (letter != std::string_view::npos) {
        result += '\\';
        result += letters[letter];
      } else if (c < 0x20 || (c >= 0x7F && options_.ascii)) {
        const auto code = static_cast<uint32_t>(c);
        if (code < 0x10000) {
          result += fmt::format("\\u{:04x}", code);
        } else {
          result += fmt::format("\\u{:04x}\\u{:04x}", 0xD7C0 + (code >> 10), 0xDC00 + (code & 0x3FF));
        }
      } else {
        result += text.substr(begin, i - begin);
      }
    }
    return result + '"';
  }

  void break_line(size_t level) {
    if (!options_.is_indented) return;
    writer_.put("\n");
    for (size_t i = 0; i < level; ++i) writer_.put_marked(options_.indent, options_.indent.bytes());
  }

  void write_list(const Sequence& items, size_t level) {
    if (items.items.empty()) return writer_.put("[]");
    writer_.put("[");
    for (size_t i = 0; i < items.items.size(); ++i) {
      if (i > 0) writer_.put(options_.item_separator);
      break_line(level + 1);
      write(items.items[i], level + 1);
    }
    break_line(level);
    writer_.put("]");
  }

  void write_dict(const Dict& dict, size_t level) {
    if (dict.entries.empty()) return writer_.put("{}");
    std::vector<std::pair<MarkedText, const Value*>> entries;
    for (const auto& [key, value] : dict.entries) {
      const MarkedText* text = key.as_text();
      if (text == nullptr && key.as_sequence() != nullptr) evaluator_.fail("a tuple cannot be a key in JSON");
      entries.emplace_back(text != nullptr ? *text : MarkedText(json_scalar(key)), &value);
    }
    if (options_.sort_keys) {
      std::ranges::stable_sort(entries, [](const auto& a, const auto& b) { return a.first.bytes() < b.first.bytes(); });
    }
    writer_.put("{");
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) writer_.put(options_.item_separator);
      break_line(level + 1);
      writer_.put_marked(entries[i].first, json_string(entries[i].first.bytes()));
      writer_.put(options_.key_separator);
      write(*entries[i].second, level + 1);
    }
    break_line(level);
    writer_.put("}");
  }

  Evaluator& evaluator_;
  const JsonOptions& options_;
  Writer writer_;
};

}  // namespace

MarkedText to_text(Evaluator& evaluator, const Value& value) {
  if (const MarkedText* text = value.as_text()) {
    evaluator.charge(static_cast<int64_t>(text->size() / 32));
    return *text;
  }
  if (value.is_undefined()) return {};
  Writer writer(evaluator);
  write_repr(writer, value);
  return writer.finish();
}

MarkedText to_json(Evaluator& evaluator, const Value& value, const JsonOptions& options) {
  JsonWriter writer(evaluator, options);
  writer.write(value, 0);
  return writer.finish();
}

}  // namespace llmtrain::jinja
