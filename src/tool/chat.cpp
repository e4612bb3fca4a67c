// llmtool chat render: shows rows of instruction data as text and tokens, with what is trained.

#include <fmt/format.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/terminal.hpp"
#include "data/tokenize/open_tokenizer.hpp"
#include "text/chat/chat_encoder.hpp"
#include "tool/conversation_options.hpp"
#include "tool/row_scorer.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace chat_tool {
namespace {

using nlohmann::ordered_json;

struct Options {
  std::string model;
  std::string input;
  std::string eos_token;
  std::vector<std::string> added;  ///< as data.add_tokens
  ConversationOptions conversations;
  bool ids = false;
};

/// Prints text with its trained parts in colour on a terminal, otherwise between brackets.
class MarkedPrinter {
 public:
  explicit MarkedPrinter(bool colours) : colours_(colours) {}
  void add(std::string_view text, bool trained) {
    if (text.empty()) return;
    if (trained != trained_) out_ += trained ? (colours_ ? "\033[1;32m" : "\xE2\x9F\xA6") : end();
    trained_ = trained;
    out_ += without_controls(text);
  }
  std::string finish() { return out_ + (trained_ ? end() : ""); }

 private:
  const char* end() const { return colours_ ? "\033[0m" : "\xE2\x9F\xA7"; }
  bool colours_, trained_ = false;
  std::string out_;
};

std::string marked(const EncodedRow& row, const Tokenizer& tokenizer, bool colours) {
  MarkedPrinter printer(colours);
  const std::string_view text = row.text.text;
  size_t done = 0;
  for (size_t i = 0; i < row.ids.size(); ++i) {
    const bool trained = row.mask[i] != 0;
    const TextRange& range = row.ranges[i];
    const bool is_added = range.begin == range.end && tokenizer.is_special(row.ids[i]);
    if (is_added) {
      if (i > 0) printer.add(text.substr(done), trained);
      if (i > 0) done = text.size();
      printer.add(tokenizer.token(row.ids[i]), trained);
    } else if (range.end > done) {
      printer.add(text.substr(done, range.end - done), trained);
      done = range.end;
    }
  }
  printer.add(text.substr(done), false);
  return printer.finish();
}

void print_ids(const EncodedRow& row, std::string_view answer) {
  ordered_json out;
  if (!answer.empty()) out["answer"] = answer;
  out["input_ids"] = row.ids;
  out["mask"] = row.mask;
  std::cout << out.dump() << '\n';
}

std::string_view text_of(LeftOut why) {
  constexpr std::string_view texts[] = {"", ", left out of training: an answer is empty",
                                        ", left out of training: both answers are equal",
                                        ", left out of training: no token is trained on"};
  return texts[static_cast<size_t>(why)];
}

void print_marked(const EncodedLine& line, size_t document, std::string_view answer, const Tokenizer& tokenizer,
                  bool colours) {
  const EncodedRow& row = line.documents[document];
  std::cout << fmt::format("--- line {}{}: {} tokens, {} trained{}{}{}\n", line.number,
                           answer.empty() ? "" : fmt::format(", {}", answer), row.ids.size(), row.trained,
                           row.merged_border ? ", a token spans the border of prompt and completion" : "",
                           row.stops() || row.trained == 0 ? "" : ", no stop token at the end", text_of(line.left_out))
            << marked(row, tokenizer, colours) << '\n';
}

void render(const Options& options) {
  TextFormat rules;
  options.conversations.put_into(rules);
  const ChatConfig config = options.conversations.chat();
  const std::unique_ptr<Tokenizer> tokenizer =
      open_tokenizer(options.model, {options.eos_token, true, false, options.added});
  print_warnings(tokenizer->warnings());
  const ChatEncoder encoder(*tokenizer, config, options.model, training_time);
  const bool colours = shows_colour(STDOUT_FILENO);
  int64_t left_out = 0;
  const auto print = [&](const EncodedLine& line) {
    left_out += line.left_out != LeftOut::no ? 1 : 0;
    for (size_t d = 0; d < line.documents.size(); ++d) {
      const std::string_view answer = line.documents.size() < 2 ? "" : d == 0 ? "chosen" : "rejected";
      if (!options.ids) {
        print_marked(line, d, answer, *tokenizer, colours);
      } else if (line.left_out == LeftOut::no) {
        print_ids(line.documents[d], answer);
      }
    }
  };
  print_warnings(for_each_encoded_row(options.input, rules, *tokenizer, encoder, print));
  if (options.ids && left_out > 0) {
    print_warnings({fmt::format("{} rows are left out of training; without --ids they are shown", left_out)});
  }
}

}  // namespace
}  // namespace chat_tool

Subcommand add_chat(CLI::App& program) {
  auto options = std::make_shared<chat_tool::Options>();
  CLI::App* app = program.add_subcommand("chat", "shows conversations as text and tokens");
  app->require_subcommand(1);
  CLI::App* render = app->add_subcommand(
      "render", "shows each row of a JSONL file as the model reads it, with the trained parts marked");
  render->add_option("--model", options->model, "model or tokenizer folder")->required();
  render
      ->add_option("--input", options->input,
                   "JSONL file (or table) of conversations, prompts and completions, pairs, prompts or text, in one of "
                   "the formats "
                   "of data.format, or of rows with input_ids; - is the standard input")
      ->required();
  options->conversations.add_to(*render);
  render->add_option("--add-tokens", options->added, "further special tokens, as in data.add_tokens")->delimiter(',');
  render->add_option("--eos-token", options->eos_token, "token that ends a document, as in data.eos_token");
  render->add_flag("--ids", options->ids, "print a JSON line a row (two for a pair) instead: input_ids and mask");
  return {app, [options] { chat_tool::render(*options); }};
}

}  // namespace llmtrain
