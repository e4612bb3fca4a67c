#include "methods/reward_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "data/files/data_sources.hpp"
#include "data/files/document_reader.hpp"
#include "data/files/input_kind.hpp"
#include "data/files/jsonl.hpp"
#include "data/formats/row_format.hpp"
#include "methods/method.hpp"
#include "rewards/reward_function.hpp"

namespace llmtrain {

namespace {

/// Prompts of a row and its other columns; the place is "file:line".
struct PromptRow {
  std::string place, prompt, columns;
};

/// Calls `visit` for each row until it returns false. Returns false then.
bool visit_rows(const InputFile& file, const std::function<bool(const PromptRow&)>& visit) {
  if (file.kind == InputKind::tokens) {
    const std::shared_ptr<const TokenFile> tokens = open_token_file(file.path);
    for (int64_t d = 0; d < tokens->info().documents; ++d) {
      report_progress();
      if (!visit({fmt::format("{}, prompt {}", file.path, d + 1), "", StoredRow::parse(tokens->row_text(d)).columns}))
        return false;
    }
    return true;
  }
  const RowReader rows("prompt", file.format.columns, true);
  DocumentReader reader(file, max_row_limit);
  for (DocumentSegment segment; reader.next(segment);) {
    if (is_blank(segment.text)) continue;
    report_progress();
    const std::string place = fmt::format("{}:{}", file.path, segment.line);
    PromptRow row{place, "", ""};
    try {
      const RowDocuments documents = rows.read_documents(segment.text);
      row.columns = documents.columns.value_or("{}");
      row.prompt = texts_of(documents);
    } catch (const UserError& error) {
      throw UserError(error.code(), place + ": " + error.what());
    }
    if (!visit(row)) return false;
  }
  return true;
}

void visit_prompts(const Config& config, const std::function<bool(const PromptRow&)>& visit) {
  std::vector<std::string> patterns;
  for (const WeightedPattern& entry : split_weights(config.data.train)) patterns.push_back(entry.pattern);
  const std::vector<InputFile> files = find_input_files(patterns, sample_rules(config).text_format());
  for (const InputFile& file : files) {
    if (!visit_rows(file, visit)) return;
  }
}

}  // namespace

void check_columns_of_rows(const Config& config) {
  std::vector<RewardSpec> specs = config.rewards.specs();
  std::erase_if(specs, [](const RewardSpec& spec) { return spec.column().empty(); });
  if (specs.empty()) return;
  visit_prompts(config, [&](const PromptRow& row) {
    for (const RewardSpec& spec : specs) {
      try {
        check_reward_columns(spec, row.columns);
      } catch (const UserError& error) {
        throw UserError(error.code(), row.place + ": " + error.what());
      }
    }
    return true;
  });
}

void try_reward_programs(const Config& config) {
  std::vector<RewardSpec> specs = config.rewards.specs();
  std::erase_if(specs, [](const RewardSpec& spec) { return spec.kind != RewardSpec::Kind::command; });
  if (specs.empty()) return;
  visit_prompts(config, [&](const PromptRow& first) {
    RewardRow row;
    row.prompt = first.prompt;
    row.columns = first.columns;
    double reward = 0;
    for (const RewardSpec& spec : specs) {
      make_reward_function(spec, config.rewards.time_limit)->score({&row, 1}, {&reward, 1}, [] {});
    }
    return false;
  });
}

}  // namespace llmtrain
