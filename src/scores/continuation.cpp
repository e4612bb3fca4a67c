#include "scores/continuation.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"
#include "text/chat/jinja/python_text.hpp"

namespace llmtrain {

namespace {

/// Ids of the text after the tokens that the tokenizer puts before texts. Those that it puts after them are left out:
/// the text goes on.
std::vector<int32_t> encode_text(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> plain;
  tokenizer.encode(text, plain);
  std::vector<int32_t> whole = plain;
  tokenizer.add_special_tokens(whole, nullptr);
  const auto found = std::search(whole.begin(), whole.end(), plain.begin(), plain.end());
  LLMTRAIN_CHECK(found != whole.end() || plain.empty(), "special tokens stand around a text");
  whole.resize(static_cast<size_t>(found - whole.begin()) + plain.size());
  return whole;
}

TokenContinuation encode_alone(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, ids);
  const int32_t first = tokenizer.bos_id() >= 0 ? tokenizer.bos_id() : tokenizer.eos_id();
  if (first < 0) {
    throw UserError(ExitCode::bad_content, "the context is empty, and the tokenizer has no token that begins texts");
  }
  TokenContinuation out;
  if (ids.empty() || ids.front() != first) out.ids.push_back(first);
  out.ids.insert(out.ids.end(), ids.begin(), ids.end());
  out.scored = std::ssize(out.ids) - 1;
  return out;
}

TokenContinuation encode_pair(const Tokenizer& tokenizer, const ContextAndText& text) {
  const size_t end = jinja::strip_python_spaces_right(text.context, 0, text.context.size());
  TokenContinuation out;
  out.ids = encode_text(tokenizer, text.context + text.continuation);
  const size_t before = encode_text(tokenizer, std::string_view(text.context).substr(0, end)).size();
  out.scored = std::ssize(out.ids) - static_cast<int64_t>(before);
  if (before == 0) throw UserError(ExitCode::bad_content, "the context has no token");
  return out;
}

}  // namespace

TokenContinuation encode_continuation(const Tokenizer& tokenizer, const ContextAndText& text, int64_t longest) {
  TokenContinuation out =
      text.context.empty() ? encode_alone(tokenizer, text.continuation) : encode_pair(tokenizer, text);
  if (out.scored <= 0) throw UserError(ExitCode::bad_content, "it adds no token to the context");
  if (out.scored > longest) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("its {} tokens are more than batch.sequence_length = {}", out.scored, longest));
  }
  out.truncated = std::max<int64_t>(std::ssize(out.ids) - (longest + 1), 0);
  out.ids.erase(out.ids.begin(), out.ids.begin() + out.truncated);
  return out;
}

std::vector<TokenContinuation> encode_choices(const Tokenizer& tokenizer, const ChoiceTask& task, int64_t longest) {
  std::vector<TokenContinuation> all;
  for (const ChoiceRow& row : task.rows) {
    for (const ContextAndText& choice : row.choices) {
      const auto refuse = [&](const std::string& what) {
        return UserError(ExitCode::bad_content,
                         fmt::format("{}: choice {}: {}", task.place(row), &choice - row.choices.data(), what));
      };
      try {
        all.push_back(encode_continuation(tokenizer, choice, longest));
      } catch (const EncodeError& error) {
        throw refuse(error.what());
      } catch (const UserError& error) {
        throw refuse(error.what());
      }
    }
  }
  return all;
}

}  // namespace llmtrain
