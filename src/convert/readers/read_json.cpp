// Settings in JSON, with the line of each value.
#include <iterator>
#include <nlohmann/json.hpp>

#include "convert/settings.hpp"
#include "core/files/json_reader.hpp"

namespace llmtrain {
namespace {

using Kind = SettingValue::Kind;

/// Counts the lines that the parser has read.
class LineIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  LineIterator(const char* at, int* line) : at_(at), line_(line) {}
  reference operator*() const { return *at_; }
  LineIterator& operator++() {
    if (*at_++ == '\n') ++*line_;
    return *this;
  }
  LineIterator operator++(int) {
    LineIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const LineIterator& other) const { return at_ == other.at_; }
  bool operator!=(const LineIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  int* line_;
};

class Handler : public JsonHandler {
 public:
  Handler(const std::string& file, const int& line) : JsonHandler(max_settings_values), builder_(file), line_(line) {}
  const SettingsBuilder& builder() const { return builder_; }
  SettingValue root;

 protected:
  bool on_value(nlohmann::json value) override {
    if (value.is_null()) return put(SettingValue::scalar(Kind::null, "", line_));
    if (value.is_boolean()) return put(SettingValue::scalar(Kind::boolean, value.dump(), line_));
    if (value.is_number()) return put(SettingValue::scalar(Kind::number, value.dump(), line_));
    return put(SettingValue::scalar(Kind::text, value.get<std::string>(), line_));
  }
  bool on_key(std::string& name) override {
    names_.back() = name;
    return true;
  }
  bool on_open(bool object) override {
    open_.push_back(SettingValue::scalar(object ? Kind::map : Kind::list, "", line_));
    names_.emplace_back();
    return true;
  }
  bool on_close() override {
    SettingValue done = std::move(open_.back());
    open_.pop_back();
    names_.pop_back();
    return put(std::move(done));
  }

 private:
  bool put(SettingValue value) {
    if (open_.empty()) {
      root = std::move(value);
    } else if (open_.back().is(Kind::list)) {
      open_.back().items.push_back(std::move(value));
    } else {
      builder_.add(open_.back(), names_.back(), std::move(value));
    }
    return true;
  }

  SettingsBuilder builder_;
  const int& line_;
  std::vector<SettingValue> open_;
  std::vector<std::string> names_;
};

}  // namespace

SettingValue read_json_settings(std::string_view text, const std::string& file) {
  int line = 1;
  Handler handler(file, line);
  if (!nlohmann::json::sax_parse(LineIterator(text.data(), &line), LineIterator(text.data() + text.size(), &line),
                                 &handler)) {
    handler.builder().fail(line, handler.problem());
  }
  return std::move(handler.root);
}

}  // namespace llmtrain
