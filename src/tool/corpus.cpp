// llmtool corpus: writes the built-in example corpus.

#include <fmt/format.h>

#include <array>
#include <iostream>
#include <memory>

#include "core/deck/suggestion.hpp"
#include "corpus/stories.hpp"
#include "tool/output_file.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace {

constexpr std::array<std::string_view, 1> corpora = {"stories"};

struct CorpusOptions {
  std::string corpus;
  std::string bytes = "8M";
  std::string seed = "1";
  std::string output;
  bool force = false;
};

void write_corpus(const CorpusOptions& options) {
  if (options.corpus != corpora[0]) {
    refuse_command_line(fmt::format("no such corpus '{}'{}", options.corpus, did_you_mean(options.corpus, corpora)));
  }
  const auto smallest = static_cast<double>(longest_story) + static_cast<double>(story_separator.size());
  const int64_t bytes = parse_count_option("--bytes", options.bytes, at_least(smallest));
  const int64_t seed = parse_count_option("--seed", options.seed, at_least(0));

  OutputFile output(options.output, options.force);
  const StoriesSummary summary =
      write_stories(static_cast<uint64_t>(seed), bytes, [&](std::string_view text) { output.write(text); });
  output.finish();

  const StoriesOptimum optimum = stories_optimum();
  std::ostream& console = output.is_standard_output() ? std::cerr : std::cout;
  console << fmt::format("entropy: {:.6f} nats per character, {:.6f} nats per story\n", optimum.nats_per_character,
                         optimum.nats_per_story)
          << "         (also the lowest mean loss: first character given, end of story predicted)\n"
          << fmt::format("stories: {}, {:.1f} characters each, a blank line after each, {} bytes\n", summary.stories,
                         optimum.characters_per_story, summary.bytes);
}

}  // namespace

Subcommand add_corpus(CLI::App& program) {
  CLI::App* app = program.add_subcommand("corpus", "write the built-in example corpus, whose entropy is known exactly");
  const auto options = std::make_shared<CorpusOptions>();
  app->add_option("name", options->corpus, "name of the corpus; stories: short English stories")->required();
  app->add_option("--bytes", options->bytes, "maximum size, in whole stories (K M G, KiB MiB GiB)")
      ->capture_default_str();
  app->add_option("--seed", options->seed, "seed of the stories")->capture_default_str();
  app->add_option("--output", options->output, "output file; - is the standard output")->required();
  app->add_flag("--force", options->force, "overwrite the file");
  return {app, [options] { write_corpus(*options); }};
}

}  // namespace llmtrain
