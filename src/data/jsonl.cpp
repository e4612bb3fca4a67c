#include "data/jsonl.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "core/batch.hpp"
#include "core/error.hpp"
#include "core/json_reader.hpp"
#include "data/text_source.hpp"

namespace llmtrain {
namespace {

constexpr int64_t read_bytes = int64_t{1} << 18;

/// Takes the events of the parser, which keeps its own stack on the heap: no depth overflows the machine's.
class RowHandler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit RowHandler(TokenRow& row) : row_(row) {}
  const std::string& problem() const { return problem_; }

  bool finish() {
    if (!has_ids_) return fail("no input_ids (rows of text are not read: give a text file, or token ids)");
    if (!row_.has_labels) return true;
    if (row_.labels.size() != row_.ids.size()) {
      return fail(fmt::format("{} labels for {} input_ids", row_.labels.size(), row_.ids.size()));
    }
    for (size_t i = 0; i < row_.ids.size(); ++i) {
      if (row_.labels[i] != ignore_target && row_.labels[i] != row_.ids[i]) {
        return fail(fmt::format("labels[{}] is {}; it must be input_ids[{}] = {} or {}", i, row_.labels[i], i,
                                row_.ids[i], ignore_target));
      }
    }
    return true;
  }

  bool null() override { return scalar(); }
  bool boolean(bool) override { return scalar(); }
  bool number_integer(number_integer_t value) override { return number(value); }
  bool number_unsigned(number_unsigned_t value) override {
    return number(value > static_cast<uint64_t>(INT64_MAX) ? INT64_MAX : static_cast<int64_t>(value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    if (list_ != nullptr) return fail(fmt::format("{} is not an integer", text.substr(0, 40)));
    return scalar();
  }
  bool string(string_t&) override { return scalar(); }
  bool binary(binary_t&) override { return scalar(); }

  bool start_object(size_t) override {
    if (list_ != nullptr || (depth() == 1 && wanted_)) return fail(key_ + " must be a list of integers");
    keys_.emplace_back();
    return check_depth();
  }
  bool key(string_t& name) override {
    std::unordered_set<std::string>& names = keys_.back();
    if (names.size() >= max_json_keys) return fail(fmt::format("an object with more than {} keys", max_json_keys));
    if (!names.insert(name).second) return fail(fmt::format("key {} twice in one object", name.substr(0, 40)));
    if (depth() == 1) {
      key_ = name;
      wanted_ = name == "input_ids" || name == "labels";
    }
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    return true;
  }
  bool start_array(size_t) override {
    if (depth() == 0) return fail("a row must be a JSON object");
    if (list_ != nullptr) return fail(key_ + " must be a flat list of integers");
    if (depth() == 1 && wanted_) {
      list_ = key_ == "labels" ? &row_.labels : &row_.ids;
      (list_ == &row_.ids ? has_ids_ : row_.has_labels) = true;
    }
    keys_.emplace_back();
    return check_depth();
  }
  bool end_array() override {
    keys_.pop_back();
    list_ = nullptr;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return fail(fmt::format("not valid JSON at byte {} of the line", position));
  }

 private:
  size_t depth() const { return keys_.size(); }
  bool check_depth() {
    return depth() <= static_cast<size_t>(max_json_depth) ||
           fail(fmt::format("nested deeper than {} levels", max_json_depth));
  }
  bool scalar() {
    if (depth() == 0) return fail("a row must be a JSON object");
    if (list_ != nullptr || (depth() == 1 && wanted_)) return fail(key_ + " must be a list of integers");
    return true;
  }
  bool number(int64_t value) {
    if (list_ == nullptr) return scalar();
    const bool ignored = list_ == &row_.labels && value == ignore_target;
    if (!ignored && (value < 0 || value > largest_id)) {
      return fail(fmt::format("{}[{}] = {} is not a token id (0 to {})", key_, list_->size(), value, largest_id));
    }
    list_->push_back(static_cast<int32_t>(value));
    return true;
  }
  bool fail(std::string what) {
    if (problem_.empty()) problem_ = std::move(what);
    return false;
  }

  TokenRow& row_;
  std::string problem_;
  std::vector<std::unordered_set<std::string>> keys_;  // one per open object or array
  std::string key_;                                    // of the row
  bool wanted_ = false;                                // the key is one we read
  bool has_ids_ = false;
  std::vector<int32_t>* list_ = nullptr;  // being filled
};

}  // namespace

std::string too_long_row() {
  return fmt::format("the line is longer than {} MiB: every row is one line of JSON", longest_row >> 20);
}

void parse_token_row(std::string_view line, TokenRow& row) {
  row.ids.clear();
  row.labels.clear();
  row.has_labels = false;
  const auto refuse = [](const std::string& what) { throw UserError(ExitCode::bad_content, what); };
  // The parser takes a NUL for the end of its input, and skips a mark.
  const size_t nul = line.find('\0');
  if (nul != std::string_view::npos) refuse(fmt::format("a NUL at byte {} of the line", nul + 1));
  if (line.substr(0, 3) == "\xEF\xBB\xBF") refuse("the line begins with a byte order mark: remove it");
  RowHandler handler(row);
  const bool parsed = nlohmann::json::sax_parse(line.begin(), line.end(), &handler);
  if (!parsed || !handler.finish()) refuse(handler.problem());
}

LineReader::LineReader(const FileHandle& file, int64_t file_bytes, int64_t begin, int64_t end)
    : file_(file), file_bytes_(file_bytes), end_(end), buffer_offset_(begin) {
  if (begin == 0) return;
  // The first line that starts here follows the first '\n' from begin - 1 on.
  for (--buffer_offset_; buffer_offset_ < end_ - 1; position_ = 0, buffer_offset_ += read_bytes) {
    buffer_.clear();
    fill();
    const size_t newline = buffer_.find('\n');
    if (newline != std::string::npos) {
      position_ = newline + 1;
      return;
    }
  }
  buffer_.clear();
  buffer_offset_ = file_bytes_;  // no line starts in the range
}

/// Appends to the buffer what follows it in the file; false at the end of the file.
bool LineReader::fill() {
  const int64_t from = buffer_offset_ + static_cast<int64_t>(buffer_.size());
  const int64_t count = std::min(read_bytes, file_bytes_ - from);
  if (count <= 0) return false;
  const size_t before = buffer_.size();
  buffer_.resize(before + static_cast<size_t>(count));
  file_.read(from, count, buffer_.data() + before);
  return true;
}

bool LineReader::next(std::string_view& line) {
  line_offset_ = buffer_offset_ + static_cast<int64_t>(position_);
  if (line_offset_ >= end_ || line_offset_ >= file_bytes_) return false;
  size_t newline = buffer_.find('\n', position_);
  while (newline == std::string::npos) {
    buffer_.erase(0, position_);
    buffer_offset_ += static_cast<int64_t>(position_);
    position_ = 0;
    const size_t searched = buffer_.size();
    if (static_cast<int64_t>(searched) > longest_row) fail_at_byte(file_, line_offset_, too_long_row());
    if (!fill()) break;
    newline = buffer_.find('\n', searched);
  }
  const size_t stop = std::min(newline, buffer_.size());
  line = std::string_view(buffer_).substr(position_, stop - position_);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  position_ = std::min(stop + 1, buffer_.size());
  return true;
}

}  // namespace llmtrain
