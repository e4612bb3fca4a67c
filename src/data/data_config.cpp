#include "data/data_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/deck/deck.hpp"
#include "core/files/json_reader.hpp"
#include "core/registry.hpp"
#include "text/bpe_training/bpe_train.hpp"
#include "text/files/tokenizer_files.hpp"

namespace llmtrain {
namespace {

/// none, blank_line, or the text itself.
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
  keys.section("data", "Where text or tokens come from, and how documents become samples.");
  keys.key(
      "train", train,
      {.doc = "Files or globs: text, rows of JSON (.jsonl, .ndjson, or known by their content: text, or input_ids and "
              "optional labels and attention_mask), both also .gz and .zst; .h5 token files; or builtin:stories, the "
              "example corpus. With a weight behind each (web.h5:0.7, code/*.h5:0.3) they "
              "are sources that give these shares of the samples.",
       .required = true});
  keys.key("validation", validation,
           {.doc = "The same, to evaluate on; none: validation_fraction of the training tokens."});
  keys.key("validation_fraction", validation_fraction,
           {.range = from_below(0, 1),
            .doc = "Part of the training tokens, the last ones, kept for validation when no file is named; 0 = none."});
  keys.key<TokenizerCodec>("tokenizer", tokenizer,
                           {.doc = "char: every character of the training and validation text is a token; bytes: every "
                                   "byte of its UTF-8; bpe: byte pair encoding, learnt from the training text as "
                                   "[tokenizer] says; or a tokenizer.json, SentencePiece model, ranked file of "
                                   "tiktoken's, vocab.json, or a folder with one of them."});
  keys.key("vocab_size", vocab_size,
           {.unit = "tokens",
            .range = between(257, static_cast<double>(max_bpe_tokens)),
            .doc = "What tokenizer = bpe learns, the 256 bytes and special tokens included; fewer where the text has "
                   "no more."});
  keys.key("eos_token", eos_token,
           {.doc = "The token that ends a document, where the files of the tokenizer name none or another is wanted."});
  keys.key(
      "packing", packing,
      {.doc = "wrap: the stream of documents is cut into samples of sequence_length. none: a sample is one document. "
              "greedy, first_fit, best_fit: whole documents share a sample without seeing each other. greedy fills one "
              "sample after the other; first_fit puts each document, in their order, into the oldest sample with room; "
              "best_fit takes the longest first (equal ones in their order), each into the fullest sample with room."});
  keys.key<SeparatorCodec>("document_separator", document_separator,
                           {.doc = "What stands between the documents of a text file: none (a file is one document), "
                                   "blank_line, or a text."});
  keys.key("text_column", text_column,
           {.doc = "Key of the text in rows without input_ids; every row is a document, empty ones are skipped."});
  keys.key("row_limit", row_limit,
           {.unit = "bytes",
            .range = between(1, static_cast<double>(max_row_limit)),
            .doc = "A longer row of JSON is refused. Each thread may hold a row in memory.",
            .change = Change::nothing});
  keys.key("json_as_text", json_as_text,
           {.doc = "Files that do not end in .jsonl, .ndjson or .jsonlines are text even if they hold JSON."});
  keys.key("add_bos", add_bos, {.doc = "Every document begins with the tokenizer's begin-of-text token."});
  keys.key(
      "overflow", overflow,
      {.doc = "What happens to documents longer than sequence_length with any packing but wrap; they are counted."});
  keys.key("cross_document_attention", cross_document_attention,
           {.doc = "With packing = wrap, attention and positions go on over the end of a document."});
  keys.key("shuffle", shuffle, {.doc = "Samples come in a new random order every epoch, a function of run.seed."});
  keys.key("unpacked_limit", unpacked_limit,
           {.unit = "bytes",
            .range = at_least(1),
            .doc = "A .gz or .zst file that gives more is refused. What it gives lies in data.cache.",
            .change = Change::nothing});
  keys.key("cache", cache,
           {.doc = "Folder of token files and the example corpus, seen by all nodes.",
            .automatic = "<run.output>/cache",
            .change = Change::nothing});
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
             text_column + " holds token ids, not text");
  if (!deck.given("data.cache")) {
    cache = output + "/cache";
    deck.set("data.cache", Origin::automatic, "run.output");
  }
  tokenizer_given = deck.given("data.tokenizer");
  if (!has_tokenizer_files()) {
    deck.unused("data.eos_token", "char, bytes and bpe have their own");
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
  if (!validation.empty()) deck.unused("data.validation_fraction", "no effect beside data.validation");
  if (packing == Packing::wrap) {
    deck.unused("data.overflow", "no effect with packing = wrap");
  } else {
    deck.unused("data.cross_document_attention", fmt::format("no effect with packing = {}", name_of(packing)));
    cross_document_attention = false;
  }
}

}  // namespace llmtrain
