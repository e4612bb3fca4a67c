// [lora] in a deck: what the adapter of a folder and the model determine of it.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/deck/deck.hpp"
#include "models/lora.hpp"
#include "models/models.hpp"

namespace llmtrain {

namespace {

/// Keys that the deck may change where a run goes on from an adapter.
constexpr std::array<std::string_view, 4> own_keys = {"path", "dropout", "init", "learning_rate_ratio"};

std::vector<std::string> sorted_items(const std::string& text) {
  std::vector<std::string> items;
  for (const std::string_view item : split_list(text)) items.emplace_back(item);
  std::ranges::sort(items);
  return items;
}

/// True if two configurations adapt and train the same in a model, such as all-linear and a list of all names.
bool same_choice(const LoraConfig& a, const LoraConfig& b, const ModelConfig& model) {
  const LoraPart mine = choose_adapters(a, model), theirs = choose_adapters(b, model);
  const auto same = [](const auto& m, const auto& t) {
    const AdapterShape &x = m.second, &y = t.second;
    return m.first == t.first && x.rank == y.rank && x.scale == y.scale && x.dora == y.dora;
  };
  return mine.errors.empty() && mine.trained == theirs.trained && mine.unties_head == theirs.unties_head &&
         std::ranges::equal(mine.modules, theirs.modules, same);
}

/// Sets a key to a text that it printed. Returns false if it is another value then.
bool takes(const DeckKeys::Key& key, const std::string& text) {
  try {
    key.parse(text);
    return key.print() == text;
  } catch (const UserError&) {
    return false;
  }
}

/// PEFT 0.21 adapts the experts of a layer as one matrix, which it makes of the files of some families. It drops
/// adapters of MLPs beside them.
void note_experts(DeckLoader& deck, const LoraPart& part, const ModelConfig& model) {
  using Family = ModelConfig::Family;
  constexpr std::array<Family, 3> loaded = {Family::mixtral, Family::olmoe, Family::qwen3_moe};
  if (!model.experts.exist()) return;
  const bool dense = model.latent.exist() || model.experts.layers(model.n_layers) < model.n_layers;
  const auto found = std::ranges::find_if(part.modules, [&](const auto& module) {
    return module.first.find(".experts.") != std::string::npos ||
           (dense && module.first.find(".mlp.") != std::string::npos);
  });
  if (found == part.modules.end()) return;
  const bool dora = found->second.dora;
  if (!dense && !dora && std::ranges::find(loaded, model.family) != loaded.end()) return;
  deck.note("lora.target_modules",
            fmt::format("PEFT 0.21 does not load all adapters of {}{}: for other programs write the merged model, with "
                        "checkpoint.export_merged = true or llmtool merge",
                        name_of(model.family), dora ? " with dora" : ""));
}

}  // namespace

void LoraConfig::take(DeckLoader& deck, const LoraConfig& found, const ModelConfig& model) {
  LoraConfig theirs = found;
  std::vector<std::pair<std::string, std::string>> different;  // key, value of the adapter
  DeckKeys mine, other;
  visit(mine);
  theirs.visit(other);
  for (const DeckKeys::Key& key : mine.keys()) {
    const std::string name = key.full_name(), value = other.find(name)->print();
    const bool given = deck.given(name);
    const bool own = std::ranges::find(own_keys, key.name) != own_keys.end();
    const bool ordered = key.name == "rank_pattern" || key.name == "alpha_pattern";  // the first match counts
    if (key.name == "path" || (given && own)) continue;
    if (!given) {
      if (!takes(key, value)) {
        return deck.fail("lora.path",
                         fmt::format("the {} of its adapter_config.json cannot be written in a deck, whose "
                                     "regular expressions have no commas and blanks: {}",
                                     key.name, value));
      }
      deck.set(name, Origin::automatic, "lora.path");
    } else if (deck.sound({name}) &&
               (ordered ? key.print() != value : sorted_items(key.print()) != sorted_items(value))) {
      different.emplace_back(name, value.empty() ? "none" : value);
    }
  }
  if (different.empty() || same_choice(*this, found, model)) return;
  for (const auto& [name, value] : different) {
    deck.fail(name, fmt::format("the adapter in lora.path has {}: give the same or remove the key", value));
  }
}

/// Runs from before this key existed trained the two as one.
void LoraConfig::resolve_tying(DeckLoader& deck, const ModelConfig& model, bool recorded) {
  const char* key = "lora.ensure_weight_tying";
  if (!deck.given(key) && path.empty() && !recorded) {
    LoraConfig untied = *this;
    untied.ensure_weight_tying = false;
    const DecoderNames names = nominal_shape(model).names;
    const LoraPart part = choose_adapters(untied, model);
    const bool targets = part.modules.contains(names.embedding) || part.modules.contains(names.head);
    ensure_weight_tying = !targets && !(part.trained.contains(names.embedding + ".weight") &&
                                        part.trained.contains(names.head + ".weight"));
    deck.set(key, Origin::automatic, "lora.modules_to_save");
  }
  if (!ensure_weight_tying || !model.ties_head()) return;
  const LoraPart part = choose_adapters(*this, model);
  if (!part.modules.contains(nominal_shape(model).names.head)) return;
  deck.fail(key,
            "adapters of an embedding and of the head that is tied to it cannot be trained as one here: set it to "
            "false, which trains an adapter of each that lora.target_modules names");
}

void LoraConfig::check_start(DeckLoader& deck, const LoraPart& part, const ModelConfig& model) const {
  if (!path.empty() || !starts_from_weights()) return;
  const std::string what = fmt::format("with lora.init = {}", name_of(init));
  deck.check(!model.path.empty(), {"lora.init", "model.path"},
             fmt::format("{} starts from trained matrices: give their folder as model.path", name_of(init)));
  deck.check(!dora, {"lora.dora"}, fmt::format("cannot be true {}: its magnitudes begin as norms of the model", what));
  const DecoderNames names = nominal_shape(model).names;
  deck.check(!part.modules.contains(names.embedding), {"lora.target_modules"},
             fmt::format("the embedding cannot be adapted {}: only linear layers start so", what));
  deck.check(!model.ties_head() || part.unties_head || !part.modules.contains(names.head), {"lora.target_modules"},
             fmt::format("the head cannot be adapted {}: its matrix is the embedding, which must stay", what));
}

void LoraConfig::drop_dropout(DeckLoader& deck, const std::string& why) {
  if (dropout != 0) deck.unused("lora.dropout", why);
  dropout = 0;
}

void LoraConfig::resolve(DeckLoader& deck, const ModelConfig& model, bool recorded) {
  if (!deck.given("lora.alpha") && path.empty()) {
    alpha = 2 * static_cast<double>(rank);
    deck.set("lora.alpha", Origin::automatic, "2 r");
  }
  if (!deck.sound({"model.path", "model.family", "model.n_layers", "model.n_experts", "lora.path", "lora.r",
                   "lora.alpha", "lora.target_modules", "lora.exclude_modules", "lora.modules_to_save",
                   "lora.layers_to_transform", "lora.layers_pattern", "lora.rank_pattern", "lora.alpha_pattern"})) {
    return;
  }
  for (const auto& [module, number] : rank_pattern) {
    if (number == std::floor(number)) continue;
    return deck.fail("lora.rank_pattern", fmt::format("{}:{} must be a whole number", module, print_number(number)));
  }
  if (path.empty() && !saved_embeddings.empty()) {
    return deck.fail("lora.saved_embeddings", "needs lora.path, in whose folder they lie");
  }
  resolve_tying(deck, model, recorded);
  const LoraPart part = choose_adapters(*this, model);
  check_start(deck, part, model);
  for (const auto& [key, what] : part.errors) deck.fail("lora." + key, what);
  for (const auto& [key, what] : part.notes) deck.note("lora." + key, what);
  if (part.errors.empty()) note_experts(deck, part, model);
}

}  // namespace llmtrain
