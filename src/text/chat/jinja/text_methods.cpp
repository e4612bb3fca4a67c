// Methods of str.

#include <fmt/format.h>

#include <algorithm>

#include "core/find_entry.hpp"
#include "text/chat/jinja/builtins.hpp"
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
  if (from_right) std::ranges::reverse(words);
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
    if (from_right) std::ranges::reverse(parts);
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

template <bool from_right>
Value find(Evaluator& evaluator, const Value& object, Args arguments) {
  const Bound bound(evaluator, "find", arguments, {"sub", "start", "end"}, 1);
  const Window window(evaluator, object, bound);
  const std::string& wanted = bound.text(0).bytes();
  const size_t found = !window.is_valid ? std::string_view::npos
                       : from_right     ? find_last_text(evaluator, window.text, wanted)
                                        : find_text(evaluator, window.text, wanted);
  if (found != std::string_view::npos) return window.offsets.index_of(window.begin + found);
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

template <Case wanted>
Value change_case(Evaluator& evaluator, const Value& object, Args arguments) {
  const Bound bound(evaluator, "the method", arguments, {});
  evaluator.charge(static_cast<int64_t>(self(object).size() / 4));
  return evaluator.text(with_case(self(object).bytes(), wanted), self(object).all_marks());
}

constexpr NamedFunction methods[] = {
    {"capitalize", change_case<Case::capitalized>},
    {"count", count},
    {"endswith", has_affix<false>},
    {"find", find<false>},
    {"join", join},
    {"lower", change_case<Case::lower>},
    {"lstrip", strip<true, false>},
    {"removeprefix", remove_affix<true>},
    {"removesuffix", remove_affix<false>},
    {"replace", replace},
    {"rfind", find<true>},
    {"rsplit", split<true>},
    {"rstrip", strip<false, true>},
    {"split", split<false>},
    {"splitlines", split_lines},
    {"startswith", has_affix<true>},
    {"strip", strip<true, true>},
    {"title", change_case<Case::title>},
    {"upper", change_case<Case::upper>},
};

/// Methods of Python's str that no published template calls (docs/design/left_out.md).
constexpr std::string_view left_out[] = {
    "casefold",  "center",      "encode",  "expandtabs", "format",   "format_map",   "index",
    "isalnum",   "isalpha",     "isascii", "isdecimal",  "isdigit",  "isidentifier", "islower",
    "isnumeric", "isprintable", "isspace", "istitle",    "isupper",  "ljust",        "maketrans",
    "partition", "rindex",      "rjust",   "rpartition", "swapcase", "translate",    "zfill"};

}  // namespace
}  // namespace text_methods

const NamedFunction* find_text_method(Evaluator& evaluator, std::string_view name) {
  if (std::ranges::find(text_methods::left_out, name) != std::end(text_methods::left_out)) {
    evaluator.fail(fmt::format("the method '{}' of str is not supported", name));
  }
  return find_entry(text_methods::methods, name, &NamedFunction::name);
}

}  // namespace llmtrain::jinja
