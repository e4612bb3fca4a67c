// llmtool logprobs: computes the log-probabilities of rows of token ids.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/files/jsonl.hpp"
#include "text/tokens_beyond_embedding.hpp"
#include "tool/row_scorer.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace {

constexpr int64_t longest_line = int64_t{16} << 20;  ///< bytes

std::vector<int32_t> parse_row(std::string_view line, int64_t number, const LoadedModel& model) {
  const auto refuse = [&](const std::string& what) -> UserError {
    return {ExitCode::bad_content, fmt::format("standard input:{}: {}", number, what)};
  };
  TokenRow row;
  try {
    parse_token_row(line, row);
  } catch (const RowError& error) {
    throw refuse(error.what());
  }
  const std::vector<int32_t>& ids = row.ids;
  if (ids.empty()) throw refuse("input_ids is empty");
  const int64_t most = model.config().longest_sequence();
  if (static_cast<int64_t>(ids.size()) > most) {
    throw refuse(fmt::format("{} ids are more than the model's context of {}", ids.size(), most));
  }
  const auto wrong = std::ranges::find_if(ids, [&](int32_t id) { return id >= model.vocabulary(); });
  if (wrong != ids.end()) {
    throw refuse(fmt::format("input_ids[{}]: {}", wrong - ids.begin(),
                             missing_row(model.tokenizer(), *wrong, model.vocabulary())));
  }
  return std::move(row.ids);
}

/// Log-probabilities of every id but the first.
std::vector<float> score_of(RowScorer& scorer, const std::vector<int32_t>& ids) {
  HostBatch row = RowScorer::batch_of(ids);
  std::copy(ids.begin() + 1, ids.end(), row.targets.begin());
  row.loss_weights.assign(ids.size(), 1.0F);
  std::vector<float> values = scorer.score(row, ProductRole::training);
  values.pop_back();
  return values;
}

/// Returns false at the end. A line of any length takes bounded memory.
bool read_line(std::streambuf& in, std::string& line, int64_t number) {
  constexpr int end_of_file = std::streambuf::traits_type::eof();
  line.clear();
  int c = in.sbumpc();
  if (c == end_of_file) return false;
  for (; c != end_of_file && c != '\n'; c = in.sbumpc()) {
    if (std::ssize(line) == longest_line) {
      throw UserError(
          ExitCode::bad_content,
          fmt::format("standard input:{}: the line is longer than {} MiB, which is more ids than any context has",
                      number, longest_line >> 20));
    }
    line += static_cast<char>(c);
  }
  return true;
}

void print_row(const std::vector<float>& values, int64_t number) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  out["logprobs"] = values;
  double sum = 0;
  for (const float value : values) sum += double{value};
  if (!std::isfinite(sum)) {
    throw UserError(ExitCode::diverged, "standard input:" + std::to_string(number) +
                                            ": a log-probability is not finite: the model's weights are "
                                            "damaged, or overflow in this --compute");
  }
  out["sum"] = sum;
  std::cout << out.dump() << std::endl;  // flushed at once for programs that wait for the answer
}

void logprobs(const ModelOptions& options) {
  RowScorer scorer(options);
  scorer.model().require_logits();
  std::string text;
  for (int64_t number = 1; read_line(*std::cin.rdbuf(), text, number); ++number) {
    std::string_view line = text;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (is_blank(line)) continue;
    const std::vector<int32_t> ids = parse_row(line, number, scorer.model());
    if (options.estimate) {
      scorer.needs_room(std::ssize(ids));
    } else {
      print_row(score_of(scorer, ids), number);
    }
  }
  if (!options.estimate) return;
  if (scorer.needs_room(1))
    print_warnings({fmt::format("standard input has no rows: the estimate is for at most {} tokens", scorer.room())});
  scorer.print_estimate();
}

}  // namespace

Subcommand add_logprobs(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "logprobs",
      "compute log-probabilities (nats) of token ids: {\"input_ids\": [...]} lines in, {\"logprobs\": [...], "
      "\"sum\": x} lines out, with one entry fewer than ids");
  const auto options = std::make_shared<ModelOptions>();
  options->add_to(*app);
  return {app, [options] { logprobs(*options); }};
}

}  // namespace llmtrain
