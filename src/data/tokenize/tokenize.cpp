#include "data/tokenize/tokenize.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "core/batch.hpp"
#include "core/error.hpp"
#include "core/message.hpp"
#include "data/files/file_digest.hpp"
#include "data/files/jsonl.hpp"
#include "data/files/token_file_writer.hpp"
#include "data/formats/row_format.hpp"
#include "data/tokenize/shared_work.hpp"
#include "parallel/job/runtime.hpp"
#include "text/tokens_beyond_embedding.hpp"
#include "text/unicode/code_points.hpp"

namespace llmtrain {
namespace {

constexpr int64_t tokenize_job_bytes = hash_piece;
constexpr int64_t copy_tokens = int64_t{1} << 18;
constexpr int64_t cut_search_bytes = int64_t{1} << 12;  // bytes
// Bytes that are encoded as one text. They also bound the search for a cut.
constexpr int64_t longest_whole = int64_t{1} << 30;
constexpr int64_t longest_uncut = int64_t{64} << 20;

/// Consecutive bytes of one file: whole documents, or a segment of a long one; for rows a piece of the file.
struct TokenizeJob {
  size_t file;
  int64_t begin;
  int64_t end;
  size_t first_document = 0;  // index in the scan
  size_t documents = 0;       // 1 for a segment
  bool starts = true;         // the first document begins here
  bool ends = true;           // the last document ends here
};

struct JobResult {
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;     // for rows with labels, otherwise empty
  std::vector<uint64_t> counts;  // number of tokens of each document
  int32_t highest = -1;
  int64_t skipped = 0;
  int64_t padding = 0;  // padding tokens that were omitted
  // Counts of rows of instruction data.
  int64_t untrained = 0, merged_borders = 0, without_stop = 0;
  std::vector<uint64_t> prints;  // hashes of tokens and mask
};

/// Divides documents [first, last) of the scan, all of one file; long ones into segments of about equal length, if the
/// tokenizer supports it.
void add_text_jobs(const SourceScan& scan, size_t first, size_t last, bool segmentable,
                   std::vector<TokenizeJob>& jobs) {
  for (size_t d = first; d < last; ++d) {
    const DocumentRange& document = scan.documents[d];
    if (segmentable && document.end - document.begin > tokenize_job_bytes) {
      for (int64_t begin = document.begin; begin < document.end; begin += tokenize_job_bytes) {
        const int64_t end = std::min(begin + tokenize_job_bytes, document.end);
        jobs.push_back({document.file, begin, end, d, 1, begin == document.begin, end == document.end});
      }
    } else if (d > first && jobs.back().starts && jobs.back().ends &&
               document.end - jobs.back().begin <= tokenize_job_bytes) {
      jobs.back().end = document.end;
      ++jobs.back().documents;
    } else {
      jobs.push_back({document.file, document.begin, document.end, d, 1});
    }
  }
}

std::vector<TokenizeJob> jobs_of(const TokenizeRequest& request) {
  const std::vector<InputFile>& files = request.files;
  const SourceScan& scan = request.scan;
  const bool segmentable = request.tokenizer != nullptr && request.tokenizer->is_segmentable();
  std::vector<TokenizeJob> jobs;
  std::vector<FilePiece> pieces;
  size_t document = 0;
  for (size_t f = 0; f < files.size(); ++f) {
    if (files[f].kind == InputKind::text) {
      const size_t first = document;
      while (document < scan.documents.size() && scan.documents[document].file == f) ++document;
      add_text_jobs(scan, first, document, segmentable, jobs);
    } else {
      pieces.clear();
      cut_into_pieces(f, files[f].bytes, pieces);
      for (const FilePiece& piece : pieces) jobs.push_back({f, piece.begin, piece.end});
    }
  }
  return jobs;
}

/// Facts of a rank that all ranks need, in words of 64 bits.
struct RankSummary {
  uint64_t continues = 0;  // the first document began on an earlier rank
  uint64_t highest = 0;    // token id + 1
  uint64_t has_mask = 0;
  uint64_t skipped = 0;
  uint64_t padding = 0;
  uint64_t untrained = 0;
  uint64_t merged_borders = 0;
  uint64_t without_stop = 0;
  uint64_t tokens = 0;
};

bool has_kind(const TokenizeRequest& request, InputKind kind) {
  return std::ranges::find(request.files, kind, &InputFile::kind) != request.files.end();
}

class Tokenization {
 public:
  Tokenization(const TokenizeRequest& request, Communicator& communicator, const ProgressReport& report)
      : request_(request),
        communicator_(communicator),
        report_(report),
        instructions_(has_kind(request, InputKind::instruction_rows)),
        jobs_(jobs_of(request)) {
    LLMTRAIN_CHECK(!instructions_ || request.encoder != nullptr, "rows of instruction data without an encoder");
  }

  void run() {
    throw_on_all_ranks(communicator_, [&] {
      local_ids_ = FileHandle::create_unnamed(folder_of(request_.output));
      local_mask_ = FileHandle::create_unnamed(folder_of(request_.output));
    });
    encode_jobs();
    const TokenFileInfo info = join_ranks();
    std::unique_ptr<TokenFileWriter> writer;
    throw_on_all_ranks(communicator_, [&] {
      check_unchanged();
      if (communicator_.rank() == 0) writer = std::make_unique<TokenFileWriter>(request_.output, info, offsets_);
    });
    copy_local_files(share_region(writer.get()), info.has_mask);
    publish(writer.get());
  }

 private:
  void encode_jobs() {
    share_work<JobResult>(
        communicator_, own_items(static_cast<int64_t>(jobs_.size()), communicator_),
        [&](int64_t item) {
          const TokenizeJob& job = jobs_[static_cast<size_t>(item)];
          const InputKind kind = request_.files[job.file].kind;
          return kind == InputKind::text ? encode_text(job) : read_rows(job, kind);
        },
        [&](int64_t item, JobResult& result) { collect(jobs_[static_cast<size_t>(item)], result); },
        percent_report(report_, "tokenizing"));
  }

  FileHandle open(const TokenizeJob& job) const { return open_content(request_.files[job.file]); }

  /// Returns the actual begin of a segment: the first cut at or after its nominal begin. A segment without a cut is
  /// empty, and the one before continues.
  int64_t cut_after(const FileHandle& file, int64_t place, int64_t end) const {
    std::string block;
    for (int64_t begin = place - 1; begin + 1 < end; begin += cut_search_bytes) {
      if (begin - place > longest_uncut) {
        fail_at_byte(file, place,
                     fmt::format("{} MiB have no position to cut the text (white space, for most "
                                 "tokenizers); choose another data.tokenizer for this text",
                                 longest_uncut >> 20));
      }
      // Blocks overlap by the context that a cut depends on.
      block.resize(static_cast<size_t>(std::min(begin + cut_search_bytes + 8, end) - begin));
      file.read(begin, static_cast<int64_t>(block.size()), block.data());
      const size_t cut = request_.tokenizer->find_cut(block);
      if (cut != std::string_view::npos) return begin + static_cast<int64_t>(cut);
    }
    return end;
  }

  JobResult encode_text(const TokenizeJob& job) const {
    const FileHandle file = open(job);
    const int64_t document_end = request_.scan.documents[job.first_document].end;
    const int64_t first = job.starts ? job.begin : cut_after(file, job.begin, document_end);
    const int64_t last = job.ends ? job.end : cut_after(file, job.end, document_end);
    if (last - first > longest_whole) {
      fail_at_byte(file, first,
                   fmt::format("a document has {} bytes, but this tokenizer encodes whole documents of at most {}; "
                               "set data.document_separator",
                               last - first, longest_whole));
    }
    thread_local std::string buffer;
    buffer.resize(static_cast<size_t>(std::max(last, first) - first));
    file.read(first, static_cast<int64_t>(buffer.size()), buffer.data());
    JobResult result;
    for (size_t d = job.first_document; d < job.first_document + job.documents; ++d) {
      const DocumentRange& document = request_.scan.documents[d];
      const int64_t begin = std::max(document.begin, first), end = std::max(begin, std::min(document.end, last));
      const size_t before = result.ids.size();
      if (request_.add_bos && job.starts) result.ids.push_back(request_.tokenizer->bos_id());
      const std::string_view text =
          std::string_view(buffer).substr(static_cast<size_t>(begin - first), static_cast<size_t>(end - begin));
      encode_slice(job, file, text, begin, result.ids);
      if (request_.bos_once && job.starts) drop_second(request_.tokenizer->bos_id(), before, result.ids);
      if (job.ends) result.ids.push_back(request_.tokenizer->eos_id());
      result.counts.push_back(result.ids.size() - before);
    }
    return result;
  }

  void encode_slice(const TokenizeJob& job, const FileHandle& file, std::string_view text, int64_t at,
                    std::vector<int32_t>& ids) const {
    try {
      const size_t before = ids.size();
      request_.tokenizer->encode_segment(text, job.starts, ids);
      require_rows_for(text, std::span(ids).subspan(before));
    } catch (const EncodeError& error) {
      fail_at_byte(file, at + static_cast<int64_t>(error.byte()), error.reason());
    }
  }

  JobResult read_rows(const TokenizeJob& job, InputKind kind) const {
    const InputFile& file = request_.files[job.file];
    const FileHandle handle = open(job);
    LineReader lines(handle, file.bytes, job.begin, job.end, file.format.row_limit);
    const bool instructions = kind == InputKind::instruction_rows;
    const RowReader reader(instructions ? file.format.row_format : "text", file.format.columns,
                           instructions && request_.encoder->has_template());
    JobResult result;
    TokenRow row;
    EncodedRow encoded;
    std::string text;
    std::string_view line;
    while (lines.next(line)) {
      if (is_blank(line)) continue;
      try {
        if (instructions) {
          request_.encoder->encode(reader.read(line), encoded);
          add_encoded(encoded, result);
        } else if (kind == InputKind::token_rows) {
          parse_token_row(line, row);
          add_row(row, result);
        } else if (parse_text_row(line, file.format.column, text)) {
          add_text(text, result);
        }
      } catch (const RowError& error) {
        fail_at_byte(handle, lines.offset() + static_cast<int64_t>(error.byte()), error.reason());
      } catch (const EncodeError& error) {
        fail_at_byte(handle, lines.offset(), fmt::format("at byte {} of its text: {}", error.byte(), error.reason()));
      } catch (const UserError& error) {
        fail_in_row(handle, lines.offset(), error.what());
      }
    }
    return result;
  }

  void add_encoded(const EncodedRow& row, JobResult& result) const {
    LLMTRAIN_CHECK(row.mask.size() == row.ids.size(), "a mask has one entry per token");
    if (row.mask.empty() || std::find(row.mask.begin() + 1, row.mask.end(), uint8_t{1}) == row.mask.end()) {
      ++result.untrained;
      return;
    }
    const int32_t highest = *std::ranges::max_element(row.ids);
    if (!has_row(highest)) throw EncodeError(0, missing_row(request_.tokenizer, highest, request_.embedding_rows));
    result.ids.insert(result.ids.end(), row.ids.begin(), row.ids.end());
    result.mask.insert(result.mask.end(), row.mask.begin(), row.mask.end());
    result.counts.push_back(row.ids.size());
    result.merged_borders += row.merged_border ? 1 : 0;
    result.without_stop += row.stops() ? 0 : 1;
    result.prints.push_back(XXH3_64bits_withSeed(row.mask.data(), row.mask.size(),
                                                 XXH3_64bits(row.ids.data(), row.ids.size() * sizeof(int32_t))));
  }

  void add_text(std::string_view text, JobResult& result) const {
    const size_t before = result.ids.size();
    if (request_.add_bos) result.ids.push_back(request_.tokenizer->bos_id());
    request_.tokenizer->encode(text, result.ids);
    if (request_.bos_once) drop_second(request_.tokenizer->bos_id(), before, result.ids);
    require_rows_for(text, std::span(result.ids).subspan(before));
    result.ids.push_back(request_.tokenizer->eos_id());
    result.counts.push_back(result.ids.size() - before);
  }

  bool has_row(int32_t id) const { return request_.embedding_rows == 0 || id < request_.embedding_rows; }

  /// `ids` are those of the text, possibly with BOS before them.
  void require_rows_for(std::string_view text, std::span<const int32_t> ids) const {
    const auto wrong = std::ranges::find_if_not(ids, [&](int32_t id) { return has_row(id); });
    if (wrong == ids.end()) return;
    std::vector<int32_t> again;
    std::vector<TextRange> ranges;
    request_.tokenizer->encode_with_ranges(text, again, ranges);
    const auto place = std::ranges::find(again, *wrong);
    throw EncodeError(place == again.end() ? 0 : ranges[static_cast<size_t>(place - again.begin())].begin,
                      missing_row(request_.tokenizer, *wrong, request_.embedding_rows));
  }

  void add_row(const TokenRow& row, JobResult& result) const {
    result.padding += row.padding;
    if (row.ids.empty()) {
      ++result.skipped;
      return;
    }
    if (row.has_labels && result.mask.empty()) result.mask.assign(result.ids.size(), 1);
    const bool masked = row.has_labels || !result.mask.empty();
    for (size_t i = 0; masked && i < row.ids.size(); ++i) {
      result.mask.push_back(row.has_labels && row.labels[i] == ignore_target ? 0 : 1);
    }
    result.ids.insert(result.ids.end(), row.ids.begin(), row.ids.end());
    result.counts.push_back(row.ids.size());
    const int32_t highest = *std::max_element(row.ids.begin(), row.ids.end());
    if (!has_row(highest)) throw RowError(0, missing_row(request_.ids_tokenizer, highest, request_.embedding_rows));
    result.highest = std::max(result.highest, highest);
  }

  /// Writes ids as int32 into this rank's temporary files.
  void collect(const TokenizeJob& job, JobResult& result) {
    size_t first = 0;
    if (!job.starts) {
      if (counts_.empty()) {
        summary_.continues = 1;
      } else {
        counts_.back() += result.counts[0];
        first = 1;
      }
    }
    counts_.insert(counts_.end(), result.counts.begin() + static_cast<std::ptrdiff_t>(first), result.counts.end());
    const int64_t begin = static_cast<int64_t>(summary_.tokens);
    const int64_t count = static_cast<int64_t>(result.ids.size());
    local_ids_.write(begin * 4, count * 4, result.ids.data());
    if (request_.tokenizer == nullptr || instructions_) {
      const bool masked = !result.mask.empty();
      if (!masked) result.mask.assign(result.ids.size(), 1);
      local_mask_.write(begin, count, result.mask.data());
      summary_.has_mask |= masked ? 1 : 0;
    }
    summary_.tokens += static_cast<uint64_t>(count);
    summary_.skipped += static_cast<uint64_t>(result.skipped);
    summary_.padding += static_cast<uint64_t>(result.padding);
    summary_.untrained += static_cast<uint64_t>(result.untrained);
    summary_.merged_borders += static_cast<uint64_t>(result.merged_borders);
    summary_.without_stop += static_cast<uint64_t>(result.without_stop);
    prints_.insert(prints_.end(), result.prints.begin(), result.prints.end());
    summary_.highest = std::max(summary_.highest, static_cast<uint64_t>(int64_t{result.highest} + 1));
  }

  /// Computes document offsets of the whole file, the begin of this rank's tokens, and the attributes.
  TokenFileInfo join_ranks() {
    std::string mine(reinterpret_cast<const char*>(&summary_), sizeof(summary_));
    mine.append(reinterpret_cast<const char*>(counts_.data()), counts_.size() * 8);
    const std::vector<std::string> all = communicator_.gather_all(mine);
    TokenFileInfo info;
    uint64_t highest = 0, padding = 0;
    offsets_.assign(1, 0);
    for (int r = 0; r < communicator_.size(); ++r) {
      const std::string& text = all[static_cast<size_t>(r)];
      RankSummary summary;
      std::memcpy(&summary, text.data(), sizeof(summary));
      if (r == communicator_.rank()) token_begin_ = info.tokens;
      for (size_t at = sizeof(summary); at < text.size(); at += 8) {
        uint64_t count = 0;
        std::memcpy(&count, text.data() + at, 8);
        if (at == sizeof(summary) && summary.continues != 0) {
          offsets_.back() += count;
        } else {
          offsets_.push_back(offsets_.back() + count);
        }
      }
      info.tokens += static_cast<int64_t>(summary.tokens);
      info.skipped_documents += static_cast<int64_t>(summary.skipped);
      info.has_mask = info.has_mask || summary.has_mask != 0;
      padding += summary.padding;
      info.rows.untrained += static_cast<int64_t>(summary.untrained);
      info.rows.merged_borders += static_cast<int64_t>(summary.merged_borders);
      info.rows.without_stop += static_cast<int64_t>(summary.without_stop);
      highest = std::max(highest, summary.highest);
    }
    LLMTRAIN_CHECK(offsets_.back() == static_cast<uint64_t>(info.tokens), "documents do not cover the tokens");
    if (instructions_) count_rows(info.rows);
    throw_on_all_ranks(communicator_, [&] { describe(info, highest); });
    if (padding > 0 && report_)
      report_(fmt::format("{} tokens are padding (attention_mask 0) and are omitted", padding));
    return info;
  }

  void count_rows(RowCounts& rows) {
    Message mine;
    mine.put(prints_);
    prints_.clear();
    for (std::string& text : communicator_.gather_all(mine.bytes())) Message(std::move(text)).take(prints_);
    rows.used = static_cast<int64_t>(prints_.size());
    std::ranges::sort(prints_);
    rows.duplicates = rows.used - (std::unique(prints_.begin(), prints_.end()) - prints_.begin());
  }

  void describe(TokenFileInfo& info, uint64_t highest) const {
    if (info.tokens == 0 && info.rows.untrained > 0) {
      throw UserError(ExitCode::bad_content,
                      fmt::format("{}: none of its {} rows has a token to train on, so that training would change "
                                  "nothing; check chat.train_on, and that the template marks or repeats the answers",
                                  request_.files.front().path, info.rows.untrained));
    }
    if (info.tokens == 0) {
      throw UserError(ExitCode::bad_content, request_.files.front().path + ": no row has any token");
    }
    info.path = request_.output;
    info.command = request_.command;
    if (request_.tokenizer != nullptr) {
      info.vocabulary_size = request_.tokenizer->vocabulary_size();
      info.eos_id = request_.tokenizer->eos_id();
      info.tokenizer = request_.tokenizer->serialized();
      info.tokenizer_hash = short_hash(info.tokenizer);
    } else {
      info.vocabulary_size = static_cast<int64_t>(highest);
      const int64_t rows = static_cast<int64_t>(offsets_.size()) - 1 + info.skipped_documents;
      check_skipped_rows(request_.files.front().path, rows, info.skipped_documents,
                         "their input_ids are empty, or attention_mask is 0 everywhere");
    }
    for (size_t f = 0; f < request_.files.size(); ++f) {
      const InputFile& file = request_.files[f];
      info.sources.push_back(fmt::format("{} {} {}", file.name, file.bytes, hex(request_.scan.digests[f])));
      if (!is_encoded(file.kind)) continue;
      info.bytes += request_.scan.text_bytes[f];
      info.characters += request_.scan.characters[f];
      info.skipped_documents += request_.scan.skipped[f];
    }
  }

  void check_unchanged() const {
    for (const InputFile& file : request_.files) {
      const FileHandle handle = open_content(file);
      if (handle.size() != file.bytes || (communicator_.rank() == 0 && handle.modified() != file.modified)) {
        throw UserError(ExitCode::io, file.path + ": the file was changed during reading; start again");
      }
    }
  }

  TokenRegionWriter::Target share_region(const TokenFileWriter* writer) {
    TokenRegionWriter::Target target;
    std::string path;
    if (writer != nullptr) {
      target = writer->target();
      path = target.path;
    }
    token_format::Region regions[2] = {target.tokens, target.mask};
    communicator_.broadcast(path);
    communicator_.broadcast(regions, sizeof(regions));
    return {path, regions[0], regions[1]};
  }

  void copy_local_files(const TokenRegionWriter::Target& target, bool has_mask) {
    std::unique_ptr<TokenRegionWriter> region;
    throw_on_all_ranks(communicator_, [&] { region = std::make_unique<TokenRegionWriter>(target); });
    const int64_t tokens = static_cast<int64_t>(summary_.tokens);
    const int64_t pieces = (tokens + copy_tokens - 1) / copy_tokens;
    share_work<int>(
        communicator_, {0, pieces},
        [&](int64_t piece) {
          const int64_t begin = piece * copy_tokens, count = std::min(copy_tokens, tokens - begin);
          std::vector<int32_t> ids(static_cast<size_t>(count));
          local_ids_.read(begin * 4, count * 4, ids.data());
          region->write(token_begin_ + begin, ids);
          if (has_mask) {
            std::vector<uint8_t> mask(static_cast<size_t>(count));
            local_mask_.read(begin, count, mask.data());
            region->write_mask(token_begin_ + begin, mask);
          }
          return 0;
        },
        [](int64_t, int) {}, nullptr);
    throw_on_all_ranks(communicator_, [&] { region->sync(); });
    output_path_ = target.path;
  }

  void publish(TokenFileWriter* writer) {
    const std::string digest = request_.with_digest ? file_digest(output_path_, communicator_) : std::string();
    throw_on_all_ranks(communicator_, [&] {
      if (writer == nullptr) return;
      writer->publish();
      if (request_.with_digest) write_digest(request_.output, digest);
    });
  }

  const TokenizeRequest& request_;
  Communicator& communicator_;
  const ProgressReport& report_;
  bool instructions_;
  std::vector<TokenizeJob> jobs_;
  FileHandle local_ids_, local_mask_;
  RankSummary summary_;
  std::vector<uint64_t> counts_;   // token counts of this rank's documents
  std::vector<uint64_t> prints_;   // of this rank's rows of instruction data
  std::vector<uint64_t> offsets_;  // offsets of all documents
  int64_t token_begin_ = 0;
  std::string output_path_;
};

}  // namespace

void tokenize_to_file(const TokenizeRequest& request, Communicator& communicator, const ProgressReport& report) {
  Tokenization(request, communicator, report).run();
}

}  // namespace llmtrain
