#include "generate/prompt_files.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/utf8.hpp"
#include "data/files/input_kind.hpp"
#include "data/files/jsonl.hpp"
#include "data/files/unpack.hpp"
#include "parallel/job/runtime.hpp"
#include "parallel/message.hpp"
#include "text/tokens_beyond_embedding.hpp"

namespace llmtrain {

namespace {

constexpr const char* prompt_format = "prompt";

std::vector<InputFile> find_files(const std::vector<std::string>& patterns, int64_t row_limit) {
  TextFormat format;
  format.row_format = prompt_format;
  format.row_limit = row_limit;
  format.use = DataUse::prompts;
  std::vector<InputFile> files = find_input_files(patterns, format);
  for (const InputFile& file : files) {
    if (file.compression != Compression::none && file.table == TableKind::none) {
      throw UserError(ExitCode::bad_content,
                      file.path + ": compressed prompt files are not supported; unpack the file");
    }
    if (file.kind == InputKind::tokens || file.kind == InputKind::token_rows) {
      throw UserError(ExitCode::bad_content, file.path + ": it has token ids; prompts are texts, or rows with prompt");
    }
  }
  return files;
}

nlohmann::ordered_json row_of_line(std::string_view line) {
  const size_t invalid = find_invalid_utf8(line);
  if (invalid != std::string::npos) {
    throw UserError(ExitCode::bad_content, fmt::format("byte {}: the prompt is not UTF-8", invalid + 1));
  }
  nlohmann::ordered_json row = nlohmann::ordered_json::object();
  row["prompt"] = std::string(line);
  return row;
}

}  // namespace

PromptFiles::PromptFiles(const std::vector<std::string>& files, PromptRules rules, const Tokenizer& tokenizer,
                         const ChatConfig& chat, const ChatFiles& templates, Communicator& communicator)
    : rules_(std::move(rules)),
      tokenizer_(tokenizer),
      encoder_(tokenizer, chat, templates, training_time),
      text_reader_(prompt_format, {}, encoder_.has_template()),
      row_reader_(prompt_format, rules_.columns, encoder_.has_template()) {
  Message message;
  on_root(communicator, [&] {
    find_places(files);
    message.put(std::vector<uint64_t>{names_.size()});
    for (const std::string& name : names_) message.put(name);
    message.put(holds_rows_);
    message.put(places_);
  });
  std::string packed = message.bytes();
  communicator.broadcast(packed);
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() == 0) return;
    Message received(packed);
    std::vector<uint64_t> count;
    received.take(count);
    for (uint64_t i = 0; i < count.at(0); ++i) {
      received.take(names_.emplace_back());
      files_.push_back(open_lines(names_.back()));
    }
    received.take(holds_rows_);
    received.take(places_);
  });
}

void PromptFiles::find_places(const std::vector<std::string>& patterns) {
  for (const InputFile& file : find_files(patterns, rules_.row_limit)) {
    const auto number = static_cast<uint32_t>(files_.size());
    files_.push_back(open_lines(file.path));
    names_.push_back(file.path);
    holds_rows_.push_back(file.kind == InputKind::instruction_rows ? 1 : 0);
    const int64_t bytes = files_.back().size();
    LineReader lines(files_.back(), bytes, 0, bytes, rules_.row_limit);
    int64_t offset = 0;  // of the first line, whether or not a byte order mark precedes it
    for (std::string_view line; lines.next(line); offset = lines.offset() + std::ssize(line) + 1) {
      if (!is_blank(line)) places_.push_back({number, offset == 0 ? 0 : lines.offset()});
    }
  }
  if (places_.empty()) throw UserError(ExitCode::bad_content, "generate.prompts: the files have no prompt");
}

Prompt PromptFiles::read(int64_t number) const {
  const Place& place = places_[static_cast<size_t>(number)];
  const FileHandle& file = files_[place.file];
  try {
    LineReader lines(file, file.size(), place.offset, place.offset + 1, rules_.row_limit);
    std::string_view line;
    if (!lines.next(line)) throw UserError(ExitCode::bad_content, "the file changed while it was read");
    const bool is_row = holds_rows_[place.file] != 0;
    Prompt prompt;
    prompt.row = is_row ? parse_json_row(line) : row_of_line(line);
    EncodedRow encoded;
    const RowDocuments documents =
        is_row ? row_reader_.read_documents(line) : text_reader_.read_documents(prompt.row.dump());
    encoder_.encode_prompt(documents.documents.front(), encoded);
    prompt.ids = std::move(encoded.ids);
    if (prompt.ids.empty() && tokenizer_.bos_id() >= 0) prompt.ids.push_back(tokenizer_.bos_id());
    if (prompt.ids.empty()) {
      throw UserError(ExitCode::bad_content, "an empty prompt needs a BOS token, which the tokenizer does not have");
    }
    require_rows(prompt.ids, &tokenizer_, rules_.vocabulary, "the prompt");
    const int64_t beyond = std::ssize(prompt.ids) - rules_.max_tokens;
    if (beyond > 0 && !rules_.truncates) {
      throw UserError(
          ExitCode::bad_content,
          fmt::format("the prompt has {} tokens, and batch.sequence_length leaves {} before "
                      "generate.max_new_tokens; lower that, choose a longer sequence where the model's limit "
                      "allows it, or generate.overflow = truncate_left",
                      prompt.ids.size(), rules_.max_tokens));
    }
    if (beyond > 0) prompt.ids.erase(prompt.ids.begin(), prompt.ids.begin() + beyond);
    prompt.dropped = std::max<int64_t>(beyond, 0);
    return prompt;
  } catch (const UserError& error) {
    throw UserError(
        error.code(),
        fmt::format("{}: {}", place_of_line(names_[place.file], line_of_byte(file, place.offset)), error.what()));
  }
}

void check_prompt_files(const std::vector<std::string>& files, int64_t row_limit) { find_files(files, row_limit); }

}  // namespace llmtrain
