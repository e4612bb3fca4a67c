#include <fmt/format.h>

#include <array>
#include <chrono>
#include <ctime>
#include <memory>

#include "text/chat/jinja/builtins.hpp"
#include "text/chat/jinja/evaluator.hpp"
#include "text/chat/jinja/printing.hpp"

namespace llmtrain::jinja {
namespace functions {
namespace {

/// A function of C++.
class Function : public Object {
 public:
  using Call = Value (*)(Evaluator&, const Arguments&);
  explicit Function(Call function) : function_(function) {}
  std::string type_name() const override { return "function"; }
  bool is_callable() const override { return true; }
  Value call(Evaluator& evaluator, const Arguments& arguments) override { return function_(evaluator, arguments); }

 private:
  Call function_;
};

Value range(Evaluator& evaluator, const Arguments& arguments) {
  const Bound bound(evaluator, "range", arguments, {"start", "stop", "step"}, 1);
  const int64_t first = bound.integer(0, 0);
  const int64_t start = bound.has(1) ? first : 0, stop = bound.has(1) ? bound.integer(1, 0) : first;
  const int64_t step = bound.integer(2, 1);
  if (step == 0) evaluator.fail("the step of range cannot be 0");
  std::vector<Value> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(items.size()) == max_range_items) {
      evaluator.fail(fmt::format("range has more than {} elements", max_range_items));
    }
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return evaluator.list(std::move(items), SequenceKind::range);
}

/// Entries of dict(...) and namespace(...): a dict or pairs, and named arguments.
std::vector<std::pair<Value, Value>> entries_of(Evaluator& evaluator, const Arguments& arguments) {
  std::vector<std::pair<Value, Value>> entries;
  if (arguments.positional.size() > 1) evaluator.fail("at most one argument without a name is expected");
  for (const Value& argument : arguments.positional) {
    if (const Dict* dict = argument.as_dict()) {
      entries = dict->entries;
      continue;
    }
    const std::shared_ptr<const Sequence> pairs = evaluator.items(argument);
    for (const Value& pair : pairs->items) {
      const std::shared_ptr<const Sequence> both = evaluator.items(pair);
      if (both->items.size() != 2) evaluator.fail("a dict is made of pairs");
      entries.emplace_back(both->items[0], both->items[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) entries.emplace_back(Value::text(name), value);
  return entries;
}

Value make_dict(Evaluator& evaluator, const Arguments& arguments) {
  return evaluator.dict(entries_of(evaluator, arguments));
}

Value make_namespace(Evaluator& evaluator, const Arguments& arguments) {
  const auto space = std::make_shared<Namespace>();
  evaluator.keep(space);
  for (const auto& [name, value] : entries_of(evaluator, arguments)) {
    if (name.as_text() == nullptr) evaluator.fail("the names in a namespace are str");
    space->set(evaluator, name.as_text()->bytes(), value);
  }
  return std::shared_ptr<Object>(space);
}

Value raise_exception(Evaluator& evaluator, const Arguments& arguments) {
  const Bound bound(evaluator, "raise_exception", arguments, {"message"}, 1);
  constexpr size_t most = 500;  // bytes of the row that a message may repeat
  std::string message = to_text(evaluator, bound[0]).bytes();
  if (message.size() > most) {
    size_t end = most;
    while (end > 0 && (static_cast<uint8_t>(message[end]) & 0xC0) == 0x80) --end;
    message.replace(end, std::string::npos, "...");
  }
  evaluator.fail("the template refuses the conversation: " + message);
}

Value strftime_now(Evaluator& evaluator, const Arguments& arguments) {
  const Bound bound(evaluator, "strftime_now", arguments, {"format"}, 1);
  const std::string format = bound.text(0).bytes();
  const auto clock = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  const std::time_t now = evaluator.now >= 0 ? static_cast<std::time_t>(evaluator.now) : clock;
  std::tm parts{};
  if (evaluator.now >= 0) {
    gmtime_r(&now, &parts);  // the same date in every time zone
  } else {
    localtime_r(&now, &parts);
  }
  std::array<char, 4096> buffer{};
  const size_t size = format.empty() ? 0 : std::strftime(buffer.data(), buffer.size(), format.c_str(), &parts);
  if (size == 0 && !format.empty())
    evaluator.fail("the format of strftime_now gives nothing or a text that is too long");
  return evaluator.text(std::string(buffer.data(), size));
}

}  // namespace
}  // namespace functions

std::span<const std::pair<std::string_view, Value>> global_functions() {
  static const auto function = [](functions::Function::Call call) {
    return Value(std::shared_ptr<Object>(std::make_shared<functions::Function>(call)));
  };
  static const std::pair<std::string_view, Value> all[] = {{"range", function(functions::range)},
                                                           {"dict", function(functions::make_dict)},
                                                           {"namespace", function(functions::make_namespace)},
                                                           {"raise_exception", function(functions::raise_exception)},
                                                           {"strftime_now", function(functions::strftime_now)}};
  return all;
}

}  // namespace llmtrain::jinja
