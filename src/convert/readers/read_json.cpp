// Settings in JSON, with the line of each value.
#include <nlohmann/json.hpp>

#include "convert/settings.hpp"
#include "core/files/json_reader.hpp"

namespace llmtrain {
namespace {

using Kind = SettingValue::Kind;

class Handler : public JsonHandler {
 public:
  Handler(std::string_view text, const std::string& file)
      : JsonHandler(max_settings_values), builder_(file), text_(text) {}
  const SettingsBuilder& builder() const { return builder_; }
  /// The line that the parser has reached.
  int line() {
    for (; counted_ < read; ++counted_) line_ += text_[counted_] == '\n' ? 1 : 0;
    return line_;
  }
  size_t read = 0;  ///< bytes
  SettingValue root;

 protected:
  bool on_value(nlohmann::json value) override {
    if (value.is_null()) return put(SettingValue::scalar(Kind::null, "", line()));
    if (value.is_boolean()) return put(SettingValue::scalar(Kind::boolean, value.dump(), line()));
    if (value.is_number()) return put(SettingValue::scalar(Kind::number, value.dump(), line()));
    return put(SettingValue::scalar(Kind::text, value.get<std::string>(), line()));
  }
  bool on_key(std::string& name) override {
    names_.back() = name;
    return true;
  }
  bool on_open(bool object) override {
    open_.push_back(SettingValue::scalar(object ? Kind::map : Kind::list, "", line()));
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
  std::string_view text_;
  size_t counted_ = 0;
  int line_ = 1;
  std::vector<SettingValue> open_;
  std::vector<std::string> names_;
};

}  // namespace

SettingValue read_json_settings(std::string_view text, const std::string& file) {
  Handler handler(text, file);
  if (!parse_json_text(text, handler, handler.read)) handler.builder().fail(handler.line(), handler.problem());
  return std::move(handler.root);
}

}  // namespace llmtrain
