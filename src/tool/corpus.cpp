// llmtool corpus: writes the built-in example corpus.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/deck/suggestion.hpp"
#include "corpus/questions.hpp"
#include "corpus/stories.hpp"
#include "tool/output_file.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace {

constexpr std::array<std::string_view, 4> corpora = {"stories", "questions", "preferences", "labels"};

struct CorpusOptions {
  std::string corpus;
  std::string bytes = "8M";
  std::string seed = "1";
  std::string output;
  bool force = false;
};

using Row = nlohmann::ordered_json;

void write_row(OutputFile& output, const Row& row) { output.write(row.dump() + "\n"); }

std::ostream& console_beside(const OutputFile& output) { return output.is_standard_output() ? std::cerr : std::cout; }

/// Rows {"prompt", "completion"}.
void write_question_rows(uint64_t seed, int64_t bytes, OutputFile& output) {
  const int64_t count = write_questions(seed, bytes, [&](std::string_view prompt, std::string_view completion) {
    write_row(output, {{"prompt", prompt}, {"completion", completion}});
  });
  output.finish();
  console_beside(output) << fmt::format("questions: {} about stories, rows of prompt and completion\n", count);
}

/// Rows {"prompt", "chosen", "rejected"}.
void write_preference_rows(uint64_t seed, int64_t bytes, OutputFile& output) {
  const int64_t count =
      write_preferences(seed, bytes, [&](std::string_view prompt, std::string_view chosen, std::string_view rejected) {
        write_row(output, {{"prompt", prompt}, {"chosen", chosen}, {"rejected", rejected}});
      });
  output.finish();
  console_beside(output) << fmt::format(
      "preferences: {} pairs of endings of stories, of which the happy one is chosen\n", count);
}

/// Rows {"prompt", "completion", "label"}: of each pair the chosen answer or the rejected one in turn.
void write_label_rows(uint64_t seed, int64_t bytes, OutputFile& output) {
  bool wanted = false;
  const int64_t count =
      write_preferences(seed, bytes, [&](std::string_view prompt, std::string_view chosen, std::string_view rejected) {
        wanted = !wanted;
        write_row(output, {{"prompt", prompt}, {"completion", wanted ? chosen : rejected}, {"label", wanted}});
      });
  output.finish();
  console_beside(output) << fmt::format("labels: {} endings of stories, wanted if they are happy\n", count);
}

void write_corpus(const CorpusOptions& options) {
  if (std::ranges::find(corpora, options.corpus) == corpora.end()) {
    refuse_command_line(fmt::format("no such corpus '{}'{}", options.corpus, did_you_mean(options.corpus, corpora)));
  }
  const auto smallest = static_cast<double>(longest_story) + static_cast<double>(story_separator.size());
  const int64_t bytes = parse_count_option("--bytes", options.bytes, at_least(smallest));
  const int64_t seed = parse_count_option("--seed", options.seed, at_least(0));

  OutputFile output(options.output, options.force);
  output.expect(bytes);
  if (options.corpus == corpora[1]) return write_question_rows(static_cast<uint64_t>(seed), bytes, output);
  if (options.corpus == corpora[2]) return write_preference_rows(static_cast<uint64_t>(seed), bytes, output);
  if (options.corpus == corpora[3]) return write_label_rows(static_cast<uint64_t>(seed), bytes, output);
  const StoriesSummary summary =
      write_stories(static_cast<uint64_t>(seed), bytes, [&](std::string_view text) { output.write(text); });
  output.finish();

  const StoriesOptimum optimum = stories_optimum();
  console_beside(output) << fmt::format("entropy: {:.6f} nats per character, {:.6f} nats per story\n",
                                        optimum.nats_per_character, optimum.nats_per_story)
                         << "         (also the lowest mean loss: first character given, end of story predicted)\n"
                         << fmt::format("stories: {}, {:.1f} characters each, a blank line after each, {} bytes\n",
                                        summary.stories, optimum.characters_per_story, summary.bytes);
}

}  // namespace

Subcommand add_corpus(CLI::App& program) {
  CLI::App* app = program.add_subcommand("corpus", "write the built-in example corpus, whose entropy is known exactly");
  const auto options = std::make_shared<CorpusOptions>();
  app->add_option(
         "name", options->corpus,
         "name of the corpus; stories: short English stories; questions: rows of questions about "
         "stories and their answers, for run.task = sft; preferences: pairs of endings, of which the happy one "
         "is chosen, for run.task = dpo; labels: endings with a label, for dpo.loss = kto")
      ->required();
  app->add_option("--bytes", options->bytes, "maximum size, in whole stories, questions or pairs (K M G, KiB MiB GiB)")
      ->capture_default_str();
  app->add_option("--seed", options->seed, "seed of the stories")->capture_default_str();
  app->add_option("--output", options->output, "output file; - is the standard output")->required();
  app->add_flag("--force", options->force, "overwrite the file");
  return {app, [options] { write_corpus(*options); }};
}

}  // namespace llmtrain
