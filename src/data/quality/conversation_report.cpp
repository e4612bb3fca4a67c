#include "data/quality/conversation_report.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <map>

#include "core/error.hpp"
#include "core/parallel_for.hpp"
#include "data/files/document_reader.hpp"
#include "data/files/jsonl.hpp"
#include "data/formats/row_format.hpp"
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
  std::string problem;  ///< empty: none
  DocumentPrint print;
  uint32_t characters = 0, tokens = 0, trained = 0;
  bool truncated = false, lost = false, merged_border = false, without_stop = false;
  std::vector<std::string> split;  ///< texts of the template that look like one token and are several
};

void examine_tokens(const InstructionRow& row, const ConversationReportOptions& options, RowFacts& facts) {
  thread_local EncodedRow encoded;
  options.encoder->encode(row, encoded);
  const auto trained_in = [&](size_t tokens) {  // the first token is no target
    const auto begin = encoded.mask.begin() + std::min<std::ptrdiff_t>(1, std::ssize(encoded.mask));
    const auto end = encoded.mask.begin() + static_cast<std::ptrdiff_t>(std::min(tokens, encoded.mask.size()));
    return begin < end ? std::count(begin, end, uint8_t{1}) : 0;
  };
  facts.tokens = static_cast<uint32_t>(encoded.ids.size());
  facts.trained = static_cast<uint32_t>(trained_in(encoded.ids.size()));
  const auto limit = static_cast<size_t>(options.sequence_length) + 1;
  facts.truncated = options.sequence_length > 0 && encoded.ids.size() > limit;
  facts.lost = facts.truncated && facts.trained > 0 && trained_in(limit) == 0;
  facts.merged_border = encoded.merged_border;
  facts.without_stop = !encoded.stops();
  facts.print.content = XXH3_64bits_withSeed(encoded.mask.data(), encoded.mask.size(),
                                             XXH3_64bits(encoded.ids.data(), encoded.ids.size() * sizeof(int32_t)));
  find_split_tokens(encoded, facts.split);
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
    const InstructionRow row = reader.read(segment.text);
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
    const auto untrained = std::ranges::count(facts_, 0U, &RowFacts::trained);
    const auto rows = std::ssize(facts_);
    Json json;
    const bool encodes = options_.encoder != nullptr;
    json["usable"] = broken_ == 0 && rows > (encodes ? untrained + count(&RowFacts::lost) : 0);
    json["files"] = files_read_;
    json["rows"] = rows;
    json["broken_rows"] = broken_;
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
    if (rows < few_rows) list.push_back(fmt::format("{} rows are few: a model learns them by heart", rows));
    const int64_t repeated = json["duplicates"]["exact"];
    if (10 * repeated > rows) warn(repeated, "repeat an earlier one: remove them");
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
  int64_t broken_ = 0;
  std::map<std::string, int64_t> split_;  // rows in which a text of the template is split
  Json files_read_ = Json::array(), problems_ = Json::array();
};

}  // namespace

Json make_conversation_report(const std::vector<InputFile>& files, const ConversationReportOptions& options,
                              const ProgressReport& report) {
  return ConversationReporter(files, options).run(report);
}

}  // namespace llmtrain
