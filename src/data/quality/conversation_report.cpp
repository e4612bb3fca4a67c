
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <map>

#include "core/error.hpp"
#include "core/parallel_for.hpp"
#include "data/files/document_reader.hpp"
#include "data/files/jsonl.hpp"
#include "data/formats/encode_documents.hpp"
#include "data/quality/chat_lint.hpp"
#include "data/quality/data_report.hpp"
#include "data/quality/duplicates.hpp"
#include "text/unicode/code_points.hpp"

namespace llmtrain {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t rows_at_once = 4096;
constexpr size_t bytes_at_once = size_t{32} << 20;

/// Result of encoding one row.
struct RowFacts {
  std::string problem;   ///< empty: none
  std::string left_out;  ///< why the row is left out; empty: it is not
  DocumentPrint print;
  uint32_t characters = 0, tokens = 0, trained = 0;  // of a pair: of the chosen answer
  uint32_t rejected_tokens = 0;
  bool is_pair = false, truncated = false, lost = false, merged_border = false, without_stop = false;
  bool equal = false, empty = false;  // preference data that are left out
  bool is_prompt = false;             // nothing is trained
  std::vector<std::string> split;     ///< texts of the template that look like one token and are several
};

void examine_document(const EncodedRow& encoded, const ConversationReportOptions& options, RowFacts& facts) {
  const auto trained_in = [&](size_t tokens) {  // the first token is not a target
    const auto begin = encoded.mask.begin() + std::min<std::ptrdiff_t>(1, std::ssize(encoded.mask));
    const auto end = encoded.mask.begin() + static_cast<std::ptrdiff_t>(std::min(tokens, encoded.mask.size()));
    return begin < end ? std::count(begin, end, uint8_t{1}) : 0;
  };
  const auto trained = static_cast<uint32_t>(trained_in(encoded.ids.size()));
  const auto limit = static_cast<size_t>(options.sequence_length) + 1;
  const bool truncated = options.sequence_length > 0 && encoded.ids.size() > limit;
  facts.tokens = static_cast<uint32_t>(encoded.ids.size());
  facts.trained = trained;
  facts.truncated = facts.truncated || truncated;
  facts.lost = facts.lost || (truncated && trained > 0 && trained_in(limit) == 0);
  facts.merged_border = facts.merged_border || encoded.merged_border;
  facts.without_stop = facts.without_stop || !encoded.stops();
  facts.print.content = XXH3_64bits_withSeed(
      encoded.mask.data(), encoded.mask.size(),
      XXH3_64bits_withSeed(encoded.ids.data(), encoded.ids.size() * sizeof(int32_t), facts.print.content));
  find_split_tokens(encoded, facts.split);
}

void examine_tokens(const RowDocuments& row, const ConversationReportOptions& options, RowFacts& facts) {
  thread_local std::vector<EncodedRow> encoded;
  encode_documents(*options.encoder, row, encoded);
  facts.print.content = 0;
  for (size_t d = encoded.size(); d-- > 0;) {
    const uint32_t after = facts.trained;
    examine_document(encoded[d], options, facts);
    if (d == 1) facts.rejected_tokens = facts.tokens;
    if (d == 0 && facts.is_pair) facts.trained = std::min(facts.trained, after);  // the pair needs both
  }
  facts.equal = facts.is_pair && encoded[0].ids == encoded[1].ids;
}

RowFacts examine_row(const DocumentSegment& segment, const InputFile& file, const ConversationReportOptions& options) {
  RowFacts facts;
  if (!segment.first || !segment.last) {
    facts.problem = "the row is longer than the limit of rows (--row-limit)";
    return facts;
  }
  try {
    const bool templated = options.encoder == nullptr || options.encoder->has_template();
    const RowReader reader(file.format.row_format, file.format.columns, templated);
    const RowDocuments row = reader.read_documents(segment.text);
    facts.left_out = row.left_out;
    if (!facts.left_out.empty()) return facts;
    facts.is_pair = row.documents.size() == 2;
    facts.is_prompt = row.is_prompt();
    facts.empty = !facts.is_prompt && find_row_format(file.format.row_format)->is_preference() &&
                  std::ranges::any_of(row.documents, has_empty_completion);
    facts.equal = facts.is_pair && texts_of(row.documents[0]) == texts_of(row.documents[1]);  // or the same tokens
    const std::string text = texts_of(row);
    for (const char c : text) facts.characters += is_utf8_continuation(c) ? 0 : 1;
    SimHash similar;
    similar.add(text);
    facts.print = {XXH3_64bits(text.data(), text.size()), similar.bits(), similar.runs() >= min_runs};
    if (options.encoder != nullptr) examine_tokens(row, options, facts);
  } catch (const UserError& error) {
    facts.problem = error.what();
  }
  return facts;
}

class ConversationReporter {
 public:
  ConversationReporter(const std::vector<InputFile>& files, const ConversationReportOptions& options)
      : files_(files), options_(options) {}

  Json run(const ProgressReport& report) {
    for (const InputFile& file : files_) read_file(file, report);
    return summary();
  }

 private:
  void read_file(const InputFile& file, const ProgressReport& report) {
    const auto progress = percent_report(report, file.path);
    const size_t before = facts_.size();
    DocumentReader reader(file, options_.unpacked_limit);
    for (bool more = true; more; progress(reader.progress())) {
      std::vector<DocumentSegment> rows;
      size_t bytes = 0;
      DocumentSegment segment;
      while (bytes < bytes_at_once && rows.size() < rows_at_once && (more = reader.next(segment))) {
        if (is_blank(segment.text)) continue;
        bytes += segment.text.size();
        rows.push_back(std::move(segment));
      }
      std::vector<RowFacts> facts(rows.size());
      parallel_for(rows.size(), options_.threads, [&](size_t i) { facts[i] = examine_row(rows[i], file, options_); });
      for (size_t i = 0; i < rows.size(); ++i) add(file, rows[i], std::move(facts[i]));
    }
    files_read_.push_back({{"path", file.path},
                           {"bytes", file.bytes},
                           {"rows", facts_.size() - before},
                           {"format", file.format.row_format}});
  }

  void add(const InputFile& file, const DocumentSegment& row, RowFacts facts) {
    if (!facts.problem.empty()) {
      broken_ += row.last ? 1 : 0;
      if (row.first && problems_.size() < options_.max_shown) {
        problems_.push_back({{"file", file.path}, {"line", row.line}, {"byte", row.offset}, {"what", facts.problem}});
      }
      return;
    }
    if (!facts.left_out.empty()) {
      if (irregular_++ == 0) first_irregular_ = fmt::format("{}:{}: {}", file.path, row.line, facts.left_out);
      return;
    }
    for (const std::string& text : facts.split) ++split_[text];
    facts.split.clear();
    facts_.push_back(std::move(facts));
  }

  int64_t count(bool RowFacts::*member) const { return std::ranges::count(facts_, true, member); }
  std::vector<uint32_t> lengths(uint32_t RowFacts::*member) const {
    std::vector<uint32_t> values;
    for (const RowFacts& row : facts_) values.push_back(row.*member);
    return values;
  }

  Json summary() const {
    std::vector<DocumentPrint> prints;
    for (const RowFacts& row : facts_) prints.push_back(row.print);
    const DuplicateCounts duplicates = find_duplicates(prints, 0);
    const auto is_untrained = [](const RowFacts& row) {
      return !row.equal && !row.empty && !row.is_prompt && row.trained == 0;
    };
    const auto untrained = std::ranges::count_if(facts_, is_untrained);
    const int64_t equal = count(&RowFacts::equal);
    const auto empty = std::ranges::count_if(facts_, [](const RowFacts& row) { return row.empty && !row.equal; });
    const int64_t pairs = count(&RowFacts::is_pair);
    const auto rows = std::ssize(facts_);
    Json json;
    const bool encodes = options_.encoder != nullptr;
    json["usable"] = broken_ == 0 && rows > equal + empty + (encodes ? untrained + count(&RowFacts::lost) : 0);
    json["files"] = files_read_;
    json["rows"] = rows;
    json["broken_rows"] = broken_;
    json["irregular"] = irregular_;
    if (pairs > 0) json["pairs"] = pairs;
    if (pairs + empty > 0) {
      json["equal"] = equal;
      json["empty"] = empty;
    }
    json["duplicates"] = {{"exact", duplicates.exact}, {"near", duplicates.near}};
    json["length"]["characters"] = length_facts(lengths(&RowFacts::characters));
    if (encodes) {
      json["template"] = options_.encoder->template_name();
      json["untrained"] = untrained;
      json["truncated"] = count(&RowFacts::truncated);
      json["lost_targets"] = count(&RowFacts::lost);
      json["merged_borders"] = count(&RowFacts::merged_border);
      json["without_stop"] = count(&RowFacts::without_stop);
      json["split_tokens"] = Json::array();
      for (const auto& [text, found] : split_) json["split_tokens"].push_back({{"text", text}, {"rows", found}});
      json["length"]["tokens"] = length_facts(lengths(&RowFacts::tokens));
      if (pairs == rows && pairs > 0) {
        json["length"]["rejected_tokens"] = length_facts(lengths(&RowFacts::rejected_tokens));
      }
      json["length"]["trained_tokens"] = length_facts(lengths(&RowFacts::trained));
    }
    json["problems"] = problems_;
    json["warnings"] = warnings(json);
    return json;
  }

  Json warnings(const Json& json) const {
    Json list = Json::array();
    const auto warn = [&](int64_t rows, const std::string& text) {
      if (rows > 0) list.push_back(fmt::format("{} rows {}", rows, text));
    };
    const int64_t rows = json["rows"];
    if (rows < few_rows) list.push_back(fmt::format("{} rows are few: a model memorises them", rows));
    const int64_t repeated = json["duplicates"]["exact"];
    if (10 * repeated > rows) warn(repeated, "repeat an earlier one: remove them");
    warn(irregular_,
         fmt::format("have turns that do not alternate; they are left out (the first at {})", first_irregular_));
    if (json.contains("equal")) {
      warn(json["equal"], "are pairs of equal answers; they are left out");
      warn(json["empty"], "have an empty answer; they are left out");
    }
    if (options_.encoder == nullptr) return list;
    warn(json["without_stop"],
         "train no stop token at their end, so that the model does not learn when to stop: use a template that writes "
         "the tokenizer's stop token, or set data.eos_token");
    warn(json["untrained"], "have no token to train on; they are left out");
    warn(json["lost_targets"],
         fmt::format("lose all tokens to train on at a sequence length of {}: use a longer one, or data.overflow = "
                     "truncate_left",
                     options_.sequence_length));
    for (const Json& entry : json["split_tokens"]) {
      list.push_back(split_token_warning(entry["text"]));
    }
    return list;
  }

  const std::vector<InputFile>& files_;
  const ConversationReportOptions& options_;
  std::vector<RowFacts> facts_;  // of rows that can be read
  int64_t broken_ = 0, irregular_ = 0;
  std::string first_irregular_;           // "file:line: why"
  std::map<std::string, int64_t> split_;  // rows in which a text of the template is split
  Json files_read_ = Json::array(), problems_ = Json::array();
};

}  // namespace

Json make_conversation_report(const std::vector<InputFile>& files, const ConversationReportOptions& options,
                              const ProgressReport& report) {
  return ConversationReporter(files, options).run(report);
}

}  // namespace llmtrain
