// llmtool generate: a model continues prompts.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/files/file_handle.hpp"
#include "core/files/json_reader.hpp"
#include "data/files/input_kind.hpp"
#include "data/files/jsonl.hpp"
#include "data/files/unpack.hpp"
#include "generate/generator.hpp"
#include "generate/stop_texts.hpp"
#include "text/tokenizer.hpp"
#include "text/tokens_beyond_embedding.hpp"
#include "tool/loaded_model.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace {

constexpr int64_t max_prompt_bytes = int64_t{64} << 20;
constexpr int64_t sequences_at_once = 16;
constexpr int64_t prompt_tokens_of_pass = 512;

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
  int64_t no_repeat_ngram = 0;
  BeamOptions beams;
  CachePolicy cache;
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

/// A line is a prompt; a line of rows (.jsonl, .ndjson, or a row of a table) is a string, or an object with "prompt".
std::vector<Prompt> read_prompts(const std::string& path) {
  const std::string text = open_lines(path).read_text(max_prompt_bytes);
  const bool rows = names_rows(path) || table_of(path) != TableKind::none;
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
      if (!options.no_special_tokens) {
        put_tokens_around(tokenizer, {.ends = false}, prompt.text.size(), 0, ids, nullptr);
      }
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
    if (options.beams.beams > 1) refuse_command_line("--stop cannot be combined with --beams");
  }
  request.sampling = {options.greedy ? 0 : options.temperature,
                      options.top_k,
                      options.top_p,
                      options.min_p,
                      options.repetition_penalty,
                      options.no_repeat_ngram};
  request.beams = options.beams;
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

void print_ids(const std::vector<Continuation>& all) {
  for (const Continuation& one : all) std::cout << fmt::format("{}\n", fmt::join(one.tokens, " "));
}

void print_rows(const std::vector<Continuation>& all, const std::vector<StopTextStream>& texts) {
  for (size_t p = 0; p < all.size(); ++p) {
    nlohmann::ordered_json row = nlohmann::ordered_json::object();
    row["text"] = std::string(texts[p].text());
    row["ids"] = all[p].tokens;
    row["end"] = name_of(all[p].end);
    std::cout << row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  }
}

/// Tokens of the longest prompt. Throws UserError if the model does not read as many.
int64_t longest_prompt(const GenerationRequest& request, int64_t most) {
  size_t longest = 0;
  for (const auto& prompt : request.prompts) longest = std::max(longest, prompt.size());
  if (static_cast<int64_t>(longest) <= most) return static_cast<int64_t>(longest);
  throw UserError(ExitCode::bad_content, fmt::format("a prompt has {} tokens, more than the model's context of {}; "
                                                     "shorten it",
                                                     longest, most));
}

/// Tokens that a text may have.
int64_t longest_text(const ModelConfig& model) {
  // Cached keys keep their angles, so dynamic rope cannot extend the context here.
  const bool dynamic = model.rope_scaling.kind == RopeScaling::Kind::dynamic;
  return dynamic ? model.max_seq_len : model.longest_sequence();
}

GeneratorCapacity find_room(const GenerateOptions& options, const ModelConfig& model,
                            const GenerationRequest& request) {
  for (int64_t layer = 0; options.cache.kind != CachePolicy::Kind::full && layer < model.n_layers; ++layer) {
    if (model.window_of_layer(layer) > 0)
      refuse_command_line("--cache: the model's own sliding window leaves keys out");
  }
  GeneratorCapacity room;
  room.vocabulary_rows = model.vocab_size;
  room.sequences = options.beams.beams * std::min<int64_t>(sequences_at_once, std::ssize(request.prompts));
  // The model does not read the last new token.
  const int64_t most = longest_text(model);
  room.context = std::min(most + 1, longest_prompt(request, most) + options.max_new_tokens);
  room.prompt_tokens = prompt_tokens_of_pass;
  room.policy = options.cache;
  room.kv_heads = model.n_kv_heads;
  room.graphs = model.experts.count == 0;
  return room;
}

void generate(const GenerateOptions& options) {
  LoadedModel loaded(options.model);
  loaded.require_logits();
  GenerationRequest request = make_request(options, loaded);
  const GeneratorCapacity room = find_room(options, loaded.config(), request);
  Generator generator(loaded.model(), room);
  const auto plan = [&](Arena& arena) {
    loaded.model().plan(arena, {loaded.compute(), generator.rows(), false, Recompute::none, room.context});
    generator.plan(arena, loaded.compute());
  };
  if (options.model.estimate) return loaded.print_estimate(plan);
  loaded.start(plan);

  const bool as_text = !options.ids && loaded.tokenizer() != nullptr;
  if (!as_text && !options.stop.empty()) loaded.required_tokenizer();
  std::vector<StopTextStream> texts;
  size_t shown = 0;
  const bool searches = options.beams.beams > 1;
  const bool streams = as_text && request.prompts.size() == 1 && !searches;
  if (loaded.tokenizer() != nullptr) {
    for (const auto& prompt : request.prompts) texts.emplace_back(*loaded.tokenizer(), prompt, options.stop);
    if (!searches && (as_text || !options.stop.empty())) {
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
  if (!streams) request.what = "generating";
  const std::vector<Continuation> all = generator.run(loaded.params(), loaded.arena(), loaded.stream(), request);
  for (size_t p = 0; searches && p < texts.size(); ++p) {
    for (const int32_t token : all[p].tokens) texts[p].add(token);
  }
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
                             all.size(), longest_text(loaded.config()));
  }
}

void add_sampling(CLI::App& app, GenerateOptions& o) {
  app.add_flag("--greedy", o.greedy, "always take the most probable token");
  app.add_option("--temperature", o.temperature, "divisor of the logits; 0 is greedy")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--top-k", o.top_k, "keep the k most probable tokens; 0 = all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--top-p", o.top_p, "keep the most probable tokens that reach p together; 1 = all")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--min-p", o.min_p, "keep tokens at least p times as probable as the most probable one")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--repetition-penalty", o.repetition_penalty,
                 "above 1: make tokens that have already occurred less probable")
      ->check(CLI::Range(1e-3, 1e3))
      ->capture_default_str();
  app.add_option("--no-repeat-ngram", o.no_repeat_ngram, "never write a sequence of this many tokens twice; 0 = off")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--beams", o.beams.beams, "search with this many beams instead of sampling")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 10))
      ->capture_default_str();
  app.add_option("--length-penalty", o.beams.length_penalty, "above 0 favours longer texts among beams")
      ->check(CLI::Range(-100.0, 100.0))
      ->capture_default_str();
}

void add_cache(CLI::App& app, CachePolicy& cache) {
  app.add_option("--cache", cache.kind,
                 "keys that are kept: full, h2o (those with most attention and the last "
                 "ones) or window (the first and the last ones)")
      ->transform(CLI::CheckedTransformer(std::map<std::string, CachePolicy::Kind>{
          {"full", CachePolicy::Kind::full}, {"h2o", CachePolicy::Kind::h2o}, {"window", CachePolicy::Kind::window}}))
      ->default_str("full");
  app.add_option("--h2o-heavy", cache.heavy,
                 "number of keys kept for most attention; below 1: a fraction of the prompt")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  app.add_option("--h2o-recent", cache.recent,
                 "number of last keys that are kept as well; below 1: a fraction of the prompt")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  app.add_option("--window", cache.window, "number of last keys that --cache window keeps")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  app.add_option("--sinks", cache.sinks, "number of first keys that --cache window keeps")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24))
      ->capture_default_str();
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
  add_sampling(*app, *o);
  add_cache(*app, o->cache);
  app->add_option("--stop", o->stop, "text that ends the continuation; repeatable");
  app->add_option("--seed", o->seed, "seed of the sampling")->capture_default_str();
  app->add_flag("--ids", o->ids, "print token ids, a line per prompt");
  app->add_flag("--no-special-tokens", o->no_special_tokens, "do not add BOS and similar tokens to a prompt");
  app->add_flag("--ignore-eos", o->ignore_eos, "continue after an end of text");
  return {app, [o] { generate(*o); }};
}

}  // namespace llmtrain
