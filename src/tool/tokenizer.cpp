// llmtool tokenizer: converts text to tokens and back with any tokenizer that training can use.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <iostream>
#include <iterator>
#include <memory>
#include <vector>

#include "core/error.hpp"
#include "core/files/content_hash.hpp"
#include "core/files/file_handle.hpp"
#include "core/files/json_reader.hpp"
#include "core/utf8.hpp"
#include "data/tokenize/open_tokenizer.hpp"
#include "text/text_stream.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace {

struct TokenizerOptions {
  std::string tokenizer;
  std::string eos_token;
  std::string input = "-";
  bool ids = false;
  bool special_tokens = false;
};

std::unique_ptr<Tokenizer> open_and_warn(const TokenizerOptions& options) {
  std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(options.tokenizer, {options.eos_token});
  for (const std::string& warning : tokenizer->warnings()) {
    std::cerr << without_controls(fmt::format("llmtool: warning: {}\n", warning));
  }
  return tokenizer;
}

/// Reads all of a file, or of the standard input.
std::string read_input(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  return FileHandle::open_to_read(path).read_text(INT64_MAX);
}

/// Calls use(part) with successive blocks of a file, or of the standard input.
template <class Use>
void read_blocks(const std::string& path, const Use& use) {
  std::string block(size_t{1} << 18, '\0');
  if (path == "-") {
    while (std::cin.read(block.data(), static_cast<std::streamsize>(block.size())) || std::cin.gcount() > 0) {
      use(std::string_view(block).substr(0, static_cast<size_t>(std::cin.gcount())));
    }
    return;
  }
  const FileHandle file = FileHandle::open_to_read(path);
  int64_t at = 0;
  while (const int64_t count = file.read_some(at, static_cast<int64_t>(block.size()), block.data())) {
    use(std::string_view(block).substr(0, static_cast<size_t>(count)));
    at += count;
  }
}

/// Prints ids in one line as they arrive.
class IdPrinter {
 public:
  void print(std::vector<int32_t>& ids) {
    fmt::memory_buffer line;
    for (const int32_t id : ids) {
      fmt::format_to(std::back_inserter(line), "{}{}", first_ ? "" : " ", id);
      first_ = false;
    }
    std::cout.write(line.data(), static_cast<std::streamsize>(line.size()));
    ids.clear();
  }

 private:
  bool first_ = true;
};

/// Tells once of bytes that are not UTF-8. They are encoded as U+FFFD or byte by byte, as the tokenizer does.
class Utf8Notice {
 public:
  explicit Utf8Notice(std::string source) : source_(source == "-" ? "standard input" : std::move(source)) {}

  void look_at(std::string_view part, bool last = false) {
    constexpr size_t longest = 4;  // bytes of a character
    if (told_) return;
    rest_.append(part);
    const size_t at = std::min(find_invalid_utf8(rest_), rest_.size());
    if (at < rest_.size() && (last || rest_.size() - at >= longest)) {
      std::cerr << without_controls(fmt::format("llmtool: warning: {}: byte {}: 0x{:02x} is not part of UTF-8 text\n",
                                                source_, offset_ + at, static_cast<uint8_t>(rest_[at])));
      told_ = true;
    }
    offset_ += at;
    rest_.erase(0, at);
  }

 private:
  std::string source_, rest_;
  size_t offset_ = 0;  // of the rest, which may be the begin of a character
  bool told_ = false;
};

/// In bounded memory where the tokenizer can.
void encode_ids(const Tokenizer& tokenizer, const TokenizerOptions& options) {
  std::vector<int32_t> ids, behind;
  if (options.special_tokens) {
    constexpr int32_t text = -1;
    ids.push_back(text);
    tokenizer.add_special_tokens(ids, nullptr);
    const auto place = std::ranges::find(ids, text);
    behind.assign(place + 1, ids.end());
    ids.erase(place, ids.end());
  }
  IdPrinter printer;
  EncodeStream stream(tokenizer);
  Utf8Notice notice(options.input);
  read_blocks(options.input, [&](std::string_view block) {
    notice.look_at(block);
    stream.add(block, ids);
    printer.print(ids);
  });
  notice.look_at("", true);
  stream.finish(ids);
  ids.insert(ids.end(), behind.begin(), behind.end());
  printer.print(ids);
  std::cout << '\n';
}

void encode(const TokenizerOptions& options) {
  const auto tokenizer = open_and_warn(options);
  if (options.ids) {
    encode_ids(*tokenizer, options);
    return;
  }
  const std::string text = read_input(options.input);
  Utf8Notice(options.input).look_at(text, true);
  std::vector<int32_t> ids;
  std::vector<TextRange> ranges;
  tokenizer->encode_with_ranges(text, ids, ranges);
  if (options.special_tokens) tokenizer->add_special_tokens(ids, &ranges);
  for (size_t i = 0; i < ids.size(); ++i) {
    std::cout << fmt::format("{:>8}  {:>8}-{:<8}  {}\n", ids[i], ranges[i].begin, ranges[i].end,
                             printable(tokenizer->token(ids[i])));
  }
}

std::vector<int32_t> parse_ids(std::string_view text, const std::string& source, int64_t limit) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < text.size();) {
    if (std::string_view(" \t\r\n,[]").find(text[i]) != std::string_view::npos) {
      ++i;
      continue;
    }
    int32_t id = -1;
    const auto [stop, error] = std::from_chars(text.data() + i, text.data() + text.size(), id);
    if (error != std::errc() || id < 0 || id >= limit) {
      throw UserError(ExitCode::bad_content,
                      fmt::format("{}: byte {}: must be an id from 0 to {}", source, i + 1, limit - 1));
    }
    ids.push_back(id);
    i = static_cast<size_t>(stop - text.data());
  }
  return ids;
}

void decode(const TokenizerOptions& options) {
  const auto tokenizer = open_and_warn(options);
  const std::vector<int32_t> ids = parse_ids(read_input(options.input), options.input, tokenizer->vocabulary_size());
  std::cout << (options.special_tokens ? tokenizer->decode_with_special(ids) : tokenizer->decode(ids));
}

void info(const TokenizerOptions& options) {
  const auto tokenizer = open_and_warn(options);
  const auto line = [](std::string_view name, const std::string& value) {
    std::cout << without_controls(fmt::format("{:<18} {}\n", name, value));
  };
  const auto named = [&](int32_t id) {
    return id < 0 ? std::string("none") : fmt::format("{} {}", id, printable(tokenizer->token(id)));
  };
  line("tokenizer", options.tokenizer);
  line("kind", tokenizer->kind());
  line("vocabulary size", std::to_string(tokenizer->vocabulary_size()));
  line("eos", named(tokenizer->eos_id()));
  line("bos", named(tokenizer->bos_id()));
  line("pad", named(tokenizer->pad_id()));
  std::vector<int32_t> around;
  tokenizer->add_special_tokens(around, nullptr);
  line("around a text", around.empty() ? "nothing" : fmt::format("{}", fmt::join(around, " ")));
  line("long texts", tokenizer->is_segmentable() ? "in segments, by all threads" : "as a whole, by one thread each");
  for (const TokenizerFile& file : tokenizer->files()) {
    line("file", fmt::format("{}, {} bytes", file.name, file.bytes.size()));
  }
  line("hash", short_hash(tokenizer->serialized()));
}

}  // namespace

Subcommand add_tokenizer(CLI::App& program) {
  CLI::App* app = program.add_subcommand("tokenizer", "encode and decode text, describe or train a tokenizer");
  app->require_subcommand(1);
  const auto options = std::make_shared<TokenizerOptions>();
  const auto run = std::make_shared<void (*)(const TokenizerOptions&)>(nullptr);
  const auto add = [&](const char* name, const char* help, void (*work)(const TokenizerOptions&)) {
    CLI::App* command = app->add_subcommand(name, help);
    command
        ->add_option("--tokenizer", options->tokenizer,
                     "tokenizer.json, SentencePiece model, tiktoken file of ranks, vocab.json, a folder with one of "
                     "them, a token file (.h5), or bytes")
        ->required();
    command->add_option("--eos-token", options->eos_token, "token that ends a text, if no file names it");
    command->callback([run, work] { *run = work; });
    return command;
  };
  CLI::App* encode_app = add("encode", "print the tokens of a text", encode);
  encode_app->add_option("--input", options->input, "file with one text; - is the standard input")
      ->capture_default_str();
  encode_app->add_flag("--ids", options->ids, "print only ids, in one line");
  encode_app->add_flag("--special-tokens", options->special_tokens, "include the special tokens around a text");
  CLI::App* decode_app = add("decode", "print the text of token ids", decode);
  decode_app
      ->add_option("--input", options->input, "file of ids, separated by blanks or commas; - is the standard input")
      ->capture_default_str();
  decode_app->add_flag("--special-tokens", options->special_tokens, "print the names of special tokens");
  add("info", "describe a tokenizer", info);
  const Subcommand train = add_tokenizer_train(*app);
  return {app, [options, run, train] { train.app->parsed() ? train.run() : (*run)(*options); }};
}

}  // namespace llmtrain
