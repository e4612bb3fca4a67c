#include <algorithm>
#include <string>

#include "core/files/file_handle.hpp"
#include "data/files/jsonl.hpp"
#include "data/tokenize/shared_work.hpp"
#include "data/tokenize/train_tokenizer.hpp"
#include "text/split/stream_splitter.hpp"
#include "text/unicode/code_points.hpp"
#include "text/unicode/unicode.hpp"

namespace llmtrain {
namespace {

constexpr int64_t count_job_bytes = hash_piece;
constexpr int64_t read_bytes = int64_t{1} << 16;
constexpr int64_t lookahead_bytes = 64;  // bytes read after a cut: patterns look one character ahead

/// Whole documents in order, or a segment of a long one; for rows those that begin in a piece of the file.
struct CountJob {
  size_t first_document;
  size_t documents;  // none for rows
  int64_t begin;     // range of the segment
  int64_t end;
  size_t file = 0;  // file of rows
};

std::vector<CountJob> make_count_jobs(const std::vector<InputFile>& files,
                                      const std::vector<DocumentRange>& documents) {
  std::vector<CountJob> jobs;
  int64_t bytes = count_job_bytes;  // bytes of the last job
  for (size_t d = 0; d < documents.size(); ++d) {
    const DocumentRange& document = documents[d];
    const int64_t length = document.end - document.begin;
    if (length > count_job_bytes) {
      for (int64_t begin = document.begin; begin < document.end; begin += count_job_bytes) {
        jobs.push_back({d, 1, begin, std::min(begin + count_job_bytes, document.end)});
      }
      bytes = count_job_bytes;
    } else if (bytes + length <= count_job_bytes) {
      jobs.back().documents += 1;
      bytes += length;
    } else {
      jobs.push_back({d, 1, document.begin, document.end});
      bytes = length;
    }
  }
  std::vector<FilePiece> pieces;
  for (size_t f = 0; f < files.size(); ++f) {
    if (files[f].kind == InputKind::text_rows) cut_into_pieces(f, files[f].bytes, pieces);
  }
  for (const FilePiece& piece : pieces) jobs.push_back({0, 0, piece.begin, piece.end, piece.file});
  return jobs;
}

class WordReader {
 public:
  WordReader(const FileHandle& file, const SplitPattern& split, TrainingUnit unit, WordCounts& counts)
      : file_(file), unit_(unit), splitter_(split), counter_(counts) {}

  /// Reads `document` from the first cut in [begin, end) to the first cut at or after `end`.
  void read(const DocumentRange& document, int64_t begin, int64_t end) {
    const int64_t first = begin == document.begin ? begin : find_cut(begin, end);
    if (first == end && begin != document.begin) return;  // an earlier segment extends over this one
    const int64_t last = end == document.end ? end : find_cut(end, document.end);
    if (unit_ == TrainingUnit::line) {
      read_lines(first, last);
    } else {
      read_text(first, last, std::min(last + lookahead_bytes, document.end));
    }
  }

  /// The text of each row is a document.
  void read_rows(const InputFile& file, int64_t begin, int64_t end) {
    LineReader lines(file_, file.bytes, begin, end, file.format.row_limit);
    const auto add = [&](std::string_view word) { counter_.add(word); };
    std::string_view line;
    while (lines.next(line)) {
      if (is_blank(line)) continue;
      try {
        if (!parse_text_row(line, file.format.column, buffer_)) continue;
      } catch (const RowError& error) {
        fail_at_byte(file_, lines.offset() + static_cast<int64_t>(error.byte()), error.reason());
      }
      if (unit_ == TrainingUnit::line) {
        add_lines(buffer_);
      } else {
        splitter_.add(buffer_, add);
      }
      splitter_.finish(add);
    }
  }

 private:
  /// Returns the first position in [from, limit) where cutting changes no word: after a line or, within a document,
  /// between a line end and a letter, which no pattern joins; `limit` if there is none.
  int64_t find_cut(int64_t from, int64_t limit) {
    for (int64_t at = from; at < limit; at += read_bytes) {
      // includes the byte before and the rest of a character after it
      const int64_t count = std::min(read_bytes, limit - at);
      buffer_.resize(static_cast<size_t>(count) + 4);
      buffer_.resize(static_cast<size_t>(file_.read_some(at - 1, count + 4, buffer_.data())));
      for (size_t i = 1; i <= static_cast<size_t>(count) && i < buffer_.size(); ++i) {
        if (buffer_[i - 1] == '\n' && (unit_ == TrainingUnit::line || letter_at(i))) {
          return at + static_cast<int64_t>(i) - 1;
        }
      }
    }
    return limit;
  }

  bool letter_at(size_t i) const {
    const SplitScanner text(buffer_);
    return text.has(i, char_class::letter);
  }

  template <class Use>
  void read_pieces(int64_t begin, int64_t end, const Use& use) {
    for (int64_t at = begin; at < end; at += read_bytes) {
      buffer_.resize(static_cast<size_t>(std::min(read_bytes, end - at)));
      file_.read(at, static_cast<int64_t>(buffer_.size()), buffer_.data());
      use(std::string_view(buffer_));
    }
  }

  void read_lines(int64_t begin, int64_t end) {
    read_pieces(begin, end, [&](std::string_view text) { add_lines(text); });
    splitter_.finish([&](std::string_view word) { counter_.add(word); });
  }

  /// The last line can continue.
  void add_lines(std::string_view text) {
    const auto add = [&](std::string_view word) { counter_.add(word); };
    while (!text.empty()) {
      const size_t line_end = text.find('\n');
      splitter_.add(text.substr(0, line_end == std::string_view::npos ? line_end : line_end + 1), add);
      if (line_end == std::string_view::npos) return;
      splitter_.finish(add);
      text.remove_prefix(line_end + 1);
    }
  }

  /// Counts words that begin before `end`; text up to `seen_end` decides where they end.
  void read_text(int64_t begin, int64_t end, int64_t seen_end) {
    int64_t at = begin;
    const auto add = [&](std::string_view word) {
      if (at < end) counter_.add(word);
      at += static_cast<int64_t>(word.size());
    };
    read_pieces(begin, seen_end, [&](std::string_view text) { splitter_.add(text, add); });
    splitter_.finish(add);
  }

  const FileHandle& file_;
  TrainingUnit unit_;
  StreamSplitter splitter_;
  WordCounter counter_;
  std::string buffer_;
};

/// Sums the counts of all ranks on rank 0, one shard at a time.
void reduce_to_root(Communicator& communicator, WordCounts& counts) {
  const bool root = communicator.rank() == 0;
  for (size_t shard = 0; shard < WordCounts::shards; ++shard) {
    const std::string mine = root ? std::string() : counts.serialized(shard);
    for (const std::string& theirs : communicator.gather(mine)) counts.add_serialized(theirs);
  }
  if (!root) counts.clear();
}

}  // namespace

void count_words(const std::vector<InputFile>& files, const SourceScan& scan, const SplitPattern& split,
                 TrainingUnit unit, Communicator& communicator, const std::function<void(double)>& progress,
                 WordCounts& counts) {
  const std::vector<CountJob> jobs = make_count_jobs(files, scan.documents);
  share_work<int>(
      communicator, own_items(static_cast<int64_t>(jobs.size()), communicator),
      [&](int64_t item) {
        const CountJob& job = jobs[static_cast<size_t>(item)];
        if (job.documents == 0) {
          const FileHandle file = open_content(files[job.file]);
          WordReader(file, split, unit, counts).read_rows(files[job.file], job.begin, job.end);
        }
        for (size_t d = job.first_document; d < job.first_document + job.documents;) {
          const size_t f = scan.documents[d].file;
          const FileHandle file = open_content(files[f]);
          WordReader reader(file, split, unit, counts);
          for (; d < job.first_document + job.documents && scan.documents[d].file == f; ++d) {
            const DocumentRange& document = scan.documents[d];
            const bool is_segment = job.documents == 1;
            reader.read(document, is_segment ? job.begin : document.begin, is_segment ? job.end : document.end);
          }
        }
        return 0;
      },
      [](int64_t, int) {}, progress);
  reduce_to_root(communicator, counts);
}

}  // namespace llmtrain
