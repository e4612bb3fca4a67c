#pragma once
#include <cstdint>
#include <vector>

#include "scores/choice_task.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

/// Token ids of a context and of what continues it.
struct TokenContinuation {
  std::vector<int32_t> ids;  ///< at least one of the context
  int64_t scored = 0;        ///< number of ids at the end whose log-probabilities count, at least one
  int64_t truncated = 0;     ///< ids of the context that are left out at its beginning
};

/// Encodes as lm-evaluation-harness does: white space at the end of the context belongs to the continuation, whose ids
/// are those that the text has after the ids of its context; an empty context is the token that begins texts, or ends
/// them where there is none. At most `longest` ids are inputs. Throws UserError(bad_content), without the place of the
/// row.
TokenContinuation encode_continuation(const Tokenizer& tokenizer, const ContextAndText& text, int64_t longest);

/// All choices of all rows in order. Errors begin with the place of the row.
std::vector<TokenContinuation> encode_choices(const Tokenizer& tokenizer, const ChoiceTask& task, int64_t longest);

}  // namespace llmtrain
