#pragma once
// Values of a template, as Python has them: None, bool, int, float, str, list and tuple, dict, objects, and Jinja's
// Undefined. Values are immutable, except for the attributes of a namespace.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/chat/jinja/marked_text.hpp"

namespace llmtrain::jinja {

class Evaluator;
class Value;
class Object;
struct Dict;
struct Sequence;

/// A variable that does not exist. It prints as nothing, is false, and is empty; every other use is an error.
struct Undefined {
  std::shared_ptr<const std::string> description;  ///< "'x' is undefined"
};
struct None {};

/// An int beyond 64 bits: its digits, after a minus if it is negative. It can be written and compared; arithmetic with
/// it is refused.
struct BigInteger {
  std::string digits;
  bool is_negative() const { return digits.front() == '-'; }
  bool operator==(const BigInteger&) const = default;
};
/// Returns -1, 0 or 1 as `a` is less than, equal to or more than `b`.
int compare(const BigInteger& a, const BigInteger& b);
/// The digits of a float that is integral, beyond 64 bits.
BigInteger digits_of(double integral);
/// Reads digits, after a minus or not, of an integer beyond 64 bits that a double can approximate; nothing otherwise.
std::optional<BigInteger> read_big_integer(std::string_view digits);

class Value {
 public:
  using Variant = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const MarkedText>,
                               std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>, std::shared_ptr<Object>,
                               std::shared_ptr<const BigInteger>>;

  Value() = default;  ///< undefined
  Value(None) : data_(None{}) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(MarkedText text) : data_(std::make_shared<const MarkedText>(std::move(text))) {}
  Value(std::shared_ptr<Object> object) : data_(std::move(object)) {}
  Value(std::shared_ptr<const Sequence> items) : data_(std::move(items)) {}
  Value(std::shared_ptr<const Dict> dict) : data_(std::move(dict)) {}
  Value(BigInteger integer) : data_(std::make_shared<const BigInteger>(std::move(integer))) {}
  Value(const char*) = delete;  // would be a bool
  static Value text(std::string_view bytes) { return MarkedText(std::string(bytes)); }
  static Value undefined(std::string description) {
    Value value;
    value.data_ = Undefined{std::make_shared<const std::string>(std::move(description))};
    return value;
  }

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  const bool* as_bool() const { return std::get_if<bool>(&data_); }
  const int64_t* as_int() const { return std::get_if<int64_t>(&data_); }
  const double* as_float() const { return std::get_if<double>(&data_); }
  const MarkedText* as_text() const { return pointer<const MarkedText>(); }
  const Sequence* as_sequence() const { return pointer<const Sequence>(); }
  const Dict* as_dict() const { return pointer<const Dict>(); }
  Object* as_object() const { return pointer<Object>(); }
  const BigInteger* as_big() const { return pointer<const BigInteger>(); }
  template <class T>
  std::shared_ptr<T> shared() const {
    return std::get<std::shared_ptr<T>>(data_);
  }

  std::optional<int64_t> integer() const;  ///< of an int of 64 bits or a bool
  std::optional<double> number() const;    ///< of an int, a bool or a float
  bool truth() const;
  uint32_t depth() const;         ///< nesting of containers, 0 for a scalar
  std::string type_name() const;  ///< as Python calls it
  const std::string& undefined_description() const;

 private:
  template <class T>
  T* pointer() const {
    const auto* found = std::get_if<std::shared_ptr<T>>(&data_);
    return found == nullptr ? nullptr : found->get();
  }

  Variant data_;
};

enum class SequenceKind : uint8_t { list, tuple, range, keys, values, items, generator };

struct Sequence {
  SequenceKind kind = SequenceKind::list;
  std::vector<Value> items;
  uint32_t depth = 1;
  mutable bool consumed = false;  ///< a generator gives its items once
};

struct Dict {
  std::vector<std::pair<Value, Value>> entries;  ///< in order of insertion, keys are distinct
  uint32_t depth = 1;

  const Value* find(std::string_view key) const;
};

/// Arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// Something with attributes or that can be called: a namespace, a macro, a loop, a method with its value.
class Object {
 public:
  virtual ~Object() = default;
  virtual std::string type_name() const = 0;
  virtual std::optional<Value> attribute(Evaluator&, std::string_view) const { return std::nullopt; }
  virtual bool is_callable() const { return false; }
  virtual Value call(Evaluator& evaluator, const Arguments& arguments);
  virtual uint32_t depth() const { return 0; }
};

}  // namespace llmtrain::jinja
