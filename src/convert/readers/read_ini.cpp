// Settings in INI: [section] and key = value; a section a.b is the map b in the map a.
#include <ini.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "convert/settings.hpp"

namespace llmtrain {
namespace {

using Kind = SettingValue::Kind;

class Reader {
 public:
  Reader(std::string_view text, const std::string& file) : rest_(text), builder_(file) {}

  SettingValue run() {
    const int wrong = ini_parse_stream(&Reader::next_line, this, &Reader::on_key, this);
    if (error_) std::rethrow_exception(error_);
    if (wrong != 0) builder_.fail(wrong, "not a line of an INI file: [section] or key = value");
    return std::move(root_);
  }

 private:
  static char* next_line(char* buffer, int size, void* self) {
    return static_cast<Reader*>(self)->guarded<char*>(
        [&](Reader& reader) { return reader.next_line(buffer, static_cast<size_t>(size)); });
  }
  /// Keeps an exception, which must not cross inih, and stops there.
  template <class Result, class Work>
  Result guarded(const Work& work) {
    if (error_) return {};
    try {
      return work(*this);
    } catch (...) {
      error_ = std::current_exception();
      return {};
    }
  }
  char* next_line(char* buffer, size_t size) {
    if (rest_.empty()) return nullptr;
    const std::string_view line = rest_.substr(0, rest_.find('\n'));
    rest_.remove_prefix(std::min(rest_.size(), line.size() + 1));
    ++line_;
    constexpr size_t longest = 190;
    if (line.size() > std::min(longest, size - 1)) builder_.fail(line_, "a line of more than 190 bytes");
    std::memcpy(buffer, line.data(), line.size());
    buffer[line.size()] = '\0';
    return buffer;
  }

  static int on_key(void* self, const char* section, const char* name, const char* value) {
    return static_cast<Reader*>(self)->guarded<int>([&](Reader& reader) { return reader.take(section, name, value); });
  }
  int take(const std::string& section, const std::string& name, std::string value) {
    builder_.count(line_);
    builder_.check_depth(static_cast<int>(std::ranges::count(section, '.')), line_);
    const bool quoted =
        value.size() > 1 && (value.front() == '"' || value.front() == '\'') && value.back() == value.front();
    if (quoted) value = value.substr(1, value.size() - 2);
    builder_.add(builder_.map_at(root_, section, line_), name,
                 quoted ? SettingValue::scalar(Kind::text, value, line_) : plain_scalar(value, line_));
    return 1;
  }

  std::string_view rest_;
  SettingsBuilder builder_;
  SettingValue root_ = SettingValue::scalar(Kind::map, "", 1);
  int line_ = 0;
  std::exception_ptr error_;
};

}  // namespace

SettingValue read_ini_settings(std::string_view text, const std::string& file) { return Reader(text, file).run(); }

}  // namespace llmtrain
