#include "generate/generate_config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/deck/deck.hpp"
#include "data/files/jsonl.hpp"

namespace llmtrain {

namespace {

/// A list of token ids.
struct TokenListCodec {
  static std::vector<int64_t> parse(std::string_view text, const KeyInfo&) {
    std::vector<int64_t> ids;
    for (const std::string_view item : split_list(text)) ids.push_back(parse_count(item, between(0, max_id)));
    return ids;
  }
  static std::string print(const std::vector<int64_t>& ids) { return fmt::format("{}", fmt::join(ids, ", ")); }
  static std::string type() { return "list of counts"; }
};

}  // namespace

void GenerateConfig::visit(DeckKeys& keys) {
  keys.section("generate", "Continue prompts with a model (run.task = generate).", Change::breaks, {Task::generate},
               true);
  keys.key("prompts", prompts,
           {.doc = "Files or globs: a prompt on each line of a text, or rows of JSON (.jsonl, .ndjson) with prompt (a "
                   "text or a list of messages) or messages, whose last answer is left out. Messages go through the "
                   "chat template. data.columns names other columns.",
            .required = true});
  keys.key(
      "output", output,
      {.doc = "File of results: one row of JSON per continuation, in the order of the prompts, with the columns of "
              "the prompt's row, text and end (eos, length, stop), with sample (counted from 0) if samples > 1. "
              "A stopped run resumes after the last complete row.",
       .automatic = "generations.jsonl in the run's folder"});
  keys.key("max_new_tokens", max_new_tokens,
           {.unit = "tokens",
            .range = between(1, 1 << 24),
            .doc = "Maximum length of a continuation. A prompt may have the remaining tokens of "
                   "batch.sequence_length."});
  keys.key("overflow", overflow,
           {.doc = "Treatment of longer prompts. truncate_left: their last tokens are kept, and they are counted; "
                   "error: the job ends before it begins to generate."});
  keys.key("temperature", sampling.temperature,
           {.range = between(0, 1e6), .doc = "Divisor of the logits; 0: always take the most probable token."});
  keys.key(
      "top_k", sampling.top_k,
      {.unit = "tokens", .range = between(0, 1 << 30), .doc = "Sample among the k most probable tokens; 0 = off."});
  keys.key("top_p", sampling.top_p,
           {.range = {.min = 0, .max = 1, .open_min = true},
            .doc = "Sample among the smallest set of the most probable tokens whose probability reaches p; 1 = off."});
  keys.key("min_p", sampling.min_p,
           {.range = between(0, 1),
            .doc = "Sample among tokens at least p times as probable as the most probable one; 0 = off."});
  keys.key("repetition_penalty", sampling.repetition_penalty,
           {.range = between(1e-3, 1e3),
            .doc = "Penalty on tokens of the prompt and the continuation: their logits are divided by it above 0 and "
                   "multiplied by it below 0; 1 = off."});
  keys.key("no_repeat_ngram", sampling.no_repeat_ngram,
           {.unit = "tokens",
            .range = between(0, 1 << 20),
            .doc = "No sequence of this many tokens occurs twice in a prompt and its continuation; 0 = off."});
  keys.key("beams", beams.beams,
           {.range = between(1, 1 << 10),
            .doc = "Search for the most probable continuation with this many beams instead of sampling; each beam "
                   "takes one of the batch.micro sequences. 1 = off."});
  keys.key("length_penalty", beams.length_penalty,
           {.range = between(-100, 100),
            .doc = "The score of a finished beam is its log-probability over its length to this power: above 0 "
                   "favours longer texts."});
  keys.key("early_stopping", beams.early_stopping,
           {.doc = "End of the search. true: when as many texts are finished as there are beams; false: when no "
                   "running beam is likely to become better; never: when none can."});
  keys.key("samples", samples,
           {.range = between(1, 1 << 20),
            .doc = "Number of continuations of each prompt; with beams the best ones, at most as many as beams."});
  visit_cache(keys, cache);
  keys.key("stop", stop,
           {.doc = "Texts that end a continuation, which then does not contain them, and special tokens by their text, "
                   "in addition to the model's EOS and the stop tokens of the chat template."});
  keys.key<TokenListCodec>("stop_tokens", stop_tokens, {.doc = "Ids of further tokens that end a continuation."});
  keys.key("ids", ids, {.doc = "Write also ids: the new tokens, with the EOS or stop token at the end."});
  keys.key(
      "logprobs", logprobs,
      {.doc = "Write also logprobs: of each of the ids its log-probability under the model (temperature 1, without "
              "filters and penalties), in nats."});
}

void GenerateConfig::resolve_beams(DeckLoader& deck, int64_t sequences) {
  if (!deck.given("generate.temperature")) {
    sampling.temperature = 0;
    deck.set("generate.temperature", Origin::automatic, "generate.beams");
  }
  deck.check(sampling.temperature == 0, {"generate.temperature", "generate.beams"},
             "beams are searched, not sampled: remove the key, or set it to 0");
  deck.check(samples <= beams.beams, {"generate.samples", "generate.beams"},
             fmt::format("a search with {} beams has at most that many continuations", beams.beams));
  deck.check(beams.beams <= sequences, {"generate.beams", "batch.micro"},
             fmt::format("{} beams are more than the texts that a rank continues side by side", beams.beams));
  deck.check(!logprobs, {"generate.logprobs", "generate.beams"}, "cannot be combined with beams");
}

void GenerateConfig::resolve(DeckLoader& deck, int64_t sequence_length, int64_t sequences) {
  const std::string longer = deck.given("batch.sequence_length")
                                 ? "choose a longer sequence or shorter continuations"
                                 : fmt::format("lower generate.max_new_tokens; the length is automatic: {}",
                                               deck.provenance().at("batch.sequence_length").note);
  deck.check(max_new_tokens < sequence_length, {"generate.max_new_tokens", "batch.sequence_length"},
             fmt::format("{} tokens leave no room for a prompt in batch.sequence_length = {}: {}", max_new_tokens,
                         sequence_length, longer));
  if (beams.beams > 1) resolve_beams(deck, sequences);
  check_cache(deck, cache, "generate");
  deck.check(std::ranges::none_of(stop, &std::string::empty), {"generate.stop"}, "must not have an empty text");
}

}  // namespace llmtrain
