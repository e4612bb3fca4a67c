#include "data/data_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/deck/deck.hpp"
#include "core/deck/suggestion.hpp"
#include "core/files/json_reader.hpp"
#include "core/utf8.hpp"
#include "data/formats/row_format.hpp"
#include "text/bpe_training/bpe_train.hpp"
#include "text/hf_folder/added_tokens.hpp"
#include "text/load_tokenizer.hpp"

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

/// Accepts auto, or the name of a format of rows.
struct FormatCodec {
  static std::vector<std::string_view> names() {
    std::vector<std::string_view> all = {"auto"};
    for (const RowFormat* format : row_formats()) all.push_back(format->name);
    return all;
  }
  static std::string parse(std::string_view text, const KeyInfo&) {
    return std::string(names()[parse_name(text, names())]);
  }
  static std::string print(const std::string& name) { return name; }
  static std::string type() { return joined(names(), " / "); }
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
               sample_tasks);
  keys.key("train", train,
           {.doc = "Files or globs: text; rows of JSON (.jsonl, .ndjson, or detected by content) with a text, or with "
                   "input_ids and optional labels and attention_mask; both also as .gz and .zst; tables with such "
                   "columns (.parquet, .arrow, .feather, .csv, .tsv); .h5 token files; or "
                   "builtin:stories, the example corpus. Entries with weights (web.h5:0.7, code/*.h5:0.3) are sources "
                   "that are sampled in this ratio.",
            .required = true,
            .tasks = text_tasks});
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
  keys.key("add_tokens", add_tokens,
           {.doc = "Special tokens that the tokenizer gets in addition, for a chat template or padding (<|im_start|>, "
                   "<|im_end|>). Where the model of model.path has no row for them, its embedding (and head) grows; "
                   "new rows begin as the mean of the others. The tokenizer files of checkpoints and exports have the "
                   "tokens.",
            .tasks = training_tasks});
  keys.key<FormatCodec>(
      "format", format,
      {.doc =
           "Format of rows of JSON: alpaca (instruction, input, output, optionally system and history), sharegpt "
           "(conversations of human and gpt), messages (role and content), prompt_completion (two texts or two lists "
           "of messages), preference (chosen, rejected and optionally prompt, texts or lists of messages, and margin; "
           "without a prompt it is what both begin with), unpaired (prompt, completion, label: true or false) or text. "
           "auto: detected from the columns of a file's first row. Conversations need a task that trains on them, and "
           "dpo and reward need preference (dpo.loss = kto: unpaired). ppo and grpo read prompt (prompt, a text or a "
           "list of messages, or messages whose last answer is left out), and its other columns are for [rewards]. "
           "classify reads classification (text, optionally text_pair, or messages; label) or token_classification "
           "(tokens, labels)."});
  keys.key("columns", columns,
           {.doc = "Other names of columns, role:column (prompt:question, response:answer). Roles: prompt, query, "
                   "response, system, history (alpaca); messages, role, content, system, tools (sharegpt, messages); "
                   "prompt, completion (prompt_completion); prompt, chosen, rejected, margin (preference); prompt, "
                   "completion, label (unpaired); prompt, messages (prompt); text.",
            .tasks = instruction_tasks});
  keys.key(
      "packing", packing,
      {.doc = "wrap: the stream of documents is cut into samples of sequence_length, "
              "conversations too, as with packing_strategy = wrapped of TRL. none: a sample is one document. "
              "greedy, first_fit, best_fit: whole documents share a sample without seeing each other. greedy fills one "
              "sample after the other; first_fit puts each document, in order, into the oldest sample with room; "
              "best_fit takes the longest first (equal ones in their order), each into the fullest sample with room. "
              "Pairs need none: those of a forward pass follow each other without padding.",
       .automatic = "wrap; none for tasks that train on conversations"});
  keys.key<SeparatorCodec>("document_separator", document_separator,
                           {.doc = "Separator between the documents of a text file: none (a file is one document), "
                                   "blank_line, or a text.",
                            .tasks = text_tasks});
  keys.key("text_column", text_column,
           {.doc = "Key of the text in rows without input_ids; every row is a document, empty ones are skipped.",
            .tasks = text_tasks});
  keys.key("row_limit", row_limit,
           {.unit = "bytes",
            .range = between(1, static_cast<double>(max_row_limit)),
            .doc = "Longer rows of JSON are refused. Each thread can hold a row in memory.",
            .change = Change::nothing,
            .tasks = all_tasks});
  keys.key("json_as_text", json_as_text,
           {.doc = "Treat files that do not end in .jsonl, .ndjson or .jsonlines as text even if they hold JSON.",
            .tasks = text_tasks});
  keys.key("add_bos", add_bos,
           {.doc = "Begin every document with the tokenizer's begin-of-text token.", .tasks = text_tasks});
  constexpr TaskSet fim_tasks = tasks_with(TaskSamples::texts) | conversation_tasks;
  keys.key("fim_rate", fim_rate,
           {.range = between(0, 1),
            .doc = "Share of the texts that are cut for fill-in-the-middle, at two characters: prefix and suffix come "
                   "first, the middle behind them. Which texts and where follow from their content and number alone. "
                   "0: none.",
            .tasks = fim_tasks});
  keys.key("fim_spm_rate", fim_spm_rate,
           {.range = between(0, 1),
            .doc = "Share of these texts in the order suffix, prefix, middle; the others are prefix, suffix, middle.",
            .tasks = fim_tasks});
  keys.key("fim_tokens", fim_tokens,
           {.doc = "Special tokens for prefix, middle and suffix. auto: those of the tokenizer, by the names that "
                   "StarCoder, CodeLlama, Qwen2.5-Coder, DeepSeek-Coder, CodeGemma and Codestral have.",
            .tasks = fim_tasks});
  keys.key(
      "overflow", overflow,
      {.doc =
           "Treatment of documents longer than sequence_length with any packing but wrap; they are counted. split: "
           "they become several samples (not for conversations); truncate: their start is kept, truncate_left: "
           "their end; drop: they are left out. A conversation that keeps no target is left out, too. A pair is left "
           "out if one of its documents is.",
       .automatic = "split; truncate for tasks that train on conversations"});
  keys.key("cross_document_attention", cross_document_attention,
           {.doc = "Continue attention and positions over the end of a document (packing = wrap only)."});
  keys.key(
      "shuffle", shuffle,
      {.doc = "Use a new random order of samples in every epoch, a function of data.seed.", .tasks = training_tasks});
  keys.key(
      "seed", seed,
      {.range = at_least(0), .doc = "Seed of the order of samples.", .automatic = "run.seed", .tasks = training_tasks});
  keys.key(
      "group_by_length", group_by_length,
      {.doc = "Put samples of about equal length into a step: runs of up to 50 steps of a random order are sorted by "
              "length, the longest sample of an epoch comes first (as in Transformers).",
       .tasks = training_tasks});
  keys.key("max_tokens_per_batch", max_tokens_per_batch,
           {.unit = "tokens",
            .range = between(0, static_cast<double>(int64_t{1} << 31) - 1),
            .doc = "Fill forward passes by tokens, in the order of the step's samples, instead of batch.micro samples "
                   "each. The step still has batch.global samples, and its loss is the same. 0: off."});
  keys.key("min_length", min_length,
           {.unit = "tokens", .range = at_least(0), .doc = "Leave out documents with fewer tokens; they are counted."});
  keys.key("unpacked_limit", unpacked_limit,
           {.unit = "bytes",
            .range = at_least(1),
            .doc = "A .gz or .zst file that unpacks to more is refused, and so is a table with more text. The unpacked "
                   "text is kept in data.cache.",
            .change = Change::nothing,
            .tasks = text_tasks});
  keys.key("cache", cache,
           {.doc = "Folder of token files and the example corpus, visible to all nodes.",
            .automatic = "<run.output>/cache",
            .change = Change::nothing,
            .tasks = text_tasks});
  bpe.visit(keys);
}

bool names_tokenizer_files(std::string_view tokenizer) {
  return std::ranges::find(TokenizerCodec::names, tokenizer) == TokenizerCodec::names.end();
}

bool DataConfig::has_tokenizer_files() const { return names_tokenizer_files(tokenizer); }

void DataConfig::take_tokenizer(DeckLoader& deck, const std::string& path) {
  if (deck.given("data.tokenizer")) return;
  tokenizer = path;
  deck.set("data.tokenizer", Origin::automatic, "model.path");
}

void DataConfig::check_tokenizer_name(DeckLoader& deck) const {
  deck.check(!names_tokenizer_files(tokenizer) || is_tokenizer_path(tokenizer), {"data.tokenizer"},
             fmt::format("{} is not one of {}{}, and there is no file or folder of this name", printable(tokenizer),
                         joined(TokenizerCodec::names), did_you_mean(tokenizer, TokenizerCodec::names)));
}

/// Keys of preference data.
void DataConfig::resolve_preferences(DeckLoader& deck, const TaskData& task) {
  const bool prompts = task.use == DataUse::prompts;
  const bool labels = task.use == DataUse::labels;
  const bool preferences = task.use == DataUse::preferences || task.use == DataUse::pairs;
  const bool packing_given = deck.given("data.packing"), overflow_given = deck.given("data.overflow");
  if (const RowFormat* named = find_row_format(format)) {
    const std::string why = refused_use(task.use, named->group, named->column);
    deck.check(why.empty(), {"data.format"}, fmt::format("with {}, {}", format, why));
  }
  if (!preferences && !prompts && !labels) return;
  for (const auto* files : {&train, &validation}) {
    deck.check(std::ranges::find(*files, builtin_stories) == files->end(),
               {files == &train ? "data.train" : "data.validation"},
               fmt::format("{} is text, and run.task = {} trains on {}", builtin_stories, name_of(task.task),
                           prompts  ? "prompts"
                           : labels ? "texts with labels"
                                    : "preferences"));
  }
  deck.check(!prompts || !overflow_given || overflow != Overflow::truncate, {"data.overflow"},
             "truncate would cut off the end of a prompt, where the answer begins; choose truncate_left, drop or "
             "error");
  deck.check(!overflow_given || overflow != Overflow::split, {"data.overflow"},
             prompts ? "split would make several prompts of one; choose truncate_left, drop or error"
             : labels
                 ? "split would make several texts of one; choose truncate, truncate_left, drop or error"
                 : "split would begin a sample in the middle of an answer; choose truncate, truncate_left, drop or "
                   "error");
  deck.check(!packing_given || packing != Packing::wrap, {"data.packing"},
             prompts  ? "wrap would cut prompts where a sample ends; remove the key"
             : labels ? "wrap would cut texts where a sample ends; remove the key"
                      : "wrap would cut pairs where a sample ends; remove the key");
  if (packing_given && packing != Packing::none) {
    deck.unused("data.packing", prompts  ? "a sample is one prompt"
                                : labels ? "the texts of a forward pass follow each other without padding"
                                         : "the pairs of a forward pass follow each other without padding");
    packing = Packing::none;
  }
}

/// Keys of instruction data.
void DataConfig::resolve_rows(DeckLoader& deck, const TaskData& task) {
  const std::string served = fmt::format("has no use with run.task = {}, which trains on text; it serves {}",
                                         name_of(task.task), instruction_tasks.text());
  if (!task.instructions) {
    deck.check(columns.empty(), {"data.columns"}, served);
    deck.check(!group_by_length, {"data.group_by_length"}, served);
    deck.check(max_tokens_per_batch == 0, {"data.max_tokens_per_batch"}, served);
    deck.check(format == "auto" || format == "text", {"data.format"}, format + " " + served);
    deck.check(overflow != Overflow::truncate_left && overflow != Overflow::drop, {"data.overflow"},
               fmt::format("{} {}", name_of(overflow), served));
    return;
  }
  try {
    const ColumnNames names = parse_columns(columns, format);
    const auto text = std::ranges::find(names, "text", &ColumnNames::value_type::first);
    if (text != names.end()) {
      deck.check(!deck.given("data.text_column") || text_column == text->second, {"data.columns", "data.text_column"},
                 "it names a different text column than data.text_column; give one of them");
      text_column = text->second;
    } else if (text_column != "text") {
      columns.push_back("text:" + text_column);
    }
    deck.check(named_column(columns, difficulty_column).empty(), {"data.columns"},
               "curriculum.difficulty = column:NAME names the column of difficulties");
  } catch (const UserError& error) {
    deck.fail("data.columns", error.what());
  }
  resolve_preferences(deck, task);
  const auto mark = [&](Origin origin, const std::string& why) {
    for (const char* key : {"data.packing", "data.overflow"}) {
      if (!deck.given(key)) deck.set(key, origin, why);
    }
  };
  if (!task.trains()) return mark(Origin::unused, "wrap for text; none and truncate for conversations");
  if (!deck.given("data.packing")) packing = Packing::none;
  if (!deck.given("data.overflow")) {
    overflow = task.use == DataUse::prompts ? Overflow::truncate_left : Overflow::truncate;
  }
  mark(Origin::automatic, fmt::format("run.task = {}", name_of(task.task)));
}

void DataConfig::resolve_added_tokens(DeckLoader& deck, const TaskData& task) {
  if (!task.trains()) add_tokens.clear();
  for (auto token = add_tokens.begin(); token != add_tokens.end(); ++token) {
    deck.check(std::find(add_tokens.begin(), token, *token) == token, {"data.add_tokens"}, *token + " is repeated");
    deck.check(
        !token->empty() && token->size() <= max_added_token_bytes && find_invalid_utf8(*token) == std::string::npos,
        {"data.add_tokens"}, fmt::format("a token must be UTF-8 text of 1 to {} bytes", max_added_token_bytes));
  }
}

void DataConfig::resolve_infilling(DeckLoader& deck) {
  if (fim_rate == 0) {
    for (const char* key : {"data.fim_spm_rate", "data.fim_tokens"}) deck.unused(key, "no effect with fim_rate = 0");
    return;
  }
  const bool automatic = fim_tokens == std::vector<std::string>{"auto"};
  const bool three = fim_tokens.size() == 3 && fim_tokens[0] != fim_tokens[1] && fim_tokens[0] != fim_tokens[2] &&
                     fim_tokens[1] != fim_tokens[2];
  deck.check(automatic || three, {"data.fim_tokens"},
             "must be auto, or three tokens: for prefix, middle and suffix, in this order");
}

void DataConfig::resolve(DeckLoader& deck, const std::string& output, int64_t run_seed, const TaskData& task) {
  if (task.is_tokenizer) {
    if (!deck.given("data.tokenizer")) {
      tokenizer = "bpe";
      deck.set("data.tokenizer", Origin::automatic, "run.task = tokenizer");
    }
    deck.check(tokenizer == "bpe", {"data.tokenizer"}, "run.task = tokenizer only trains bpe");
    validation.clear();
  }
  resolve_rows(deck, task);
  resolve_added_tokens(deck, task);
  resolve_infilling(deck);
  if (!deck.given("data.seed")) {
    seed = run_seed;
    deck.set("data.seed", Origin::automatic, "run.seed");
  }
  deck.check(!group_by_length || shuffle, {"data.group_by_length", "data.shuffle"}, "needs data.shuffle = true");
  deck.check(text_column != "input_ids" && text_column != "labels", {"data.text_column"},
             text_column + " is a column of token ids, not text; name the column with the text");
  if (!deck.given("data.cache")) {
    cache = output + "/cache";
    deck.set("data.cache", Origin::automatic, "run.output");
  }
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
  if (!task.holds_out) {
    const std::string why = fmt::format(
        "has no effect with run.task = {}, whose rewards are means over new prompts: remove it", name_of(task.task));
    deck.check(validation.empty(), {"data.validation"}, why);
    if (!deck.given("data.validation_fraction")) {
      validation_fraction = 0;
      deck.set("data.validation_fraction", Origin::automatic, fmt::format("for run.task = {}", name_of(task.task)));
    }
    deck.check(validation_fraction == 0, {"data.validation_fraction"}, why);
  }
  if (!validation.empty()) deck.unused("data.validation_fraction", "no effect if data.validation is set");
  // Conversations are not wrapped.
  const bool by_kind = task.instructions && !task.trains() && !deck.given("data.packing");
  if (packing == Packing::wrap) {
    if (!by_kind) deck.unused("data.overflow", "no effect with packing = wrap");
  } else {
    deck.unused("data.cross_document_attention", fmt::format("no effect with packing = {}", name_of(packing)));
    cross_document_attention = false;
  }
}

}  // namespace llmtrain
