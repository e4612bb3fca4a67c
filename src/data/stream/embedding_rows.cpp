#include "data/stream/embedding_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/error.hpp"
#include "data/tokenize/shared_work.hpp"
#include "parallel/job/runtime.hpp"
#include "text/tokens_beyond_embedding.hpp"

namespace llmtrain {
namespace {

constexpr int64_t scanned_tokens = int64_t{1} << 18;

[[noreturn]] void refuse_missing_row(const TokenFile& file, int64_t place, const Tokenizer* tokenizer,
                                     const SampleRules& config) {
  int32_t id = 0;
  file.read(place, 1, &id);
  const auto documents = file.documents();
  const auto next = std::upper_bound(documents.begin(), documents.end(), static_cast<uint64_t>(place));
  throw UserError(
      ExitCode::bad_content,
      fmt::format("{}: token {} of document {}: {}", file.info().path, static_cast<uint64_t>(place) - *(next - 1) + 1,
                  next - documents.begin(), missing_row(tokenizer, id, config.embedding_rows)));
}

}  // namespace

bool exceeds_rows(const SampleRules& config, int64_t vocabulary) {
  return config.embedding_rows > 0 && vocabulary > config.embedding_rows;
}

int64_t needed_rows(const SampleRules& config, int64_t vocabulary) {
  return exceeds_rows(config, vocabulary) ? config.embedding_rows : vocabulary;
}

std::string missing_rows_warning(const Tokenizer* tokenizer, const SampleRules& config) {
  if (tokenizer == nullptr || config.embedding_rows == 0) return {};
  return tokens_without_row(*tokenizer, config.embedding_rows);
}

void check_document_tokens(const Tokenizer& tokenizer, const SampleRules& config) {
  struct DocumentToken {
    bool used;
    int32_t id;
    const char* what;
    const char* remedy;
  };
  const DocumentToken tokens[] = {
      {true, tokenizer.eos_id(), "EOS cannot end documents",
       config.has_tokenizer_files() ? "set another data.eos_token, or " : ""},
      {config.add_bos, tokenizer.bos_id(), "BOS cannot begin documents", "set data.add_bos = false, or "}};
  for (const DocumentToken& token : tokens) {
    if (!token.used || !exceeds_rows(config, int64_t{token.id} + 1)) continue;
    throw UserError(
        ExitCode::bad_content,
        fmt::format("{}: {}: {}; {}name the tokenizer that the model was trained with", config.tokenizer_path(),
                    token.what, row_shortage(&tokenizer, token.id, config.embedding_rows), token.remedy));
  }
}

int64_t find_missing_row(const TokenFile& file, const SampleRules& config, Communicator& communicator,
                         const ProgressReport& report) {
  if (!exceeds_rows(config, file.info().vocabulary_size)) return -1;
  constexpr int64_t nowhere = INT64_MAX;
  const int64_t pieces = (file.tokens() + scanned_tokens - 1) / scanned_tokens;
  int64_t first = nowhere;
  share_work<int64_t>(
      communicator, own_items(pieces, communicator),
      [&](int64_t piece) {
        const int64_t begin = piece * scanned_tokens, count = std::min(scanned_tokens, file.tokens() - begin);
        thread_local std::vector<int32_t> ids;
        ids.resize(static_cast<size_t>(count));
        file.read(begin, count, ids.data());
        const auto found = std::ranges::find_if(ids, [&](int32_t id) { return id >= config.embedding_rows; });
        return found == ids.end() ? nowhere : begin + (found - ids.begin());
      },
      [&](int64_t, int64_t found) { first = std::min(first, found); },
      percent_report(report, "comparing ids with the model's rows"));
  int64_t negated[] = {-first};
  communicator.maximum(negated);
  return negated[0] == -nowhere ? -1 : -negated[0];
}

std::shared_ptr<const TokenFile> with_rows(const std::shared_ptr<const TokenFile>& file, const Tokenizer* tokenizer,
                                           const SampleRules& config, Communicator& communicator,
                                           const ProgressReport& report) {
  if (!exceeds_rows(config, file->info().vocabulary_size)) return file;
  const int64_t place = find_missing_row(*file, config, communicator, report);
  throw_on_all_ranks(communicator, [&] {
    if (place >= 0) refuse_missing_row(*file, place, tokenizer, config);
  });
  return open_token_file(file->info().path, config.embedding_rows, communicator);
}

}  // namespace llmtrain
