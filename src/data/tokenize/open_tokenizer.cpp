#include "data/tokenize/open_tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "data/tokenize/train_tokenizer.hpp"
#include "text/load_tokenizer.hpp"

namespace llmtrain {

std::shared_ptr<const Tokenizer> tokenizer_of(const SampleRules& config, const std::string& path, bool for_text) {
  return open_tokenizer(path, {config.eos_token, for_text, for_text && config.add_bos, config.add_tokens});
}

std::shared_ptr<const Tokenizer> stored_tokenizer(const TokenFileInfo& info) {
  try {
    std::shared_ptr<const Tokenizer> tokenizer = make_tokenizer_from(info.tokenizer);
    if (tokenizer->vocabulary_size() != info.vocabulary_size || tokenizer->eos_id() != info.eos_id) {
      throw UserError(ExitCode::bad_content, "its tokenizer contradicts its vocabulary_size or eos_id");
    }
    return tokenizer;
  } catch (const UserError& error) {
    throw UserError(error.code(), info.path + ": " + error.what());
  }
}

std::shared_ptr<const Tokenizer> stored_tokenizer(const TokenFileInfo& info, const SampleRules& config) {
  std::shared_ptr<const Tokenizer> tokenizer = stored_tokenizer(info);
  return config.add_tokens.empty() ? tokenizer : with_added_tokens(*tokenizer, config.add_tokens);
}

void refuse_added_tokens(const SampleRules& config) {
  if (config.add_tokens.empty()) return;
  throw UserError(ExitCode::deck,
                  fmt::format("data.tokenizer = {} cannot be given more tokens (data.add_tokens); name the files of a "
                              "tokenizer, or remove the key",
                              config.tokenizer));
}

const TokenFileInfo* info_with_tokenizer(const std::vector<std::shared_ptr<const TokenFile>>& files) {
  for (const auto& file : files) {
    if (!file->info().tokenizer.empty()) return &file->info();
  }
  return nullptr;
}

void check_same_tokenizer(const SampleRules& config, const Tokenizer& named, const Tokenizer& stored,
                          const std::string& path) {
  if (named.serialized() == stored.serialized()) return;
  throw UserError(ExitCode::deck,
                  fmt::format("data.tokenizer: {} (add_bos = {}) is not the tokenizer that made {} ({}); "
                              "set data.tokenizer = {}, or remove the key",
                              config.tokenizer, config.add_bos, path, stored.kind(), path));
}

bool names_tokenizer_of_ids(const SampleRules& config) { return config.tokenizer_given && config.tokenizer != "char"; }

void check_ids(const SampleRules& config, const Tokenizer& named, int64_t vocabulary) {
  if (vocabulary <= named.vocabulary_size()) return;
  throw UserError(ExitCode::bad_content,
                  fmt::format("data.train or data.validation: token ids below {} do not fit data.tokenizer = {}, "
                              "which has {} tokens; name the tokenizer that made them, or remove the key",
                              vocabulary, config.tokenizer, named.vocabulary_size()));
}

namespace {

std::unique_ptr<Tokenizer> tokenizer_of_tokens(const std::string& path, const std::string& eos_token) {
  const auto file = open_token_file(path);
  if (file->info().tokenizer.empty()) {
    throw UserError(ExitCode::bad_content, path + ": it has no tokenizer, only token ids; name another tokenizer");
  }
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer_from(file->info().tokenizer);
  if (!eos_token.empty() && (tokenizer->eos_id() < 0 || tokenizer->token(tokenizer->eos_id()) != eos_token)) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("{}: its texts do not end with \"{}\", the requested end-of-text token", path,
                                eos_token.substr(0, 60)));
  }
  return tokenizer;
}

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name, const TokenizerUse& use) {
  if (name == "bytes") return make_byte_tokenizer(use.begins_texts);
  if (!is_tokenizer_path(name)) {
    throw UserError(ExitCode::command_line,
                    fmt::format("tokenizer {}: it must be bytes, a token file (.h5), or a tokenizer's file or folder{}",
                                name, did_you_mean(name, std::array<std::string_view, 1>{"bytes"})));
  }
  const bool adds_eos = std::ranges::find(use.added, use.eos_token) != use.added.end();
  const std::string eos = adds_eos ? std::string() : use.eos_token;
  std::unique_ptr<Tokenizer> tokenizer =
      name.ends_with(".h5") ? tokenizer_of_tokens(name, eos) : load_tokenizer(name, eos);
  if (!use.added.empty()) tokenizer = with_added_tokens(*tokenizer, use.added, use.eos_token);
  if (use.ends_texts) require_eos(*tokenizer, name);
  if (use.begins_texts && tokenizer->bos_id() < 0) {
    throw UserError(ExitCode::bad_content,
                    name + ": it has no begin-of-text token; set data.add_bos = false (omit --add-bos)");
  }
  return tokenizer;
}

}  // namespace llmtrain
