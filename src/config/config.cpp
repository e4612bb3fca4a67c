#include "config/config.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace llmtrain {

std::string too_few_rows(int64_t rows, int64_t vocabulary) {
  return fmt::format("{} is too small: the tokenizer has {} tokens, and the embedding needs a row for each", rows,
                     vocabulary);
}

void Config::visit(DeckKeys& keys) {  // in the order in which a user meets them
  run.visit(keys);
  model.visit(keys);
  lora.visit(keys);
  freeze.visit(keys);
  quantization.visit(keys);
  objective.visit(keys);
  distill.visit(keys);
  dpo.visit(keys);
  reward.visit(keys);
  classify.visit(keys);
  ppo.visit(keys);
  grpo.visit(keys);
  rewards.visit(keys);
  rollout.visit(keys);
  generate.visit(keys);
  data.visit(keys);
  chat.visit(keys);
  batch.visit(keys);
  curriculum.visit(keys);
  optimizer.visit(keys);
  schedule.visit(keys);
  precision.visit(keys);
  parallel.visit(keys);
  memory.visit(keys);
  evaluation.visit(keys);
  log.visit(keys);
  wandb.visit(keys);
  dashboard.visit(keys);
  checkpoint.visit(keys);
  divergence.visit(keys);
  watchdog.visit(keys);
}

std::string read_deck_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw UserError(ExitCode::missing_input, fmt::format("{}: {}: give the path of a deck (.ini; inputs/ has examples)",
                                                         path, std::strerror(errno)));
  std::string text(max_deck_bytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (file.fail() && !file.eof())) {
    throw UserError(ExitCode::missing_input, fmt::format("{}: cannot be read (is it a folder?)", path));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > max_deck_bytes) {
    throw UserError(ExitCode::deck, fmt::format("{}: a deck has at most 1 MiB; is this the right file?", path));
  }
  return text;
}

std::string write_deck(const Config& config) {
  Config copy = config;  // the keys refer to non-const fields
  DeckKeys keys;
  copy.visit(keys);
  return write_deck(keys, config.provenance, "Resolved deck: every key, with the origin of its value.");
}

std::vector<DeckSetting> deck_settings(const Config& config) {
  Config copy = config, defaults;
  DeckKeys keys, default_keys;
  copy.visit(keys);
  defaults.visit(default_keys);
  std::vector<DeckSetting> settings;
  for (size_t i = 0; i < keys.keys().size(); ++i) {
    const DeckKeys::Key& key = keys.keys()[i];
    if (config.provenance.at(key.full_name()).origin == Origin::unused) continue;
    const std::string value = key.print();
    const bool changed = key.change != Change::nothing && value != default_keys.keys()[i].print();
    settings.push_back({std::string(key.section), std::string(key.name), value, changed});
  }
  return settings;
}

std::string help_text(std::string_view topic) {
  DeckKeys keys;
  Config defaults;
  defaults.visit(keys);
  return deck_help(keys, topic);
}

std::string deck_manual() {
  DeckKeys keys;
  Config defaults;
  defaults.visit(keys);
  return deck_manual(keys);
}

}  // namespace llmtrain
