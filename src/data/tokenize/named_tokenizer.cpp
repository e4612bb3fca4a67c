#include "data/tokenize/named_tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "data/files/token_file.hpp"
#include "text/load_tokenizer.hpp"

namespace llmtrain {

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
