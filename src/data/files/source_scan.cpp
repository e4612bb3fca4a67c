#include <fmt/format.h>

#include <algorithm>
#include <bitset>
#include <memory>
#include <mutex>
#include <span>

#include "core/error.hpp"
#include "core/utf8.hpp"
#include "data/files/jsonl.hpp"
#include "data/files/text_source.hpp"
#include "data/formats/row_format.hpp"
#include "data/tokenize/shared_work.hpp"
#include "parallel/job/runtime.hpp"
#include "parallel/message.hpp"
#include "text/unicode/code_points.hpp"

namespace llmtrain {
namespace {

using CodePointSet = std::bitset<code_point_limit>;

struct PieceScan {
  Digest digest;
  int64_t characters = 0;
  int64_t text_bytes = 0;
  int64_t rows = 0;  // rows of text
  int64_t skipped = 0;
  int64_t first_skipped = -1;
  std::vector<int64_t> separators;  // offsets in the file where a separator can start; they can overlap
  int64_t first_newline = -1;       // in files of rows, as last_newline
  int64_t last_newline = -1;
};

/// Result of a piece, which all ranks receive.
struct PieceFacts {
  int64_t characters, text_bytes, rows, skipped, first_skipped, separators;
};

class Scanner {
 public:
  Scanner(const std::vector<InputFile>& files, Communicator& communicator)
      : files_(files), communicator_(communicator), pieces_(cut_into_pieces(files)) {
    throw_on_all_ranks(communicator, [&] {
      for (const InputFile& file : files) check(file);
    });
  }

  SourceScan run(const std::function<void(double)>& progress) {
    share_work<PieceScan>(
        communicator_, own_items(static_cast<int64_t>(pieces_.size()), communicator_),
        [&](int64_t item) { return scan(pieces_[static_cast<size_t>(item)]); },
        [&](int64_t item, PieceScan& result) { collect(pieces_[static_cast<size_t>(item)], result); }, progress);
    exchange();
    SourceScan scan;
    throw_on_all_ranks(communicator_, [&] { scan = finish(); });
    return scan;
  }

 private:
  /// Checks that every rank sees the file as rank 0 found it.
  static void check(const InputFile& file) {
    if (open_content(file).size() != file.bytes) {
      throw UserError(ExitCode::io, file.path + ": its size differs between the ranks; all must see the same file");
    }
    if (find_invalid_utf8(file.format.separator) != std::string_view::npos) {
      throw UserError(ExitCode::deck, "data.document_separator: not UTF-8");
    }
  }

  PieceScan scan(const FilePiece& piece) {
    const InputFile& file = files_[piece.file];
    const FileHandle handle = open_content(file);  // released one by one: there can be many
    // A code point or separator that starts in the piece can end after it.
    const int64_t beyond = std::max<int64_t>(3, static_cast<int64_t>(file.format.separator.size()) - 1);
    thread_local std::string buffer;
    buffer.resize(static_cast<size_t>(std::min(piece.end + beyond, file.bytes) - piece.begin));
    handle.read(piece.begin, static_cast<int64_t>(buffer.size()), buffer.data());
    const size_t size = static_cast<size_t>(piece.end - piece.begin);
    PieceScan result;
    result.digest = digest_of(buffer.data(), size);
    if (file.kind != InputKind::text) {
      const std::string_view text = std::string_view(buffer).substr(0, size);
      const auto place = [&](size_t i) {
        return i == std::string_view::npos ? int64_t{-1} : piece.begin + static_cast<int64_t>(i);
      };
      result.first_newline = place(text.find('\n'));
      result.last_newline = place(text.rfind('\n'));
      if (is_encoded(file.kind)) scan_rows(piece, handle, result);
    } else {
      scan_text(piece, handle, buffer, size, result);
    }
    return result;
  }

  void scan_text(const FilePiece& piece, const FileHandle& handle, std::string_view buffer, size_t size,
                 PieceScan& result) {
    // Continuation bytes at the start belong to the piece before, up to the three that a code point can have.
    const auto code_point_border = [&](size_t at) {
      const size_t limit = std::min(at + 3, buffer.size());
      while (at < limit && is_utf8_continuation(buffer[at])) ++at;
      return at;
    };
    const size_t begin = piece.begin == 0 ? static_cast<size_t>(files_[piece.file].text_begin) : code_point_border(0);
    const size_t end = std::max(begin, code_point_border(size));
    const std::string_view text = buffer.substr(begin, end - begin);
    const size_t invalid = find_invalid_utf8(text);
    if (invalid != std::string_view::npos) refuse(piece, handle, begin + invalid, buffer);
    const std::unique_ptr<CodePointSet>& seen = start_characters();
    for (size_t i = 0; i < text.size(); ++result.characters) seen->set(next_code_point(text, i));
    result.text_bytes = piece.end - piece.begin;
    keep_characters(*seen);
    const std::string& separator = files_[piece.file].format.separator;
    if (separator.empty()) return;
    for (size_t i = buffer.find(separator); i < size; i = buffer.find(separator, i + 1)) {
      result.separators.push_back(piece.begin + static_cast<int64_t>(i));
    }
  }

  static const std::unique_ptr<CodePointSet>& start_characters() {
    thread_local const auto seen = std::make_unique<CodePointSet>();
    seen->reset();
    return seen;
  }
  void keep_characters(const CodePointSet& seen) {
    const std::lock_guard lock(mutex_);
    *code_points_ |= seen;
  }

  /// Scans the rows that begin in the piece.
  void scan_rows(const FilePiece& piece, const FileHandle& handle, PieceScan& result) {
    const InputFile& file = files_[piece.file];
    LineReader lines(handle, file.bytes, piece.begin, piece.end, file.format.row_limit);
    const std::unique_ptr<CodePointSet>& seen = start_characters();
    const bool instructions = file.kind == InputKind::instruction_rows;
    const RowReader reader(instructions ? file.format.row_format : "text", file.format.columns, true);
    std::string_view line;
    std::string text;
    while (lines.next(line)) {
      if (is_blank(line)) continue;
      ++result.rows;
      bool full = true;
      try {
        if (instructions) {
          text = texts_of(reader.read_documents(line));
        } else {
          full = parse_text_row(line, file.format.column, text);
        }
      } catch (const RowError& error) {
        fail_at_byte(handle, lines.offset() + static_cast<int64_t>(error.byte()), error.reason());
      } catch (const UserError& error) {
        fail_in_row(handle, lines.offset(), error.what());
      }
      if (!full) {
        ++result.skipped;
        if (result.first_skipped < 0) result.first_skipped = lines.offset();
      }
      for (size_t i = 0; i < text.size(); ++result.characters) seen->set(next_code_point(text, i));
      result.text_bytes += static_cast<int64_t>(text.size());
    }
    keep_characters(*seen);
  }

  [[noreturn]] static void refuse(const FilePiece& piece, const FileHandle& handle, size_t at,
                                  std::string_view buffer) {
    std::string what = fmt::format("0x{:02x} is not part of UTF-8 text", static_cast<uint8_t>(buffer[at]));
    what += " (convert the file, e.g. with iconv -t UTF-8)";
    fail_at_byte(handle, piece.begin + static_cast<int64_t>(at), what);
  }

  void collect(const FilePiece& piece, PieceScan& result) {
    digests_.push_back(result.digest);
    pieces_found_.push_back({result.characters, result.text_bytes, result.rows, result.skipped, result.first_skipped,
                             static_cast<int64_t>(result.separators.size())});
    separators_.insert(separators_.end(), result.separators.begin(), result.separators.end());
    if (files_[piece.file].kind != InputKind::text) check_line(piece, result);
  }

  /// A rank scans its pieces in order: a line without an end is detected without reading all of it as a line.
  void check_line(const FilePiece& piece, const PieceScan& result) {
    if (piece.file != line_file_) line_begin_ = piece.begin;
    line_file_ = piece.file;
    const int64_t line_end = result.first_newline < 0 ? piece.end : result.first_newline;
    const InputFile& file = files_[piece.file];
    if (line_end - line_begin_ - row_margin > file.format.row_limit) {
      refuse_long_row(open_content(file), line_begin_, file.format.row_limit);
    }
    if (result.last_newline >= 0) line_begin_ = result.last_newline + 1;
  }

  void exchange() {
    Message mine;
    mine.put(digests_);
    mine.put(pieces_found_);
    mine.put(separators_);
    std::vector<int64_t> points;
    for (size_t c = 0; c < code_points_->size(); ++c) {
      if (code_points_->test(c)) points.push_back(static_cast<int64_t>(c));
    }
    mine.put(points);
    digests_.clear();
    pieces_found_.clear();
    separators_.clear();
    points.clear();
    for (std::string& text : communicator_.gather_all(mine.bytes())) {
      Message theirs(std::move(text));
      theirs.take(digests_);
      theirs.take(pieces_found_);
      theirs.take(separators_);
      theirs.take(points);
    }
    for (const int64_t c : points) code_points_->set(static_cast<size_t>(c));
  }

  SourceScan finish() const {
    SourceScan scan;
    for (auto* counts : {&scan.characters, &scan.text_bytes, &scan.skipped}) counts->assign(files_.size(), 0);
    scan.first_skipped.assign(files_.size(), -1);
    size_t p = 0, s = 0;
    for (size_t f = 0; f < files_.size(); ++f) {
      const size_t first = p, first_separator = s;
      int64_t rows = 0;
      scan.rows_before.emplace_back();
      for (; p < pieces_.size() && pieces_[p].file == f; ++p) {
        const PieceFacts& found = pieces_found_[p];
        scan.characters[f] += found.characters;
        scan.text_bytes[f] += found.text_bytes;
        scan.rows_before.back().push_back(rows);
        rows += found.rows;
        scan.skipped[f] += found.skipped;
        if (scan.first_skipped[f] < 0) scan.first_skipped[f] = found.first_skipped;
        s += static_cast<size_t>(found.separators);
      }
      scan.digests.push_back(combine(std::span(digests_).subspan(first, p - first)));
      if (files_[f].kind == InputKind::text) add_documents(f, first_separator, s, scan);
      check_skipped_rows(files_[f].path, rows, rows > 0 ? scan.skipped[f] : 0, "check data.text_column");
    }
    for (size_t c = 0; c < code_points_->size(); ++c) {
      if (code_points_->test(c)) scan.code_points.push_back(static_cast<char32_t>(c));
    }
    return scan;
  }

  /// Separators are found from left to right; one that overlaps the one before is text.
  void add_documents(size_t f, size_t first, size_t last, SourceScan& scan) const {
    const size_t before = scan.documents.size();
    const int64_t length = static_cast<int64_t>(files_[f].format.separator.size());
    int64_t begin = files_[f].text_begin;
    const auto add = [&](int64_t end) {
      if (end > begin) {
        scan.documents.push_back({f, begin, end});
      } else {
        ++scan.skipped[f];
      }
    };
    for (size_t s = first; s < last; ++s) {
      if (separators_[s] < begin) continue;
      add(separators_[s]);
      begin = separators_[s] + length;
    }
    if (begin < files_[f].bytes) add(files_[f].bytes);
    if (scan.documents.size() == before) {
      throw UserError(ExitCode::bad_content, files_[f].path + ": it has no text, only document separators");
    }
  }

  const std::vector<InputFile>& files_;
  Communicator& communicator_;
  std::vector<FilePiece> pieces_;
  std::mutex mutex_;
  std::unique_ptr<CodePointSet> code_points_ = std::make_unique<CodePointSet>();
  size_t line_file_ = SIZE_MAX;
  int64_t line_begin_ = 0;
  // By piece: results of this rank, and of all ranks after exchange().
  std::vector<Digest> digests_;
  std::vector<PieceFacts> pieces_found_;
  std::vector<int64_t> separators_;  // separators of all pieces in order
};

}  // namespace

SourceScan section_of(const SourceScan& scan, size_t first, size_t count) {
  SourceScan section;
  const auto take = [&](const auto& from, auto& to) {
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(first);
    to.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
  };
  take(scan.digests, section.digests);
  take(scan.characters, section.characters);
  take(scan.text_bytes, section.text_bytes);
  take(scan.skipped, section.skipped);
  take(scan.first_skipped, section.first_skipped);
  take(scan.rows_before, section.rows_before);
  for (const DocumentRange& document : scan.documents) {
    if (document.file >= first && document.file < first + count) {
      section.documents.push_back({document.file - first, document.begin, document.end});
    }
  }
  return section;
}

SourceScan scan_sources(const std::vector<InputFile>& files, Communicator& communicator,
                        const std::function<void(double)>& progress) {
  return Scanner(files, communicator).run(progress);
}

}  // namespace llmtrain
