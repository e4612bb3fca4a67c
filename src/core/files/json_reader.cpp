#include "core/files/json_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace llmtrain {
namespace {

[[noreturn]] void refuse(std::string_view text, const std::string& source, size_t byte, const std::string& what) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  throw UserError(ExitCode::bad_content, fmt::format("{}:{}: byte {}: {}", source, line, byte + 1, what));
}

/// Walks over the text and tells how far the parser has come.
class TrackedIterator {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackedIterator() = default;
  TrackedIterator(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const {
    *reached_ = at_;
    return *at_;
  }
  TrackedIterator& operator++() {
    ++at_;
    return *this;
  }
  TrackedIterator operator++(int) {
    TrackedIterator before = *this;
    ++at_;
    return before;
  }
  bool operator==(const TrackedIterator& other) const { return at_ == other.at_; }

 private:
  const char* at_ = nullptr;
  const char** reached_ = nullptr;
};

class DocumentBuilder final : public JsonHandler {
 public:
  explicit DocumentBuilder(int64_t max_values) : JsonHandler(max_values) {}
  nlohmann::json take_document() { return std::move(root_); }

 private:
  bool on_value(nlohmann::json value) override {
    *place() = std::move(value);
    return true;
  }
  bool on_key(std::string& name) override {
    const auto [place, is_new] = open_.back()->get_ref<nlohmann::json::object_t&>().try_emplace(name);
    next_ = &place->second;
    return is_new || fail(fmt::format("key {} twice in one object", printable(name)));
  }
  bool on_open(bool object) override {
    nlohmann::json* at = place();
    *at = object ? nlohmann::json::object() : nlohmann::json::array();
    open_.push_back(at);
    return true;
  }
  bool on_close() override {
    open_.pop_back();
    return true;
  }
  /// Where the next value goes. Only the innermost open array grows, so that the pointers to what is open stay valid.
  nlohmann::json* place() {
    if (open_.empty()) return &root_;
    if (open_.back()->is_object()) return next_;
    return &open_.back()->emplace_back();
  }

  nlohmann::json root_;
  std::vector<nlohmann::json*> open_;
  nlohmann::json* next_ = nullptr;  // value of the key last read
};

}  // namespace

bool JsonHandler::parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) {
  constexpr int number_overflow = 406;  // of nlohmann::json::out_of_range
  return fail(error.id == number_overflow ? "a number that no double holds" : "not valid JSON");
}

bool JsonHandler::count() {
  if (values_left_ == 0) return fail("more values than such a file can need");
  --values_left_;
  return true;
}

bool JsonHandler::open(bool object) {
  if (++depth_ > max_json_depth) return fail(fmt::format("nested deeper than {} levels", max_json_depth));
  return count() && on_open(object);
}

void parse_json_events(std::string_view text, const std::string& source, JsonHandler& handler) {
  // The parser takes a NUL for the end of its input, and skips a mark.
  const size_t nul = text.find('\0');
  if (nul != std::string_view::npos) refuse(text, source, nul, "a NUL");
  if (text.starts_with("\xEF\xBB\xBF")) refuse(text, source, 0, "a byte order mark: remove it");
  const char* reached = text.data();
  const TrackedIterator begin(text.data(), &reached), end(text.data() + text.size(), &reached);
  if (!nlohmann::json::sax_parse(begin, end, &handler)) {
    refuse(text, source, static_cast<size_t>(reached - text.data()), handler.problem());
  }
}

nlohmann::json parse_json(std::string_view text, const std::string& source, const JsonLimits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.bytes) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("{}: {} bytes; such a file has at most {}", source, text.size(), limits.bytes));
  }
  DocumentBuilder builder(limits.values);
  parse_json_events(text, source, builder);
  return builder.take_document();
}

nlohmann::json read_json(const FileHandle& file, const JsonLimits& limits) {
  return parse_json(file.read_text(limits.bytes), file.path(), limits);
}

std::string printable(std::string_view text) {
  constexpr size_t most = 60;
  std::string out = "'";
  for (const char c : text.substr(0, most)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte > 0x7E ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return out + (text.size() > most ? "...'" : "'");
}

std::string printable_value(const nlohmann::json& value) {
  if (value.is_string()) return printable(value.get_ref<const std::string&>());
  const std::string text = printable(value.dump());
  return text.substr(1, text.size() - 2);
}

}  // namespace llmtrain
