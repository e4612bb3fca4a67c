// llmtool generate: a model continues prompts.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/files/file_handle.hpp"
#include "core/files/json_reader.hpp"
#include "data/files/input_kind.hpp"
#include "data/files/jsonl.hpp"
#include "generate/generator.hpp"
#include "text/text_stream.hpp"
#include "text/tokens_beyond_embedding.hpp"
#include "text/unicode/code_points.hpp"
#include "tool/loaded_model.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace {

constexpr int64_t max_prompt_bytes = int64_t{64} << 20;
constexpr int64_t sequences_at_once = 16;

struct GenerateOptions {
  ModelOptions model;
  std::vector<std::string> prompts;
  std::string prompt_file;
  std::string prompt_ids;
  std::vector<std::string> stop;
  int64_t max_new_tokens = 256;
  bool greedy = false;
  double temperature = 1;
  int64_t top_k = 0;
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  std::string seed = "0";
  bool ids = false;
  bool no_special_tokens = false;
  bool ignore_eos = false;
};

/// A prompt and its location in a file.
struct Prompt {
  std::string text;
  std::string place;
};

std::vector<int32_t> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    ids.push_back(static_cast<int32_t>(parse_count_option("--prompt-ids", part, between(0, max_id))));
    begin = end + 1;
  }
  return ids;
}

/// A line is a prompt; a line of rows (.jsonl, .ndjson) is a string, or an object with "prompt".
std::vector<Prompt> read_prompts(const std::string& path) {
  const std::string text = FileHandle::open_to_read(path).read_text(max_prompt_bytes);
  const bool rows = names_rows(path);
  std::vector<Prompt> prompts;
  int64_t number = 1;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.ends_with('\r')) line.pop_back();
    const std::string place = path + ":" + std::to_string(number);
    if (!rows) {
      prompts.push_back({std::move(line), place});
      continue;
    }
    if (line.empty()) continue;
    nlohmann::json row = parse_json(line, place, {max_prompt_bytes});
    if (row.is_object() && row.contains("prompt")) row = row["prompt"];
    if (!row.is_string()) {
      throw UserError(ExitCode::bad_content,
                      place + ": a line must be a string, or an object with a string \"prompt\"");
    }
    prompts.push_back({row.get<std::string>(), place});
  }
  if (prompts.empty()) throw UserError(ExitCode::bad_content, path + ": it has no prompt");
  return prompts;
}

std::vector<Prompt> find_prompts(const GenerateOptions& options) {
  if (!options.prompt_file.empty()) return read_prompts(options.prompt_file);
  std::vector<Prompt> prompts;
  for (const std::string& text : options.prompts) prompts.push_back({text, "--prompt"});
  return prompts;
}

GenerationRequest make_request(const GenerateOptions& options, const LoadedModel& loaded) {
  GenerationRequest request;
  const int given = static_cast<int>(!options.prompts.empty()) + static_cast<int>(!options.prompt_file.empty()) +
                    static_cast<int>(!options.prompt_ids.empty());
  if (given != 1) refuse_command_line("give one of --prompt, --prompt-file and --prompt-ids");
  if (!options.prompt_ids.empty()) {
    request.prompts = {parse_ids(options.prompt_ids)};
    require_rows(request.prompts.front(), loaded.tokenizer(), loaded.vocabulary(), "--prompt-ids");
  } else {
    const Tokenizer& tokenizer = loaded.required_tokenizer();
    for (const Prompt& prompt : find_prompts(options)) {
      std::vector<int32_t>& ids = request.prompts.emplace_back();
      tokenizer.encode(prompt.text, ids);
      if (!options.no_special_tokens) tokenizer.add_special_tokens(ids, nullptr);
      if (ids.empty() && tokenizer.bos_id() >= 0) ids.push_back(tokenizer.bos_id());
      if (ids.empty())
        throw UserError(ExitCode::bad_content, "an empty prompt needs a BOS token, which the tokenizer does not have");
      require_rows(ids, &tokenizer, loaded.vocabulary(), prompt.place);
    }
  }
  for (const double number : {options.temperature, options.top_p, options.min_p, options.repetition_penalty}) {
    if (!std::isfinite(number))
      refuse_command_line("--temperature and the other sampling options must be finite numbers");
  }
  for (const std::string& stop : options.stop) {
    if (stop.empty()) refuse_command_line("--stop must not be empty");
  }
  request.sampling = {options.greedy ? 0 : options.temperature, options.top_k, options.top_p, options.min_p,
                      options.repetition_penalty};
  request.max_new_tokens = options.max_new_tokens;
  request.vocabulary = loaded.vocabulary();
  request.seed = static_cast<uint64_t>(parse_count_option("--seed", options.seed, at_least(0)));
  if (!options.ignore_eos) {
    for (const int64_t id : loaded.ids().eos) request.eos.push_back(static_cast<int32_t>(id));
    if (request.eos.empty() && loaded.tokenizer() != nullptr && loaded.tokenizer()->eos_id() >= 0) {
      request.eos.push_back(loaded.tokenizer()->eos_id());
    }
  }
  return request;
}

/// Text of a continuation: printed once it is final, ended by stop strings.
class GrowingText {
 public:
  GrowingText(const Tokenizer& tokenizer, std::vector<int32_t> prompt, const std::vector<std::string>& stop)
      : stream_(tokenizer, std::move(prompt)), stop_(stop) {
    for (const std::string& one : stop_) longest_stop_ = std::max(longest_stop_, one.size());
  }

  /// Returns false if a stop string has occurred; the text ends before the first one.
  bool add(int32_t token) {
    const size_t searched = held_back(stream_.certain());
    stream_.add(token);
    for (const std::string& stop : stop_) end_ = std::min(end_, stream_.text().find(stop, searched));
    return end_ == std::string::npos;
  }
  std::string_view text() const { return std::string_view(stream_.text()).substr(0, end_); }
  /// Returns the number of bytes that no later token changes and in which no stop string can begin.
  size_t certain() const { return end_ == std::string::npos ? held_back(stream_.certain()) : text().size(); }

 private:
  size_t held_back(size_t certain) const {
    size_t end = certain - std::min(certain, longest_stop_);
    for (int i = 0; i < 3 && end > 0 && is_utf8_continuation(stream_.text()[end]); ++i) --end;
    return end;
  }

  TextStream stream_;
  const std::vector<std::string>& stop_;
  size_t longest_stop_ = 0;
  size_t end_ = std::string::npos;  // begin of the stop string
};

std::string_view name_of(GenerationEnd end) {
  switch (end) {
    case GenerationEnd::eos:
      return "eos";
    case GenerationEnd::length:
      return "length";
    case GenerationEnd::context:
      return "context";
    case GenerationEnd::stopped:
      return "stop";
  }
  return "";
}

void print_ids(const std::vector<Continuation>& all) {
  for (const Continuation& one : all) std::cout << fmt::format("{}\n", fmt::join(one.tokens, " "));
}

void print_rows(const std::vector<Continuation>& all, const std::vector<GrowingText>& texts) {
  for (size_t p = 0; p < all.size(); ++p) {
    nlohmann::ordered_json row = nlohmann::ordered_json::object();
    row["text"] = std::string(texts[p].text());
    row["ids"] = all[p].tokens;
    row["end"] = name_of(all[p].end);
    std::cout << row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  }
}

void generate(const GenerateOptions& options) {
  LoadedModel loaded(options.model);
  loaded.require_logits();
  GenerationRequest request = make_request(options, loaded);
  size_t longest = 0;
  for (const auto& prompt : request.prompts) longest = std::max(longest, prompt.size());
  // Cached keys keep their angles, so dynamic rope cannot extend the context here.
  const bool dynamic = loaded.config().rope_scaling.kind == RopeScaling::Kind::dynamic;
  const int64_t most = dynamic ? loaded.config().max_seq_len : loaded.config().longest_sequence();
  if (static_cast<int64_t>(longest) > most) {
    throw UserError(ExitCode::bad_content, fmt::format("a prompt has {} tokens, more than the model's context of {}; "
                                                       "shorten it",
                                                       longest, most));
  }
  // The model does not read the last new token.
  const int64_t context = std::min(most + 1, static_cast<int64_t>(longest) + options.max_new_tokens);
  const auto sequences = std::min<int64_t>(sequences_at_once, static_cast<int64_t>(request.prompts.size()));
  Generator generator(loaded.model(), {loaded.config().vocab_size, sequences, context});
  const auto plan = [&](Arena& arena) {
    loaded.model().plan(arena, {loaded.compute(), generator.rows(), false});
    generator.plan(arena, loaded.compute());
  };
  if (options.model.estimate) return loaded.print_estimate(plan);
  loaded.start(plan);

  const bool as_text = !options.ids && loaded.tokenizer() != nullptr;
  if (!as_text && !options.stop.empty()) loaded.required_tokenizer();
  std::vector<GrowingText> texts;
  size_t shown = 0;
  const bool streams = as_text && request.prompts.size() == 1;
  if (loaded.tokenizer() != nullptr) {
    for (const auto& prompt : request.prompts) texts.emplace_back(*loaded.tokenizer(), prompt, options.stop);
    if (as_text || !options.stop.empty()) {
      request.on_token = [&](size_t p, int32_t token) {
        const bool goes_on = texts[p].add(token);
        if (streams && texts[p].certain() > shown) {
          std::cout << texts[p].text().substr(shown, texts[p].certain() - shown) << std::flush;
          shown = texts[p].certain();
        }
        return goes_on;
      };
    }
  }
  const std::vector<Continuation> all = generator.run(loaded.params(), loaded.arena(), loaded.stream(), request);
  if (streams) {
    std::cout << texts[0].text().substr(std::min(shown, texts[0].text().size())) << '\n';
  } else if (as_text) {
    print_rows(all, texts);
  } else {
    print_ids(all);
  }
  std::cout.flush();
  const auto cut = std::ranges::count(all, GenerationEnd::context, &Continuation::end);
  if (cut > 0) {
    std::cerr << fmt::format("llmtool: {} of {} texts ended at the limit of the model's context of {} tokens\n", cut,
                             all.size(), most);
  }
}

}  // namespace

Subcommand add_generate(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "generate",
      "continue prompts; print the new text of a single prompt as it grows, a JSON line per prompt otherwise");
  const auto o = std::make_shared<GenerateOptions>();
  o->model.add_to(*app);
  app->add_option("--prompt", o->prompts, "text to continue; repeatable");
  app->add_option("--prompt-file", o->prompt_file,
                  "file with a prompt per line; in .jsonl a string or {\"prompt\": ...}");
  app->add_option("--prompt-ids", o->prompt_ids, "token ids instead of text: 1,2,3");
  app->add_option("--max-new-tokens", o->max_new_tokens, "maximum number of new tokens")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  app->add_flag("--greedy", o->greedy, "always take the most probable token");
  app->add_option("--temperature", o->temperature, "divisor of the logits; 0 is greedy")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app->add_option("--top-k", o->top_k, "keep the k most probable tokens; 0 = all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  app->add_option("--top-p", o->top_p, "keep the most probable tokens that reach p together; 1 = all")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app->add_option("--min-p", o->min_p, "keep tokens at least p times as probable as the most probable one")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app->add_option("--repetition-penalty", o->repetition_penalty, "make tokens that have occurred less probable")
      ->check(CLI::Range(1e-3, 1e3))
      ->capture_default_str();
  app->add_option("--stop", o->stop, "text that ends the continuation; repeatable");
  app->add_option("--seed", o->seed, "seed of the sampling")->capture_default_str();
  app->add_flag("--ids", o->ids, "print token ids, a line per prompt");
  app->add_flag("--no-special-tokens", o->no_special_tokens, "do not add BOS and similar tokens to a prompt");
  app->add_flag("--ignore-eos", o->ignore_eos, "continue after an end of text");
  return {app, [o] { generate(*o); }};
}

}  // namespace llmtrain
