#include "data/data_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/deck/deck.hpp"
#include "core/deck/suggestion.hpp"
#include "core/files/json_reader.hpp"
#include "text/bpe_training/bpe_train.hpp"
#include "text/files/tokenizer_files.hpp"

namespace llmtrain {
namespace {

/// Accepts none, blank_line, or the text itself.
struct SeparatorCodec {
  static std::string parse(std::string_view text, const KeyInfo&) {
    if (text == "none") return "";
    return text == "blank_line" ? "\n\n" : parse_text(text);
  }
  static std::string print(const std::string& separator) {
    if (separator.empty()) return "none";
    return separator == "\n\n" ? "blank_line" : print_text(separator);
  }
  static std::string type() { return "none / blank_line / text"; }
};

struct TokenizerCodec {
  static constexpr std::array<std::string_view, 3> names = name_list("char", "bytes", "bpe");
  static std::string parse(std::string_view text, const KeyInfo&) {
    if (text.empty()) parse_name(text, names);
    return std::string(text);
  }
  static std::string print(const std::string& name) { return name; }
  static std::string type() { return joined(names, " / ") + " / file or folder"; }
};

}  // namespace

void DataConfig::visit(DeckKeys& keys) {
  keys.section("data", "Name the text or tokens to train on, and say how documents become samples.", Change::breaks,
               model_tasks);
  keys.key("train", train,
           {.doc = "Files or globs: text; rows of JSON (.jsonl, .ndjson, or detected by content) with a text, or with "
                   "input_ids "
                   "and optional labels and attention_mask; both also as .gz and .zst; .h5 token files; or "
                   "builtin:stories, the "
                   "example corpus. Entries with weights (web.h5:0.7, code/*.h5:0.3) are sources "
                   "that are sampled in this ratio.",
            .required = true,
            .tasks = all_tasks});
  keys.key("validation", validation,
           {.doc = "Validation data, in the same forms; without any, validation_fraction applies."});
  keys.key(
      "validation_fraction", validation_fraction,
      {.range = from_below(0, 1),
       .doc = "Fraction of the training tokens, at their end, used for validation if no file is named; 0 = none."});
  keys.key<TokenizerCodec>("tokenizer", tokenizer,
                           {.doc = "char: every character of the training and validation text is a token; bytes: every "
                                   "byte of its UTF-8; bpe: byte pair encoding, trained on the training text as "
                                   "[tokenizer] specifies; or a tokenizer.json, SentencePiece model, tiktoken file "
                                   "of ranks, vocab.json, or a folder with one of them.",
                            .tasks = all_tasks});
  keys.key("vocab_size", vocab_size,
           {.unit = "tokens",
            .range = between(257, static_cast<double>(max_bpe_tokens)),
            .doc = "Vocabulary size of tokenizer = bpe, with the 256 bytes and special tokens; smaller if the text has "
                   "too few pairs.",
            .tasks = training_tasks | TaskSet{Task::tokenizer}});
  keys.key("eos_token", eos_token,
           {.doc = "Token that ends a document; default: the one in the files of the tokenizer."});
  keys.key(
      "packing", packing,
      {.doc = "wrap: the stream of documents is cut into samples of sequence_length. none: a sample is one document. "
              "greedy, first_fit, best_fit: whole documents share a sample without seeing each other. greedy fills one "
              "sample after the other; first_fit puts each document, in order, into the oldest sample with room; "
              "best_fit takes the longest first (equal ones in their order), each into the fullest sample with room."});
  keys.key<SeparatorCodec>("document_separator", document_separator,
                           {.doc = "Separator between the documents of a text file: none (a file is one document), "
                                   "blank_line, or a text.",
                            .tasks = all_tasks});
  keys.key("text_column", text_column,
           {.doc = "Key of the text in rows without input_ids; every row is a document, empty ones are skipped.",
            .tasks = all_tasks});
  keys.key("row_limit", row_limit,
           {.unit = "bytes",
            .range = between(1, static_cast<double>(max_row_limit)),
            .doc = "Longer rows of JSON are refused. Each thread can hold a row in memory.",
            .change = Change::nothing,
            .tasks = all_tasks});
  keys.key("json_as_text", json_as_text,
           {.doc = "Treat files that do not end in .jsonl, .ndjson or .jsonlines as text even if they hold JSON.",
            .tasks = all_tasks});
  keys.key("add_bos", add_bos,
           {.doc = "Begin every document with the tokenizer's begin-of-text token.", .tasks = all_tasks});
  keys.key("overflow", overflow,
           {.doc = "Treatment of documents longer than sequence_length with any packing but wrap; they are counted."});
  keys.key("cross_document_attention", cross_document_attention,
           {.doc = "Continue attention and positions over the end of a document (packing = wrap only)."});
  keys.key(
      "shuffle", shuffle,
      {.doc = "Use a new random order of samples in every epoch, a function of run.seed.", .tasks = training_tasks});
  keys.key("unpacked_limit", unpacked_limit,
           {.unit = "bytes",
            .range = at_least(1),
            .doc = "A .gz or .zst file that unpacks to more is refused. The unpacked text is kept in data.cache.",
            .change = Change::nothing,
            .tasks = all_tasks});
  keys.key("cache", cache,
           {.doc = "Folder of token files and the example corpus, visible to all nodes.",
            .automatic = "<run.output>/cache",
            .change = Change::nothing,
            .tasks = all_tasks});
  bpe.visit(keys);
}

TextFormat DataConfig::text_format() const { return {document_separator, text_column, row_limit, json_as_text}; }

bool names_tokenizer_files(std::string_view tokenizer) {
  return std::ranges::find(TokenizerCodec::names, tokenizer) == TokenizerCodec::names.end();
}

bool DataConfig::has_tokenizer_files() const { return !tokenizer_from.empty() || names_tokenizer_files(tokenizer); }

void DataConfig::check_tokenizer_name(DeckLoader& deck) const {
  deck.check(!tokenizer_from.empty() || !names_tokenizer_files(tokenizer) || is_tokenizer_path(tokenizer),
             {"data.tokenizer"},
             fmt::format("{} is not one of {}{}, and there is no file or folder of this name", printable(tokenizer),
                         joined(TokenizerCodec::names), did_you_mean(tokenizer, TokenizerCodec::names)));
}

void DataConfig::resolve(DeckLoader& deck, const std::string& output) {
  deck.check(text_column != "input_ids" && text_column != "labels", {"data.text_column"},
             text_column + " is a column of token ids, not text; name the column with the text");
  if (!deck.given("data.cache")) {
    cache = output + "/cache";
    deck.set("data.cache", Origin::automatic, "run.output");
  }
  tokenizer_given = deck.given("data.tokenizer");
  if (!has_tokenizer_files()) {
    deck.unused("data.eos_token", "char, bytes and bpe define it");
    eos_token.clear();
  }
  if (tokenizer == "bpe") {
    bpe.resolve(deck, vocab_size, add_bos);
  } else {
    for (const char* key : {"data.vocab_size", "tokenizer.split", "tokenizer.unit", "tokenizer.min_frequency",
                            "tokenizer.special_tokens"}) {
      deck.unused(key, "no effect without data.tokenizer = bpe");
    }
  }
  if (!validation.empty()) deck.unused("data.validation_fraction", "no effect if data.validation is set");
  if (packing == Packing::wrap) {
    deck.unused("data.overflow", "no effect with packing = wrap");
  } else {
    deck.unused("data.cross_document_attention", fmt::format("no effect with packing = {}", name_of(packing)));
    cross_document_attention = false;
  }
}

}  // namespace llmtrain
