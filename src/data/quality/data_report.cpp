#include "data/quality/data_report.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "core/error.hpp"
#include "core/parallel_for.hpp"
#include "data/files/jsonl.hpp"

namespace llmtrain {
namespace {

using Json = nlohmann::ordered_json;

// Limits of the work in flight, per thread and in total.
constexpr size_t batch_bytes = size_t{8} << 20;
constexpr size_t batch_segments = size_t{1} << 16;

/// Record of every document.
struct DocumentFacts {
  DocumentPrint print;
  uint32_t characters = 0, tokens = 0;  // saturates for longer ones
  int32_t file = 0;
};

uint32_t clipped(int64_t value) { return static_cast<uint32_t>(std::min<int64_t>(value, UINT32_MAX)); }

class Reporter {
 public:
  Reporter(const std::vector<InputFile>& files, const ReportOptions& options) : files_(files), options_(options) {}

  Json run(const ProgressReport& report) {
    for (size_t f = 0; f < files_.size(); ++f) read_file(f, report);
    return summary();
  }

 private:
  void read_file(size_t f, const ProgressReport& report) {
    const InputFile& file = files_[f];
    const auto progress = percent_report(report, file.path);
    const size_t before = documents_.size();
    DocumentReader reader(file, options_.unpacked_limit);
    bool more = true;
    while (more) {
      std::vector<DocumentSegment> segments;
      size_t bytes = 0, count = 0;
      while (bytes < batch_bytes * static_cast<size_t>(options_.threads) && count < batch_segments && more) {
        more = reader.next(segments.emplace_back());
        if (more) bytes += segments[count++].text.size();
      }
      std::vector<SegmentFacts> facts(count);
      const size_t share = std::max<size_t>(1, count / static_cast<size_t>(8 * options_.threads));
      parallel_for((count + share - 1) / share, options_.threads, [&](size_t piece) {
        for (size_t i = piece * share; i < std::min(count, (piece + 1) * share); ++i) {
          facts[i] = examine(segments[i], file.kind, options_.check);
        }
      });
      for (size_t i = 0; i < count; ++i) add(f, segments[i], facts[i]);
      progress(reader.progress());
    }
    Json entry = Json::object();
    entry["path"] = file.path;
    entry["bytes"] = file.bytes;
    entry["documents"] = documents_.size() - before;
    file_entries_.push_back(std::move(entry));
  }

  static Json location_of(const std::string& file, const DocumentSegment& segment, int64_t byte) {
    const auto inside = std::min<size_t>(static_cast<size_t>(byte), segment.text.size());
    const auto lines =
        std::count(segment.text.begin(), segment.text.begin() + static_cast<std::ptrdiff_t>(inside), '\n');
    Json place = Json::object();
    place["file"] = file;
    place["line"] = segment.line + lines;
    place["byte"] = segment.offset + byte;
    return place;
  }
  void show(Json& list, Json place) const {
    if (list.size() < options_.max_shown) list.push_back(std::move(place));
  }

  void add(size_t f, const DocumentSegment& segment, const SegmentFacts& facts) {
    const InputFile& file = files_[f];
    const bool rows = file.kind != InputKind::text;
    if (segment.first && segment.last && (rows ? is_blank(segment.text) : segment.text.empty())) {
      if (!rows) ++empty_;
      return;  // a blank line between rows is ignored
    }
    if (rows && !(segment.first && segment.last)) return add_long_row(file, segment);
    if (!facts.problem.empty()) {
      Json place = location_of(file.path, segment, facts.problem_byte);
      place["what"] = facts.problem;
      show(problems_, std::move(place));
    }
    if (rows && facts.row_is_broken) {
      ++broken_rows_;
      return;
    }
    if (segment.first) {
      open_ = {};
      first_location_ = location_of(file.path, segment, 0);
    }
    add_to(open_, facts);
    if (segment.last) close(f);
  }

  /// Adds a segment of a row beyond the limit; the last one tells its size.
  void add_long_row(const InputFile& file, const DocumentSegment& segment) {
    if (segment.first) {
      first_location_ = location_of(file.path, segment, 0);
      long_row_bytes_ = 0;
    }
    long_row_bytes_ += static_cast<int64_t>(segment.text.size());
    if (!segment.last) return;
    ++broken_rows_;
    first_location_["what"] =
        too_long_row(long_row_bytes_ - (segment.text.ends_with('\r') ? 1 : 0), file.format.row_limit);
    show(problems_, first_location_);
  }

  static void add_to(SegmentFacts& sum, const SegmentFacts& segment) {
    const uint64_t both[2] = {sum.content, segment.content};
    sum.content = sum.bytes == 0 ? segment.content : XXH3_64bits(both, sizeof(both));
    if (sum.bytes == 0) {
      sum.similar = segment.similar;  // line of the first segment
      sum.runs = segment.runs;
      sum.blank = 1;
    }
    sum.blank = sum.blank != 0 && segment.blank != 0 ? 1 : 0;
    sum.wrong_encoding = sum.wrong_encoding || segment.wrong_encoding;
    sum.bytes += segment.bytes;
    sum.characters += segment.characters;
    sum.tokens += segment.tokens;
    sum.unknown += segment.unknown;
  }

  void close(size_t f) {
    bytes_ += open_.bytes;
    characters_ += open_.characters;
    tokens_ += open_.tokens;
    unknown_ += open_.unknown;
    if (open_.bytes == 0) {
      ++empty_;
      return;
    }
    blank_ += open_.blank;
    wrong_encoding_ += open_.wrong_encoding ? 1 : 0;
    if (open_.bytes > options_.huge_bytes) {
      ++huge_;
      Json place = first_location_;
      place["bytes"] = open_.bytes;
      show(huge_locations_, std::move(place));
    }
    DocumentFacts facts;
    facts.print = {open_.content, open_.similar, open_.runs >= min_runs && !open_.wrong_encoding};
    facts.characters = clipped(open_.characters);
    facts.tokens = clipped(open_.tokens);
    facts.file = static_cast<int32_t>(f);
    documents_.push_back(facts);
  }

  std::vector<uint32_t> lengths(uint32_t DocumentFacts::*member) const {
    std::vector<uint32_t> values;
    values.reserve(documents_.size());
    for (const DocumentFacts& document : documents_) values.push_back(document.*member);
    return values;
  }

  /// Returns pairs of documents by number, from 1 per file; empty and broken ones do not count.
  Json pairs_of(const std::vector<std::array<int64_t, 2>>& pairs) const {
    std::vector<int64_t> first(files_.size() + 1, 0);
    for (const DocumentFacts& document : documents_) ++first[static_cast<size_t>(document.file) + 1];
    std::partial_sum(first.begin(), first.end(), first.begin());
    const auto name = [&](int64_t document) {
      const auto file = static_cast<size_t>(documents_[static_cast<size_t>(document)].file);
      return Json::object({{"file", files_[file].path}, {"document", document - first[file] + 1}});
    };
    Json list = Json::array();
    for (const auto& [earlier, later] : pairs) list.push_back(Json::array({name(earlier), name(later)}));
    return list;
  }

  Json summary() {
    std::vector<DocumentPrint> prints;
    prints.reserve(documents_.size());
    for (const DocumentFacts& document : documents_) prints.push_back(document.print);
    const DuplicateCounts duplicates = find_duplicates(prints, options_.max_shown);
    Json json = Json::object();
    json["usable"] = broken_rows_ == 0 && wrong_encoding_ == 0 && !documents_.empty();
    json["files"] = file_entries_;
    json["documents"] = documents_.size();
    json["bytes"] = bytes_;
    json["characters"] = characters_;
    json["empty"] = empty_;
    json["blank"] = blank_;
    json["huge"] = huge_;
    json["broken_rows"] = broken_rows_;
    json["encoding_errors"] = wrong_encoding_;
    json["duplicates"]["exact"] = duplicates.exact;
    json["duplicates"]["near"] = duplicates.near;
    json["length"]["characters"] = length_facts(lengths(&DocumentFacts::characters));
    if (options_.check.tokenizer != nullptr) {
      const auto ratio = [](int64_t a, int64_t b) {
        return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 0;
      };
      json["tokens"] = tokens_;
      json["tokens_per_character"] = ratio(tokens_, characters_);
      json["characters_per_token"] = ratio(characters_, tokens_);
      json["unknown"] = unknown_;
      json["unknown_share"] = ratio(unknown_, tokens_);
      json["length"]["tokens"] = length_facts(lengths(&DocumentFacts::tokens));
    }
    json["problems"] = problems_;
    json["huge_documents"] = huge_locations_;
    json["exact_duplicates"] = pairs_of(duplicates.exact_pairs);
    json["near_duplicates"] = pairs_of(duplicates.near_pairs);
    return json;
  }

  const std::vector<InputFile>& files_;
  const ReportOptions& options_;
  std::vector<DocumentFacts> documents_;
  SegmentFacts open_;  // the document that continues
  Json first_location_;
  int64_t long_row_bytes_ = 0;  // so far
  int64_t bytes_ = 0, characters_ = 0, tokens_ = 0, unknown_ = 0;
  int64_t empty_ = 0, blank_ = 0, huge_ = 0, broken_rows_ = 0, wrong_encoding_ = 0;
  Json file_entries_ = Json::array(), problems_ = Json::array(), huge_locations_ = Json::array();
};

}  // namespace

Json length_facts(std::vector<uint32_t> lengths) {
  if (lengths.empty()) return Json();
  Json facts = Json::object();
  std::ranges::sort(lengths);
  const auto at = [&](double share) {
    const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(lengths.size())));  // from 1
    return lengths[std::max<size_t>(rank, 1) - 1];
  };
  const double sum = std::accumulate(lengths.begin(), lengths.end(), 0.0);
  facts["shortest"] = lengths.front();
  facts["mean"] = sum / static_cast<double>(lengths.size());
  facts["median"] = at(0.5);
  facts["p95"] = at(0.95);
  facts["p99"] = at(0.99);
  facts["longest"] = lengths.back();
  std::vector<int64_t> classes(34, 0);
  for (const uint32_t length : lengths) ++classes[static_cast<size_t>(std::bit_width(length))];
  Json& histogram = facts["histogram"] = Json::array();
  for (size_t c = 0; c < classes.size(); ++c) {
    if (classes[c] > 0) histogram.push_back(Json::array({c == 0 ? uint64_t{0} : uint64_t{1} << (c - 1), classes[c]}));
  }
  return facts;
}

nlohmann::ordered_json make_data_report(const std::vector<InputFile>& files, const ReportOptions& options,
                                        const ProgressReport& report) {
  return Reporter(files, options).run(report);
}

}  // namespace llmtrain
