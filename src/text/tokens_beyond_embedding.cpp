#include "text/tokens_beyond_embedding.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "core/error.hpp"

namespace llmtrain {
namespace {

constexpr size_t max_named = 3;         ///< tokens per message
constexpr size_t max_token_bytes = 60;  ///< bytes per token in a message
constexpr const char* remedy =
    "or give the model rows for its tokens (data.add_tokens of a training run) and train them";

/// Formats a token for messages.
std::string shown(const Tokenizer* tokenizer, int64_t id) {
  std::string name = tokenizer != nullptr ? tokenizer->token(static_cast<int32_t>(id)) : std::string();
  if (name.empty()) return {};
  if (name.size() > max_token_bytes) name = name.substr(0, max_token_bytes) + "...";
  return '"' + without_controls(name) + '"';
}

}  // namespace

std::string row_shortage(const Tokenizer* tokenizer, int64_t id, int64_t rows) {
  const std::string name = shown(tokenizer, id);
  return fmt::format("{} has the id {}, but the model's embedding has only {} rows",
                     name.empty() ? "a token" : "the token " + name, id, rows);
}

std::string missing_row(const Tokenizer* tokenizer, int64_t id, int64_t rows) {
  return fmt::format("{}; omit the token, {}", row_shortage(tokenizer, id, rows), remedy);
}

std::string tokens_without_row(const Tokenizer& tokenizer, int64_t rows) {
  const int64_t tokens = tokenizer.vocabulary_size();
  if (tokens <= rows) return {};
  std::vector<std::string> names;
  int64_t count = 0;
  for (int64_t id = rows; id < tokens; ++id) {
    const std::string name = shown(&tokenizer, id);
    if (name.empty()) continue;
    if (++count <= static_cast<int64_t>(max_named)) names.push_back(fmt::format("{} (id {})", name, id));
  }
  const int64_t more = count - static_cast<int64_t>(names.size());
  return fmt::format(
      "the tokenizer has {} tokens and the model's embedding {} rows: {}{} ha{} no row. A text that has such a token "
      "is "
      "refused. If no text has one, nothing needs to be done; otherwise remove the tokens from the text, {}",
      tokens, rows, names.empty() ? "the last tokens" : fmt::format("{}", fmt::join(names, ", ")),
      more > 0 ? fmt::format(" and {} more", more) : "", count == 1 ? "s" : "ve", remedy);
}

void require_rows(std::span<const int32_t> ids, const Tokenizer* tokenizer, int64_t rows, const std::string& place) {
  const auto wrong = std::ranges::find_if(ids, [&](int32_t id) { return id >= rows; });
  if (wrong == ids.end()) return;
  throw UserError(ExitCode::bad_content, place + ": " + missing_row(tokenizer, *wrong, rows));
}

}  // namespace llmtrain
