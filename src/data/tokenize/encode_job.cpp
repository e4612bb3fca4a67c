#include "data/tokenize/encode_job.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "core/batch.hpp"
#include "core/error.hpp"
#include "data/data_config.hpp"
#include "data/files/input_kind.hpp"
#include "data/files/jsonl.hpp"
#include "data/formats/row_format.hpp"
#include "text/tokens_beyond_embedding.hpp"
#include "text/unicode/code_points.hpp"

namespace llmtrain {
namespace {

constexpr int64_t cut_search_bytes = int64_t{1} << 12;  // bytes
// Bytes that are encoded as one text. They also bound the search for a cut.
constexpr int64_t longest_whole = int64_t{1} << 30;
constexpr int64_t longest_uncut = int64_t{64} << 20;

}  // namespace

JobResult JobEncoder::encode(const TokenizeJob& job) const {
  const InputKind kind = request_.files[job.file].kind;
  return kind == InputKind::text ? encode_text(job) : read_rows(job, kind);
}

FileHandle JobEncoder::open(const TokenizeJob& job) const { return open_content(request_.files[job.file]); }

/// Returns the actual begin of a segment: the first cut at or after its nominal begin. A segment without a cut is
/// empty, and the one before continues.
int64_t JobEncoder::cut_after(const FileHandle& file, int64_t place, int64_t end) const {
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

JobResult JobEncoder::encode_text(const TokenizeJob& job) const {
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
    if (is_too_long(result)) fail_in_row(file, document.begin, too_long_text(result, false));
  }
  return result;
}

bool JobEncoder::is_too_long(const JobResult& result) const {
  return request_.longest > 0 && !result.counts.empty() &&
         result.counts.back() > static_cast<uint64_t>(request_.longest);
}
std::string JobEncoder::too_long_text(const JobResult& result, bool conversation) const {
  return too_long_document(conversation, static_cast<int64_t>(result.counts.back()), request_.longest);
}

void JobEncoder::encode_slice(const TokenizeJob& job, const FileHandle& file, std::string_view text, int64_t at,
                              std::vector<int32_t>& ids) const {
  try {
    const size_t before = ids.size();
    request_.tokenizer->encode_segment(text, job.starts, ids);
    require_rows_for(text, std::span(ids).subspan(before));
  } catch (const EncodeError& error) {
    fail_at_byte(file, at + static_cast<int64_t>(error.byte()), error.reason());
  }
}

JobResult JobEncoder::read_rows(const TokenizeJob& job, InputKind kind) const {
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
      if (is_too_long(result)) throw UserError(ExitCode::bad_content, too_long_text(result, instructions));
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

void JobEncoder::add_encoded(const EncodedRow& row, JobResult& result) const {
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

void JobEncoder::add_text(std::string_view text, JobResult& result) const {
  const size_t before = result.ids.size();
  if (request_.add_bos) result.ids.push_back(request_.tokenizer->bos_id());
  request_.tokenizer->encode(text, result.ids);
  if (request_.bos_once) drop_second(request_.tokenizer->bos_id(), before, result.ids);
  require_rows_for(text, std::span(result.ids).subspan(before));
  result.ids.push_back(request_.tokenizer->eos_id());
  result.counts.push_back(result.ids.size() - before);
}

/// `ids` are those of the text, possibly with BOS before them.
void JobEncoder::require_rows_for(std::string_view text, std::span<const int32_t> ids) const {
  const auto wrong = std::ranges::find_if_not(ids, [&](int32_t id) { return has_row(id); });
  if (wrong == ids.end()) return;
  std::vector<int32_t> again;
  std::vector<TextRange> ranges;
  request_.tokenizer->encode_with_ranges(text, again, ranges);
  const auto place = std::ranges::find(again, *wrong);
  throw EncodeError(place == again.end() ? 0 : ranges[static_cast<size_t>(place - again.begin())].begin,
                    missing_row(request_.tokenizer, *wrong, request_.embedding_rows));
}

void JobEncoder::add_row(const TokenRow& row, JobResult& result) const {
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

}  // namespace llmtrain
