#include "data/tokenize/tokenize.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "core/error.hpp"
#include "data/files/file_digest.hpp"
#include "data/files/input_kind.hpp"
#include "data/files/jsonl.hpp"
#include "data/files/token_file_writer.hpp"
#include "data/formats/row_format.hpp"
#include "data/tokenize/encode_job.hpp"
#include "data/tokenize/shared_work.hpp"
#include "parallel/job/runtime.hpp"
#include "parallel/message.hpp"

namespace llmtrain {
namespace {

constexpr int64_t copy_tokens = int64_t{1} << 18;
constexpr int64_t copy_bytes = int64_t{1} << 20;
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
  // Counts of preference data:
  uint64_t has_margin = 0;
  uint64_t equal = 0, empty = 0;
  uint64_t row_bytes = 0;  // of prompts
  struct Place {
    uint64_t file = 0;  // its number from 1; 0: none
    uint64_t offset = 0;
  } first_equal, first_empty;
  uint64_t irregular = 0;  // rows of conversations
  Place first_irregular;
};

/// Refuses rows of which none is left.
[[noreturn]] void refuse_useless_rows(const std::string& path, const RowCounts& rows) {
  const auto place = [](const std::string& first) { return first.empty() ? "" : ", the first at " + first; };
  throw UserError(
      ExitCode::bad_content,
      fmt::format(
          "{}: none of its {} rows can be trained on: {} are pairs of equal answers{}, {} have an empty "
          "answer{}, {} have turns that do not alternate{}, {} have no token to train on; check data.columns and "
          "the file",
          path, rows.left_out(), rows.equal, place(rows.first_equal), rows.empty, place(rows.first_empty),
          rows.irregular, place(rows.first_irregular), rows.untrained));
}

class Tokenization {
 public:
  Tokenization(const TokenizeRequest& request, Communicator& communicator, const ProgressReport& report)
      : request_(request),
        communicator_(communicator),
        report_(report),
        instructions_(has_kind(request.files, InputKind::instruction_rows)),
        jobs_(jobs_of(request)) {
    LLMTRAIN_CHECK(!instructions_ || request.encoder != nullptr, "rows of instruction data without an encoder");
  }

  void run() {
    throw_on_all_ranks(communicator_, [&] {
      preference_ = common_preference_format(request_.files);
      local_ids_ = FileHandle::create_unnamed(folder_of(request_.output));
      local_mask_ = FileHandle::create_unnamed(folder_of(request_.output));
      local_rows_ = FileHandle::create_unnamed(folder_of(request_.output));
    });
    encode_jobs();
    const TokenFileInfo info = join_ranks();
    std::unique_ptr<TokenFileWriter> writer;
    throw_on_all_ranks(communicator_, [&] {
      check_unchanged();
      if (communicator_.rank() == 0) {
        writer = std::make_unique<TokenFileWriter>(request_.output, info, offsets_, values_, row_offsets_);
      }
    });
    copy_local_files(share_region(writer.get()), info.has_mask);
    publish(writer.get());
  }

 private:
  void encode_jobs() {
    const JobEncoder encoder(request_);
    share_work<JobResult>(
        communicator_, own_items(static_cast<int64_t>(jobs_.size()), communicator_),
        [&](int64_t item) { return encoder.encode(jobs_[static_cast<size_t>(item)]); },
        [&](int64_t item, JobResult& result) { collect(jobs_[static_cast<size_t>(item)], result); },
        percent_report(report_, "tokenizing"));
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
    collect_preferences(job.file, result);
    summary_.highest = std::max(summary_.highest, static_cast<uint64_t>(int64_t{result.highest} + 1));
  }

  void collect_preferences(size_t file, const JobResult& result) {
    values_.insert(values_.end(), result.values.begin(), result.values.end());
    local_rows_.write(static_cast<int64_t>(summary_.row_bytes), std::ssize(result.rows), result.rows.data());
    summary_.row_bytes += result.rows.size();
    row_sizes_.insert(row_sizes_.end(), result.row_sizes.begin(), result.row_sizes.end());
    summary_.has_margin |= std::ranges::any_of(result.values, [](float value) { return value != 0; }) ? 1 : 0;
    summary_.equal += static_cast<uint64_t>(result.equal);
    summary_.empty += static_cast<uint64_t>(result.empty);
    const auto keep_first = [&](RankSummary::Place& first, const std::optional<int64_t>& offset) {
      if (first.file == 0 && offset) first = {file + 1, static_cast<uint64_t>(*offset)};
    };
    keep_first(summary_.first_equal, result.first_equal);
    keep_first(summary_.first_empty, result.first_empty);
    summary_.irregular += static_cast<uint64_t>(result.irregular);
    keep_first(summary_.first_irregular, result.first_irregular);
  }

  /// Returns "file:line: why the row is left out".
  std::string reason_of(const RankSummary::Place& place) const {
    if (place.file == 0) return {};
    const InputFile& file = request_.files[place.file - 1];
    const FileHandle handle = open_content(file);
    const bool first = line_of_byte(handle, static_cast<int64_t>(place.offset)) == 1;  // after a byte order mark
    const auto offset = first ? 0 : static_cast<int64_t>(place.offset);
    LineReader lines(handle, file.bytes, offset, offset + 1, file.format.row_limit);
    std::string_view line;
    lines.next(line);
    const RowReader reader(file.format.row_format, file.format.columns, request_.encoder->has_template());
    return fmt::format("{}: {}", text_of(place), reader.read_documents(line).left_out);
  }

  /// Returns "file:line".
  std::string text_of(const RankSummary::Place& place) const {
    if (place.file == 0) return {};
    const InputFile& file = request_.files[place.file - 1];
    return fmt::format("{}:{}", file.name, line_of_byte(open_content(file), static_cast<int64_t>(place.offset)));
  }

  /// Computes document offsets of the whole file, the begin of this rank's tokens, and the attributes.
  TokenFileInfo join_ranks() {
    std::string mine(reinterpret_cast<const char*>(&summary_), sizeof(summary_));
    mine.append(reinterpret_cast<const char*>(counts_.data()), counts_.size() * 8);
    const std::vector<std::string> all = communicator_.gather_all(mine);
    TokenFileInfo info;
    uint64_t highest = 0, padding = 0, margins = 0;
    int64_t row_bytes = 0;
    RankSummary::Place equal, empty, irregular;
    offsets_.assign(1, 0);
    for (int r = 0; r < communicator_.size(); ++r) {
      const std::string& text = all[static_cast<size_t>(r)];
      RankSummary summary;
      std::memcpy(&summary, text.data(), sizeof(summary));
      if (r == communicator_.rank()) {
        token_begin_ = info.tokens;
        row_begin_ = row_bytes;
      }
      row_bytes += static_cast<int64_t>(summary.row_bytes);
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
      info.rows.equal += static_cast<int64_t>(summary.equal);
      info.rows.empty += static_cast<int64_t>(summary.empty);
      info.rows.irregular += static_cast<int64_t>(summary.irregular);
      margins |= summary.has_margin;
      if (equal.file == 0) equal = summary.first_equal;
      if (empty.file == 0) empty = summary.first_empty;
      if (irregular.file == 0) irregular = summary.first_irregular;
      highest = std::max(highest, summary.highest);
    }
    LLMTRAIN_CHECK(offsets_.back() == static_cast<uint64_t>(info.tokens), "documents do not cover the tokens");
    if (instructions_) count_rows(info.rows);
    throw_on_all_ranks(communicator_, [&] {
      info.rows.first_equal = text_of(equal);
      info.rows.first_empty = text_of(empty);
      info.rows.first_irregular = reason_of(irregular);
    });
    if (preference_ != nullptr) {
      info.group = preference_->group;
      if (request_.labels != nullptr && !request_.labels->tokens) info.width = request_.labels->width();
      gather(values_);
      if (preference_->column != "margin" || margins != 0) info.column = preference_->column;
      if (!info.has_values()) values_.clear();
    }
    if (request_.has_difficulties()) {
      info.column = difficulty_column;
      gather(values_);
    }
    if (info.has_prompts()) join_rows();
    throw_on_all_ranks(communicator_, [&] { describe(info, highest); });
    if (padding > 0 && report_)
      report_(fmt::format("{} tokens are padding (attention_mask 0) and are omitted", padding));
    return info;
  }

  /// Computes the offsets of all rows.
  void join_rows() {
    gather(row_sizes_);
    row_offsets_.assign(1, 0);
    for (const uint64_t size : row_sizes_) row_offsets_.push_back(row_offsets_.back() + size);
  }

  template <class T>
  void gather(std::vector<T>& values) {
    Message mine;
    mine.put(values);
    values.clear();
    for (std::string& text : communicator_.gather_all(mine.bytes())) Message(std::move(text)).take(values);
  }

  void count_rows(RowCounts& rows) {
    gather(prints_);
    rows.used = static_cast<int64_t>(prints_.size());
    std::ranges::sort(prints_);
    rows.duplicates = rows.used - (std::unique(prints_.begin(), prints_.end()) - prints_.begin());
  }

  void describe(TokenFileInfo& info, uint64_t highest) const {
    if (info.tokens == 0 && info.rows.equal + info.rows.empty + info.rows.irregular > 0) {
      refuse_useless_rows(request_.files.front().path, info.rows);
    }
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
    token_format::Region regions[3] = {target.tokens, target.mask, target.rows};
    communicator_.broadcast(path);
    communicator_.broadcast(regions, sizeof(regions));
    return {path, regions[0], regions[1], regions[2]};
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
    throw_on_all_ranks(communicator_, [&] {
      copy_rows(*region);
      region->sync();
    });
    output_path_ = target.path;
  }

  void copy_rows(const TokenRegionWriter& region) const {
    const auto bytes = static_cast<int64_t>(summary_.row_bytes);
    std::string text;
    for (int64_t begin = 0; begin < bytes; begin += copy_bytes) {
      text.resize(static_cast<size_t>(std::min(copy_bytes, bytes - begin)));
      local_rows_.read(begin, std::ssize(text), text.data());
      region.write_rows(row_begin_ + begin, text);
    }
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
  const RowFormat* preference_ = nullptr;  // null: the rows are not preference data
  std::vector<TokenizeJob> jobs_;
  FileHandle local_ids_, local_mask_, local_rows_;
  RankSummary summary_;
  std::vector<uint64_t> counts_;                   // token counts of this rank's documents
  std::vector<uint64_t> prints_;                   // of this rank's rows of instruction data
  std::vector<float> values_;                      // of this rank's documents, later of all
  std::vector<uint64_t> offsets_;                  // offsets of all documents
  std::vector<uint64_t> row_sizes_, row_offsets_;  // of prompts, as counts_ and offsets_
  int64_t token_begin_ = 0, row_begin_ = 0;
  std::string output_path_;
};

}  // namespace

void tokenize_to_file(const TokenizeRequest& request, Communicator& communicator, const ProgressReport& report) {
  Tokenization(request, communicator, report).run();
}

}  // namespace llmtrain
