#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "core/batch.hpp"
#include "core/error.hpp"
#include "data/files/jsonl.hpp"
#include "tool/input_lines.hpp"
#include "tool/row_scorer.hpp"

namespace llmtrain {
namespace {

/// A row of ids with the texts of its tokens.
EncodedRow encode_ids(const TokenRow& row, const Tokenizer& tokenizer) {
  EncodedRow encoded;
  encoded.ids = row.ids;
  for (size_t i = 0; i < row.ids.size(); ++i) {
    encoded.mask.push_back(row.has_labels && row.labels[i] == ignore_target ? 0 : 1);
    const auto last = std::span(row.ids).subspan(i > 0 ? i - 1 : 0, i > 0 ? 2 : 1);
    const std::string before = i > 0 ? tokenizer.decode_with_special(last.first(1)) : std::string();
    const std::string both = tokenizer.decode_with_special(last);
    const size_t begin = encoded.text.text.size();
    encoded.text.text += both.starts_with(before) ? both.substr(before.size()) : both;
    encoded.ranges.push_back({begin, encoded.text.text.size()});
  }
  encoded.trained = std::ranges::count(encoded.mask, uint8_t{1});
  const bool stops = encoded.trained > 0 && encoded.mask.back() != 0 && tokenizer.is_special(encoded.ids.back());
  encoded.stop = stops ? encoded.ids.back() : -1;
  return encoded;
}

/// Encodes the rows of a file.
class RowsEncoder {
 public:
  RowsEncoder(const TextFormat& rules, const Tokenizer& tokenizer, const ChatEncoder& encoder)
      : rules_(rules), tokenizer_(tokenizer), encoder_(encoder), recognition_(rules.row_format, rules.columns) {}

  /// False: the row has no document.
  bool encode(std::string_view line, EncodedLine& row) {
    if (!begun_) begin(line);
    row.left_out = LeftOut::no;
    if (of_ids_) return encode_ids_of(line, row);
    recognition_.add(line);
    RowDocuments documents;
    if (recognition_.format() == "text") {
      std::string text;
      if (!parse_text_row(line, rules_.column, text)) return false;
      documents.documents.emplace_back(PlainText{std::move(text)});
    } else {
      if (!reader_) reader_.emplace(recognition_.format(), rules_.columns, encoder_.has_template());
      documents = reader_->read_documents(line);
    }
    if (!documents.left_out.empty()) {
      if (irregular_++ == 0) first_irregular_ = fmt::format("{}: {}", row.number, documents.left_out);
      return false;
    }
    encode_documents(encoder_, documents, row.documents);
    if (recognition_.format() == "text") return true;  // a text of one token ends the one before it in a stream
    const bool preferences = find_row_format(recognition_.format())->is_preference();
    row.left_out = left_out_of_training(documents, row.documents, preferences);
    return true;
  }

  std::vector<std::string> notes(const std::string& source) const {
    std::vector<std::string> notes;
    if (irregular_ > 0) {
      notes.push_back(fmt::format("{} rows are left out: their turns do not alternate (the first at {}:{})", irregular_,
                                  source, first_irregular_));
    }
    const std::string unread = recognition_.unread_columns();
    if (!unread.empty()) notes.push_back(fmt::format("{}: {}", source, unread));
    return notes;
  }

 private:
  void begin(std::string_view line) {
    const std::vector<std::string> keys = row_keys(line);
    of_ids_ = std::ranges::find(keys, "input_ids") != keys.end();
    begun_ = true;
  }
  bool encode_ids_of(std::string_view line, EncodedLine& row) {
    parse_token_row(line, ids_);
    if (ids_.ids.empty()) return false;
    row.documents = {encode_ids(ids_, tokenizer_)};
    return true;
  }

  const TextFormat& rules_;
  const Tokenizer& tokenizer_;
  const ChatEncoder& encoder_;
  FormatRecognition recognition_;
  std::optional<RowReader> reader_;  // of the format that the first row has
  TokenRow ids_;
  bool begun_ = false, of_ids_ = false;
  int64_t irregular_ = 0;
  std::string first_irregular_;  // "line: why"
};

}  // namespace

std::vector<std::string> for_each_encoded_row(const std::string& input, const TextFormat& rules,
                                              const Tokenizer& tokenizer, const ChatEncoder& encoder,
                                              const std::function<void(const EncodedLine&)>& work) {
  InputLines lines(input, rules.columns);
  const std::string source = input == "-" ? "standard input" : input;
  RowsEncoder rows(rules, tokenizer, encoder);
  EncodedLine row;
  for (std::string_view line; lines.next(line);) {
    ++row.number;
    if (is_blank(line)) continue;
    try {
      if (rows.encode(line, row)) work(row);
    } catch (const UserError& error) {
      throw UserError(error.code(), fmt::format("{}: {}", place_of_line(source, row.number), error.what()));
    }
  }
  return rows.notes(source);
}

}  // namespace llmtrain
