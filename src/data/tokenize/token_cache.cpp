#include "data/tokenize/token_cache.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/files/content_hash.hpp"
#include "data/files/cache_folder.hpp"
#include "data/files/file_digest.hpp"
#include "data/files/token_format.hpp"
#include "data/formats/row_format.hpp"
#include "data/stream/embedding_rows.hpp"
#include "parallel/job/runtime.hpp"

namespace llmtrain {
namespace {

/// Returns the number of empty documents and, for rows, the location of the first one.
std::string skip_report(const TokenizeRequest& request, int64_t skipped) {
  std::string text = fmt::format("{} empty documents were skipped", skipped);
  for (size_t f = 0; f < request.files.size(); ++f) {
    const int64_t first = request.scan.first_skipped[f];
    if (first < 0) continue;
    const FileHandle file = open_content(request.files[f]);
    return text + ", the first row at " + place_of_line(file.path(), line_of_byte(file, first));
  }
  return text;
}

/// Returns true if the tokenizer itself puts BOS before a text.
bool begins_with_bos(const Tokenizer* tokenizer) {
  if (tokenizer == nullptr || tokenizer->files().empty() || tokenizer->bos_id() < 0) return false;
  std::vector<int32_t> around;
  tokenizer->add_special_tokens(around, nullptr);
  return !around.empty() && around.front() == tokenizer->bos_id();
}

/// Empty for rows without labels.
std::string label_settings(const TokenizeRequest& request) {
  if (request.labels == nullptr) return {};
  return fmt::format(" problem={}{} labels={}", name_of(request.labels->problem),
                     request.labels->tokens ? " tokens" : "", nlohmann::json(request.labels->names).dump());
}

/// Everything that determines a token file.
std::string key_of(const TokenizeRequest& request) {
  std::string text = fmt::format("format {}, {}\n", token_format::version, request.command);
  if (request.tokenizer != nullptr) text += request.tokenizer->serialized();
  for (size_t f = 0; f < request.files.size(); ++f) {
    const InputFile& file = request.files[f];
    text += fmt::format("\n{} {} {} {}", file.name, file.bytes, hex(request.scan.digests[f]),
                        nlohmann::json(file.format.separator).dump());
    if (file.by_content) text += " rows";  // if the name can also mean text
    const std::string difficulty = named_column(file.format.columns, difficulty_column);
    if (file.kind == InputKind::text_rows && !difficulty.empty()) {
      text += " difficulty " + nlohmann::json(difficulty).dump();
    }
    if (file.kind == InputKind::instruction_rows) {
      text += fmt::format(" {} {}", file.format.row_format, nlohmann::json(file.format.columns).dump());
    }
  }
  return hex(digest_of(text.data(), text.size()));
}

}  // namespace

std::shared_ptr<const TokenFile> TokenCache::open(const std::vector<InputFile>& files, SourceScan scan) const {
  TokenizeRequest request;
  request.files = files;
  for (InputFile& file : request.files) file.name = file.name.substr(file.name.rfind('/') + 1);
  request.scan = std::move(scan);
  if (is_encoded(files.front().kind)) request.tokenizer = tokenizer_.get();
  request.ids_tokenizer = tokenizer_.get();
  request.encoder = encoder_;
  if (config_.use == DataUse::labels) request.labels = &config_.labels;
  request.add_bos = config_.add_bos || (config_.begins_like_tokenizer && begins_with_bos(request.tokenizer));
  request.of_tokenizer = request.once = config_.begins_like_tokenizer && request.tokenizer != nullptr;
  request.embedding_rows = config_.embedding_rows;
  request.longest = longest_document(files);
  if (request.tokenizer != nullptr) {
    throw_on_all_ranks(communicator_, [&] { request.infilling = make_infilling(config_, *request.tokenizer); });
  }
  request.with_digest = true;
  request.command = "llmtrain, " + settings_of(request);
  request.output = folder_ + "/tokens-" + key_of(request) + ".h5";

  const StoredFile stored = check_digest(request.output, communicator_);
  if (stored == StoredFile::damaged) report_(request.output + ": the cached token file is damaged; making it again");
  const bool refused = stored == StoredFile::whole &&
                       (holds_missing_row(request.output) || holds_longer(request.output, request.longest));
  if (stored != StoredFile::whole || refused) make(request);  // the rows tell which of them is refused
  return open_token_file(request.output, config_.embedding_rows, communicator_);
}

/// A cached file can come from another model's run. Tokenizing again then tells where the text has the token.
bool TokenCache::holds_missing_row(const std::string& path) const {
  return find_missing_row(*open_token_file(path, 0, communicator_), config_, communicator_, report_) >= 0;
}

int64_t TokenCache::longest_document(const std::vector<InputFile>& files) const {
  const bool conversations = has_kind(files, InputKind::instruction_rows);
  return (conversations ? config_.for_conversations() : config_).longest_document(sequence_length_);
}

bool TokenCache::holds_longer(const std::string& path, int64_t longest) const {
  if (longest == 0) return false;
  const std::shared_ptr<const TokenFile> file = open_token_file(path, 0, communicator_);
  const std::span<const uint64_t> borders = file->documents();
  bool found = false;
  for (size_t d = 1; d < borders.size(); ++d) {
    found = found || static_cast<int64_t>(borders[d] - borders[d - 1]) > longest;
  }
  return found;
}

void TokenCache::make(const TokenizeRequest& request) const {
  throw_on_all_ranks(communicator_, [&] { require_writable_cache(folder_); });
  int64_t bytes = 0, skipped = 0;
  for (size_t f = 0; f < request.files.size(); ++f) {
    bytes += request.files[f].bytes;
    skipped += request.scan.skipped[f];
  }
  const std::string what =
      request.tokenizer != nullptr ? " of text, tokenizer " + tokenizer_->kind() : " of token rows";
  report_(fmt::format("tokenizing {:.1f} MB{}", static_cast<double>(bytes) / 1e6, what));
  tokenize_to_file(request, communicator_, report_);
  if (skipped > 0) report_(skip_report(request, skipped));
  for (size_t f = 0; f < request.files.size(); ++f) {
    const auto in_file = [&](const DocumentRange& place) { return place.file == f; };
    if (request.files[f].format.separator.empty() || request.files[f].kind != InputKind::text) continue;
    if (std::ranges::count_if(request.scan.documents, in_file) == 1) {
      report_(request.files[f].path + ": data.document_separator does not occur; the file is one document");
    }
  }
  report_("tokens are kept in " + request.output);
}

std::string TokenCache::settings_of(const TokenizeRequest& request) const {
  if (request.tokenizer == nullptr) return "rows of input_ids with masks, without padding";
  const bool conversations = has_kind(request.files, InputKind::instruction_rows);
  const std::string chat = conversations ? encoder_->settings() : std::string();
  return fmt::format("tokenizer={} document_separator={} add_bos={}{}{}{}{}", request.tokenizer->kind(),
                     nlohmann::json(request.files.front().format.separator).dump(), request.add_bos ? "true" : "false",
                     request.once ? " around=once" : "",
                     has_kind(request.files, InputKind::text_rows)
                         ? " text_column=" + nlohmann::json(config_.text_column).dump()
                         : "",
                     conversations ? " chat=" + hex(digest_of(chat.data(), chat.size())) : "",
                     request.infilling.settings()) +
         label_settings(request);
}

}  // namespace llmtrain
