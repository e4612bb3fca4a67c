// Methods of str.

#include <fmt/format.h>

#include <algorithm>

#include "text/chat/jinja/filters.hpp"
#include "text/chat/jinja/formatting.hpp"
#include "text/chat/jinja/methods.hpp"
#include "text/chat/jinja/operators.hpp"
#include "text/chat/jinja/python_text.hpp"

namespace llmtrain::jinja {
namespace text_methods {
namespace {

using Args = const Arguments&;

const MarkedText& self(const Value& object) { return *object.as_text(); }

Value part(Evaluator& evaluator, const Value& object, size_t begin, size_t end) {
  return evaluator.text(self(object).slice(begin, end));
}

template <bool left, bool right>
Value strip(Evaluator& evaluator, const Value& object, Args arguments) {
  const Bound bound(evaluator, "strip", arguments, {"chars"});
  const std::string& text = self(object).bytes();
  size_t begin = 0, end = text.size();
  if (!bound.is_given(0)) {
    if (left) begin = skip_python_spaces(text, 0);
    if (right) end = strip_python_spaces_right(text, begin, end);
    return part(evaluator, object, begin, end);
  }
  const std::string& characters = bound.text(0).bytes();
  evaluator.charge(static_cast<int64_t>(text.size() * (1 + characters.size() / 32) / 32));
  const auto is_stripped = [&](size_t from, size_t to) {
    return characters.find(std::string_view(text).substr(from, to - from)) != std::string::npos;
  };
  while (left && begin < end) {
    size_t next = begin;
    next_code_point(text, next);
    if (!is_stripped(begin, next)) break;
    begin = next;
  }
  while (right && begin < end) {
    size_t last = end - 1;
    while (is_utf8_continuation(text[last])) --last;
    if (!is_stripped(last, end)) break;
    end = last;
  }
  return part(evaluator, object, begin, end);
}

/// Ends of words at white space, from the left or, for rsplit with a limit, from the right.
std::vector<std::pair<size_t, size_t>> words_of(std::string_view text, int64_t most, bool from_right) {
  std::vector<std::pair<size_t, size_t>> words;
  size_t begin = skip_python_spaces(text, 0), end = strip_python_spaces_right(text, begin, text.size());
  while (begin < end) {
    const bool is_rest = static_cast<int64_t>(words.size()) == most;
    size_t at = from_right ? end : begin;
    while (!is_rest && (from_right ? at > begin : at < end)) {
      size_t next = at;
      if (from_right) {
        --next;
        while (is_utf8_continuation(text[next])) --next;
        size_t same = next;
        if (is_python_space(next_code_point(text, same))) break;
      } else if (is_python_space(next_code_point(text, next))) {
        break;
      }
      at = next;
    }
    if (is_rest) at = from_right ? 0 : text.size();
    words.emplace_back(from_right ? at : begin, from_right ? end : at);
    if (is_rest) break;
    if (from_right) {
      end = strip_python_spaces_right(text, begin, at);
    } else {
      begin = skip_python_spaces(text, at);
    }
  }
  if (from_right) std::reverse(words.begin(), words.end());
  return words;
}

template <bool from_right>
Value split(Evaluator& evaluator, const Value& object, Args arguments) {
  const Bound bound(evaluator, "split", arguments, {"sep", "maxsplit"});
  const std::string& text = self(object).bytes();
  const int64_t limit = bound.integer(1, -1), most = limit < 0 ? INT64_MAX : limit;
  std::vector<std::pair<size_t, size_t>> parts;
  if (!bound.is_given(0)) {
    parts = words_of(text, most, from_right);
  } else {
    const std::string& separator = bound.text(0).bytes();
    if (separator.empty()) evaluator.fail("the separator of split is empty");
    size_t begin = 0, end = text.size();
    while (static_cast<int64_t>(parts.size()) < most) {
      const size_t found =
          from_right
              ? (end < separator.size() ? std::string::npos
                                        : find_last_text(evaluator, std::string_view(text).substr(0, end), separator))
              : find_text(evaluator, text, separator, begin);
      if (found == std::string::npos) break;
      parts.emplace_back(from_right ? found + separator.size() : begin, from_right ? end : found);
      (from_right ? end : begin) = from_right ? found : found + separator.size();
      evaluator.charge(1);
    }
    parts.emplace_back(begin, end);
    if (from_right) std::reverse(parts.begin(), parts.end());
  }
  std::vector<Value> result;
  result.reserve(parts.size());
  for (const auto& [begin, end] : parts) result.push_back(part(evaluator, object, begin, end));
  return evaluator.list(std::move(result));
}

Value split_lines(Evaluator& evaluator, const Value& object, Args arguments) {
  const Bound bound(evaluator, "splitlines", arguments, {"keepends"});
  const std::string& text = self(object).bytes();
  std::vector<Value> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t before = i;
    const char32_t c = next_code_point(text, i);
    const bool ends = (c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!ends) continue;
    if (c == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.push_back(part(evaluator, object, begin, bound.truth(0, false) ? i : before));
    begin = i;
  }
  if (begin < text.size()) lines.push_back(part(evaluator, object, begin, text.size()));
  return evaluator.list(std::move(lines));
}

Value replace(Evaluator& evaluator, const Value& object, Args arguments) {
  const Bound bound(evaluator, "replace", arguments, {"old", "new", "count"}, 2);
  const MarkedText &text = self(object), &replacement = bound.text(1);
  const std::string& old = bound.text(0).bytes();
  int64_t left = bound.is_given(2) ? bound.integer(2, -1) : -1;
  if (left < 0) left = INT64_MAX;
  MarkedText result;
  size_t done = 0;
  for (size_t from = 0; left > 0 && from <= text.size(); --left) {
    const size_t found = find_text(evaluator, text.bytes(), old, from);
    if (found == std::string::npos) break;
    result.append(text, done, found);
    result.append(replacement);
    evaluator.check_text(result.size());
    evaluator.charge(1 + static_cast<int64_t>(replacement.size() / 32));
    done = found + old.size();
    from = done;
    if (old.empty()) {  // before every character and at the end
      if (from == text.size()) break;
      next_code_point(text.bytes(), from);
    }
  }
  result.append(text, done, text.size());
  return evaluator.text(std::move(result));
}

/// The part of a text that find, count and the like look at.
struct Window {
  CodePointOffsets offsets;
  std::string_view text;
  size_t begin = 0;
  bool is_valid = true;

  Window(Evaluator& evaluator, const Value& object, const Bound& bound) : offsets(self(object).bytes()) {
    evaluator.charge(static_cast<int64_t>(self(object).size() / 32));
    const int64_t size = count_code_points(self(object).bytes());
    const auto place = [&](size_t i, int64_t otherwise) {
      const int64_t given = bound.is_given(i) ? bound.integer(i, 0) : otherwise;
      return std::max<int64_t>(given < 0 ? given + size : given, 0);
    };
    const int64_t from = place(1, 0), to = std::min(place(2, size), size);
    is_valid = from <= to;
    if (!is_valid) return;
    begin = offsets.at(from);
    text = std::string_view(self(object).bytes()).substr(begin, offsets.at(to) - begin);
  }
};

template <bool from_right, bool fails>
Value find(Evaluator& evaluator, const Value& object, Args arguments) {
  const Bound bound(evaluator, "find", arguments, {"sub", "start", "end"}, 1);
  const Window window(evaluator, object, bound);
  const std::string& wanted = bound.text(0).bytes();
  const size_t found = !window.is_valid ? std::string_view::npos
                       : from_right     ? find_last_text(evaluator, window.text, wanted)
                                        : find_text(evaluator, window.text, wanted);
  if (found != std::string_view::npos) return window.offsets.index_of(window.begin + found);
  if (fails) evaluator.fail("the text does not contain what is looked for");
  return int64_t{-1};
}

Value count(Evaluator& evaluator, const Value& object, Args arguments) {
  const Bound bound(evaluator, "count", arguments, {"sub", "start", "end"}, 1);
  const Window window(evaluator, object, bound);
  const std::string& wanted = bound.text(0).bytes();
  if (!window.is_valid) return int64_t{0};
  if (wanted.empty()) return count_code_points(window.text) + 1;
  int64_t found = 0;
  for (size_t at = find_text(evaluator, window.text, wanted); at != std::string_view::npos;
       at = find_text(evaluator, window.text, wanted, at + wanted.size())) {
    ++found;
  }
  return found;
}

template <bool at_start>
Value has_affix(Evaluator& evaluator, const Value& object, Args arguments) {
  const Bound bound(evaluator, at_start ? "startswith" : "endswith", arguments, {"affix", "start", "end"}, 1);
  const Window window(evaluator, object, bound);
  const auto matches = [&](const MarkedText& affix) {
    evaluator.charge(1 + static_cast<int64_t>(affix.size() / 32));
    return window.is_valid &&
           (at_start ? window.text.starts_with(affix.bytes()) : window.text.ends_with(affix.bytes()));
  };
  const Sequence* several = bound[0].as_sequence();
  if (several == nullptr || several->kind != SequenceKind::tuple) return matches(bound.text(0));
  bool found = false;
  for (const Value& affix : several->items) {
    if (affix.as_text() == nullptr) evaluator.fail("startswith and endswith need str");
    found = found || matches(*affix.as_text());
  }
  return found;
}

template <bool at_start>
Value remove_affix(Evaluator& evaluator, const Value& object, Args arguments) {
  const Bound bound(evaluator, at_start ? "removeprefix" : "removesuffix", arguments, {"affix"}, 1);
  const std::string &text = self(object).bytes(), &affix = bound.text(0).bytes();
  if (!(at_start ? text.starts_with(affix) : text.ends_with(affix))) return object;
  return at_start ? part(evaluator, object, affix.size(), text.size())
                  : part(evaluator, object, 0, text.size() - affix.size());
}

template <bool from_right>
Value partition(Evaluator& evaluator, const Value& object, Args arguments) {
  const Bound bound(evaluator, "partition", arguments, {"sep"}, 1);
  const std::string &text = self(object).bytes(), &separator = bound.text(0).bytes();
  if (separator.empty()) evaluator.fail("the separator of partition is empty");
  const size_t found = from_right ? find_last_text(evaluator, text, separator) : find_text(evaluator, text, separator);
  std::vector<Value> parts(3, Value::text(""));
  if (found == std::string::npos) {
    parts[from_right ? 2 : 0] = object;
  } else {
    parts = {part(evaluator, object, 0, found), part(evaluator, object, found, found + separator.size()),
             part(evaluator, object, found + separator.size(), text.size())};
  }
  return evaluator.list(std::move(parts), SequenceKind::tuple);
}

Value join(Evaluator& evaluator, const Value& object, Args arguments) {
  const Bound bound(evaluator, "join", arguments, {"iterable"}, 1);
  MarkedText result;
  bool is_first = true;
  const std::shared_ptr<const Sequence> all = evaluator.items(bound[0]);
  for (const Value& item : all->items) {
    if (item.as_text() == nullptr) evaluator.fail(fmt::format("join needs str, not a {}", item.type_name()));
    if (!is_first) result.append(self(object));
    is_first = false;
    result.append(*item.as_text());
    evaluator.check_text(result.size());
    evaluator.charge(1 + static_cast<int64_t>(self(object).size() / 32));
  }
  return evaluator.text(std::move(result));
}

enum class Side : uint8_t { left, right, both, zeros };

template <Side side>
Value justify(Evaluator& evaluator, const Value& object, Args arguments) {
  const Bound bound(evaluator, "the method", arguments, {"width", "fillchar"}, 1);
  const int64_t width = std::clamp<int64_t>(bound.integer(0, 0), 0, int64_t{1} << 40);
  const MarkedText fill = side == Side::zeros ? MarkedText("0") : bound.has(1) ? bound.text(1) : MarkedText(" ");
  if (count_code_points(fill.bytes()) != 1) evaluator.fail("the fill character must be one character");
  const int64_t missing = width - count_code_points(self(object).bytes());
  if (missing <= 0) return object;
  const Value padding = multiply(evaluator, fill, Value(missing));
  const auto bytes = [&](int64_t characters) { return static_cast<size_t>(characters) * fill.size(); };
  const int64_t before = side == Side::left ? 0 : side == Side::both ? missing / 2 + (missing & width & 1) : missing;
  const bool has_sign =
      side == Side::zeros && (self(object).bytes().starts_with('-') || self(object).bytes().starts_with('+'));
  MarkedText result = self(object).slice(0, has_sign ? 1 : 0);
  result.append(*padding.as_text(), 0, bytes(before));
  result.append(self(object), has_sign ? 1 : 0, self(object).size());
  result.append(*padding.as_text(), bytes(before), bytes(missing));
  return evaluator.text(std::move(result));
}

template <Case wanted>
Value change_case(Evaluator& evaluator, const Value& object, Args arguments) {
  const Bound bound(evaluator, "the method", arguments, {});
  evaluator.charge(static_cast<int64_t>(self(object).size() / 4));
  return evaluator.text(with_case(self(object).bytes(), wanted), self(object).all_marks());
}

template <bool (*test)(char32_t)>
Value all_are(Evaluator&, const Value& object, Args) {
  return all_characters(self(object).bytes(), test);
}
Value passes(Evaluator& evaluator, const Value& object, const char* test) {
  return find_test(test)->run(evaluator, object, {});
}
Value is_lower_text(Evaluator& evaluator, const Value& object, Args) { return passes(evaluator, object, "lower"); }
Value is_upper_text(Evaluator& evaluator, const Value& object, Args) { return passes(evaluator, object, "upper"); }

Value is_ascii(Evaluator&, const Value& object, Args) {
  return static_cast<size_t>(count_code_points(self(object).bytes())) == self(object).size();
}

Value is_identifier(Evaluator& evaluator, const Value& object, Args arguments) {
  const std::string& text = self(object).bytes();
  if (!is_ascii(evaluator, object, arguments).truth()) evaluator.fail("isidentifier is supported for ASCII alone");
  const auto is_part = [](char32_t c) { return is_alphanumeric(c) || c == '_'; };
  return all_characters(text, is_part) && !is_decimal(static_cast<char32_t>(text.front()));
}

Value is_printable_text(Evaluator&, const Value& object, Args) {
  return self(object).size() == 0 || all_characters(self(object).bytes(), is_printable);
}

/// Words begin with a capital and go on in lower case.
Value is_title(Evaluator&, const Value& object, Args) {
  const std::string& text = self(object).bytes();
  bool found = false, in_word = false;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, i);
    const bool begins = is_upper(c) || is_titlecase(c);
    if (begins ? in_word : is_lower(c) && !in_word) return false;
    in_word = is_cased(c);
    found = found || in_word;
  }
  return found;
}

Value expand_tabs(Evaluator& evaluator, const Value& object, Args arguments) {
  const Bound bound(evaluator, "expandtabs", arguments, {"tabsize"});
  const int64_t size = bound.integer(0, 8);
  const std::string& text = self(object).bytes();
  MarkedText result;
  int64_t column = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const char32_t c = next_code_point(text, i);
    if (c != '\t') {
      result.append(self(object), begin, i);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    } else if (size > 0) {
      const int64_t missing = size - column % size;
      const Value spaces = multiply(evaluator, MarkedText(" "), Value(missing));
      result.append(*spaces.as_text());
      column += missing;
    }
    evaluator.check_text(result.size());
  }
  return evaluator.text(std::move(result));
}

/// Methods that Python has and templates cannot use here.
Value unsupported(Evaluator& evaluator, const Value&, Args) { evaluator.fail("this method of str is not supported"); }

Value format(Evaluator& evaluator, const Value& object, Args arguments) {
  return format_braces(evaluator, self(object), arguments);
}

constexpr MethodEntry methods[] = {
    {"capitalize", change_case<Case::capitalized>},
    {"casefold", change_case<Case::folded>},
    {"center", justify<Side::both>},
    {"count", count},
    {"encode", unsupported},
    {"endswith", has_affix<false>},
    {"expandtabs", expand_tabs},
    {"find", find<false, false>},
    {"format", format},
    {"format_map", unsupported},
    {"index", find<false, true>},
    {"isalnum", all_are<is_alphanumeric>},
    {"isalpha", all_are<is_alphabetic>},
    {"isascii", is_ascii},
    {"isdecimal", all_are<is_decimal>},
    {"isdigit", all_are<is_digit>},
    {"isidentifier", is_identifier},
    {"islower", is_lower_text},
    {"isnumeric", all_are<is_number>},
    {"isprintable", is_printable_text},
    {"isspace", all_are<is_python_space>},
    {"istitle", is_title},
    {"isupper", is_upper_text},
    {"join", join},
    {"ljust", justify<Side::left>},
    {"lower", change_case<Case::lower>},
    {"lstrip", strip<true, false>},
    {"maketrans", unsupported},
    {"partition", partition<false>},
    {"removeprefix", remove_affix<true>},
    {"removesuffix", remove_affix<false>},
    {"replace", replace},
    {"rfind", find<true, false>},
    {"rindex", find<true, true>},
    {"rjust", justify<Side::right>},
    {"rpartition", partition<true>},
    {"rsplit", split<true>},
    {"rstrip", strip<false, true>},
    {"split", split<false>},
    {"splitlines", split_lines},
    {"startswith", has_affix<true>},
    {"strip", strip<true, true>},
    {"swapcase", change_case<Case::swapped>},
    {"title", change_case<Case::title>},
    {"translate", unsupported},
    {"upper", change_case<Case::upper>},
    {"zfill", justify<Side::zeros>},
};

}  // namespace
}  // namespace text_methods

const MethodEntry* find_text_method(std::string_view name) { return find_entry(text_methods::methods, name); }

}  // namespace llmtrain::jinja
