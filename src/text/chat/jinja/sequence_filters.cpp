// Filters of lists and dicts.

#include <fmt/format.h>

#include <algorithm>

#include "core/find_entry.hpp"
#include "text/chat/jinja/builtins.hpp"
#include "text/chat/jinja/operators.hpp"
#include "text/chat/jinja/printing.hpp"
#include "text/chat/jinja/python_text.hpp"

namespace llmtrain::jinja {
namespace sequence_filters {
namespace {

using Args = const Arguments&;

/// Returns the value that "a.b.0" names inside an item; of none the item itself. `otherwise` may be null.
Value attribute_of(Evaluator& evaluator, const Value& item, const Value* path, const Value* otherwise = nullptr) {
  if (path == nullptr || path->is_none()) return item;
  if (path->as_text() == nullptr) return evaluator.item(item, *path);
  const std::string& names = path->as_text()->bytes();
  Value found = item;
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find('.', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    const bool is_index =
        !name.empty() && name.size() < 10 && std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
    found = evaluator.item(found, is_index ? Value(int64_t{std::stol(name)}) : Value::text(name));
    if (found.is_undefined() && otherwise != nullptr) found = *otherwise;
    begin = end + 1;
  }
  return found;
}

/// The key by which values are compared: text in lower case unless `case_sensitive`.
Value comparison_key(Evaluator& evaluator, const Value& value, bool case_sensitive) {
  if (case_sensitive || value.as_text() == nullptr) return value;
  evaluator.charge(static_cast<int64_t>(value.as_text()->size() / 4));
  return evaluator.text(with_case(value.as_text()->bytes(), Case::lower));
}

/// Sorts items by the keys at the same places.
std::vector<Value> sorted(Evaluator& evaluator, const std::vector<Value>& items, const std::vector<Value>& keys,
                          bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    return reverse ? is_less(evaluator, keys[b], keys[a]) : is_less(evaluator, keys[a], keys[b]);
  });
  std::vector<Value> result;
  result.reserve(order.size());
  for (const size_t i : order) result.push_back(items[i]);
  return result;
}

std::vector<Value> keys_of(Evaluator& evaluator, const std::vector<Value>& items, const Value* attribute,
                           bool case_sensitive) {
  std::vector<Value> keys;
  for (const Value& item : items) {
    keys.push_back(comparison_key(evaluator, attribute_of(evaluator, item, attribute), case_sensitive));
  }
  return keys;
}

Value sort(Evaluator& evaluator, const Value& input, Args arguments) {
  const Bound bound(evaluator, "sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const std::shared_ptr<const Sequence> items = evaluator.items(input);
  const bool case_sensitive = bound.truth(1, false);
  const bool is_path = bound.has(2) && bound[2].as_text() != nullptr;
  std::vector<Value> keys;
  if (is_path && bound.text(2).bytes().find(',') != std::string::npos) {  // several attributes
    const std::string& names = bound.text(2).bytes();
    for (const Value& item : items->items) {
      std::vector<Value> parts;
      for (size_t begin = 0; begin <= names.size();) {
        const size_t end = std::min(names.find(',', begin), names.size());
        const Value path = Value::text(names.substr(begin, end - begin));
        parts.push_back(comparison_key(evaluator, attribute_of(evaluator, item, &path), case_sensitive));
        begin = end + 1;
      }
      keys.push_back(evaluator.list(std::move(parts)));
    }
  } else {
    keys = keys_of(evaluator, items->items, bound.has(2) ? &bound[2] : nullptr, case_sensitive);
  }
  return evaluator.list(sorted(evaluator, items->items, keys, bound.truth(0, false)));
}

std::vector<Value> pairs_of(Evaluator& evaluator, const Dict& dict) {
  std::vector<Value> pairs;
  for (const auto& [key, value] : dict.entries) pairs.push_back(evaluator.list({key, value}, SequenceKind::tuple));
  return pairs;
}

Value dict_sort(Evaluator& evaluator, const Value& input, Args arguments) {
  const Bound bound(evaluator, "dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = bound.has(1) ? bound.text(1).bytes() : "key";
  if (by != "key" && by != "value") evaluator.fail("dictsort sorts by 'key' or 'value'");
  if (input.as_dict() == nullptr) evaluator.fail(fmt::format("dictsort needs a dict, not a {}", input.type_name()));
  const std::vector<Value> pairs = pairs_of(evaluator, *input.as_dict());
  const Value place = Value(int64_t{by == "key" ? 0 : 1});
  const std::vector<Value> keys = keys_of(evaluator, pairs, &place, bound.truth(0, false));
  return evaluator.list(sorted(evaluator, pairs, keys, bound.truth(2, false)));
}

Value items(Evaluator& evaluator, const Value& input, Args) {
  if (input.is_undefined()) return evaluator.list({}, SequenceKind::generator);
  if (input.as_dict() == nullptr) evaluator.fail("only a dict has items");
  return evaluator.list(pairs_of(evaluator, *input.as_dict()), SequenceKind::generator);
}

Value first(Evaluator& evaluator, const Value& input, Args) {
  const std::shared_ptr<const Sequence> all = evaluator.items(input);
  return all->items.empty() ? Value::undefined("No first item, sequence was empty.") : all->items.front();
}
Value last(Evaluator& evaluator, const Value& input, Args) {
  const std::shared_ptr<const Sequence> all = evaluator.items(input);
  return all->items.empty() ? Value::undefined("No last item, sequence was empty.") : all->items.back();
}

Value join(Evaluator& evaluator, const Value& input, Args arguments) {
  const Bound bound(evaluator, "join", arguments, {"d", "attribute"});
  const MarkedText separator = bound.has(0) ? to_text(evaluator, bound[0]) : MarkedText();
  const std::shared_ptr<const Sequence> all = evaluator.items(input);
  MarkedText result;
  for (size_t i = 0; i < all->items.size(); ++i) {
    if (i > 0) result.append(separator);
    result.append(to_text(evaluator, attribute_of(evaluator, all->items[i], bound.has(1) ? &bound[1] : nullptr)));
    evaluator.check_text(result.size());
  }
  return evaluator.text(std::move(result));
}

Value list(Evaluator& evaluator, const Value& input, Args) { return evaluator.list(evaluator.items(input)->items); }

Value reverse(Evaluator& evaluator, const Value& input, Args) {
  const Value backwards(int64_t{-1});
  if (input.as_text() != nullptr) return slice(evaluator, input, nullptr, nullptr, &backwards);
  std::vector<Value> all = evaluator.items(input)->items;
  std::ranges::reverse(all);
  return evaluator.list(std::move(all), SequenceKind::generator);
}

Value unique(Evaluator& evaluator, const Value& input, Args arguments) {
  const Bound bound(evaluator, "unique", arguments, {"case_sensitive", "attribute"});
  const std::shared_ptr<const Sequence> all = evaluator.items(input);
  const std::vector<Value> keys =
      keys_of(evaluator, all->items, bound.has(1) ? &bound[1] : nullptr, bound.truth(0, false));
  std::vector<Value> found;
  std::vector<size_t> chosen;
  for (size_t i = 0; i < keys.size(); ++i) {
    evaluator.require_hashable(keys[i]);
    const bool is_known = std::ranges::any_of(chosen, [&](size_t k) { return is_equal(evaluator, keys[k], keys[i]); });
    if (is_known) continue;
    chosen.push_back(i);
    found.push_back(all->items[i]);
  }
  return evaluator.list(std::move(found), SequenceKind::generator);
}

Value map(Evaluator& evaluator, const Value& input, Args arguments) {
  std::vector<Value> results;
  if (!input.truth()) return evaluator.list({}, SequenceKind::generator);
  if (arguments.positional.empty()) {
    const Bound bound(evaluator, "map", arguments, {"attribute", "default"}, 1);
    const std::shared_ptr<const Sequence> all = evaluator.items(input);
    for (const Value& item : all->items) {
      results.push_back(attribute_of(evaluator, item, &bound[0], bound.is_given(1) ? &bound[1] : nullptr));
    }
    return evaluator.list(std::move(results), SequenceKind::generator);
  }
  const MarkedText* name = arguments.positional.front().as_text();
  const NamedFunction* filter = name != nullptr ? find_filter(name->bytes()) : nullptr;
  if (filter == nullptr) evaluator.fail("map needs the name of a filter");
  const Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
  const std::shared_ptr<const Sequence> all = evaluator.items(input);
  for (const Value& item : all->items) results.push_back(filter->run(evaluator, item, rest));
  return evaluator.list(std::move(results), SequenceKind::generator);
}

/// select, reject, selectattr and rejectattr.
template <bool by_attribute, bool keeps>
Value choose(Evaluator& evaluator, const Value& input, Args arguments) {
  constexpr size_t first = by_attribute ? 1 : 0;
  if (arguments.positional.size() < first) evaluator.fail("the filter needs the name of an attribute");
  const NamedTest* test = nullptr;
  Arguments rest{{}, arguments.named};
  if (arguments.positional.size() > first) {
    const MarkedText* name = arguments.positional[first].as_text();
    test = name != nullptr ? find_test(name->bytes()) : nullptr;
    if (test == nullptr) evaluator.fail("the filter needs the name of a test");
    rest.positional.assign(arguments.positional.begin() + first + 1, arguments.positional.end());
  }
  if (!input.truth()) return evaluator.list({}, SequenceKind::generator);
  std::vector<Value> chosen;
  const std::shared_ptr<const Sequence> all = evaluator.items(input);
  for (const Value& item : all->items) {
    const Value value = by_attribute ? attribute_of(evaluator, item, &arguments.positional.front()) : item;
    evaluator.charge(1);
    const bool passes = test != nullptr ? test->run(evaluator, value, rest) : value.truth();
    if (passes == keeps) chosen.push_back(item);
  }
  return evaluator.list(std::move(chosen), SequenceKind::generator);
}

Value count(Evaluator& evaluator, const Value& input, Args) { return length(evaluator, input); }

constexpr NamedFunction filters[] = {
    {"count", count},
    {"dictsort", dict_sort},
    {"first", first},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", count},
    {"list", list},
    {"map", map},
    {"reject", choose<false, false>},
    {"rejectattr", choose<true, false>},
    {"reverse", reverse},
    {"select", choose<false, true>},
    {"selectattr", choose<true, true>},
    {"sort", sort},
    {"unique", unique},
};

}  // namespace
}  // namespace sequence_filters

const NamedFunction* find_sequence_filter(std::string_view name) {
  return find_entry(sequence_filters::filters, name, &NamedFunction::name);
}

}  // namespace llmtrain::jinja
