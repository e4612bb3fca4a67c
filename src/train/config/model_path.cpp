#include "train/config/model_path.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/checkpoint_reader.hpp"
#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "core/files/folder_handle.hpp"
#include "core/files/json_reader.hpp"
#include "data/tokenize/open_tokenizer.hpp"
#include "hf/adapters/adapter_files.hpp"
#include "hf/config/config_json.hpp"
#include "hf/model_folder.hpp"
#include "hf/weights/load_weights.hpp"
#include "models/models.hpp"
#include "parallel/message.hpp"
#include "text/load_tokenizer.hpp"
#include "train/checkpoint_model.hpp"
#include "train/config/load_config.hpp"

namespace llmtrain {

namespace {

namespace fs = std::filesystem;
using Facts = ModelFolders::Facts;

constexpr std::string_view key = "model.path", adapter_key = "lora.path";

Config recorded_config(const std::string& checkpoint, const std::string& deck) {
  return load_config(deck, checkpoint + "/manifest.json: deck", {}, DeckFiles::recorded);
}

Facts facts_of_checkpoint(const std::string& checkpoint) {
  Facts facts;
  facts.config = read_manifest(checkpoint).deck;
  facts.checkpoint = checkpoint;
  const ModelConfig model = recorded_config(checkpoint, facts.config).model;
  facts.tokens = model.vocab_size;
  if (!has_tokenizer(FolderHandle::open(checkpoint))) return facts;
  facts.tokenizer_path = checkpoint;
  if (model.path.empty()) facts.tokens = std::min(facts.tokens, load_tokenizer(checkpoint)->vocabulary_size());
  return facts;
}

/// Finds the newest checkpoint of a run that started from a model, without reading its weights.
std::optional<Facts> facts_without_model(const std::vector<std::string>& runs) {
  for (const std::string& run : runs) {
    std::vector<std::string> checkpoints = {run};
    for (const int64_t step : published_steps(run + "/checkpoints")) {
      checkpoints.push_back(run + "/checkpoints/" + checkpoint_name(step));
    }
    for (const std::string& checkpoint : checkpoints) {
      try {
        Facts facts = facts_of_checkpoint(checkpoint);
        facts.gone = true;
        if (!recorded_config(checkpoint, facts.config).model.path.empty()) return facts;
      } catch (const UserError&) {  // another may be valid; resuming from this one will report its error
      }
    }
  }
  return std::nullopt;
}

/// Copies the configuration of a checkpoint's run, except for keys that the deck sets; and its tokenizer, if that was
/// in the model's folder too.
ModelConfig take_recorded(DeckLoader& deck, Config& config, const Facts& facts) {
  const Config recorded = recorded_config(facts.checkpoint, facts.config);
  ModelConfig model = recorded.model;
  model.path = config.model.path;
  if (!facts.gone) {
    config.source.checkpoint = facts.checkpoint;
    config.source.tokens = facts.tokens;
    if (recorded.run.finetuning == RunConfig::Finetuning::lora) config.source.lora = recorded.lora;
    config.source.quantization = recorded.quantization;
    return model;
  }
  config.source.fallback_checkpoint = facts.checkpoint;
  if (recorded.data.tokenizer != config.data.tokenizer) config.data.take_tokenizer(deck, recorded.data.tokenizer);
  std::error_code ignored;
  const bool same = config.data.tokenizer == recorded.data.tokenizer;
  if (same && names_tokenizer_files(config.data.tokenizer) && !fs::exists(config.data.tokenizer, ignored)) {
    config.source.tokenizer_from = facts.tokenizer_path;
  }
  return model;
}

/// Returns model_max_length of tokenizer_config.json, or 0 if it does not limit a text: Transformers writes about 1e30
/// for "no limit". Whoever reads the tokenizer reports errors of the file.
int64_t tokenizer_limit_of(const FolderHandle& folder) {
  constexpr double largest = 1 << 24;
  constexpr JsonLimits limits{int64_t{1} << 26, int64_t{1} << 20};
  try {
    if (!folder.has("tokenizer_config.json")) return 0;
    const nlohmann::json settings = read_json(folder.open_to_read("tokenizer_config.json"), limits);
    const auto found = settings.find("model_max_length");
    const double limit = found != settings.end() && found->is_number() ? found->get<double>() : 0;
    return limit >= 1 && limit <= largest ? static_cast<int64_t>(limit) : 0;
  } catch (const UserError&) {
    return 0;
  }
}

}  // namespace

const Facts& ModelFolders::find(const std::string& folder, const std::vector<std::string>& runs) {
  const auto known = known_.find(folder);
  if (known != known_.end()) return known->second;
  Facts facts;
  std::error_code ignored;
  const std::string checkpoint = CheckpointModel::find(folder);
  std::optional<Facts> others;
  if (!fs::exists(folder, ignored)) others = facts_without_model(runs);
  if (others) {
    facts = *others;
  } else if (!checkpoint.empty()) {
    facts = facts_of_checkpoint(checkpoint);
  } else {
    const FolderHandle handle = FolderHandle::open(folder);
    facts.config = read_hf_config(handle);
    // A name with a separator is a path even if it does not exist.
    if (has_tokenizer(handle)) facts.tokenizer_path = tokenizer_of_model(folder);
    facts.tokens = tokenizer_limit_of(handle);
  }
  return known_.emplace(folder, std::move(facts)).first->second;
}

ModelFolders::Adapter& ModelFolders::find_adapter(const std::string& folder) {
  const auto known = adapters_.find(folder);
  return known != adapters_.end() ? known->second
                                  : adapters_.emplace(folder, Adapter{read_adapter_config(folder), {}}).first->second;
}

std::string tokenizer_of_model(const std::string& folder) {
  return folder.find('/') == std::string::npos ? "./" + folder : folder;
}

const ModelFolders::GrownTokenizer& ModelFolders::grow(const std::string& path, const std::vector<std::string>& added) {
  const auto known = grown_.find(path);
  if (known != grown_.end()) return known->second;
  const std::unique_ptr<Tokenizer> before = open_tokenizer(path);
  GrownTokenizer grown{with_added_tokens(*before, added)->vocabulary_size(), tokens_known_to(*before, added)};
  return grown_.emplace(path, std::move(grown)).first->second;
}

std::string ModelFolders::packed() const {
  Message message;
  message.put(std::vector<uint64_t>{known_.size()});
  for (const auto& [folder, facts] : known_) {
    for (const std::string& text : {folder, facts.config, facts.tokenizer_path, facts.checkpoint}) message.put(text);
    message.put(std::vector<int64_t>{facts.tokens, facts.gone ? 1 : 0});
  }
  message.put(std::vector<uint64_t>{grown_.size()});
  for (const auto& [path, grown] : grown_) {
    message.put(path);
    message.put(std::vector<int64_t>{grown.tokens, std::ssize(grown.known)});
    for (const std::string& token : grown.known) message.put(token);
  }
  message.put(std::vector<uint64_t>{adapters_.size()});
  for (const auto& [folder, adapter] : adapters_) {
    const FoundTables tables = adapter.tables.value_or(FoundTables{});
    message.put(folder);
    message.put(adapter.config);
    message.put(std::vector<int64_t>{adapter.tables ? 1 : 0, tables.rows, std::ssize(tables.modules)});
    for (const std::string& module : tables.modules) message.put(module);
  }
  return message.bytes();
}

ModelFolders ModelFolders::unpacked(const std::string& bytes) {
  Message message(bytes);
  ModelFolders folders;
  std::vector<uint64_t> count;
  message.take(count);
  for (uint64_t i = 0; i < count.front(); ++i) {
    std::string folder;
    Facts facts;
    for (std::string* text : {&folder, &facts.config, &facts.tokenizer_path, &facts.checkpoint}) message.take(*text);
    std::vector<int64_t> numbers;
    message.take(numbers);
    facts.tokens = numbers.at(0);
    facts.gone = numbers.at(1) != 0;
    folders.known_.emplace(std::move(folder), std::move(facts));
  }
  std::vector<uint64_t> grown_count;
  message.take(grown_count);
  for (uint64_t i = 0; i < grown_count.front(); ++i) {
    std::string path;
    std::vector<int64_t> numbers;
    message.take(path);
    message.take(numbers);
    GrownTokenizer grown{numbers.at(0), std::vector<std::string>(static_cast<size_t>(numbers.at(1)))};
    for (std::string& token : grown.known) message.take(token);
    folders.grown_.emplace(std::move(path), std::move(grown));
  }
  message.take(count);
  for (uint64_t i = 0; i < count.back(); ++i) {
    std::string folder;
    message.take(folder);
    Adapter& adapter = folders.adapters_[folder];
    message.take(adapter.config);
    std::vector<int64_t> numbers;
    message.take(numbers);
    FoundTables tables{std::vector<std::string>(static_cast<size_t>(numbers.at(2))), numbers.at(1)};
    for (std::string& module : tables.modules) message.take(module);
    if (numbers.at(0) != 0) adapter.tables = std::move(tables);
  }
  return folders;
}

namespace {

/// Refuses a path inside the run's own folder, which the run would empty.
bool survives_overwrite(DeckLoader& deck, const Config& config, const TaskRules& task, std::string_view name,
                        const std::string& path) {
  if (!config.run.overwrite || !task.trains()) return true;
  std::error_code ignored;
  const fs::path own = fs::weakly_canonical(config.run.directory(), ignored);
  const fs::path inside = fs::weakly_canonical(path, ignored).lexically_relative(own);
  if (inside.empty() || *inside.begin() == "..") return true;
  deck.fail(name, path +
                      ": lies in the folder of this run, which run.overwrite=true empties. Choose another run.name, or "
                      "move it away");
  return false;
}

/// Kind of a model, for messages.
std::string kind_of(const ModelConfig& model) {
  return model.classifies() ? "a model of labels" : model.scores() ? "a reward model" : "a language model";
}

/// A model that scores keeps its head where it is trained or evaluated as such; a language model that becomes one gets
/// a new head, as does a reward model that learns labels.
void choose_head(DeckLoader& deck, Config& config, const TaskRules& task, HfConfig& found) {
  using Head = ModelConfig::Head;
  ModelConfig& model = found.model;
  const std::string& path = config.model.path;
  const std::optional<Head> wanted = task.head(config);
  if (!wanted) return;
  const bool labels = label_tasks.contains(task.task());
  if (*wanted != Head::language) {
    const bool other = model.scores() && (model.head != *wanted || (!labels && !model.labels.empty()));
    if (other) {
      deck.fail(key,
                fmt::format("{}/config.json: {}: {}", path,
                            model.head == Head::score ? "it has a head for texts" : "it has a head for tokens",
                            labels ? "set classify.kind to this, or start from a model without such a head"
                                   : fmt::format("num_labels: {}: a reward model has one label, so that its head has "
                                                 "one output",
                                                 model.outputs())),
                ExitCode::bad_content);
    }
    config.source.new_head = !model.scores();
    model.head = *wanted;
    if (!labels) model.problem = LabelProblem::single;
  } else if (model.scores() && !model.tie_embeddings) {
    deck.fail(key,
              fmt::format("{}: it is {}, which has no head for tokens; run.task = {} needs a language model", path,
                          kind_of(model), name_of(task.task())),
              ExitCode::bad_content);
  } else if (model.scores()) {
    deck.note(key, fmt::format("{}: it is {}, whose head is not used with run.task = {}", path, kind_of(model),
                               name_of(task.task())));
    model.head = Head::language;
    model.labels.clear();
  }
}

}  // namespace

std::optional<ModelConfig> load_model_path(DeckLoader& deck, Config& config, const TaskRules& task,
                                           ModelFolders& folders) {
  if (!deck.given(key) || !deck.sound({key})) return std::nullopt;
  const std::string& path = config.model.path;
  if (!survives_overwrite(deck, config, task, key, path)) return std::nullopt;
  std::vector<std::string> runs;
  if (task.trains() && !config.run.overwrite) {
    runs.push_back(config.run.directory());
    if (const std::string from = config.checkpoint.resume_path(); !from.empty()) runs.push_back(from);
  }
  try {
    const Facts& facts = folders.find(path, runs);
    if (!facts.gone && !facts.tokenizer_path.empty()) config.data.take_tokenizer(deck, facts.tokenizer_path);
    if (!facts.checkpoint.empty()) {
      if (!facts.gone && task.trains()) {
        throw UserError(ExitCode::deck, path +
                                            ": is a run or a checkpoint. Resume from it with checkpoint.resume = PATH, "
                                            "or export it to a folder for model.path with llmtool export");
      }
      return take_recorded(deck, config, facts);
    }
    HfConfig found = parse_hf_config(facts.config, path + "/config.json");
    for (const std::string& warning : found.warnings) deck.note(key, warning);
    config.source.quantization = found.quantization;
    choose_head(deck, config, task, found);
    return found.model;
  } catch (const UserError& error) {
    deck.fail(key, error.what(), error.code());
    return std::nullopt;
  }
}

namespace {

/// Loads the model of a role from a folder, and reports its errors at the role's key.
void load_role_folder(DeckLoader& deck, Config& config, ModelFolders& folders, const RoleFolderKey& role) {
  const std::string& path = role.path;
  if (!deck.sound({role.key, key})) return;
  try {
    const Facts& facts = folders.find(path, {});
    if (!facts.checkpoint.empty()) {
      throw UserError(ExitCode::deck, path + ": is a run or a checkpoint. Export it to a folder with llmtool export");
    }
    HfConfig found = parse_hf_config(facts.config, path + "/config.json");
    const bool scores = role.head == ModelConfig::Head::score;
    if (found.model.head != role.head || !found.model.labels.empty()) {
      throw UserError(ExitCode::deck,
                      path + (scores ? ": is not a reward model: its config.json must name a ForSequenceClassification "
                                       "class with one label (run.task = reward exports such a folder)"
                                     : ": is a reward model, which has no log-probabilities of tokens"));
    }
    if (!scores && role.same_vocabulary && config.model.vocab_size > 0 &&
        found.model.vocab_size != config.model.vocab_size) {
      throw UserError(ExitCode::deck, fmt::format("{}: has {} tokens, and model.path has {}: the reference must read "
                                                  "the same tokens",
                                                  path, found.model.vocab_size, config.model.vocab_size));
    }
    if (scores && role.reads_tokens && config.model.vocab_size > found.model.vocab_size) {
      throw UserError(ExitCode::deck, fmt::format("{}: has {} tokens, fewer than the {} that the policy can write",
                                                  path, found.model.vocab_size, config.model.vocab_size));
    }
    if (found.model.positions == ModelConfig::Positions::learned &&
        found.model.max_seq_len < config.batch.sequence_length) {
      throw UserError(ExitCode::deck, fmt::format("{}: reads {} tokens, fewer than batch.sequence_length = {}", path,
                                                  found.model.max_seq_len, config.batch.sequence_length));
    }
    found.model.path = path;
    config.source.*role.into = RoleFolder{std::move(found.model), found.quantization, facts.tokenizer_path};
  } catch (const UserError& error) {
    deck.fail(role.key, error.what(), error.code());
  }
}

}  // namespace

void load_role_folders(DeckLoader& deck, Config& config, const TaskRules& task, ModelFolders& folders) {
  for (const RoleFolderKey& role : task.role_folders(config)) load_role_folder(deck, config, folders, role);
}

void grow_vocabulary(DeckLoader& deck, Config& config, ModelFolders& folders, std::optional<ModelConfig>& loaded) {
  const std::string& path = config.tokenizer_path();
  if (config.data.add_tokens.empty() || !config.data.has_tokenizer_files() || !is_tokenizer_path(path)) return;
  if (!deck.sound({key, "data.tokenizer", "data.add_tokens"})) return;
  try {
    const ModelFolders::GrownTokenizer& grown = folders.grow(path, config.data.add_tokens);
    if (!grown.known.empty() && config.source.tokenizer_from.empty()) {
      deck.note("data.add_tokens", fmt::format("{} has {} already", path, joined(grown.known, ", ")));
    }
    if (!loaded || grown.tokens <= loaded->vocab_size) return;
    if (config.run.finetuning == RunConfig::Finetuning::lora) {
      return deck.fail(
          "data.add_tokens",
          "adapters are for the model as it is, whose embedding has no rows for these tokens: add them in a "
          "run with run.finetuning = full or freeze first, and give its export as model.path");
    }
    config.source.rows = loaded->vocab_size;
    loaded->vocab_size = grown.tokens;
  } catch (const UserError& error) {
    deck.fail("data.tokenizer", error.what(), error.code());
  }
}

void load_adapter_path(DeckLoader& deck, Config& config, const TaskRules& task, ModelFolders& folders) {
  const std::string& path = config.lora.path;
  if (!deck.given(adapter_key) || !deck.sound({adapter_key, key, "model.family", "model.n_layers"})) return;
  if (!config.source.checkpoint.empty()) {
    return deck.fail(adapter_key, "cannot be combined with a checkpoint in model.path: give the folder of the model");
  }
  if (!survives_overwrite(deck, config, task, adapter_key, path)) return;
  try {
    const std::string place = path + "/" + adapter_config_name;
    ModelFolders::Adapter& adapter = folders.find_adapter(path);
    AdapterConfig found = parse_adapter_config(adapter.config, place);
    std::vector<std::string> warnings = found.warnings;
    if (take_head(found, config.model)) config.source.new_head = true;
    const LoraPart part = choose_stored_adapters(found, config.model, place, warnings);
    if (!adapter.tables) {
      const DecoderShape shape = decoder_shape(config.model, config.model.vocab_size);
      adapter.tables = find_saved_tables(path, part, shape, config.model.path);
    }
    adapter.tables->use(found.lora, config.model);
    for (const std::string& warning : warnings) deck.note(adapter_key, warning);
    config.lora.take(deck, found.lora, config.model);
  } catch (const UserError& error) {
    deck.fail(adapter_key, error.what(), error.code());
  }
}

void examine_weights(DeckLoader& deck, const Config& config) {
  if (!deck.given(key) || !deck.sound({key})) return;
  if (!config.source.checkpoint.empty() || !config.source.fallback_checkpoint.empty())
    return;  // these are verified before use
  const ModelConfig& model = config.model;
  DecoderShape shape = decoder_shape(model, model.vocab_size);
  shape.stored_rows = config.source.rows;
  shape.new_head = config.source.new_head;
  const auto check = [&](std::string_view name, const auto& work) {
    try {
      work();
    } catch (const UserError& error) {
      deck.fail(name, error.what(), error.code());
    }
  };
  use_saved_tables(shape, config.lora);
  check(key, [&] { check_weights(model.path, shape, Decoder(shape).units()); });
  if (!deck.given(adapter_key) || !deck.sound({key, adapter_key})) return;
  check(adapter_key, [&] {
    const AdapterFolder adapter = AdapterFolder::open(config.lora.path, shape);
    LoraConfig lora = adapter.config.lora;
    lora.path = config.lora.path;
    lora.saved_embeddings = config.lora.saved_embeddings;
    adapt(shape, lora);
    match_adapter(adapter, shape, Decoder(shape).units());
  });
}

}  // namespace llmtrain
