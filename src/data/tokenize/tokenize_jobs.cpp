#include "data/tokenize/tokenize_jobs.hpp"

#include "data/files/file_digest.hpp"
#include "data/files/token_file.hpp"
#include "data/formats/row_format.hpp"

namespace llmtrain {
namespace {

constexpr int64_t tokenize_job_bytes = hash_piece;

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
      jobs.back().number = static_cast<int64_t>(d - first);
    }
  }
}

}  // namespace

bool TokenizeRequest::has_difficulties() const {
  return !files.empty() && !named_column(files.front().format.columns, difficulty_column).empty();
}

std::vector<TokenizeJob> jobs_of(const TokenizeRequest& request) {
  const std::vector<InputFile>& files = request.files;
  const SourceScan& scan = request.scan;
  const bool segmentable =
      request.tokenizer != nullptr && request.tokenizer->is_segmentable() && request.infilling.rate == 0;
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
      for (size_t p = 0; p < pieces.size(); ++p) {
        jobs.push_back({f, pieces[p].begin, pieces[p].end});
        if (!scan.rows_before.empty()) jobs.back().number = scan.rows_before[f][p];
      }
    }
  }
  return jobs;
}

}  // namespace llmtrain
