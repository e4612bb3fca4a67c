#include "data/tokenize/encode_job.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "core/batch.hpp"
#include "core/error.hpp"
#include "data/files/input_kind.hpp"
#include "data/files/jsonl.hpp"
#include "data/formats/encode_documents.hpp"
#include "data/formats/label_rows.hpp"
#include "data/sample_rules.hpp"
#include "data/tokenize/shared_work.hpp"
#include "text/tokenizer.hpp"
#include "text/tokens_beyond_embedding.hpp"
#include "text/unicode/code_points.hpp"

namespace llmtrain {
namespace {

constexpr int64_t cut_search_bytes = int64_t{1} << 12;  // bytes
// Bytes that are encoded as one text. They also bound the search for a cut.
constexpr int64_t longest_whole = int64_t{1} << 30;
constexpr int64_t longest_uncut = int64_t{64} << 20;

}  // namespace

JobEncoder::JobEncoder(const TokenizeRequest& request)
    : request_(request),
      has_preferences_(common_preference_format(request.files) != nullptr),
      has_values_(has_preferences_ || request.has_difficulties()) {}

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
    encode_slice(job, file, text, begin, job.number + static_cast<int64_t>(d - job.first_document), result.ids);
    if (request_.once && job.starts) drop_second(request_.tokenizer->bos_id(), before, result.ids);
    const int32_t eos = request_.tokenizer->eos_id();
    const bool ended = request_.once && result.ids.size() > before && result.ids.back() == eos;
    if (job.ends && !ended) result.ids.push_back(eos);
    result.counts.push_back(result.ids.size() - before);
    if (const int64_t tokens = too_long(result, 1); tokens > 0) {
      fail_in_row(file, document.begin, too_long_document(false, tokens, request_.longest));
    }
  }
  return result;
}

int64_t JobEncoder::too_long(const JobResult& result, size_t documents) const {
  uint64_t longest = 0;
  for (size_t d = 0; d < std::min(documents, result.counts.size()); ++d) {
    longest = std::max(longest, result.counts[result.counts.size() - 1 - d]);
  }
  return request_.longest > 0 && longest > static_cast<uint64_t>(request_.longest) ? static_cast<int64_t>(longest) : 0;
}

void JobEncoder::encode_slice(const TokenizeJob& job, const FileHandle& file, std::string_view text, int64_t at,
                              int64_t number, std::vector<int32_t>& ids) const {
  try {
    const size_t before = ids.size();
    if (request_.infilling.rate > 0) {
      request_.infilling.encode(*request_.tokenizer, text, number, ids);
    } else {
      request_.tokenizer->encode_segment(text, job.starts, ids);
    }
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
  RowDocuments documents;
  std::vector<EncodedRow> encoded(1);
  LabelledTokens labelled;
  std::string text;
  std::string_view line;
  int64_t number = job.number - 1;
  while (lines.next(line)) {
    if (is_blank(line)) continue;
    ++number;
    try {
      if (instructions) {
        documents = reader.read_documents(line);
        if (!documents.left_out.empty()) {
          if (result.irregular++ == 0) result.first_irregular = lines.offset();
          continue;
        }
        if (documents.labelled) {
          add_labelled(documents, labelled, result);
        } else if (encode_documents(*request_.encoder, documents, encoded); documents.is_prompt()) {
          add_prompt({*documents.columns, file.name, lines.offset()}, encoded.front(), result);
        } else {
          add_encoded(documents, encoded, lines.offset(), result);
        }
      } else if (kind == InputKind::token_rows) {
        parse_token_row(line, row);
        add_row(row, result);
      } else if (parse_text_row(line, file.format.column, text)) {
        if (has_values_) result.values.push_back(reader.read_difficulty(line));
        add_text(text, number, result);
      }
      if (const int64_t tokens = too_long(result, encoded.size()); tokens > 0) {
        throw UserError(ExitCode::bad_content, too_long_document(instructions, tokens, request_.longest));
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

void JobEncoder::add_encoded(const RowDocuments& row, const std::vector<EncodedRow>& encoded, int64_t offset,
                             JobResult& result) const {
  const auto count = [&](int64_t& rows, std::optional<int64_t>& first) {
    ++rows;
    if (!first) first = offset;
  };
  switch (left_out_of_training(row, encoded, has_preferences_)) {
    case LeftOut::empty:
      return count(result.empty, result.first_empty);
    case LeftOut::equal:
      return count(result.equal, result.first_equal);
    case LeftOut::untrained:
      ++result.untrained;
      return;
    case LeftOut::no:
      break;
  }
  uint64_t print = 0;
  bool merged_border = false, stops = true;
  for (const EncodedRow& document : encoded) {
    const std::vector<int32_t>& ids = document.ids;
    const int32_t highest = *std::ranges::max_element(ids);
    if (!has_row(highest)) throw EncodeError(0, missing_row(request_.tokenizer, highest, request_.embedding_rows));
    result.ids.insert(result.ids.end(), ids.begin(), ids.end());
    result.mask.insert(result.mask.end(), document.mask.begin(), document.mask.end());
    result.counts.push_back(ids.size());
    if (has_values_) result.values.push_back(row.value);
    merged_border = merged_border || document.merged_border;
    stops = stops && document.stops();
    print = XXH3_64bits_withSeed(document.mask.data(), document.mask.size(),
                                 XXH3_64bits_withSeed(ids.data(), ids.size() * sizeof(int32_t), print));
  }
  result.merged_borders += merged_border ? 1 : 0;
  result.without_stop += stops ? 0 : 1;
  result.prints.push_back(print);
}

void JobEncoder::add_labelled(const RowDocuments& row, LabelledTokens& tokens, JobResult& result) const {
  LLMTRAIN_CHECK(request_.labels != nullptr, "rows with labels without rules of labels");
  encode_labelled(*request_.encoder, *request_.tokenizer, row, tokens);
  const std::vector<int32_t>& ids = tokens.ids;
  const int32_t highest = *std::ranges::max_element(ids);
  if (!has_row(highest)) throw EncodeError(0, missing_row(request_.tokenizer, highest, request_.embedding_rows));
  const size_t before = result.values.size();
  append_labels(*row.labelled, *request_.labels, tokens, result.values);
  result.ids.insert(result.ids.end(), ids.begin(), ids.end());
  result.counts.push_back(ids.size());
  const std::span<const float> values = std::span(result.values).subspan(before);
  result.prints.push_back(
      XXH3_64bits_withSeed(values.data(), values.size_bytes(), XXH3_64bits(ids.data(), ids.size() * sizeof(int32_t))));
}

void JobEncoder::add_prompt(const StoredRow& row, const EncodedRow& encoded, JobResult& result) const {
  const std::vector<int32_t>& ids = encoded.ids;
  if (ids.empty()) throw UserError(ExitCode::bad_content, "the prompt is empty: it has no token");
  const int32_t highest = *std::ranges::max_element(ids);
  if (!has_row(highest)) throw EncodeError(0, missing_row(request_.tokenizer, highest, request_.embedding_rows));
  result.ids.insert(result.ids.end(), ids.begin(), ids.end());
  result.counts.push_back(ids.size());
  result.prints.push_back(XXH3_64bits(ids.data(), ids.size() * sizeof(int32_t)));
  const std::string stored = row.text();
  result.rows += stored;
  result.row_sizes.push_back(stored.size());
}

void JobEncoder::add_text(std::string_view text, int64_t number, JobResult& result) const {
  const size_t before = result.ids.size();
  const auto encode = [&](std::vector<int32_t>& ids) {
    if (request_.infilling.rate > 0) return request_.infilling.encode(*request_.tokenizer, text, number, ids);
    request_.tokenizer->encode(text, ids);
  };
  if (request_.once) {
    thread_local std::vector<int32_t> ids;
    ids.clear();
    encode(ids);
    put_tokens_around(*request_.tokenizer, {request_.of_tokenizer, request_.add_bos}, text.size(), 0, ids, nullptr);
    result.ids.insert(result.ids.end(), ids.begin(), ids.end());
  } else {
    if (request_.add_bos) result.ids.push_back(request_.tokenizer->bos_id());
    encode(result.ids);
    result.ids.push_back(request_.tokenizer->eos_id());
  }
  require_rows_for(text, std::span(result.ids).subspan(before));
  result.counts.push_back(result.ids.size() - before);
}

/// `ids` are those of the text, possibly with tokens around them.
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
  const int32_t highest = *std::ranges::max_element(row.ids);
  if (!has_row(highest)) throw RowError(0, missing_row(request_.ids_tokenizer, highest, request_.embedding_rows));
  result.highest = std::max(result.highest, highest);
}

}  // namespace llmtrain
