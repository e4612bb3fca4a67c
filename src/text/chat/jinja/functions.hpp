#pragma once
// Functions that every template can call.

#include <span>
#include <string>
#include <utility>

#include "text/chat/jinja/value.hpp"

namespace llmtrain::jinja {

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

/// range, dict, namespace, raise_exception, strftime_now.
std::span<const std::pair<std::string_view, Value>> global_functions();

}  // namespace llmtrain::jinja
