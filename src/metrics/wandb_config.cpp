#include "metrics/wandb_config.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/deck/deck.hpp"
#include "core/error.hpp"

namespace llmtrain {
namespace {

/// Codec of a project that the service takes.
struct ProjectCodec : DeckValue<std::string> {
  static std::string parse(std::string_view text, const KeyInfo& info) {
    std::string name = DeckValue<std::string>::parse(text, info);
    if (name.find_first_of("/\\#?%:") == std::string::npos) return name;
    throw UserError(ExitCode::deck, fmt::format("'{}' cannot name a project: / \\ # ? % : are not allowed", text));
  }
};

/// Codec of tags of at most 64 characters.
struct TagsCodec : DeckValue<std::vector<std::string>> {
  static std::vector<std::string> parse(std::string_view text, const KeyInfo& info) {
    std::vector<std::string> tags = DeckValue<std::vector<std::string>>::parse(text, info);
    for (const std::string& tag : tags) {
      const auto continued = [](unsigned char c) { return (c & 0xC0u) == 0x80; };
      if (std::ssize(tag) - std::ranges::count_if(tag, continued) <= 64) continue;
      throw UserError(ExitCode::deck, fmt::format("the tag '{}' has more than 64 characters", tag));
    }
    return tags;
  }
};

}  // namespace

void WandbConfig::visit(DeckKeys& keys) {
  keys.section("wandb", "Name the offline run that the sink wandb of log.sinks writes.", Change::nothing, sample_tasks,
               true);
  keys.key<ProjectCodec>("project", project, {.doc = "Project of the run; without / \\ # ? % and :."});
  keys.key("name", name, {.doc = "Name of the run; empty: run.name."});
  keys.key("entity", entity, {.doc = "User or team; empty: that of the account that syncs."});
  keys.key<TagsCodec>("tags", tags, {.doc = "Tags of the run, of at most 64 characters."});
  keys.key("group", group, {.doc = "Group of runs, for example the seeds of one experiment."});
}

}  // namespace llmtrain
