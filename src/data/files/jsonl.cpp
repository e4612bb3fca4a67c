#include "data/files/jsonl.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_set>

#include "core/batch.hpp"
#include "core/files/json_reader.hpp"

namespace llmtrain {
namespace {

constexpr int64_t read_bytes = int64_t{1} << 18;
constexpr const char* no_object = "a row must be a JSON object";

/// Handler of the parser's events. The parser keeps its own stack on the heap, so that no depth overflows the thread's
/// stack. After the key of a requested column and until the next key of the row, every value belongs to that column.
class RowHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  const std::string& problem() const { return problem_; }
  /// Byte at which the line is not JSON, if any.
  std::optional<size_t> broken_at() const { return broken_at_; }
  virtual bool finish() = 0;

  bool null() final { return scalar() && (!wanted_ || take_null()); }
  bool boolean(bool value) final { return scalar() && (!wanted_ || take_boolean(value)); }
  bool number_integer(number_integer_t value) final { return scalar() && (!wanted_ || take_integer(value)); }
  bool number_unsigned(number_unsigned_t value) final {
    const bool fits = value <= static_cast<uint64_t>(INT64_MAX);
    return scalar() && (!wanted_ || take_integer(fits ? static_cast<int64_t>(value) : INT64_MAX));
  }
  bool number_float(number_float_t, const string_t& text) final { return scalar() && (!wanted_ || take_float(text)); }
  bool string(string_t& value) final { return scalar() && (!wanted_ || take_string(value)); }
  bool binary(binary_t&) final { return fail("binary data"); }

  bool start_object(size_t) final {
    if (wanted_) return refuse_value();
    keys_.emplace_back();
    return check_depth();
  }
  bool key(string_t& name) final {
    std::unordered_set<std::string>& names = keys_.back();
    if (names.size() >= max_json_keys) return fail(fmt::format("an object with more than {} keys", max_json_keys));
    if (!names.insert(name).second) return fail(fmt::format("key {} twice in one object", printable(name)));
    if (depth() == 1) {
      key_ = name;
      wanted_ = wants(name);
    }
    return true;
  }
  bool end_object() final {
    keys_.pop_back();
    return true;
  }
  bool start_array(size_t) final {
    if (depth() == 0) return fail(no_object);
    if (wanted_ && !open_list()) return false;
    keys_.emplace_back();
    return check_depth();
  }
  bool end_array() final {
    keys_.pop_back();
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) final {
    broken_at_ = position > 0 ? position - 1 : 0;
    return fail("not valid JSON" + reason_of_parse_error(error));
  }

 protected:
  /// Returns true if the value of this key of the row is requested.
  virtual bool wants(const std::string& key) = 0;
  virtual bool open_list() { return refuse_value(); }
  virtual bool take_null() { return refuse_value(); }
  virtual bool take_boolean(bool) { return refuse_value(); }
  virtual bool take_integer(int64_t) { return refuse_value(); }
  virtual bool take_float(const std::string&) { return refuse_value(); }
  virtual bool take_string(std::string&) { return refuse_value(); }
  virtual bool refuse_value() = 0;  ///< for a type that the column does not have

  size_t depth() const { return keys_.size(); }
  const std::string& key_of_row() const { return key_; }
  bool fail(std::string what) {
    if (problem_.empty()) problem_ = std::move(what);
    return false;
  }

 private:
  bool scalar() { return depth() > 0 || fail(no_object); }
  bool check_depth() {
    return depth() <= static_cast<size_t>(max_json_depth) ||
           fail(fmt::format("nested deeper than {} levels", max_json_depth));
  }

  std::string problem_;
  std::optional<size_t> broken_at_;
  std::vector<std::unordered_set<std::string>> keys_;  // one entry per open object or array
  std::string key_;                                    // current key of the row
  bool wanted_ = false;
};

class TokenRowHandler final : public RowHandler {
 public:
  explicit TokenRowHandler(TokenRow& row) : row_(row) {}

  bool finish() override {
    if (!ids_.given) return fail("no input_ids: every row of token ids must have them");
    for (const Column* column : {&labels_, &attention_, &completion_, &assistant_}) {
      if (!column->given || column->values->size() == row_.ids.size()) continue;
      const std::string what = column == &labels_ ? "labels" : fmt::format("entries of {}", column->name);
      return fail(fmt::format("{} {} for {} input_ids", column->values->size(), what, row_.ids.size()));
    }
    row_.has_labels = labels_.given;
    for (size_t i = 0; row_.has_labels && i < row_.ids.size(); ++i) {
      if (is_padding(i) || row_.labels[i] == ignore_target || row_.labels[i] == row_.ids[i]) continue;
      return fail(fmt::format("labels[{}] is {}; it must be input_ids[{}] = {} or {}", i, row_.labels[i], i,
                              row_.ids[i], ignore_target));
    }
    if ((completion_.given || assistant_.given) && !take_masks()) return false;
    if (attention_.given) leave_out_padding();
    return true;
  }

 private:
  struct Column {
    std::string_view name;
    std::vector<int32_t>* values;
    bool given = false;
  };

  bool is_padding(size_t i) const { return attention_.given && attention_values_[i] == 0; }

  /// Makes labels of the masks; labels that stand beside them must say the same. The first token is never a target.
  bool take_masks() {
    if (!labels_.given) row_.labels = row_.ids;
    row_.has_labels = true;
    for (size_t i = 0; i < row_.ids.size(); ++i) {
      const Column* unset = nullptr;  // a mask that is 0
      for (const Column* mask : {&completion_, &assistant_}) {
        if (mask->given && (*mask->values)[i] == 0) unset = mask;
      }
      const bool agree = (unset == nullptr) == (row_.labels[i] != ignore_target);
      if (labels_.given && i > 0 && !agree && !is_padding(i)) {
        const std::string_view name =
            unset != nullptr ? unset->name : (completion_.given ? completion_ : assistant_).name;
        return fail(fmt::format("labels[{}] is {} and {}[{}] is {}: remove one of the columns, or make them agree", i,
                                row_.labels[i], name, i, unset != nullptr ? 0 : 1));
      }
      if (unset != nullptr) row_.labels[i] = ignore_target;
    }
    return true;
  }
  void leave_out_padding() {
    size_t kept = 0;
    for (size_t i = 0; i < row_.ids.size(); ++i) {
      if (is_padding(i)) continue;
      row_.ids[kept] = row_.ids[i];
      if (row_.has_labels) row_.labels[kept] = row_.labels[i];
      ++kept;
    }
    row_.padding = static_cast<int64_t>(row_.ids.size() - kept);
    row_.ids.resize(kept);
    if (row_.has_labels) row_.labels.resize(kept);
  }

  bool wants(const std::string& key) override {
    column_ = nullptr;
    for (Column* column : {&ids_, &labels_, &attention_, &completion_, &assistant_}) {
      if (key == column->name) column_ = column;
    }
    return column_ != nullptr;
  }
  bool open_list() override {
    if (depth() > 1) return fail(key_of_row() + " must be a flat list of integers");
    return column_->given = true;
  }
  /// A column beside the ids that is null is not there.
  bool take_null() override { return depth() == 1 && column_ != &ids_ ? true : refuse_value(); }
  bool take_integer(int64_t value) override {
    if (depth() == 1) return refuse_value();
    if (is_mask()) return value == 0 || value == 1 ? take(value) : refuse_mask(fmt::to_string(value));
    const bool ignored = column_ == &labels_ && value == ignore_target;
    if (!ignored && (value < 0 || value > max_id)) {
      return fail(fmt::format("{}[{}] = {} must be a token id from 0 to {}", key_of_row(), column_->values->size(),
                              value, max_id));
    }
    return take(value);
  }
  bool take_boolean(bool value) override { return depth() > 1 && is_mask() ? take(value ? 1 : 0) : refuse_value(); }
  bool take_float(const std::string& text) override {
    if (depth() == 1) return refuse_value();
    if (!is_mask()) return fail(fmt::format("{} is not an integer", text.substr(0, 40)));
    double value = -1;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value == 0 || value == 1 ? take(value == 1 ? 1 : 0) : refuse_mask(text.substr(0, 40));
  }
  bool take(int64_t value) {
    column_->values->push_back(static_cast<int32_t>(value));
    return true;
  }
  bool is_mask() const { return column_ != &ids_ && column_ != &labels_; }
  bool refuse_mask(const std::string& value) {
    return fail(fmt::format("{}[{}] = {} must be 1, or 0 for {}", column_->name, column_->values->size(), value,
                            column_ == &attention_ ? "padding" : "a token that is not trained on"));
  }
  bool refuse_value() override { return fail(key_of_row() + " must be a list of integers"); }

  TokenRow& row_;
  std::vector<int32_t> attention_values_, completion_values_, assistant_values_;
  Column ids_{"input_ids", &row_.ids}, labels_{"labels", &row_.labels},
      attention_{"attention_mask", &attention_values_}, completion_{"completion_mask", &completion_values_},
      assistant_{"assistant_masks", &assistant_values_};
  Column* column_ = nullptr;  // column of the requested key, or null
};

class TextRowHandler final : public RowHandler {
 public:
  TextRowHandler(const std::string& column, std::string& text) : column_(column), text_(text) {}

  bool finish() override {
    if (has_ids_) return fail("input_ids, which the first row does not have: rows of text and of ids cannot be mixed");
    return has_text_ ||
           fail(fmt::format(
               "no column {}: data.text_column (llmtool: --text-column) names the one with the text (there are: {})",
               printable(column_), columns_.empty() ? "none" : columns_));
  }

 private:
  static constexpr size_t max_shown = 200;

  bool wants(const std::string& key) override {
    if (columns_.size() < max_shown) columns_ += (columns_.empty() ? "" : ", ") + printable(key);
    has_ids_ = has_ids_ || key == "input_ids";
    return key == column_;
  }
  bool take_null() override { return has_text_ = true; }
  bool take_string(std::string& value) override {
    text_.swap(value);
    return has_text_ = true;
  }
  bool refuse_value() override { return fail(printable(key_of_row()) + " must be a text"); }

  const std::string& column_;
  std::string& text_;
  std::string columns_;
  bool has_text_ = false;
  bool has_ids_ = false;
};

class KeyHandler final : public RowHandler {
 public:
  explicit KeyHandler(std::vector<std::string>& keys) : keys_(keys) {}
  bool finish() override { return true; }

 private:
  bool wants(const std::string& key) override {
    keys_.push_back(key);
    return false;
  }
  bool refuse_value() override { return false; }

  std::vector<std::string>& keys_;
};

/// The parser takes a NUL for the end of its input, and skips a byte order mark.
void refuse_foreign_bytes(std::string_view line) {
  const size_t nul = line.find('\0');
  if (nul != std::string_view::npos)
    throw RowError(nul, "a NUL byte is not valid JSON (if the file is UTF-16, convert it: iconv -f UTF-16 -t UTF-8)");
  if (line.starts_with(byte_order_mark)) throw RowError(0, "the line begins with a byte order mark: remove it");
}

void parse_row(std::string_view line, RowHandler& handler) {
  refuse_foreign_bytes(line);
  size_t read = 0;
  if (!parse_json_text(line, handler, read))
    throw RowError(handler.broken_at().value_or(std::max<size_t>(read, 1) - 1), handler.problem());
  if (!handler.finish()) throw RowError(0, handler.problem());  // error of the row as a whole
}

}  // namespace

std::string too_long_row(int64_t bytes, int64_t limit, bool counted) {
  return fmt::format(
      "the row has {}{} bytes, more than the {} of data.row_limit; every row is one line of JSON. If it is "
      "correct, raise data.row_limit in the deck, or --row-limit of llmtool",
      counted ? "" : "more than ", bytes, limit);
}

RowError::RowError(size_t byte, const std::string& reason)
    : UserError(ExitCode::bad_content, fmt::format("byte {} of the line: {}", byte, reason)),
      byte_(byte),
      reason_(reason) {}

void parse_token_row(std::string_view line, TokenRow& row) {
  row.ids.clear();
  row.labels.clear();
  row.has_labels = false;
  row.padding = 0;
  TokenRowHandler handler(row);
  parse_row(line, handler);
}

bool parse_text_row(std::string_view line, const std::string& column, std::string& text) {
  text.clear();
  TextRowHandler handler(column, text);
  parse_row(line, handler);
  return !text.empty();
}

nlohmann::ordered_json parse_json_row(std::string_view line) {
  constexpr int64_t max_values = int64_t{1} << 22;
  refuse_foreign_bytes(line);
  try {
    nlohmann::ordered_json row = parse_ordered_json(line, {.values = max_values}, max_json_keys);
    if (!row.is_object()) throw RowError(0, no_object);
    return row;
  } catch (const JsonError& error) {
    throw RowError(error.byte(), error.reason());
  }
}

void check_row(std::string_view line) {
  std::vector<std::string> keys;
  KeyHandler handler(keys);
  parse_row(line, handler);
}

std::vector<std::string> row_keys(std::string_view line) {
  std::vector<std::string> keys;
  KeyHandler handler(keys);
  if (!nlohmann::json::sax_parse(line.begin(), line.end(), &handler)) keys.clear();
  return keys;
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

void refuse_long_row(const FileHandle& file, int64_t begin, int64_t limit) {
  const int64_t most = limit > INT64_MAX / 16 ? INT64_MAX : 16 * limit;  // number of bytes to search for the end
  std::string buffer(static_cast<size_t>(read_bytes), '\0');
  int64_t bytes = 0;
  bool counted = false;
  char last = '\0';
  while (!counted && bytes < most) {
    const int64_t n = file.read_some(begin + bytes, read_bytes, buffer.data());
    const size_t newline = buffer.find('\n');
    const bool ended = newline < static_cast<size_t>(n);
    counted = ended || n < read_bytes;
    const int64_t here = ended ? static_cast<int64_t>(newline) : n;
    if (here > 0) last = buffer[static_cast<size_t>(here) - 1];
    bytes += here;
  }
  fail_at_byte(file, begin, too_long_row(bytes - (last == '\r' ? 1 : 0), limit, counted));
}

LineReader::LineReader(const FileHandle& file, int64_t file_bytes, int64_t begin, int64_t end, int64_t limit)
    : file_(file), file_bytes_(file_bytes), end_(end), limit_(limit), buffer_offset_(begin) {
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

/// Appends the next block of the file to the buffer; returns false at the end of the file.
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
    if (static_cast<int64_t>(searched) - row_margin > limit_) refuse_long_row(file_, line_offset_, limit_);
    if (!fill()) break;
    newline = buffer_.find('\n', searched);
  }
  const size_t stop = std::min(newline, buffer_.size());
  line = std::string_view(buffer_).substr(position_, stop - position_);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  if (line_offset_ == 0 && line.starts_with(byte_order_mark)) {
    line.remove_prefix(byte_order_mark.size());
    line_offset_ = static_cast<int64_t>(byte_order_mark.size());
  }
  if (static_cast<int64_t>(line.size()) > limit_) refuse_long_row(file_, line_offset_, limit_);
  position_ = std::min(stop + 1, buffer_.size());
  return true;
}

}  // namespace llmtrain
